//! A daemon that stops on purpose: attempts that outlast its drain go on under an extended
//! lease, and the next daemon finishes them.

use std::time::Duration;

use baton_daemon::{Clock, DaemonConfig};
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::daemon_frame::Frame as Up;
use baton_proto::v1::relay_frame::Frame as Down;
use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    ActiveState, AttemptRef, FenceCode, GoodbyeCode, HoldGranted, HoldRequest, Keep, RenewResult,
    Renewed, Revoked, renew_result,
};

use crate::fake_relay::{FakeRelay, FakeRelaySession, attempt, shell};
use crate::test_daemon::{DaemonHome, LinkTestDaemon, is_alive, wait_until_gone};

const LEASE_EXTENSION: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(4);
/// How much longer than the deadline a stop may take on a busy machine.
const BUSY_MACHINE_MARGIN: Duration = Duration::from_secs(1);

fn stops_soon(config: &mut DaemonConfig) {
    config.drain = Duration::from_secs(1);
    config.lease_extension = LEASE_EXTENSION;
}

/// Runs until it reads a line from the fifo.
async fn run_waiting(
    session: &mut FakeRelaySession,
    home: &DaemonHome,
    attempt: &AttemptRef,
) -> u32 {
    let fifo = home.path().join("go");
    let script = format!("mkfifo {0}; echo up; cat {0}", fifo.display());
    let mut dispatch = shell(&script);
    dispatch.granted_ms = LEASE.as_millis() as u64;
    session.renewal = Some(LEASE);
    session.run(attempt, dispatch).await;
    session.until_output().await;
    session.pid()
}

async fn until_extension_request(session: &mut FakeRelaySession) -> HoldRequest {
    loop {
        if let Up::Hold(request) = session.next_frame().await.expect("a request comes first") {
            return request;
        }
    }
}

async fn until_goodbye(session: &mut FakeRelaySession) -> GoodbyeCode {
    loop {
        if let Up::Goodbye(goodbye) = session.next_frame().await.expect("Goodbye comes first") {
            return goodbye.code();
        }
    }
}

async fn answer_extension(
    session: &mut FakeRelaySession,
    request: &HoldRequest,
    result: renew_result::Result,
) {
    let results = request.attempts.iter().map(|entry| RenewResult {
        attempt_id: entry.attempt_id.clone(),
        result: Some(result),
    });
    let granted = HoldGranted {
        seq: request.seq,
        results: results.collect(),
    };
    session.send(Down::HoldGranted(granted)).await;
}

fn granted(request: &HoldRequest) -> renew_result::Result {
    renew_result::Result::Renewed(Renewed {
        granted_ms: request.hold_ms,
        expires_at: None,
    })
}

#[tokio::test]
async fn attempts_go_on_under_an_extended_lease_and_the_next_daemon_finishes_them() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, stops_soon);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let pid = run_waiting(&mut session, &home, &attempt).await;
    let clock = Clock::boot();
    first.stop.cancel();
    let request = until_extension_request(&mut session).await;
    let asked = clock.now();
    assert_eq!(request.hold_ms, LEASE_EXTENSION.as_millis() as u64);
    assert_eq!(request.attempts.len(), 1);
    assert!(request.attempts[0].token.is_some());
    answer_extension(&mut session, &request, granted(&request)).await;
    assert_eq!(until_goodbye(&mut session).await, GoodbyeCode::Restarting);
    drop(session);
    first.wait_for_end().await.unwrap();

    // Its lease would have ended by now.
    clock
        .sleep_until(asked.after(LEASE + BUSY_MACHINE_MARGIN))
        .await;
    assert!(is_alive(pid), "the extended lease did not reach the shim");
    let second = LinkTestDaemon::start_at(&home, &relay.url, stops_soon);
    let (mut session, hello) = relay.accept().await;
    assert_eq!(hello.active[0].r#ref.as_ref(), Some(&attempt));
    assert_eq!(hello.active[0].state(), ActiveState::Running);
    assert!(hello.features.iter().any(|feature| feature == "hold"));
    let keep = Keep {
        acked_control_seq: 0,
        acked_offset: 0,
        granted_ms: Some(30_000),
    };
    session.settle(&attempt, Decision::Keep(keep)).await;
    std::fs::write(home.path().join("go"), "done\n").unwrap();
    let last = session.until_terminal().await;
    assert!(matches!(last.body, Some(Body::Complete(_))), "{last:?}");
    assert_eq!(session.output(), b"up\ndone\n");
    session.ack(&attempt, last.control_seq, 8).await;
    second.stop.cancel();
    assert_eq!(until_goodbye(&mut session).await, GoodbyeCode::Draining);
    drop(session);
    second.wait_for_end().await.unwrap();
}

#[tokio::test]
async fn a_silent_relay_does_not_delay_the_hand_over() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let daemon = LinkTestDaemon::start_at(&home, &relay.url, stops_soon);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let pid = run_waiting(&mut session, &home, &attempt).await;
    let clock = Clock::boot();
    let from = clock.now();
    daemon.stop.cancel();
    until_extension_request(&mut session).await;
    // The relay neither answers the request nor reads on.
    daemon.wait_for_end().await.unwrap();
    let took = from.until(clock.now());
    assert!(
        took <= Duration::from_secs(2) + BUSY_MACHINE_MARGIN,
        "{took:?}"
    );
    assert!(is_alive(pid), "its lease had time left");
    wait_until_gone(&attempt).await;
}

#[tokio::test]
async fn without_a_relay_a_daemon_still_stops_in_time() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let mut daemon = LinkTestDaemon::start_at(&home, &relay.url, stops_soon);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let pid = run_waiting(&mut session, &home, &attempt).await;
    drop(session);
    drop(relay);
    daemon.wait_for_status(|status| !status.connected).await;
    let clock = Clock::boot();
    let from = clock.now();
    daemon.stop.cancel();
    daemon.wait_for_end().await.unwrap();
    let took = from.until(clock.now());
    assert!(
        took <= Duration::from_secs(2) + BUSY_MACHINE_MARGIN,
        "{took:?}"
    );
    assert!(is_alive(pid), "its lease had time left");
    wait_until_gone(&attempt).await;
}

#[tokio::test]
async fn a_lease_extension_is_requested_again_on_the_next_stream() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let daemon = LinkTestDaemon::start_at(&home, &relay.url, |config| {
        stops_soon(config);
        config.drain = Duration::from_secs(4);
    });
    let mut session = relay.welcome().await;
    let attempt = attempt();
    run_waiting(&mut session, &home, &attempt).await;
    daemon.stop.cancel();
    until_extension_request(&mut session).await;
    drop(session);
    let mut session = relay.welcome().await;
    let request = until_extension_request(&mut session).await;
    let revoked = Revoked {
        code: FenceCode::LeaseExpired.into(),
    };
    answer_extension(
        &mut session,
        &request,
        renew_result::Result::Revoked(revoked),
    )
    .await;
    drop(session);
    daemon.wait_for_end().await.unwrap();
    wait_until_gone(&attempt).await;
}
