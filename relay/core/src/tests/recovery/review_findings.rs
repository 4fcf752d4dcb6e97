//! Regression tests for defects that a review of the core found.

use crate::commands::PauseScheduler;
use crate::commands::UnpauseScheduler;
use crate::ids::{SessionId, TenantScope};
use crate::io::effects::{DaemonMessage, SettlementVerdict};
use crate::io::rejection::Rejection;
use crate::io::session_input::{ActiveAttemptState, FrameBody, ProcessTermination};
use crate::operator::task_operation::TaskOperation;
use crate::record::{
    AttemptStateKind, DaemonOperation, FailureCode, LifecyclePhase, TaskState, TerminationReceipt,
};
use crate::task::spec::TaskSpec;
use crate::tests::harness::{
    CoreHarness, TTL, actor, completed, daemon_operation, spec, termination_receipt,
};
use crate::time::IdSource;

/// A task with one attempt, so that a failure ends the task.
fn once() -> TaskSpec {
    let mut spec = spec();
    spec.retry.max_attempts = 1;
    spec
}

#[test]
fn a_stream_lost_during_cleanup_loses_no_result() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(once());
    let mut work = world.take_started();
    world.phase(&mut work, LifecyclePhase::CleanupStarted);
    world.disconnect(&machine);
    world.pass(TTL / 2);
    assert_eq!(
        world.attempt_state(task),
        AttemptStateKind::CleaningUp,
        "the lease has not expired"
    );
    world.reconnect(
        &mut machine,
        &[(&work.clone(), ActiveAttemptState::Finished)],
    );
    work.session = machine.session;
    world.pass(3_000);
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn the_cleanup_limit_holds_after_a_reconnect() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(once());
    let mut work = world.take_started();
    world.phase(&mut work, LifecyclePhase::CleanupStarted);
    world.disconnect(&machine);
    world.pass(TTL / 2);
    world.reconnect(
        &mut machine,
        &[(&work.clone(), ActiveAttemptState::Running)],
    );
    world.advance_renewing(8_000, &machine, &[&work]);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::NoResult));
}

#[test]
fn a_result_after_a_no_result_end_is_adopted() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(once());
    let mut work = world.take_started();
    world.phase(&mut work, LifecyclePhase::CleanupStarted);
    world.advance_renewing(8_000, &machine, &[&work]);
    assert_eq!(world.state(task), TaskState::Failed);
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(
        (record.state, record.counters.failures),
        (TaskState::Completed, 0)
    );
    assert!(record.attempts[0].state.end().unwrap().is_adopted_late);
}

#[test]
fn a_finished_cleanup_without_a_receipt_is_unconfirmed() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(once());
    let mut work = world.take_started();
    world.phase(&mut work, LifecyclePhase::CleanupStarted);
    world.phase(&mut work, LifecyclePhase::CleanupFinished);
    world.advance_renewing(8_000, &machine, &[&work]);
    let end = world.newest(task).state.end().unwrap().clone();
    assert_eq!(end.receipt, TerminationReceipt::Unconfirmed);
    assert_eq!(world.store.fences.len(), 1);
}

#[test]
fn the_receipt_of_a_killed_attempt_counts_with_any_number() {
    for number in [1, 9] {
        let mut world = CoreHarness::new();
        let mut machine = world.connect_daemon(1);
        let task = world.submit(spec());
        let mut work = world.take_started();
        world.cancel(task).unwrap();
        world.advance_renewing(8_000, &machine, &[&work]);
        let canceled = world.task(task);
        assert_eq!(canceled.state, TaskState::Canceled);
        assert_eq!(canceled.cancel.as_ref().unwrap().confirmed, None);
        let verdicts = world.reconnect(
            &mut machine,
            &[(&work.clone(), ActiveAttemptState::Running)],
        );
        let acked = Some(2);
        let code = Rejection::TaskTerminal;
        assert_eq!(verdicts, [SettlementVerdict::Kill { code, acked }]);
        work.session = machine.session;
        let left = ProcessTermination::default();
        world.replay(&work, number, FrameBody::Receipt { termination: left });
        assert_eq!(world.store.fences.len(), 1, "a process may still run");
        let termination = termination_receipt();
        world.replay(&work, number + 1, FrameBody::Receipt { termination });
        assert!(world.store.fences.is_empty());
        assert!(
            world
                .task(task)
                .cancel
                .as_ref()
                .unwrap()
                .confirmed
                .is_some()
        );
    }
}

