//! Shims that are killed or displaced, under the daemon that started them and under the next one.

use std::time::Duration;

use baton_daemon::shim::framing::encode;
use baton_daemon::shim::{HIGHEST_VERSION, LOWEST_VERSION, REPORT_FILE, SOCKET_FILE, read_report};
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{ActiveState, CutReason, LossCause};
use baton_proto::worker::{Greeting, ToShim, to_shim};
use bytes::BytesMut;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::adoption::{
    active_attempt, adopt_settlement, keep_settlement, until_receipt, wait_for_file_script,
    write_text,
};
use crate::fake_relay::{FakeRelay, FakeRelaySession, TEST_TIMEOUT, attempt, shell};
use crate::stuck_shims::receipt_over_streams;
use crate::test_daemon::{
    DaemonHome, LinkTestDaemon, is_alive, pids_of_attempt, shim_of, signal, wait_until_gone,
};
use crate::traced::{detach, trace};

#[tokio::test]
async fn a_killed_shim_leaves_no_process_and_only_a_receipt_is_sent() {
    let mut relay = FakeRelay::start().await;
    let mut daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let script = "(setsid sleep 600 &); trap '' TERM; echo up; while :; do sleep 1; done";
    session.run(&attempt, shell(script)).await;
    session.until_output().await;
    signal(shim_of(session.pid()), Signal::KILL);
    let receipt = until_receipt(&mut session).await;
    assert!(pids_of_attempt(&attempt).is_empty());
    assert!(receipt.group_empty && receipt.process_started);
    assert_eq!((receipt.exit_code, receipt.signal), (None, None));
    assert_eq!(receipt.loss(), LossCause::SupervisorDied);
    assert_eq!(session.terminal_count(), 0);
    daemon.wait_for_status(|status| status.running == 0).await;
}

/// A process without a marker in its environment; its pid is the attempt's output.
const HIDDEN_CHILD_SCRIPT: &str =
    "(env -i setsid sh -c 'echo $$; exec sleep 600' &); while :; do sleep 600; done";

async fn read_hidden_pid(session: &mut FakeRelaySession) -> u32 {
    session.until_output().await;
    let text = String::from_utf8(session.output()).expect("a number");
    text.trim().parse().expect("a number")
}

#[tokio::test]
async fn no_process_escapes_the_daemon_when_its_shim_is_killed() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.run(&attempt, shell(HIDDEN_CHILD_SCRIPT)).await;
    let hidden = read_hidden_pid(&mut session).await;
    assert!(!pids_of_attempt(&attempt).contains(&hidden) && is_alive(hidden));
    signal(shim_of(session.pid()), Signal::KILL);
    let receipt = until_receipt(&mut session).await;
    assert!(receipt.group_empty && receipt.killed, "{receipt:?}");
    assert!(!is_alive(hidden));
}

#[tokio::test]
async fn for_a_shim_of_an_earlier_daemon_nothing_is_proved() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.run(&attempt, shell(HIDDEN_CHILD_SCRIPT)).await;
    let hidden = read_hidden_pid(&mut session).await;
    let shim = shim_of(session.pid());
    first.kill().await;
    drop(session);
    let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (mut session, _) = relay.accept().await;
    let granted = Some(Duration::from_secs(30));
    session
        .welcome(vec![keep_settlement(&attempt, 0, 0, granted)])
        .await;
    // By then the new daemon has scanned the shim's descendants.
    while session.heartbeats.len() < 2 {
        session.next_frame().await.expect("the stream is open");
    }
    signal(shim, Signal::KILL);
    let receipt = until_receipt(&mut session).await;
    assert!(
        receipt.process_started && !receipt.group_empty,
        "{receipt:?}"
    );
    assert!(
        pids_of_attempt(&attempt).is_empty(),
        "visible processes are alive"
    );
    assert!(!is_alive(hidden), "a scanned process is alive");
}

#[tokio::test]
async fn no_process_escapes_below_a_stuck_shim_of_an_earlier_daemon() {
    for answers in [false, true] {
        let home = DaemonHome::new();
        let mut relay = FakeRelay::start().await;
        let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
        let mut session = relay.welcome().await;
        let attempt = attempt();
        let mut dispatch = shell(HIDDEN_CHILD_SCRIPT);
        dispatch.granted_ms = 3_000;
        session.renewal = Some(Duration::from_secs(3));
        session.run(&attempt, dispatch).await;
        let hidden = read_hidden_pid(&mut session).await;
        let shim = shim_of(session.pid());
        if !answers {
            signal(shim, Signal::STOP);
        }
        first.kill().await;
        drop(session);
        let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
        let (mut session, _) = relay.accept().await;
        session.renewal = None;
        let granted = answers.then_some(Duration::from_secs(3));
        session
            .welcome(vec![keep_settlement(&attempt, 0, 0, granted)])
            .await;
        if answers {
            signal(shim, Signal::STOP);
        }
        receipt_over_streams(&mut relay, session, &attempt).await;
        assert!(!is_alive(hidden), "answers {answers}");
    }
}

