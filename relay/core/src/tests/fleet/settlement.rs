//! Tests of the settlement after Hello: the verdict of Welcome on each listed attempt.

use std::sync::Arc;

use crate::ids::{Incarnation, InstanceId, TaskId, TenantId, TenantScope};
use crate::io::effects::{CloseReason, DaemonMessage, Delivery, SettlementVerdict};
use crate::io::rejection::Rejection;
use crate::io::session_input::SessionInput;
use crate::io::session_input::{
    ActiveAttempt, ActiveAttemptState, FrameBody, LeaseToken, ProcessTermination,
};
use crate::io::stored_lookup::{FinishedTask, RemovableTask};
use crate::io::stored_lookup::{StoredLookup, StoredTasks, TaskLookup};
use crate::record::{
    AttemptStateKind, FailureCode, IdempotencyRecord, LifecyclePhase, ProgressRecord, TaskState,
    TerminationReceipt,
};
use crate::tests::harness::{CoreHarness, DispatchedAttempt, GRACE, TTL, completed, spec};
use crate::time::IdSource;

#[test]
fn every_combination_of_relay_and_daemon_state_is_settled() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let tasks: Vec<_> = (0..4).map(|_| world.submit(spec())).collect();
    let mut works = world.dispatches();
    for work in &mut works {
        world.frame(work, FrameBody::Accepted);
    }
    let (running, finished, unreachable, missing) = (&works[0], &works[1], &works[2], &works[3]);
    let verdicts = world.reconnect(
        &mut machine,
        &[
            (running, ActiveAttemptState::Running),
            (finished, ActiveAttemptState::Finished),
            (unreachable, ActiveAttemptState::Unreachable),
        ],
    );
    assert_eq!(
        verdicts,
        [
            SettlementVerdict::Keep {
                acked: 1,
                granted_ms: Some(30_000)
            },
            SettlementVerdict::Adopt { acked: 1 },
            SettlementVerdict::Keep {
                acked: 1,
                granted_ms: None
            },
        ]
    );
    let lost = world.task(missing.frame_ref.task);
    assert_eq!(
        world.end_code(missing.frame_ref.task, 1),
        Some(FailureCode::DaemonLostAttempt)
    );
    assert_eq!(lost.state, TaskState::NeedsAttention);
    for task in &tasks[..3] {
        assert_eq!(world.attempt_state(*task), AttemptStateKind::Accepted);
    }
    let mut finished = finished.clone();
    finished.session = machine.session;
    world.frame(&mut finished, completed());
    assert_eq!(world.state(finished.frame_ref.task), TaskState::Completed);
}

#[test]
fn unknown_or_unproven_attempts_of_a_hello_are_killed() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.submit(spec());
    let work = world.take_started();
    let mut other = world.connect_daemon(2);
    other.session = crate::ids::SessionId(uuid::Uuid::from_u128(1 << 100));
    let mut stale = world.active(&work, ActiveAttemptState::Running);
    stale.frame_ref.incarnation = Incarnation(uuid::Uuid::from_u128(5));
    let mut unknown = world.active(&work, ActiveAttemptState::Running);
    unknown.frame_ref.task = TaskId(uuid::Uuid::from_u128(5));
    let foreign = world.active(&work, ActiveAttemptState::Running);
    let writes = world.task(work.frame_ref.task);
    let verdicts = world.connect(&other, vec![stale, unknown, foreign]);
    let codes: Vec<_> = verdicts.into_iter().map(|s| s.verdict).collect();
    assert_eq!(
        codes,
        [
            SettlementVerdict::Kill {
                code: Rejection::StaleIncarnation,
                acked: None
            },
            SettlementVerdict::Kill {
                code: Rejection::UnknownAttempt,
                acked: None
            },
            SettlementVerdict::Kill {
                code: Rejection::UnknownAttempt,
                acked: None
            },
        ]
    );
    assert_eq!(
        world.task(work.frame_ref.task),
        writes,
        "a Hello of another daemon changes nothing"
    );
    let mut forged = world.active(&work, ActiveAttemptState::Running);
    forged.proof = Some(LeaseToken([0; 32]));
    let mut again = machine;
    again.session = crate::ids::SessionId(uuid::Uuid::from_u128(2 << 100));
    let verdicts = world.connect(&again, vec![forged]);
    assert_eq!(
        verdicts[0].verdict,
        SettlementVerdict::Kill {
            code: Rejection::BadProof,
            acked: None
        }
    );
}

