//! Every way in which an attempt is stopped: lease, cancel, fence, drain.

use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::codes::refusals;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::daemon_frame::Frame as Up;
use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    Abandon, ActiveState, Adopt, Cancel, CancelReason, DaemonStatus, FenceCode, GoodbyeCode,
    LossCause, RejectCode, attempt_command,
};

use crate::fake_relay;
use crate::fake_relay::{FakeRelay, TEST_TIMEOUT, attempt, shell};
use crate::test_daemon::{LinkTestDaemon, is_alive};

#[tokio::test]
async fn without_renewals_the_child_is_dead_at_the_lease_limit() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let clock = Clock::boot();
    session.renewal = Some(Duration::from_millis(1_500));
    let mut dispatch = shell("trap '' TERM; echo up; while :; do sleep 1; done");
    dispatch.granted_ms = 1_500;
    session.run(&attempt, dispatch).await;
    session.until_output().await;
    let pid = session.pid();
    assert!(is_alive(pid));
    drop(session);
    // Streams come and go unanswered; only a Welcome would renew.
    let from = clock.now();
    let dead = async {
        while is_alive(pid) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, dead)
        .await
        .expect("the child outlives its lease");
    assert!(from.until(clock.now()) <= Duration::from_millis(2_500));

    let (mut session, mut hello) = relay.accept().await;
    while hello.active[0].state() != ActiveState::Finished {
        drop(session);
        (session, hello) = relay.accept().await;
    }
    let adopt = Adopt {
        acked_control_seq: hello.active[0].last_control_seq - 1,
        acked_offset: 3,
    };
    session.settle(&attempt, Decision::Adopt(adopt)).await;
    let frame = session.next_attempt_frame().await;
    let Some(Body::Receipt(receipt)) = frame.body else {
        panic!("{frame:?}")
    };
    assert!(receipt.group_empty && receipt.killed && receipt.prompt_written == Some(true));
    assert_eq!(receipt.loss(), LossCause::LeaseEnded);
}

#[tokio::test]
async fn a_cancel_stops_the_child_and_a_second_one_changes_nothing() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let clock = Clock::boot();
    session
        .run(
            &attempt,
            shell("trap 'echo term; exit 0' TERM; echo up; sleep 600 & wait"),
        )
        .await;
    session.until_output().await;
    session.attempt_frames.clear();
    let cancel = Cancel {
        reason: CancelReason::User.into(),
        grace_ms: 5_000,
        ..Default::default()
    };
    let from = clock.now();
    session
        .command(&attempt, attempt_command::Body::Cancel(cancel.clone()))
        .await;
    session
        .command(&attempt, attempt_command::Body::Cancel(cancel))
        .await;
    let last = session.until_terminal().await;
    let took = from.until(clock.now());
    let Some(Body::Canceled(canceled)) = &last.body else {
        panic!("{last:?}")
    };
    assert_eq!(canceled.reason(), CancelReason::User);
    let receipt = canceled.receipt.as_ref().unwrap();
    assert!(receipt.group_empty && !receipt.killed);
    assert_eq!(session.output(), b"term\n");
    assert!(took < Duration::from_secs(2), "{took:?}");
    // An attempt that was not confirmed is canceled without a process.
    let offered = fake_relay::attempt();
    session.dispatch(&offered, shell("true")).await;
    session
        .until_frame(|body| matches!(body, Body::Accepted(_)))
        .await;
    let cancel = Cancel {
        reason: CancelReason::Operator.into(),
        ..Default::default()
    };
    session
        .command(&offered, attempt_command::Body::Cancel(cancel))
        .await;
    let Some(Body::Canceled(canceled)) = session.until_terminal().await.body else {
        panic!()
    };
    assert!(!canceled.receipt.unwrap().process_started);
    assert_eq!(session.terminal_count(), 2);
}

