//! Tests of results that arrive after the end of their attempt: they are adopted within limits
//! and are evidence otherwise.

use crate::ids::TaskId;
use crate::io::effects::SettlementVerdict;
use crate::io::session_input::{ActiveAttemptState, FrameBody};
use crate::record::{AttemptStateKind, EndState, FailureCode, TaskState};
use crate::task::spec::{TaskSpec, UnsafeLossPolicy};
use crate::tests::harness::{
    CoreHarness, DispatchedAttempt, GRACE, TTL, TestDaemon, completed, errored, spec,
};

const DAY: u64 = 24 * 3_600_000;

fn policy(when_unsafe: UnsafeLossPolicy) -> TaskSpec {
    let mut spec = spec();
    spec.retry.when_unsafe = when_unsafe;
    spec
}

/// A task whose lease expired while its daemon was disconnected.
fn expire_lease(
    world: &mut CoreHarness,
    spec: TaskSpec,
) -> (TestDaemon, TaskId, DispatchedAttempt) {
    let machine = world.connect_daemon(1);
    let task = world.submit(spec);
    let work = world.take_started();
    world.disconnect(&machine);
    world.pass(TTL + GRACE);
    assert_eq!(world.newest(task).state.kind(), AttemptStateKind::Lost);
    (machine, task, work)
}

fn reconnect_with_result(
    world: &mut CoreHarness,
    machine: &mut TestDaemon,
    work: &mut DispatchedAttempt,
    state: ActiveAttemptState,
) -> SettlementVerdict {
    let verdicts = world.reconnect(machine, &[(&work.clone(), state)]);
    work.session = machine.session;
    verdicts[0].clone()
}

#[test]
fn a_late_result_of_a_parked_loss_completes_the_task() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Park));
    assert_eq!(world.state(task), TaskState::NeedsAttention);
    let verdict = reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    assert_eq!(verdict, SettlementVerdict::Adopt { acked: 2 });
    world.frame(&mut work, completed());
    let record = world.task(task);
    let end = record.attempts[0].state.end().unwrap();
    assert_eq!(
        (record.state, end.state, end.is_adopted_late),
        (TaskState::Completed, EndState::Completed, true)
    );
    assert_eq!(record.counters.losses, 0);
    assert!(record.attention.is_none() && world.core.open_task_count() == 0);
}

/// The starved successor never ran, so releasing it loses nothing. A long absence must not lose
/// a result that was made in time.
#[test]
fn a_late_result_releases_a_starved_successor() {
    let mut world = CoreHarness::new();
    let spec = TaskSpec {
        queue_ms: Some(60_000),
        ..policy(UnsafeLossPolicy::Retry)
    };
    let (mut machine, task, mut work) = expire_lease(&mut world, spec);
    world.pass(70_000);
    assert_eq!(world.newest(task).state.kind(), AttemptStateKind::Parked);
    machine.slots = 0;
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(record.state, TaskState::Completed);
    assert_eq!(record.attempts[1].state.kind(), AttemptStateKind::Released);
    assert!(record.attention.is_none() && world.core.open_task_count() == 0);
}

#[test]
fn a_late_result_releases_a_queued_successor() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Retry));
    assert_eq!(world.state(task), TaskState::Pending);
    world.pass(2_000);
    assert_eq!(
        (world.state(task), world.task(task).attempts.len()),
        (TaskState::Queued, 2)
    );
    // The daemon reconnects without a free slot for the successor.
    machine.slots = 0;
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(record.state, TaskState::Completed);
    assert_eq!(record.attempts[1].state.kind(), AttemptStateKind::Released);
    machine.slots = 4;
    world.reconnect(&mut machine, &[]);
    assert!(world.dispatches().is_empty());
}

#[test]
fn a_late_result_is_evidence_once_the_successor_is_offered() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Retry));
    let _other = world.connect_daemon(2);
    world.pass(2_000);
    assert_eq!(world.dispatch().frame_ref.number, 2);
    let verdict = reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    assert!(
        matches!(verdict, SettlementVerdict::Adopt { .. }),
        "the terminal frame is wanted as evidence"
    );
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts[0].state.kind()),
        (TaskState::Running, AttemptStateKind::Lost)
    );
    assert!(record.attempts[0].has_late_terminal);
}

#[test]
fn a_late_result_is_adopted_only_within_a_day_of_the_loss() {
    for (age, state) in [(DAY, TaskState::Completed), (DAY + 1, TaskState::Lost)] {
        let mut world = CoreHarness::new();
        let (mut machine, task, mut work) =
            expire_lease(&mut world, policy(UnsafeLossPolicy::Fail));
        assert_eq!(world.state(task), TaskState::Lost);
        world.skip_time(age);
        reconnect_with_result(
            &mut world,
            &mut machine,
            &mut work,
            ActiveAttemptState::Finished,
        );
        world.frame(&mut work, completed());
        assert_eq!(world.state(task), state);
        assert!(world.store.live.is_empty());
    }
}

#[test]
fn a_late_result_does_not_undo_a_decision_of_a_person() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Park));
    world.cancel(task).unwrap();
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Canceled);

    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Park));
    world.retry(task).unwrap();
    machine.slots = 0;
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, completed());
    assert_eq!(
        world.state(task),
        TaskState::Queued,
        "a person has retried it"
    );
}