#[test]
fn a_reboot_ends_earlier_attempts_but_a_stored_result_counts() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let (dead, done) = (world.submit(spec()), world.submit(spec()));
    let mut works = world.dispatches();
    for work in &mut works {
        world.frame(work, FrameBody::Accepted);
    }
    world.disconnect(&machine);
    machine.boot = "boot-2";
    machine.instance = InstanceId(uuid::Uuid::from_u128(77));
    let finished = works
        .iter()
        .find(|w| w.frame_ref.task == done)
        .unwrap()
        .clone();
    world.reconnect(&mut machine, &[(&finished, ActiveAttemptState::Finished)]);
    let end = world.newest(dead).state.end().unwrap().clone();
    assert_eq!(
        (end.failure_code, end.receipt),
        (
            Some(FailureCode::DaemonLostAttempt),
            TerminationReceipt::Confirmed
        )
    );
    assert!(
        world.store.fences.is_empty(),
        "the new boot id proves the end of the processes"
    );
    let mut finished = finished;
    finished.session = machine.session;
    world.frame(&mut finished, completed());
    assert_eq!(world.state(done), TaskState::Completed);
    world.retry(dead).unwrap();
    assert_eq!(
        world.dispatch().frame_ref.number,
        2,
        "the successor does not wait"
    );
}

#[test]
fn a_new_boot_id_proves_the_end_unless_the_old_boot_was_just_active() {
    for (cloned, waits) in [(false, false), (true, true)] {
        let mut world = CoreHarness::new();
        let mut machine = world.connect_daemon(1);
        let task = world.submit(spec());
        let mut work = world.dispatch();
        world.frame(&mut work, FrameBody::Accepted);
        if !cloned {
            world.disconnect(&machine);
            world.pass(15_000);
        }
        machine.boot = "boot-2";
        machine.instance = InstanceId(uuid::Uuid::from_u128(77));
        world.reconnect(
            &mut machine,
            &[(&work.clone(), ActiveAttemptState::Finished)],
        );
        work.session = machine.session;
        // A receipt from the disk, without proof that the processes have ended.
        let termination = ProcessTermination::default();
        world.frame(&mut work, FrameBody::Receipt { termination });
        assert!(world.newest(task).state.end().is_some());
        assert_eq!(world.store.fences.is_empty(), !waits, "cloned: {cloned}");
    }
}

#[test]
fn the_same_instance_replaces_its_stream_and_another_supersedes_it() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let closed = |world: &mut CoreHarness| {
        let sent = std::mem::take(&mut world.deliveries);
        sent.into_iter().find_map(|send| match send {
            Delivery::CloseSession { session, reason } => Some((session, reason)),
            _ => None,
        })
    };
    let old = machine.session;
    world.reconnect(&mut machine, &[]);
    assert_eq!(closed(&mut world), Some((old, CloseReason::Replaced)));
    let old = machine.session;
    machine.instance = InstanceId(uuid::Uuid::from_u128(78));
    world.reconnect(&mut machine, &[]);
    assert_eq!(closed(&mut world), Some((old, CloseReason::Superseded)));
    world.pass(10_500);
    assert_eq!(
        closed(&mut world),
        Some((machine.session, CloseReason::Silent)),
        "two heartbeats are missing"
    );
}

#[test]
fn a_listed_offer_is_confirmed_by_keep_and_its_accept_is_replayed() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.dispatch();
    let verdicts = world.reconnect(
        &mut machine,
        &[(&work.clone(), ActiveAttemptState::Running)],
    );
    assert_eq!(
        verdicts,
        [SettlementVerdict::Keep {
            acked: 0,
            granted_ms: Some(30_000)
        }]
    );
    assert_eq!(world.attempt_state(task), AttemptStateKind::Accepted);
    work.session = machine.session;
    world.take_messages(&machine);
    world.frame(&mut work, FrameBody::Accepted);
    let messages = world.take_messages(&machine);
    assert!(
        messages
            .iter()
            .any(|m| matches!(m, DaemonMessage::Ack { control_seq: 1, .. })),
        "{messages:?}"
    );
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn an_undelivered_dispatch_is_retried() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.dispatch();
    world.send_input(SessionInput::DeliveryFailed {
        session: work.session,
        attempt: work.frame_ref.attempt,
    });
    assert_eq!(world.end_code(task, 1), Some(FailureCode::DeliveryFailed));
    assert_eq!(world.state(task), TaskState::Pending);
    world.pass(2_000);
    assert_eq!(world.dispatch().frame_ref.number, 2);
}

