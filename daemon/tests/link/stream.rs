//! A lost stream, a gap, a silent relay and a replaced relay do not affect attempts.

use std::time::Duration;

use baton_daemon::{Clock, HealthProblem};
use baton_proto::codes::refusals;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::relay_frame::Frame as Down;
use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    Abandon, ActiveState, Adopt, Goodbye, GoodbyeCode, Hello, Keep, attempt_command,
};

use crate::fake_relay::{FakeRelay, attempt, shell};
use crate::test_daemon::LinkTestDaemon;

#[tokio::test]
async fn a_lost_stream_ends_nothing_and_unacked_frames_are_sent_again() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("go");
    let script = format!("mkfifo {0}; echo one; cat {0}", fifo.display());
    session.run(&attempt, shell(&script)).await;
    session.until_output().await;
    let unacked = session.control_after(2);
    session.ack(&attempt, 2, 0).await;
    drop(session);

    let (mut session, hello) = relay.accept().await;
    assert_eq!(hello.daemon_id, relay.daemon_id);
    let active = &hello.active[0];
    assert_eq!(active.r#ref.as_ref(), Some(&attempt));
    assert_eq!(active.state(), ActiveState::Running);
    assert!(active.token.is_some() && active.output_end == 4);
    let keep = Keep {
        acked_control_seq: 2,
        acked_offset: 1,
        granted_ms: Some(30_000),
    };
    session.settle(&attempt, Decision::Keep(keep)).await;
    session.until_output().await;
    assert_eq!(session.control_after(0), unacked);
    assert_eq!(session.output(), b"ne\n");

    std::fs::write(&fifo, "two\n").unwrap();
    let last = session.until_terminal().await;
    let Some(Body::Complete(complete)) = &last.body else {
        panic!("{last:?}")
    };
    assert_eq!(
        (complete.final_offset, &session.output()[..]),
        (8, &b"ne\ntwo\n"[..])
    );
    drop(session);

    // Finished and unacknowledged: it is listed until the relay has it.
    let (mut session, hello) = relay.accept().await;
    assert_eq!(hello.active[0].state(), ActiveState::Finished);
    let adopt = Adopt {
        acked_control_seq: last.control_seq - 1,
        acked_offset: 8,
    };
    session.settle(&attempt, Decision::Adopt(adopt)).await;
    assert_eq!(session.next_attempt_frame().await.body, last.body);
    session.ack(&attempt, last.control_seq, 8).await;
    session.refuse(&attempt, 0, refusals::GAP).await;
    // The heartbeat after the next one shows that the acknowledgement has been read.
    session.heartbeats.clear();
    while session.heartbeats.len() < 2 {
        session.next_frame().await.expect("the stream is open");
    }
    drop(session);
    let (_, hello) = relay.accept().await;
    assert!(hello.active.is_empty());
}

#[tokio::test]
async fn a_terminal_frame_is_sent_even_when_other_frames_are_refused() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.run(&attempt, shell("echo one")).await;
    let last = session.until_terminal().await;
    session.attempt_frames.clear();
    // The relay had given the attempt up: each phase is refused and it is abandoned, but the
    // result is accepted.
    session.refuse(&attempt, 2, "stale_attempt").await;
    let abandon = attempt_command::Body::Abandon(Abandon::default());
    session.command(&attempt, abandon).await;
    // With its output, without which a result would be refused.
    let output = session.next_attempt_frame().await;
    assert!(matches!(output.body, Some(Body::Stream(_))), "{output:?}");
    let again = session.next_attempt_frame().await;
    assert_eq!(
        (again.control_seq, again.body),
        (last.control_seq, last.body)
    );
}

#[tokio::test]
async fn a_refused_completion_becomes_a_failure() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.run(&attempt, shell("true")).await;
    let last = session.until_terminal().await;
    session
        .refuse(&attempt, last.control_seq, refusals::CONTRACT_UNMET)
        .await;
    let Some(Body::Error(error)) = session.until_terminal().await.body else {
        panic!("not an error")
    };
    assert_eq!(error.failure_code, "receipts_missing");
    assert!(error.receipt.unwrap().group_empty);
}

#[tokio::test]
async fn a_gap_is_replayed_from_the_last_ack() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.run(&attempt, shell("echo one; sleep 600")).await;
    session.until_output().await;
    session.attempt_frames.clear();
    session.refuse(&attempt, 3, refusals::GAP).await;
    session.until_output().await;
    assert_eq!(session.attempt_frames[0].control_seq, 1);
    assert_eq!(session.output(), b"one\n");
}

#[tokio::test]
async fn two_unanswered_heartbeats_make_the_daemon_reconnect() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let (mut session, _) = relay.accept().await;
    session.renewal = None;
    session
        .welcome_every(Duration::from_millis(100), Vec::new())
        .await;
    session.until_closed().await;
    assert_eq!(session.heartbeats.len(), 2);
    let mut session = relay.welcome().await;
    // A frame of a replaced relay is refused in the same way.
    session.epoch = 0;
    session.send(Down::Drain(Default::default())).await;
    session.until_closed().await;
    relay.welcome().await;
}