#[test]
fn a_result_made_after_the_lease_is_evidence() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Park));
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    let FrameBody::Completed(mut body) = completed() else {
        unreachable!()
    };
    body.ended_in_lease = false;
    world.frame(&mut work, FrameBody::Completed(body));
    assert_eq!(world.state(task), TaskState::NeedsAttention);
    assert!(world.task(task).attempts[0].has_late_terminal);
}

#[test]
fn the_late_result_window_is_measured_in_relay_uptime() {
    for (jump, age, state) in [
        (10 * DAY, 1_000, TaskState::Completed),
        (0, DAY + 60_000, TaskState::Lost),
    ] {
        let mut world = CoreHarness::new();
        let (mut machine, task, mut work) =
            expire_lease(&mut world, policy(UnsafeLossPolicy::Fail));
        world.now.wall.0 += jump;
        world.restart();
        world.skip_time(age);
        reconnect_with_result(
            &mut world,
            &mut machine,
            &mut work,
            ActiveAttemptState::Finished,
        );
        world.frame(&mut work, completed());
        assert_eq!(world.state(task), state);
    }
}

#[test]
fn a_late_result_replaces_successors_that_never_ran() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Retry));
    let other = world.connect_daemon(2);
    world.pass(2_000);
    let mut rejected = world.dispatch();
    let code = crate::record::RejectCode::AtCapacity;
    world.frame(
        &mut rejected,
        FrameBody::Rejected {
            code,
            message: None,
        },
    );
    assert_eq!(world.task(task).attempts.len(), 3);
    world.disconnect(&other);
    machine.slots = 0;
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(record.state, TaskState::Completed);
    assert!(record.attempts[0].state.end().unwrap().is_adopted_late);
}

#[test]
fn a_late_failure_is_judged_like_a_timely_one() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Retry));
    world.pass(2_000);
    assert_eq!(world.state(task), TaskState::Queued);
    machine.slots = 0;
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, errored(FailureCode::AgentExit, 7));
    let record = world.task(task);
    assert_eq!(
        (
            record.state,
            record.counters.losses,
            record.counters.failures
        ),
        (TaskState::Failed, 0, 1),
        "it may have had effects and is not a loss"
    );
    assert_eq!(record.attempts[1].state.kind(), AttemptStateKind::Released);
    assert_eq!(record.retry_stop_reason.as_deref(), Some("unsafe"));
}

#[test]
fn a_late_failure_replaces_only_a_waiting_successor() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Retry));
    let other = world.connect_daemon(2);
    world.pass(2_000);
    let mut rejected = world.dispatch();
    let code = crate::record::RejectCode::AtCapacity;
    world.frame(
        &mut rejected,
        FrameBody::Rejected {
            code,
            message: None,
        },
    );
    world.disconnect(&other);
    machine.slots = 0;
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, errored(FailureCode::AgentExit, 7));
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts[0].has_late_terminal),
        (TaskState::Queued, true)
    );
}

#[test]
fn a_late_failure_does_not_replace_a_deadline() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let mut timed = policy(UnsafeLossPolicy::Park);
    timed.effective_profile.first_event_ms = Some(10_000);
    timed.retry.max_attempts = 1;
    let task = world.submit(timed);
    let mut work = world.take_started();
    world.phase(&mut work, crate::record::LifecyclePhase::PromptWritten);
    world.disconnect(&machine);
    world.pass(13_000);
    assert_eq!(world.state(task), TaskState::TimedOut);
    let mut machine = machine;
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, errored(FailureCode::AgentExit, 7));
    assert_eq!(world.state(task), TaskState::TimedOut);
    assert!(world.task(task).attempts[0].has_late_terminal);
}

#[test]
fn a_late_failure_replaces_a_loss_only_without_an_active_successor() {
    let mut world = CoreHarness::new();
    let (mut machine, task, mut work) = expire_lease(&mut world, policy(UnsafeLossPolicy::Park));
    reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Finished,
    );
    world.frame(&mut work, errored(FailureCode::AgentExit, 7));
    let record = world.task(task);
    assert_eq!(
        (
            record.state,
            record.counters.losses,
            record.counters.failures
        ),
        (TaskState::Failed, 0, 1)
    );
}

#[test]
fn an_attempt_past_its_lease_is_killed_and_its_receipt_lifts_the_fence() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(policy(UnsafeLossPolicy::Park));
    let mut work = world.take_started();
    world.reconnect(&mut machine, &[]);
    assert_eq!(
        world.end_code(task, 1),
        Some(FailureCode::DaemonLostAttempt)
    );
    assert_eq!(world.store.fences.len(), 1);
    let verdict = reconnect_with_result(
        &mut world,
        &mut machine,
        &mut work,
        ActiveAttemptState::Running,
    );
    assert!(matches!(verdict, SettlementVerdict::Kill { .. }));
    world.retry(task).unwrap();
    assert!(world.dispatches().is_empty(), "fenced");
    world.frame(
        &mut work,
        FrameBody::Receipt {
            termination: crate::tests::harness::termination_receipt(),
        },
    );
    assert!(world.store.fences.is_empty());
    assert_eq!(
        world.dispatch().frame_ref.number,
        2,
        "the receipt proves the end"
    );
}
