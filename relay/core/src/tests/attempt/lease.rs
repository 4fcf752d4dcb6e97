//! Tests of leases: renewals, expiry, extensions and stalls of the relay itself.

use crate::io::command::CoreInput;
use crate::io::effects::{CoreMetric, DaemonMessage, LeaseRenewal};
use crate::io::rejection::Rejection;
use crate::io::session_input::SessionInput;
use crate::io::session_input::{FrameBody, HeartbeatMessage, LeaseExtension, LeaseToken};
use crate::record::{AttemptStateKind, FailureCode, TaskState};
use crate::tests::harness::{CoreHarness, GRACE, TTL, spec};

#[test]
fn a_renewal_counts_from_arrival_and_a_lease_at_its_limit_is_expired() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    world.pass(8_000);
    world.beat(&machine, &[&work]);
    world.disconnect(&machine);
    world.pass(TTL + GRACE - 1);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    world.pass(1);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::LeaseExpired));
    assert_eq!(
        world.state(task),
        TaskState::NeedsAttention,
        "a loss after confirmation is unsafe"
    );
}

#[test]
fn a_renewal_after_expiry_is_revoked() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    // The loop is busy with requests and has not run its timers yet.
    for _ in 0..(TTL + GRACE) / 500 {
        world.skip_time(500);
        world.inspect(task).unwrap();
    }
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    world.take_messages(&machine);
    world.beat(&machine, &[&work]);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::LeaseExpired));
    let messages = world.take_messages(&machine);
    let revoked = |results: &[(_, LeaseRenewal)]| {
        results
            == [(
                work.frame_ref.attempt,
                LeaseRenewal::Revoked {
                    code: Rejection::LeaseExpired,
                },
            )]
    };
    assert!(
        messages
            .iter()
            .any(|m| matches!(m, DaemonMessage::HeartbeatAck { results, .. } if revoked(results))),
        "{messages:?}"
    );
}

#[test]
fn a_wrong_token_does_not_renew() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.submit(spec());
    let work = world.take_started();
    world.take_messages(&machine);
    let renewals = vec![(work.frame_ref.attempt, LeaseToken([0; 32]))];
    let heartbeat = HeartbeatMessage {
        seq: 9,
        received_ack_seq: None,
        renewals,
        free_slots: 0,
        draining: false,
        unfit: false,
        load: None,
    };
    world.send_input(SessionInput::Heartbeat {
        session: machine.session,
        heartbeat,
    });
    let results = world
        .take_messages(&machine)
        .into_iter()
        .find_map(|message| match message {
            DaemonMessage::HeartbeatAck {
                seq: 9, results, ..
            } => Some(results),
            _ => None,
        });
    assert_eq!(
        results.unwrap(),
        [(
            work.frame_ref.attempt,
            LeaseRenewal::Revoked {
                code: Rejection::BadProof
            }
        )]
    );
}

#[test]
fn a_lost_stream_ends_no_attempt_and_frames_continue() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.disconnect(&machine);
    world.pass(20_000);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    world.reconnect(
        &mut machine,
        &[(
            &work.clone(),
            crate::io::session_input::ActiveAttemptState::Running,
        )],
    );
    work.session = machine.session;
    world.advance_renewing(60_000, &machine, &[&work]);
    world.frame(&mut work, crate::tests::harness::completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn an_attempt_missing_from_two_heartbeats_after_its_confirmation_is_lost() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let _work = world.take_started();
    world.beat(&machine, &[]);
    world.pass(5_000);
    world.beat(&machine, &[]);
    assert_eq!(
        world.attempt_state(task),
        AttemptStateKind::Starting,
        "one heartbeat may have been sent before the confirmation"
    );
    world.pass(5_000);
    world.beat(&machine, &[]);
    assert_eq!(
        world.end_code(task, 1),
        Some(FailureCode::DaemonLostAttempt)
    );
    assert_eq!(
        world.store.fences.len(),
        1,
        "a missing attempt is not proved to be dead"
    );
}