#[test]
fn frames_before_an_adopted_end_are_acknowledged_without_effect() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.disconnect(&machine);
    world.pass(TTL + GRACE);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Lost);
    world.reconnect(
        &mut machine,
        &[(&work.clone(), ActiveAttemptState::Finished)],
    );
    work.session = machine.session;
    world.take_messages(&machine);
    let before = world.task(task);
    world.phase(&mut work, LifecyclePhase::PromptWritten);
    world.phase(&mut work, LifecyclePhase::FirstVisibleEventSeen);
    assert_eq!(world.task(task), before);
    let messages = world.take_messages(&machine);
    assert!(
        matches!(
            messages[..],
            [
                DaemonMessage::Ack { control_seq: 3, .. },
                DaemonMessage::Ack { control_seq: 4, .. }
            ]
        ),
        "Welcome asked for the end, and these frames precede it: {messages:?}"
    );
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn a_lease_that_expires_during_a_replay_does_not_prevent_adoption() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.reconnect(
        &mut machine,
        &[(&work.clone(), ActiveAttemptState::Finished)],
    );
    work.session = machine.session;
    world.take_messages(&machine);
    // The replay of its output takes long, and heartbeats do not list a finished attempt.
    world.advance_renewing(TTL, &machine, &[]);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    world.advance_renewing(GRACE, &machine, &[]);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::LeaseExpired));
    world.phase(&mut work, LifecyclePhase::PromptWritten);
    let messages = world.take_messages(&machine);
    let abandoned = |message: &DaemonMessage| matches!(message, DaemonMessage::Abandon { .. });
    assert!(!messages.iter().any(abandoned), "{messages:?}");
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn an_attempt_listed_with_a_wrong_token_is_lost_at_once() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    let mut forged = world.active(&work, ActiveAttemptState::Running);
    forged.proof = Some(LeaseToken([0; 32]));
    let mut again = machine;
    again.session = crate::ids::SessionId(uuid::Uuid::from_u128(2 << 100));
    world.connect(&again, vec![forged]);
    assert_eq!(
        world.end_code(task, 1),
        Some(FailureCode::DaemonLostAttempt)
    );
    assert_eq!(world.store.fences.len(), 1, "the attempt may still run");
}

#[test]
fn an_unreachable_attempt_keeps_only_its_lease_until_its_shim_answers() {
    for answers in [false, true] {
        let mut world = CoreHarness::new();
        let mut machine = world.connect_daemon(1);
        let task = world.submit(spec());
        let work = world.take_started();
        world.pass(4_000);
        world.reconnect(
            &mut machine,
            &[(&work.clone(), ActiveAttemptState::Unreachable)],
        );
        // Four seconds of its lease are used, and an unreachable attempt may be absent from
        // heartbeats.
        world.advance_renewing(TTL - 8_000, &machine, &[]);
        assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
        let renewed: &[&DispatchedAttempt] = if answers { &[&work] } else { &[] };
        world.advance_renewing(4_000 + GRACE, &machine, renewed);
        let expected = if answers {
            AttemptStateKind::Starting
        } else {
            AttemptStateKind::Lost
        };
        assert_eq!(world.attempt_state(task), expected);
    }
}

#[test]
fn a_running_attempt_without_its_token_is_kept_and_not_renewed() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    world.pass(4_000);
    machine.session = crate::ids::SessionId(world.ids.new_id());
    let mut listed = world.active(&work, ActiveAttemptState::Running);
    listed.proof = None;
    let settled = world.connect(&machine, vec![listed]);
    assert_eq!(
        settled[0].verdict,
        SettlementVerdict::Keep {
            acked: 2,
            granted_ms: None
        }
    );
    world.advance_renewing(TTL + GRACE - 4_000, &machine, &[]);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::LeaseExpired));
}

/// A store without tasks that counts the lookups.
#[derive(Default)]
struct EmptyStoredTasks(std::cell::Cell<u32>);

impl StoredTasks for EmptyStoredTasks {
    fn finished(&self, _: &TenantId, _: TaskId) -> Option<FinishedTask> {
        None
    }

    fn finished_in_scope(&self, _: &TenantScope, _: TaskId) -> Option<FinishedTask> {
        self.0.set(self.0.get() + 1);
        None
    }

    fn removable(&self, _: &TenantId, _: TaskId) -> Option<RemovableTask> {
        None
    }

    fn idempotency(&self, _: &TenantId, _: &str) -> StoredLookup<IdempotencyRecord> {
        Ok(None)
    }

    fn progress(&self, _: &TenantId, _: TaskId) -> StoredLookup<Arc<ProgressRecord>> {
        Ok(None)
    }
}

#[test]
fn a_task_that_the_session_did_not_find_is_not_looked_up_again() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.submit(spec());
    let work = world.take_started();
    let listed = |world: &CoreHarness, task: u128, looked: TaskLookup| {
        let mut active = world.active(&work, ActiveAttemptState::Running);
        active.frame_ref.task = TaskId(uuid::Uuid::from_u128(task));
        active.lookup = looked;
        active
    };
    let live = world.active(&work, ActiveAttemptState::Running);
    let active = vec![
        listed(&world, 5, TaskLookup::Missing),
        listed(&world, 6, TaskLookup::Open),
        ActiveAttempt {
            lookup: TaskLookup::Open,
            ..live
        },
    ];
    let hello = Box::new(world.hello(&machine, active));
    let stored = EmptyStoredTasks::default();
    let session = world.new_session();
    let opened = SessionInput::Opened { session, hello };
    world
        .core
        .handle(opened.into(), &stored, world.now, &mut world.ids);
    assert_eq!(stored.0.get(), 1, "only the task that may have ended since");
}
