//! Leases: renewals, expiry, holds, stalls of the relay itself.

use super::world::{GRACE, TTL, World, spec};
use crate::effects::{Count, Downstream, Renewal};
use crate::input::{FrameBody, Heartbeat, Input, LeaseToken};
use crate::record::{AttemptState, FailureCode, TaskState};
use crate::reject::Rejection;

#[test]
fn a_renewal_counts_from_its_arrival_and_the_limit_itself_is_expired() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let work = world.started();
    world.pass(8_000);
    world.beat(&machine, &[&work]);
    world.disconnect(&machine);
    world.pass(TTL + GRACE - 1);
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
    world.pass(1);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::LeaseExpired));
    assert_eq!(
        world.state(task),
        TaskState::NeedsAttention,
        "a loss after confirmation is unsafe"
    );
}

#[test]
fn a_renewal_that_loses_the_race_is_told_so() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let work = world.started();
    // The loop is busy with requests and has not come round to its timers yet.
    for _ in 0..(TTL + GRACE) / 500 {
        world.jump(500);
        world.inspect(task).unwrap();
    }
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
    world.told(&machine);
    world.beat(&machine, &[&work]);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::LeaseExpired));
    let told = world.told(&machine);
    let revoked = |results: &[(_, Renewal)]| {
        results
            == [(
                work.re.attempt,
                Renewal::Revoked {
                    code: Rejection::LeaseExpired,
                },
            )]
    };
    assert!(
        told.iter()
            .any(|m| matches!(m, Downstream::HeartbeatAck { results, .. } if revoked(results))),
        "{told:?}"
    );
}

#[test]
fn a_wrong_token_does_not_renew() {
    let mut world = World::new();
    let machine = world.machine(1);
    world.submit(spec());
    let work = world.started();
    world.told(&machine);
    let renewals = vec![(work.re.attempt, LeaseToken([0; 32]))];
    let heartbeat = Heartbeat {
        seq: 9,
        heard_seq: None,
        renewals,
        free_slots: 0,
        draining: false,
        unfit: false,
        load: None,
    };
    world.say(Input::Heartbeat {
        session: machine.session,
        heartbeat,
    });
    let results = world
        .told(&machine)
        .into_iter()
        .find_map(|message| match message {
            Downstream::HeartbeatAck {
                seq: 9, results, ..
            } => Some(results),
            _ => None,
        });
    assert_eq!(
        results.unwrap(),
        [(
            work.re.attempt,
            Renewal::Revoked {
                code: Rejection::BadProof
            }
        )]
    );
}

#[test]
fn losing_a_stream_ends_nothing_and_frames_go_on_after_it() {
    let mut world = World::new();
    let mut machine = world.machine(1);
    let task = world.submit(spec());
    let mut work = world.started();
    world.disconnect(&machine);
    world.pass(20_000);
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
    world.reconnect(
        &mut machine,
        &[(&work.clone(), crate::input::ActiveState::Running)],
    );
    work.session = machine.session;
    world.pass_renewing(60_000, &machine, &[&work]);
    world.frame(&mut work, super::world::completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn an_attempt_missing_from_two_heartbeats_after_its_confirmation_is_lost() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let _work = world.started();
    world.beat(&machine, &[]);
    world.pass(5_000);
    world.beat(&machine, &[]);
    assert_eq!(
        world.attempt_state(task),
        AttemptState::Starting,
        "one may have been on its way"
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
        "that it forgot it does not prove that it is dead"
    );
}

#[test]
fn a_hold_is_stored_before_it_is_acknowledged_and_lasts_as_granted() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let work = world.started();
    let attempts = vec![(work.re.attempt, work.token)];
    world.say(Input::Hold {
        session: machine.session,
        request: 3,
        attempts,
        granted_ms: 86_400_000,
    });
    assert_eq!(
        world.newest(task).lease.unwrap().granted_ms,
        600_000,
        "at most ten minutes"
    );
    let told = world.told(&machine);
    assert!(
        told.iter()
            .any(|m| matches!(m, Downstream::HoldAck { request: 3, .. }))
    );
    world.disconnect(&machine);
    world.pass(600_000 + GRACE - 1);
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
    world.pass(1);
    assert_eq!(world.attempt_state(task), AttemptState::Lost);
}