#[test]
fn a_drain_and_its_withdrawal_reach_a_daemon_on_its_next_stream() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    world.disconnect(&machine);
    let daemon = machine.daemon;
    let drain = daemon_operation(daemon, DaemonOperation::Drain);
    world.send(drain.command()).unwrap();
    world.reconnect(&mut machine, &[]);
    let marks = |messages: Vec<DaemonMessage>| -> Vec<bool> {
        let marks = messages.into_iter().filter_map(|message| match message {
            DaemonMessage::Drain { withdrawn } => Some(withdrawn),
            _ => None,
        });
        marks.collect()
    };
    assert_eq!(marks(world.take_messages(&machine)), [false]);
    world.disconnect(&machine);
    let undrain = daemon_operation(daemon, DaemonOperation::Undrain);
    world.send(undrain.command()).unwrap();
    machine.session = SessionId(world.ids.new_id());
    world.connect_with(&machine, Vec::new(), |hello| hello.draining = true);
    assert_eq!(marks(world.take_messages(&machine)), [true]);
    world.reconnect(&mut machine, &[]);
    assert!(marks(world.take_messages(&machine)).is_empty());
}

#[test]
fn an_unpause_without_a_pause_is_refused_and_writes_nothing() {
    let mut world = CoreHarness::new();
    let task = world.submit(spec());
    let writes = world.writes;
    let unpaused = world.operate(task, TaskOperation::Unpause);
    assert_eq!(unpaused.unwrap_err(), Rejection::NotPaused);
    assert_eq!(world.writes, writes);
}

fn pause(world: &mut CoreHarness) {
    let pause = PauseScheduler {
        scope: TenantScope::All,
        by: actor(),
        reason: "x".into(),
    };
    world.send(pause).unwrap();
}

fn unpause(world: &mut CoreHarness) {
    let by = actor();
    world
        .send(UnpauseScheduler {
            scope: TenantScope::All,
            by,
            reason: None,
        })
        .unwrap();
}

#[test]
fn a_pause_stops_the_queue_timer_over_a_restart() {
    let mut world = CoreHarness::new();
    let patient = TaskSpec {
        queue_ms: Some(3_600_000),
        ..spec()
    };
    let before = world.submit(patient.clone());
    world.pass(1_000_000);
    pause(&mut world);
    let within = world.submit(patient);
    world.pass(24 * 3_600_000);
    world.restart();
    world.pass(1_000_000);
    unpause(&mut world);
    world.pass(2_000_000);
    world.restart();
    world.pass(500_000);
    for task in [before, within] {
        assert_eq!(world.attempt_state(task), AttemptStateKind::Queued);
    }
    world.pass(150_000);
    assert_eq!(
        world.attempt_state(before),
        AttemptStateKind::Parked,
        "1 + 2 + 0.65 of 3.6 million: the time before the pause counts"
    );
    assert_eq!(world.attempt_state(within), AttemptStateKind::Queued);
    world.pass(1_000_000);
    assert_eq!(
        world.attempt_state(within),
        AttemptStateKind::Parked,
        "the time after the pause counts"
    );
}

#[test]
fn a_new_boot_proves_nothing_while_the_old_one_was_just_active() {
    for (silence, fences) in [(900, 1), (12_000, 0)] {
        let mut world = CoreHarness::new();
        let mut machine = world.connect_daemon(1);
        let task = world.submit(spec());
        let work = world.take_started();
        world.beat(&machine, &[&work]);
        world.pass(silence);
        machine.instance = crate::ids::InstanceId(world.ids.new_id());
        machine.boot = "boot-2";
        world.reconnect(&mut machine, &[]);
        assert_eq!(world.attempt_state(task), AttemptStateKind::Lost);
        assert_eq!(world.store.fences.len(), fences, "after {silence} ms");
        world.reconnect(&mut machine, &[]);
        assert_eq!(
            world.store.fences.len(),
            fences,
            "the next stream changes nothing"
        );
    }
}
