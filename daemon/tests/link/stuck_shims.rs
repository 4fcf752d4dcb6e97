//! Shims that are stopped and do not answer, under the daemon that started them and under the next
//! one.

use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{ActiveState, AttemptRef, Heartbeat, TerminationReceipt};
use rustix::process::Signal;

use crate::adoption::{
    PROCESS_SCAN_MARGIN, active_attempt, adopt_settlement, keep_settlement, until_receipt,
    wait_for_file_script, write_text,
};
use crate::fake_relay::{FakeRelay, FakeRelaySession, TEST_TIMEOUT, attempt, shell};
use crate::test_daemon::{DaemonHome, LinkTestDaemon, is_alive, shim_of, signal, wait_until_gone};

fn renews_attempt(beat: &Heartbeat, attempt: &AttemptRef) -> bool {
    let mut entries = beat.renew.iter();
    entries.any(|entry| entry.attempt_id == attempt.attempt_id)
}

/// The next heartbeat renews the attempt.
async fn is_renewed(session: &mut FakeRelaySession, attempt: &AttemptRef) -> bool {
    session.heartbeats.clear();
    while session.heartbeats.is_empty() {
        session.next_frame().await.expect("the stream is open");
    }
    renews_attempt(&session.heartbeats[0], attempt)
}

#[tokio::test]
async fn a_shim_without_confirmed_renewals_is_not_renewed() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let ttl = Duration::from_secs(6);
    let mut dispatch = shell("trap '' TERM; echo up; while :; do sleep 1; done");
    dispatch.granted_ms = 6_000;
    session.renewal = Some(ttl);
    session.run(&attempt, dispatch).await;
    session.until_output().await;
    let child = session.pid();
    let shim = shim_of(child);
    assert!(is_renewed(&mut session, &attempt).await);
    // A short stop has no effect.
    signal(shim, Signal::STOP);
    assert!(is_renewed(&mut session, &attempt).await);
    signal(shim, Signal::CONT);
    for _ in 0..8 {
        assert!(is_renewed(&mut session, &attempt).await);
    }
    assert!(is_alive(child));
    signal(shim, Signal::STOP);
    let clock = Clock::boot();
    let from = clock.now();
    while is_renewed(&mut session, &attempt).await {
        assert!(
            from.until(clock.now()) < ttl,
            "renewed although the shim is stopped"
        );
    }
    let dead = async {
        while is_alive(child) {
            session.next_frame().await.expect("the stream is open");
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, dead)
        .await
        .expect("the child outlives its lease");
    // The last renewal was granted before half of the shim's lease had passed.
    let took = from.until(clock.now());
    assert!(took < ttl + ttl / 2 + PROCESS_SCAN_MARGIN * 2, "{took:?}");
    until_receipt(&mut session).await;
}

#[tokio::test]
async fn a_stuck_shim_is_listed_as_unreachable_and_goes_on_when_it_answers() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let (stuck, well) = (attempt(), attempt());
    let go_on = home.path().join("go-on");
    let script = format!("echo one; {}", wait_for_file_script(&go_on));
    session.run(&stuck, shell(&script)).await;
    session.until_output().await;
    let shim = shim_of(session.pid());
    session.run(&well, shell("echo up; sleep 600")).await;
    session.until_output().await;
    signal(shim, Signal::STOP);
    first.kill().await;
    drop(session);
    let clock = Clock::boot();
    let from = clock.now();
    let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    let took = from.until(clock.now());
    assert!(
        took < Duration::from_secs(2) + PROCESS_SCAN_MARGIN,
        "{took:?}"
    );
    let (missing, found) = (
        active_attempt(&hello, &stuck),
        active_attempt(&hello, &well),
    );
    assert_eq!(missing.state(), ActiveState::Unreachable);
    assert!(missing.token.is_none());
    assert_eq!(found.state(), ActiveState::Running);
    let granted = Some(Duration::from_secs(30));
    session
        .welcome(vec![
            keep_settlement(&stuck, 0, 0, None),
            keep_settlement(&well, 0, 0, granted),
        ])
        .await;
    let names = |session: &FakeRelaySession, attempt: &AttemptRef| {
        let newest = session.heartbeats.last();
        newest.is_some_and(|beat| {
            beat.renew
                .iter()
                .any(|entry| entry.attempt_id == attempt.attempt_id)
        })
    };
    while session.heartbeats.is_empty() {
        session.next_frame().await.expect("the stream is open");
    }
    assert!(names(&session, &well) && !names(&session, &stuck));
    signal(shim, Signal::CONT);
    while !names(&session, &stuck) {
        session.next_frame().await.expect("the stream is open");
    }
    write_text(&go_on, "two\n");
    let last = session.until_terminal().await;
    assert_eq!(last.r#ref.as_ref(), Some(&stuck));
    assert!(matches!(last.body, Some(Body::Complete(_))), "{last:?}");
}

#[tokio::test]
async fn a_stuck_shim_is_killed_with_its_processes_before_its_lease_ends() {
    for restarts in [false, true] {
        let home = DaemonHome::new();
        let mut relay = FakeRelay::start().await;
        let mut daemon = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
        let mut session = relay.welcome().await;
        let attempt = attempt();
        let script = "(setsid sleep 600 &); trap '' TERM; echo up; while :; do sleep 1; done";
        let mut dispatch = shell(script);
        dispatch.granted_ms = 3_000;
        session.renewal = Some(Duration::from_secs(3));
        session.run(&attempt, dispatch).await;
        session.until_output().await;
        let child = session.pid();
        signal(shim_of(child), Signal::STOP);
        // No renewal is answered from now on.
        session.renewal = None;
        let clock = Clock::boot();
        let from = clock.now();
        if restarts {
            daemon.kill().await;
            drop(session);
            daemon = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
            let (mut next, hello) = relay.accept().await;
            assert_eq!(
                active_attempt(&hello, &attempt).state(),
                ActiveState::Unreachable
            );
            next.welcome(vec![keep_settlement(&attempt, 0, 0, None)])
                .await;
            session = next;
        }
        let dead = async {
            while is_alive(child) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, dead)
            .await
            .expect("the child outlives its lease");
        let took = from.until(clock.now());
        assert!(
            took < Duration::from_secs(3) + PROCESS_SCAN_MARGIN,
            "restarts {restarts}: {took:?}"
        );
        wait_until_gone(&attempt).await;
        let receipt = receipt_over_streams(&mut relay, session, &attempt).await;
        // For a shim that is not its own child a daemon can prove nothing.
        assert!(
            receipt.group_empty != restarts && receipt.killed,
            "restarts {restarts}: {receipt:?}"
        );
        drop(daemon);
    }
}

/// Unanswered heartbeats end streams, so the receipt may come on a later one.
pub(crate) async fn receipt_over_streams(
    relay: &mut FakeRelay,
    mut session: FakeRelaySession,
    attempt: &AttemptRef,
) -> TerminationReceipt {
    loop {
        while let Some(frame) = session.next_frame().await {
            if let baton_proto::v1::daemon_frame::Frame::Attempt(frame) = frame
                && let Some(Body::Receipt(receipt)) = frame.body
            {
                return receipt;
            }
        }
        let (next, hello) = relay.accept().await;
        session = next;
        let decision = match active_attempt(&hello, attempt).state() {
            ActiveState::Finished => adopt_settlement(attempt, 0, 0),
            _ => keep_settlement(attempt, 0, 0, None),
        };
        session.welcome(vec![decision]).await;
    }
}
