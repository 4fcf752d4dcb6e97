//! A full disk: no output is lost while it can still be stored, and the report is written in
//! any case.

use std::time::Duration;

use baton_daemon::spool::ReadLimit;
use baton_proto::worker::report::How;
use baton_proto::worker::{SpoolFailed, from_shim};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::shim_fixture::{ShimFixture, ShimWire, gate, greeting, shell};

fn spool_failed(wire: &mut ShimWire) -> SpoolFailed {
    wire.receive_until(|message| match message {
        from_shim::Message::SpoolFailed(failed) => Some(failed),
        _ => None,
    })
}

/// Limits the size of the shim's files to `bytes`; `None` lifts the limit.
fn limit(shim: &ShimFixture, bytes: Option<u64>) {
    let limits = Rlimit {
        current: bytes,
        maximum: None,
    };
    let limited = prlimit(Pid::from_raw(shim.pid()), Resource::Fsize, limits);
    limited.expect("a process of the same user");
}

#[test]
fn a_disk_that_refuses_for_a_while_loses_no_output() {
    let mut shim = ShimFixture::run("read line; seq 20000; echo end >&2");
    limit(&shim, Some(4096));
    shim.wire.stdin(1, "go\n", true);
    let failed = spool_failed(&mut shim.wire);
    assert_eq!(failed.errno, Errno::FBIG.raw_os_error());
    // A new daemon gets the failure too.
    shim.wire = shim.connect();
    assert_eq!(shim.wire.greet().spool_failed, Some(failed));
    limit(&shim, None);
    let report = shim.report();
    assert_eq!((report.how, report.lost_bytes), (Some(How::ExitCode(0)), 0));
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(shim.whole_text(), expected + "end\n");
}

#[test]
fn output_that_was_never_stored_is_counted_in_the_report() {
    let (_dir, gate) = gate();
    let script = format!(
        "read line; head -c 10000 /dev/zero; read line < {}",
        gate.display()
    );
    let mut shim = ShimFixture::run(&script);
    limit(&shim, Some(4096));
    shim.wire.stdin(1, "go\n", false);
    spool_failed(&mut shim.wire);
    // Opens once the child waits there and has written everything.
    let _gate = std::fs::File::create(&gate).expect("the child reads");
    shim.wire.stop(Duration::ZERO);
    let report = shim.report();
    assert!(report.empty);
    assert_eq!(report.transcript_end + report.lost_bytes, 10_000);
    assert!(report.lost_bytes > 0);
    let mut transcript = shim.transcript(0);
    transcript.read(ReadLimit::LastWholeRecord);
    assert_eq!(transcript.position(), report.transcript_end);
}

#[expect(
    clippy::print_stdout,
    reason = "whoever runs it should know what was not tested"
)]
/// A shim in its own file system of this `size`, and its answer to a greeting. `None` where
/// mounting is not allowed.
fn on_small_disk(size: &str, prepare: &str) -> Option<(ShimFixture, from_shim::Message)> {
    let mount = format!("mount -t tmpfs -o size={size},mode=700 tmpfs \"$PWD\"");
    let inner = format!("{mount} && cd \"$PWD\" && {{ {prepare} exec \"$0\" \"$@\"; }}");
    let outer = format!("exec unshare -m sh -c '{inner}' \"$0\" \"$@\"");
    let mut shim = ShimFixture::start_through(&outer);
    shim.wire.send(greeting(1, 1));
    match shim.wire.receive() {
        Some(answer) => Some((shim, answer)),
        None => {
            println!(
                "skipped: mounting is not allowed here; a file-size limit is tested all the same"
            );
            None
        }
    }
}

#[test]
fn a_full_file_system_pauses_the_child_until_there_is_space() {
    let Some((mut shim, _)) = on_small_disk("256k", "") else {
        return;
    };
    shim.share_view();
    std::fs::write(shim.path("ballast"), vec![1; 128 * 1024]).unwrap();
    shim.launch(shell("seq 40000"));
    assert_eq!(
        spool_failed(&mut shim.wire).errno,
        Errno::NOSPC.raw_os_error()
    );
    std::fs::remove_file(shim.path("ballast")).unwrap();
    // Space again, but not enough for everything: consumed output is not needed any more,
    // except for its segment.
    let grown = shim.wire.grown();
    assert!(grown > 0);
    shim.wire.stop(Duration::ZERO);
    let report = shim.report();
    assert!(report.empty && report.transcript_end >= grown);
    assert_eq!(shim.whole_text().len() as u64, report.transcript_end);
}

#[test]
fn an_end_on_a_full_file_system_is_reported_on_the_disk() {
    let Some((mut shim, _)) = on_small_disk("64k", "") else {
        return;
    };
    shim.share_view();
    shim.launch(shell("head -c 300000 /dev/zero"));
    spool_failed(&mut shim.wire);
    // No byte is free now.
    let filler = std::fs::write(shim.path("filler"), vec![1; 64 * 1024]);
    assert!(filler.is_err());
    shim.wire.stop(Duration::ZERO);
    let report = shim.report();
    assert!(report.empty && report.lost_bytes > 0);
}

#[test]
fn nothing_is_started_in_a_directory_without_space() {
    let fill = "head -c 100000 /dev/zero > filler;";
    let Some((mut shim, answer)) = on_small_disk("64k", fill) else {
        return;
    };
    let from_shim::Message::Report(report) = answer else {
        panic!("{answer:?}")
    };
    assert!(report.empty);
    let Some(How::NotStarted(why)) = report.how else {
        panic!("{report:?}")
    };
    assert_eq!(why.code, "worker_disk_full", "{}", why.message);
    assert!(!shim.wait_for_exit().success());
}
