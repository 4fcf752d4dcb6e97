//! Tests of daemon liveness: silence is measured against the requested heartbeat interval, and
//! a daemon that receives nothing is not alive.

use crate::io::effects::{CloseReason, Delivery};
use crate::io::session_input::HeartbeatMessage;
use crate::io::session_input::SessionInput;
use crate::record::AttemptStateKind;
use crate::task::spec::TaskSpec;
use crate::tests::harness::{CoreHarness, DispatchedAttempt, TestDaemon, spec};

const HEARTBEAT_MS: u64 = 5_000;

fn closed(world: &mut CoreHarness) -> Option<CloseReason> {
    let sent = std::mem::take(&mut world.deliveries);
    sent.into_iter().find_map(|send| match send {
        Delivery::CloseSession { reason, .. } => Some(reason),
        _ => None,
    })
}

fn beat(
    world: &mut CoreHarness,
    machine: &TestDaemon,
    works: &[&DispatchedAttempt],
    (seq, heard_seq): (u64, Option<u64>),
) {
    let renewals = works
        .iter()
        .map(|work| (work.frame_ref.attempt, work.token.clone()));
    let heartbeat = HeartbeatMessage {
        seq,
        received_ack_seq: heard_seq,
        renewals: renewals.collect(),
        free_slots: 4,
        draining: false,
        unfit: false,
        load: None,
    };
    world.send_input(SessionInput::Heartbeat {
        session: machine.session,
        heartbeat,
    });
}

#[test]
fn a_short_lease_makes_a_daemon_silent_after_two_short_heartbeats() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(TaskSpec {
        lease_ttl_ms: 6_000,
        ..spec()
    });
    let work = world.take_started();
    // The ack requests a heartbeat every two seconds from now on.
    world.beat(&machine, &[&work]);
    world.pass(4_499);
    assert_eq!(closed(&mut world), None);
    world.pass(1);
    assert_eq!(closed(&mut world), Some(CloseReason::Silent));
    assert_eq!(
        world.attempt_state(task),
        AttemptStateKind::Starting,
        "a lost stream ends no attempt"
    );
}

#[test]
fn a_short_lease_shortens_the_heartbeat_limit_at_once() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    world.submit(TaskSpec {
        lease_ttl_ms: 6_000,
        ..spec()
    });
    world.take_started();
    // No ack has requested it, but a daemon with such a lease sends a heartbeat every two
    // seconds.
    world.pass(4_499);
    assert_eq!(closed(&mut world), None);
    world.pass(1);
    assert_eq!(closed(&mut world), Some(CloseReason::Silent));
}

#[test]
fn the_heartbeat_limit_grows_again_after_a_short_lease() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    world.submit(TaskSpec {
        lease_ttl_ms: 6_000,
        ..spec()
    });
    let mut work = world.take_started();
    let running = crate::io::session_input::ActiveAttemptState::Running;
    world.reconnect(&mut machine, &[(&work.clone(), running)]);
    work.session = machine.session;
    world.frame(&mut work, crate::tests::harness::completed());
    world.beat(&machine, &[]);
    closed(&mut world);
    world.pass(2 * HEARTBEAT_MS);
    assert_eq!(closed(&mut world), None);
}

#[test]
fn a_daemon_that_receives_nothing_is_disconnected_and_gets_no_work() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    beat(&mut world, &machine, &[], (1, Some(0)));
    world.pass(HEARTBEAT_MS);
    beat(&mut world, &machine, &[], (2, Some(0)));
    assert_eq!(closed(&mut world), None, "one ack may still be in transit");
    world.pass(HEARTBEAT_MS);
    beat(&mut world, &machine, &[], (3, Some(0)));
    assert_eq!(closed(&mut world), Some(CloseReason::NotReceiving));
    world.submit(spec());
    assert!(world.dispatches().is_empty());
}

#[test]
fn a_stream_without_a_first_heartbeat_gets_no_work() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    world.pass(2 * HEARTBEAT_MS + 500);
    assert_eq!(closed(&mut world), Some(CloseReason::Silent));
    // The daemon sends Hello but does not receive Welcome, so it sends no heartbeat.
    machine.session = world.new_session();
    world.open(&machine, Vec::new(), |_| {});
    let task = world.submit(spec());
    assert!(world.dispatches().is_empty());
    world.pass(2 * HEARTBEAT_MS + 499);
    assert!(world.dispatches().is_empty() && closed(&mut world).is_none());
    assert_eq!(world.attempt_state(task), AttemptStateKind::Queued);
    world.send_first_heartbeat(&machine);
    assert_eq!(
        world.dispatches().len(),
        1,
        "dispatched as soon as the daemon has received Welcome"
    );
    let record = world.task(task);
    assert_eq!(record.counters.dispatches, 1);
}

#[test]
fn a_stream_without_a_first_heartbeat_is_closed() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    machine.session = world.new_session();
    world.open(&machine, Vec::new(), |_| {});
    world.deliveries.clear();
    world.pass(2 * HEARTBEAT_MS + 500);
    assert_eq!(closed(&mut world), Some(CloseReason::Silent));
}

#[test]
fn a_late_or_missing_received_seq_closes_no_stream() {
    let mut world = CoreHarness::new();
    let (late, silent) = (world.connect_daemon(1), world.connect_daemon(2));
    for seq in 1..6 {
        // Its received_ack_seq is always one behind.
        beat(&mut world, &late, &[], (seq, Some(seq.saturating_sub(2))));
        beat(&mut world, &silent, &[], (seq, None));
        world.pass(HEARTBEAT_MS);
    }
    assert_eq!(closed(&mut world), None);
}

#[test]
fn a_stalled_relay_closes_no_stream_for_its_own_delay() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.submit(spec());
    let work = world.take_started();
    beat(&mut world, &machine, &[&work], (1, Some(0)));
    // The dispatch loop stalled before it sent the ack, and the daemon went on sending.
    world.skip_time(3 * HEARTBEAT_MS);
    for seq in 2..4 {
        beat(&mut world, &machine, &[&work], (seq, Some(0)));
    }
    assert_eq!(closed(&mut world), None);
}