#[tokio::test]
async fn a_fenced_attempt_is_killed_and_sends_only_a_receipt() {
    let mut relay = FakeRelay::start().await;
    let mut daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let revoked = attempt();
    session.run(&revoked, shell("echo up; sleep 600")).await;
    session.until_output().await;
    session.revoke_next().await;
    let frame = session
        .until_frame(|body| matches!(body, Body::Receipt(_)))
        .await;
    assert_eq!(frame.r#ref.as_ref(), Some(&revoked));
    session.ack(&revoked, frame.control_seq, 0).await;
    let abandoned = attempt();
    session.run(&abandoned, shell("echo up; sleep 600")).await;
    session.until_output().await;
    let abandon = Abandon {
        code: FenceCode::Superseded.into(),
    };
    session
        .command(&abandoned, attempt_command::Body::Abandon(abandon))
        .await;
    let frame = session
        .until_frame(|body| matches!(body, Body::Receipt(_)))
        .await;
    // The relay does not know the attempt any more, so nothing has to be kept.
    session
        .refuse(&abandoned, frame.control_seq, refusals::UNKNOWN_ATTEMPT)
        .await;
    assert_eq!(session.terminal_count(), 0);
    daemon.wait_for_status(|status| status.running == 0).await;
    session.heartbeats.clear();
    while session.heartbeats.len() < 2 {
        session.next_frame().await.expect("the stream is open");
    }
    drop(session);
    let (_, hello) = relay.accept().await;
    assert!(hello.active.is_empty());
}

#[tokio::test]
async fn a_draining_daemon_finishes_its_work_and_refuses_more() {
    let mut relay = FakeRelay::start().await;
    let daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let running = attempt();
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("go");
    session
        .run(
            &running,
            shell(&format!("mkfifo {0}; echo up; cat {0}", fifo.display())),
        )
        .await;
    session.until_output().await;
    daemon.stop.cancel();
    while session
        .heartbeats
        .last()
        .is_none_or(|beat| beat.status() != DaemonStatus::Draining)
    {
        session.next_frame().await.expect("the stream is open");
    }
    session.dispatch(&attempt(), shell("true")).await;
    let frame = session
        .until_frame(|body| matches!(body, Body::Rejected(_)))
        .await;
    let Some(Body::Rejected(rejected)) = &frame.body else {
        panic!()
    };
    assert_eq!(rejected.code(), RejectCode::Draining);
    session
        .ack(frame.r#ref.as_ref().unwrap(), frame.control_seq, 0)
        .await;
    std::fs::write(&fifo, "done\n").unwrap();
    let last = session.until_terminal().await;
    assert!(matches!(last.body, Some(Body::Complete(_))));
    session.ack(&running, last.control_seq, 8).await;
    let goodbye = loop {
        match session.next_frame().await.expect("Goodbye comes first") {
            Up::Goodbye(goodbye) => break goodbye,
            Up::Heartbeat(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(goodbye.code(), GoodbyeCode::Draining);
    drop(session);
    daemon.wait_for_end().await.unwrap();
}

#[tokio::test]
async fn attempts_that_outlast_the_drain_are_killed_with_a_receipt() {
    let mut relay = FakeRelay::start().await;
    let daemon =
        LinkTestDaemon::start_with(&relay.url, |config| config.drain = Duration::from_secs(4));
    let mut session = relay.welcome().await;
    let stubborn = attempt();
    session
        .run(
            &stubborn,
            shell("trap '' TERM; echo up; while :; do sleep 1; done"),
        )
        .await;
    session.until_output().await;
    let pid = session.pid();
    daemon.stop.cancel();
    let frame = session
        .until_frame(|body| matches!(body, Body::Receipt(_)))
        .await;
    let Some(Body::Receipt(receipt)) = &frame.body else {
        panic!("{frame:?}")
    };
    assert!(receipt.group_empty && receipt.killed && !is_alive(pid));
    assert_eq!(receipt.loss(), LossCause::DaemonStopped);
    assert_eq!(session.terminal_count(), 0);
    session.ack(&stubborn, frame.control_seq, 3).await;
    session.until_closed().await;
    daemon.wait_for_end().await.unwrap();
}
