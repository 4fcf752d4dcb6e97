//! Which processes a shim answers, and which it does not.

use std::path::Path;
use std::process::Command;

use baton_daemon::shim::SOCKET_FILE;
use baton_proto::worker::report::How;

use crate::shim_fixture::{ATTEMPT, ShimFixture, shell};

const PROGRAM: &str = env!("CARGO_BIN_EXE_shim-under-test");

/// Whether a process that this test starts gets an answer.
fn is_answered(socket: &Path, prepare: impl FnOnce(&mut Command)) -> bool {
    let mut command = Command::new(PROGRAM);
    command.env_clear().arg("knock").arg(socket);
    prepare(&mut command);
    command
        .status()
        .expect("the program can be started")
        .success()
}

#[test]
fn processes_of_the_attempt_cannot_connect_to_its_shim() {
    let mut shim = ShimFixture::start();
    let knock = format!("{PROGRAM} knock {}", shim.path(SOCKET_FILE).display());
    // The child, a child of it, and an orphan with an empty environment.
    let script = format!(
        "{knock}; echo $?; (env -i {knock}; echo $?); \
         (env -i setsid sh -c '{knock}; echo $?' &) | cat; exec {knock}"
    );
    shim.launch(shell(&script));
    let report = shim.report();
    assert_eq!(report.how, Some(How::ExitCode(1)));
    assert_eq!(shim.whole_text(), "1\n1\n1\n");
}

#[test]
fn a_process_of_the_same_user_may_connect_without_the_marker() {
    let shim = ShimFixture::run("read line");
    let socket = shim.path(SOCKET_FILE);
    assert!(!is_answered(&socket, |command| {
        command.env("BATON_ATTEMPT_ID", ATTEMPT);
    }));
    // A daemon that was itself started by another daemon's attempt.
    assert!(is_answered(&socket, |command| {
        command.env("BATON_ATTEMPT_ID", "another");
    }));
    assert!(is_answered(&socket, |_| {}));
}
