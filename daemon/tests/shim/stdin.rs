//! The child's stdin: every message once, complete and in order, whichever daemon sends it.

use baton_proto::worker::report::How;
use baton_proto::worker::{Stdin, to_shim};

use crate::shim_fixture::{ShimFixture, gate, shell};

#[test]
fn a_message_sent_by_two_daemons_is_written_once() {
    let mut shim = ShimFixture::run("cat");
    shim.wire.stdin(1, "one\n", false);
    assert_eq!(shim.wire.stdin_done().id, 1);
    shim.wire = shim.connect();
    assert_eq!(shim.wire.greet().stdin_done, 1);
    shim.wire.stdin(1, "one\n", false);
    shim.wire.stdin(2, "two\n", true);
    let done = shim.wire.stdin_done();
    assert_eq!((done.id, done.refused), (2, false));
    assert_eq!(shim.report().stdin_done, 2);
    assert_eq!(shim.whole_text(), "one\ntwo\n");
}

#[test]
fn a_half_written_message_is_finished_after_the_daemon_dies() {
    const LENGTH: usize = 1024 * 1024;
    let (_dir, gate) = gate();
    let mut shim = ShimFixture::run(&format!("read line < {}; wc -c", gate.display()));
    let message = to_shim::Message::Stdin(Stdin {
        id: 1,
        data: vec![b'x'; LENGTH].into(),
        close: true,
    });
    shim.wire.send(message.clone());
    shim.disconnect();
    shim.wire = shim.connect();
    assert_eq!(shim.wire.greet().stdin_done, 0);
    shim.wire.send(message);
    std::fs::write(gate, "go\n").unwrap();
    assert_eq!(shim.wire.stdin_done().id, 1);
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
    assert_eq!(shim.whole_text().trim(), LENGTH.to_string());
}

#[test]
fn input_before_the_launch_reaches_the_child_of_a_dead_daemon() {
    let mut shim = ShimFixture::start();
    shim.wire.stdin(1, "early\n", true);
    shim.wire.send(to_shim::Message::Launch(shell("cat")));
    shim.disconnect();
    assert!(shim.wait_for_exit().success());
    let report = shim.report_on_disk().unwrap();
    assert_eq!((report.how, report.stdin_done), (Some(How::ExitCode(0)), 1));
    assert_eq!(shim.whole_text(), "early\n");
}

#[test]
fn a_child_that_does_not_read_is_no_error() {
    let (_dir, gate) = gate();
    let script = format!("exec <&-; echo closed; read line < {}", gate.display());
    let mut shim = ShimFixture::run(&script);
    let mut transcript = shim.transcript(0);
    assert_eq!(transcript.line(&mut shim.wire), "closed");
    shim.wire.stdin(1, "this is not read\n", true);
    let done = shim.wire.stdin_done();
    assert_eq!((done.id, done.refused), (1, true));
    std::fs::write(gate, "go\n").unwrap();
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
}

#[test]
fn a_daemon_that_sends_too_much_stdin_is_disconnected() {
    let (_dir, gate) = gate();
    let mut shim = ShimFixture::run(&format!("read line < {}; wc -c", gate.display()));
    for id in 1..=5 {
        let data = vec![b'x'; 1024 * 1024].into();
        let close = false;
        shim.wire
            .send(to_shim::Message::Stdin(Stdin { id, data, close }));
    }
    while shim.wire.receive().is_some() {}
    shim.wire = shim.connect();
    assert_eq!(shim.wire.greet().stdin_done, 0);
    std::fs::write(gate, "go\n").unwrap();
    while shim.wire.stdin_done().id < 4 {}
    shim.wire.stdin(5, "end", true);
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
    let length = 4 * 1024 * 1024 + 3;
    assert_eq!(shim.whole_text().trim(), length.to_string());
}
