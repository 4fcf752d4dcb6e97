//! The output of a child is in the transcript, completely and once, whichever daemon reads it.

use baton_daemon::spool::{ChildPipe, ReadLimit};
use baton_proto::worker::report::How;

use crate::shim_fixture::{ShimFixture, files, gate, text_of};

#[test]
fn both_pipes_are_recorded_up_to_the_reported_end() {
    let mut shim = ShimFixture::run("echo out; echo err >&2; exit 7");
    let report = shim.report();
    assert_eq!(report.how, Some(How::ExitCode(7)));
    assert!(report.empty && !report.terminated && !report.killed);
    assert_eq!((report.transcript_end, report.lost_bytes), (8, 0));
    let chunks = shim.transcript(0).read(ReadLimit::Position(8));
    assert_eq!(text_of(&chunks, ChildPipe::Stdout), "out\n");
    assert_eq!(text_of(&chunks, ChildPipe::Stderr), "err\n");
    assert!(chunks.iter().all(|chunk| chunk.wall_ms > 1_600_000_000_000));
}

#[test]
fn output_has_no_gap_when_the_daemon_is_replaced() {
    const LINES: u64 = 20_000;
    let mut shim = ShimFixture::run(&format!("seq {LINES}; read line; seq {LINES} >&2"));
    let mut transcript = shim.transcript(0);
    let end = shim.wire.grown();
    transcript.read(ReadLimit::Position(end));
    shim.wire.consumed(transcript.position());
    shim.wire = shim.connect();
    let presence = shim.wire.greet();
    assert!(presence.transcript_end >= end);
    assert_eq!(presence.consumed, end);
    let mut later = shim.transcript(end);
    shim.wire.stdin(1, "go\n", true);
    let report = shim.report();
    later.read(ReadLimit::Position(report.transcript_end));
    transcript.text.append(&mut later.text);
    let expected: String = (1..=LINES).map(|number| format!("{number}\n")).collect();
    let seen = String::from_utf8(transcript.text).unwrap();
    assert!(seen == expected.repeat(2), "{} bytes", seen.len());
}

#[test]
fn a_child_without_a_daemon_goes_on_and_its_output_is_stored() {
    let (_dir, gate) = gate();
    let script = format!("echo first; read line < {}; echo second", gate.display());
    let mut shim = ShimFixture::run(&script);
    let mut transcript = shim.transcript(0);
    assert_eq!(transcript.line(&mut shim.wire), "first");
    shim.disconnect();
    std::fs::write(&gate, "go\n").unwrap();
    assert!(shim.wait_for_exit().success());
    let report = shim.report_on_disk().unwrap();
    assert_eq!(report.how, Some(How::ExitCode(0)));
    assert_eq!(shim.whole_text(), "first\nsecond\n");
}

const MIB: u64 = 1024 * 1024;
/// One more read may be running when a limit is reached.
const ONE_READ: u64 = 64 * 1024;

#[test]
fn a_child_waits_for_a_daemon_that_does_not_consume() {
    let mut shim = ShimFixture::run("head -c 20971520 /dev/zero; read line");
    let mut consumed = 0;
    while consumed < 20 * MIB {
        let end = shim.wire.grown();
        assert!(
            end <= consumed + 8 * MIB + ONE_READ,
            "{end} after {consumed}"
        );
        // The limit, or the end of the output.
        if end >= consumed + 8 * MIB || end == 20 * MIB {
            consumed = end;
            shim.wire.consumed(consumed);
        }
    }
    shim.wire.stdin(1, "go\n", true);
    let report = shim.report();
    assert_eq!(report.transcript_end, 20 * MIB);
    let left = files(&shim.path("spool")).len();
    assert!(left <= 1, "{left} segments of consumed output are left");
}

#[test]
fn a_child_without_a_daemon_is_paused_at_a_higher_limit() {
    let mut shim = ShimFixture::run("head -c 83886080 /dev/zero");
    let mut end = 0;
    // Between two daemons there is no connection.
    while end < 64 * MIB {
        shim.disconnect();
        shim.wire = shim.connect();
        let presence = shim.wire.greet();
        end = presence.transcript_end;
        std::thread::yield_now();
    }
    assert!(end <= 64 * MIB + ONE_READ, "{end}");
    while end < 80 * MIB {
        shim.wire.consumed(end);
        end = shim.wire.grown();
    }
    shim.wire.consumed(end);
    assert_eq!(shim.report().transcript_end, 80 * MIB);
}