#[test]
fn a_lease_extension_is_stored_and_lasts_as_granted() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    let attempts = vec![(work.frame_ref.attempt, work.token)];
    world.send_input(SessionInput::ExtendLeases(LeaseExtension {
        session: machine.session,
        request: 3,
        attempts,
        granted_ms: 86_400_000,
    }));
    assert_eq!(
        world.newest(task).lease.unwrap().granted_ms,
        600_000,
        "an extension is at most ten minutes"
    );
    let messages = world.take_messages(&machine);
    assert!(
        messages
            .iter()
            .any(|m| matches!(m, DaemonMessage::ExtensionAck { request: 3, .. }))
    );
    world.disconnect(&machine);
    world.pass(600_000 + GRACE - 1);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    world.pass(1);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Lost);
}

#[test]
fn a_lease_extension_survives_a_relay_restart_and_ends_in_time() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    world.extend_leases(&machine, &[&work], 120_000);
    world.disconnect(&machine);
    world.pass(TTL + GRACE + 1);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    world.restart();
    world.pass(120_000 + GRACE - 1);
    assert_eq!(
        world.attempt_state(task),
        AttemptStateKind::Starting,
        "the downtime of the relay is unknown, so it does not count"
    );
    let running = crate::io::session_input::ActiveAttemptState::Running;
    world.reconnect(&mut machine, &[(&work, running)]);
    let mut work = work;
    work.session = machine.session;
    world.advance_renewing(120_000, &machine, &[&work]);
    world.phase(&mut work, crate::record::LifecyclePhase::PromptWritten);
    assert_eq!(world.newest(task).lease.unwrap().granted_ms, TTL);
    world.restart();
    world.pass(TTL + GRACE);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Lost);
}

#[test]
fn a_missing_extended_attempt_stays_fenced_for_the_whole_extension() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let mut again = spec();
    again.retry.when_unsafe = crate::task::spec::UnsafeLossPolicy::Retry;
    let task = world.submit(again);
    let work = world.take_started();
    world.extend_leases(&machine, &[&work], 120_000);
    world.reconnect(&mut machine, &[]);
    assert_eq!(
        world.end_code(task, 1),
        Some(FailureCode::DaemonLostAttempt)
    );
    world.dispatches();
    world.advance_renewing(60_000, &machine, &[]);
    world.restart();
    world.reconnect(&mut machine, &[]);
    world.advance_renewing(119_000, &machine, &[]);
    assert!(world.dispatches().is_empty(), "the attempt may still run");
    world.advance_renewing(2_000 + GRACE, &machine, &[]);
    assert_eq!(world.dispatches().len(), 1);
}

#[test]
fn a_foreign_extension_is_revoked_and_a_short_one_shortens_nothing() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    let mut foreign = work.clone();
    foreign.frame_ref.attempt = crate::ids::AttemptId(uuid::Uuid::from_u128(5));
    let results = world.extend_leases(&machine, &[&work, &foreign], 1_000);
    assert!(
        matches!(
            results[0].1,
            LeaseRenewal::Renewed {
                granted_ms: 1_000,
                ..
            }
        ),
        "{results:?}"
    );
    assert!(
        matches!(results[1].1, LeaseRenewal::Revoked { .. }),
        "{results:?}"
    );
    assert_eq!(world.newest(task).lease.unwrap().granted_ms, TTL);
    world.disconnect(&machine);
    world.pass(TTL + GRACE - 1);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
}

#[test]
fn a_stalled_relay_credits_connected_leases_within_a_limit() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let away = world.connect_daemon(2);
    let (task, other) = (world.submit(spec()), world.submit(spec()));
    let mut works = world.dispatches();
    for work in &mut works {
        world.frame(work, FrameBody::Accepted);
    }
    let (connected_task, disconnected_task) = if works[0].session == machine.session {
        (task, other)
    } else {
        (other, task)
    };
    world.disconnect(&away);
    world.skip_time(TTL + GRACE + 60_000);
    world.send_input(CoreInput::Tick);
    assert!(world.counts.contains(&CoreMetric::StallCredit {
        away_ms: TTL + GRACE + 60_000
    }));
    let leased = |world: &CoreHarness, task| world.newest(task).state.is_leased();
    assert!(
        leased(&world, connected_task),
        "its renewals could not be handled during the stall"
    );
    assert!(
        !leased(&world, disconnected_task),
        "a disconnected daemon gets no credit"
    );
    // The daemon sends nothing more and the relay keeps stalling. The credit between two
    // renewals is at most one ttl.
    for _ in 0..20 {
        world.skip_time(5_000);
        world.send_input(CoreInput::Tick);
    }
    assert!(!leased(&world, connected_task));
}