#[tokio::test]
async fn an_attempt_is_returned_when_the_daemon_dies_during_its_launch() {
    for comes_up in [true, false] {
        let home = DaemonHome::new();
        let mut relay = FakeRelay::start().await;
        let go_on = home.path().join("go-on");
        let first = LinkTestDaemon::start_at(&home, &relay.url, |config| {
            let shim = format!(
                "PATH=/usr/bin:/bin; until [ -e {} ]; do sleep 0.02; done; exec {} {} \"$@\"",
                go_on.display(),
                config.shim.program.display(),
                baton_daemon::shim::SHIM_ARGUMENT,
            );
            config.shim.program = "/bin/sh".into();
            config.shim.args = vec!["-c".into(), shim.into(), "shim".into()];
        });
        let mut session = relay.welcome().await;
        let attempt = attempt();
        let mut dispatch = shell("echo ran");
        // More than a socket buffers before it is read.
        dispatch.prompt = "x".repeat(1_000_000);
        session.run(&attempt, dispatch).await;
        let start = async {
            while pids_of_attempt(&attempt).is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, start)
            .await
            .expect("no shim was started");
        first.kill().await;
        drop(session);
        if comes_up {
            write_text(&go_on, "");
            wait_until_gone(&attempt).await;
        }
        let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
        let (mut session, hello) = relay.accept().await;
        assert_eq!(
            active_attempt(&hello, &attempt).state(),
            ActiveState::Finished
        );
        session
            .welcome(vec![adopt_settlement(&attempt, 0, 0)])
            .await;
        let last = session
            .until_frame(|body| matches!(body, Body::Release(_)))
            .await;
        let Some(Body::Release(release)) = last.body else {
            panic!("{last:?}")
        };
        let receipt = release.receipt.expect("a receipt");
        assert!(receipt.group_empty && !receipt.process_started);
        assert_eq!(receipt.prompt_written, Some(false));
        assert_eq!(session.terminal_count(), 0, "comes up {comes_up}");
        wait_until_gone(&attempt).await;
    }
}

#[tokio::test]
async fn a_killed_shim_causes_a_cut_of_unknown_length() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session
        .run(&attempt, shell("while :; do echo line; sleep 0.01; done"))
        .await;
    session.until_output().await;
    let shim = shim_of(session.pid());
    signal(shim, Signal::STOP);
    signal(shim, Signal::KILL);
    let last = session
        .until_frame(|body| matches!(body, Body::OutputCut(_)))
        .await;
    let Some(Body::OutputCut(cut)) = last.body else {
        panic!("{last:?}")
    };
    assert!(cut.length_unknown && cut.length == 1);
    assert_eq!(cut.reason(), CutReason::WorkerCrash);
    assert_eq!(cut.offset, session.output_bytes() as u64);
    until_receipt(&mut session).await;
}

#[tokio::test]
async fn a_displaced_daemon_reconnects_to_its_shim() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let go_on = home.path().join("go-on");
    let script = format!("echo one; {}", wait_for_file_script(&go_on));
    session.run(&attempt, shell(&script)).await;
    session.until_output().await;
    let child = session.pid();
    let attempt_dir = home.path().join("data/attempts").join(&attempt.attempt_id);
    let mut stranger = UnixStream::connect(attempt_dir.join(SOCKET_FILE))
        .await
        .expect("a socket");
    let greeting = ToShim {
        message: Some(to_shim::Message::Greeting(Greeting {
            lowest_version: LOWEST_VERSION,
            highest_version: HIGHEST_VERSION,
            instance_id: "a stranger".into(),
        })),
    };
    let mut bytes = BytesMut::new();
    encode(&greeting, &mut bytes).expect("short");
    stranger.write_all(&bytes).await.expect("the shim listens");
    // Closed by the shim, because the daemon has reconnected.
    let mut received = Vec::new();
    let closed = tokio::time::timeout(TEST_TIMEOUT, stranger.read_to_end(&mut received)).await;
    let _ = closed.expect("the daemon does not reconnect");
    assert!(is_alive(child));
    write_text(&go_on, "two\n");
    let last = session.until_terminal().await;
    assert!(matches!(last.body, Some(Body::Complete(_))), "{last:?}");
    assert_eq!(session.output(), b"one\ntwo\n");
}

#[tokio::test]
async fn a_shim_that_has_reported_does_not_count_as_running() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let mut dispatch = shell("setsid sleep 600 & echo $!; wait");
    dispatch.granted_ms = 2_000;
    session.renewal = Some(Duration::from_secs(2));
    session.run(&attempt, dispatch).await;
    let survivor = read_hidden_pid(&mut session).await.cast_signed();
    trace(survivor);
    let shim = shim_of(session.pid());
    first.kill().await;
    drop(session);
    let attempt_dir = home.path().join("data/attempts").join(&attempt.attempt_id);
    let reported = async {
        while read_report(&attempt_dir.join(REPORT_FILE))
            .expect("a file")
            .is_none()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reported)
        .await
        .expect("no report");
    let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(
        active_attempt(&hello, &attempt).state(),
        ActiveState::Finished
    );
    session
        .welcome(vec![adopt_settlement(&attempt, 0, 0)])
        .await;
    let receipt = until_receipt(&mut session).await;
    assert!(receipt.killed && !receipt.group_empty, "{receipt:?}");
    assert!(is_alive(shim), "it still has processes to kill");
    detach(survivor);
    wait_until_gone(&attempt).await;
}