#[test]
fn a_hold_outlives_a_restart_of_the_relay_and_is_over_when_it_has_run_out() {
    let mut world = World::new();
    let mut machine = world.machine(1);
    let task = world.submit(spec());
    let work = world.started();
    world.hold(&machine, &[&work], 120_000);
    world.disconnect(&machine);
    world.pass(TTL + GRACE + 1);
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
    world.restart();
    world.pass(120_000 + GRACE - 1);
    assert_eq!(
        world.attempt_state(task),
        AttemptState::Starting,
        "nobody knows how long the relay was away"
    );
    let running = crate::input::ActiveState::Running;
    world.reconnect(&mut machine, &[(&work, running)]);
    let mut work = work;
    work.session = machine.session;
    world.pass_renewing(120_000, &machine, &[&work]);
    world.phase(&mut work, crate::record::Phase::PromptWritten);
    assert_eq!(world.newest(task).lease.unwrap().granted_ms, TTL);
    world.restart();
    world.pass(TTL + GRACE);
    assert_eq!(world.attempt_state(task), AttemptState::Lost);
}

#[test]
fn a_daemon_that_comes_back_without_a_held_attempt_leaves_it_fenced_for_the_whole_hold() {
    let mut world = World::new();
    let mut machine = world.machine(1);
    let mut again = spec();
    again.retry.when_unsafe = crate::spec::WhenUnsafe::Retry;
    let task = world.submit(again);
    let work = world.started();
    world.hold(&machine, &[&work], 120_000);
    world.reconnect(&mut machine, &[]);
    assert_eq!(
        world.end_code(task, 1),
        Some(FailureCode::DaemonLostAttempt)
    );
    world.dispatches();
    world.pass_renewing(60_000, &machine, &[]);
    world.restart();
    world.reconnect(&mut machine, &[]);
    world.pass_renewing(119_000, &machine, &[]);
    assert!(world.dispatches().is_empty(), "it may still run");
    world.pass_renewing(2_000 + GRACE, &machine, &[]);
    assert_eq!(world.dispatches().len(), 1);
}

#[test]
fn a_hold_of_what_is_not_held_is_revoked_and_a_short_one_shortens_nothing() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(spec());
    let work = world.started();
    let mut foreign = work.clone();
    foreign.re.attempt = crate::id::AttemptId(uuid::Uuid::from_u128(5));
    let results = world.hold(&machine, &[&work, &foreign], 1_000);
    assert!(
        matches!(
            results[0].1,
            Renewal::Renewed {
                granted_ms: 1_000,
                ..
            }
        ),
        "{results:?}"
    );
    assert!(
        matches!(results[1].1, Renewal::Revoked { .. }),
        "{results:?}"
    );
    assert_eq!(world.newest(task).lease.unwrap().granted_ms, TTL);
    world.disconnect(&machine);
    world.pass(TTL + GRACE - 1);
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
}

#[test]
fn a_stalled_relay_credits_connected_leases_but_not_for_ever() {
    let mut world = World::new();
    let machine = world.machine(1);
    let away = world.machine(2);
    let (task, other) = (world.submit(spec()), world.submit(spec()));
    let mut works = world.dispatches();
    for work in &mut works {
        world.frame(work, FrameBody::Accepted);
    }
    let (ours, theirs) = if works[0].session == machine.session {
        (task, other)
    } else {
        (other, task)
    };
    world.disconnect(&away);
    world.jump(TTL + GRACE + 60_000);
    world.say(Input::Tick);
    assert!(world.counts.contains(&Count::StallCredit {
        away_ms: TTL + GRACE + 60_000
    }));
    let leased = |world: &World, task| world.newest(task).state.is_leased();
    assert!(
        leased(&world, ours),
        "it renewed, and nobody was there to hear it"
    );
    assert!(!leased(&world, theirs), "its daemon was not even connected");
    // Its daemon is really gone, and the relay keeps stalling: between two renewals the credit is at most one ttl.
    for _ in 0..20 {
        world.jump(5_000);
        world.say(Input::Tick);
    }
    assert!(!leased(&world, ours));
}