#[tokio::test]
async fn a_daemon_without_answers_is_unhealthy_and_reports_the_last_answer() {
    let mut relay = FakeRelay::start().await;
    let mut daemon = LinkTestDaemon::start(&relay.url);
    let clock = Clock::boot();
    assert!(matches!(
        daemon.status.borrow().problem(clock.now()),
        Some(HealthProblem::Disconnected(_))
    ));
    let (mut session, _) = relay.accept().await;
    session
        .welcome_every(Duration::from_millis(300), Vec::new())
        .await;
    daemon.wait_for_status(|status| status.connected).await;
    assert_eq!(daemon.status.borrow().problem(clock.now()), None);
    // The third heartbeat comes after the answers to the first two.
    while session.heartbeats.len() < 3 {
        session.next_frame().await.expect("the stream is open");
    }
    let answered: Vec<Option<u64>> = session.heartbeats.iter().map(|b| b.heard_seq).collect();
    assert_eq!(answered, [Some(0), Some(1), Some(2)]);
    session.renewal = None;
    daemon.wait_for_status(|status| !status.connected).await;
    let ailment = daemon.status.borrow().problem(clock.now());
    assert!(
        matches!(&ailment, Some(HealthProblem::Disconnected(_))),
        "{ailment:?}"
    );
}

/// Advances the clock until the daemon reconnects: how much time passed, and its Hello.
async fn back_after(
    relay: &mut FakeRelay,
    clock: &Clock,
) -> (Duration, crate::fake_relay::FakeRelaySession, Hello) {
    let from = clock.now();
    let mut steps = tokio::time::interval(Duration::from_millis(20));
    let accepted = relay.accept();
    tokio::pin!(accepted);
    loop {
        tokio::select! {
            biased;
            (session, hello) = &mut accepted => return (from.until(clock.now()), session, hello),
            _ = steps.tick() => clock.advance(Duration::from_millis(500)),
        }
    }
}

/// Shims use the kernel's clock, so the manual clock starts there.
fn hand_driven() -> Clock {
    Clock::manual(Clock::boot().now())
}

/// Runs a child under a lease of 20 s, while the clock stands still.
async fn run_a_while(session: &mut crate::fake_relay::FakeRelaySession) {
    let mut dispatch = shell("sleep 600");
    dispatch.granted_ms = 20_000;
    session.run(&attempt(), dispatch).await;
    let started = |body: &Body| matches!(body, Body::Lifecycle(at) if at.pid.is_some());
    session.until_frame(started).await;
}

fn goodbye(code: GoodbyeCode, retry_after: Duration) -> Down {
    Down::Goodbye(Goodbye {
        code: code.into(),
        message: "not you, not now".to_owned(),
        retry_after_ms: Some(retry_after.as_millis() as u64),
    })
}

#[tokio::test]
async fn a_superseded_daemon_stays_away_for_a_minute() {
    let mut relay = FakeRelay::start().await;
    let clock = hand_driven();
    let mut daemon = LinkTestDaemon::start_with(&relay.url, |config| config.clock = clock.clone());
    let mut session = relay.welcome().await;
    run_a_while(&mut session).await;
    let gone = goodbye(GoodbyeCode::Superseded, Duration::from_millis(1));
    session.send(gone).await;
    session.until_closed().await;
    daemon
        .wait_for_status(|status| status.disconnect_reason.contains("not you"))
        .await;
    let (away, _, hello) = back_after(&mut relay, &clock).await;
    assert!(
        away >= Duration::from_secs(60),
        "it came back after {away:?}"
    );
    assert!(
        away <= Duration::from_secs(62),
        "it came back after {away:?}"
    );
    // The instance that superseded it was not disturbed, and its child is dead.
    assert_eq!(hello.active[0].state(), ActiveState::Finished);
    assert_eq!(daemon.status.borrow().running, 0);
}

#[tokio::test]
async fn retry_after_is_respected_unless_a_lease_is_at_stake() {
    let mut relay = FakeRelay::start().await;
    let clock = hand_driven();
    let mut daemon = LinkTestDaemon::start_with(&relay.url, |config| config.clock = clock.clone());
    let mut session = relay.welcome().await;
    let wait = || goodbye(GoodbyeCode::Shutdown, Duration::from_secs(20));
    session.send(wait()).await;
    session.until_closed().await;
    daemon
        .wait_for_status(|status| status.disconnect_reason.contains("not you"))
        .await;
    let (away, mut session, _) = back_after(&mut relay, &clock).await;
    // At most half a second of jitter is added, and the clock advances in such steps here.
    let wished = Duration::from_secs(20)..=Duration::from_secs(22);
    assert!(wished.contains(&away), "it came back after {away:?}");
    session.welcome(Vec::new()).await;
    run_a_while(&mut session).await;
    session.send(wait()).await;
    session.until_closed().await;
    daemon
        .wait_for_status(|status| status.disconnect_reason.contains("not you"))
        .await;
    let (away, _, hello) = back_after(&mut relay, &clock).await;
    assert!(
        away <= Duration::from_secs(6),
        "it waited longer than a quarter of its lease: {away:?}"
    );
    assert_eq!(hello.active[0].state(), ActiveState::Running);
}
