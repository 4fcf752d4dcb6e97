//! Tests of cancel: it is requested, delivered and confirmed, and the task has exactly one end
//! in every race.

use crate::io::effects::{CancelKind, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::io::session_input::ActiveAttemptState;
use crate::record::{
    AttemptStateKind, EndedBy, FailureCode, LifecyclePhase, TaskState, TerminationReceipt,
    TimelineEventKind,
};
use crate::tests::harness::{CoreHarness, GRACE, SLACK, TTL, canceled, completed, spec};

#[test]
fn a_waiting_task_is_canceled_at_once_and_a_second_cancel_changes_nothing() {
    let mut world = CoreHarness::new();
    let task = world.submit(spec());
    let first = world.cancel(task).unwrap();
    assert_eq!(first.state, TaskState::Canceled);
    let writes = world.writes;
    let second = world.cancel(task).unwrap();
    assert_eq!((second.revision, world.writes), (first.revision, writes));
    assert_eq!(world.core.open_task_count(), 0);
    let _machine = world.connect_daemon(1);
    assert!(world.dispatches().is_empty());
}

#[test]
fn a_cancel_is_requested_then_delivered_then_confirmed() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.take_messages(&machine);
    let asked = world.cancel(task).unwrap();
    assert_eq!(asked.state, TaskState::Running);
    assert!(world.take_messages(&machine).iter().any(|m| matches!(m, DaemonMessage::Cancel { kind: CancelKind::User, to, .. } if to.attempt == work.frame_ref.attempt)));
    let writes = world.writes;
    world.cancel(task).unwrap();
    assert!(
        world.take_messages(&machine).is_empty() && world.writes == writes,
        "idempotent"
    );
    world.phase(&mut work, LifecyclePhase::CleanupStarted);
    let cancel = world.task(task).cancel.clone().unwrap();
    assert!(cancel.delivered.is_some() && cancel.confirmed.is_none());
    world.frame(&mut work, canceled());
    let record = world.task(task);
    let end = record.newest_attempt().unwrap().state.end().unwrap();
    assert_eq!(
        (record.state, end.ended_by, end.receipt),
        (
            TaskState::Canceled,
            EndedBy::Client,
            TerminationReceipt::Confirmed
        )
    );
    assert_eq!(end.failure_code, Some(FailureCode::CanceledByUser));
    assert!(record.cancel.as_ref().unwrap().confirmed.is_some());
}

#[test]
fn whichever_of_cancel_and_result_comes_first_wins() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let first = world.submit(spec());
    let mut work = world.take_started();
    world.cancel(first).unwrap();
    world.frame(&mut work, completed());
    assert_eq!(world.state(first), TaskState::Canceled);
    let second = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, completed());
    assert_eq!(world.cancel(second).unwrap().state, TaskState::Completed);
}

#[test]
fn a_cancel_wins_over_a_deadline_that_was_pending() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let mut spec = spec();
    spec.effective_profile.process_start_ms = Some(1_000);
    let task = world.submit(spec);
    let mut work = world.take_started();
    world.pass(1_000 + SLACK);
    world.cancel(task).unwrap();
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Canceled);
}

#[test]
fn a_cancel_without_an_answer_is_unconfirmed_and_fenced() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    world.cancel(task).unwrap();
    world.pass(2_000 + SLACK);
    let record = world.task(task);
    let end = record.newest_attempt().unwrap().state.end().unwrap();
    assert_eq!(
        (record.state, end.receipt),
        (TaskState::Canceled, TerminationReceipt::Unconfirmed)
    );
    assert!(record.cancel.as_ref().unwrap().confirmed.is_none());
    assert_eq!(world.store.fences.len(), 1);
    // The late frame has the receipt: it lifts the fence and confirms the cancel.
    world.take_messages(&machine);
    let mut work = work;
    world.frame(&mut work, canceled());
    let record = world.task(task);
    assert_eq!(
        record
            .newest_attempt()
            .unwrap()
            .state
            .end()
            .unwrap()
            .receipt,
        TerminationReceipt::Confirmed
    );
    let cancel = record.cancel.as_ref().unwrap();
    assert!(cancel.confirmed.is_some() && cancel.delivered.is_some());
    let mut events = record.timeline.events.iter();
    let shown = events.any(|event| event.kind == TimelineEventKind::CancelConfirmed);
    assert!(shown, "the timeline shows the confirmation");
    assert!(world.store.fences.is_empty());
    assert!(
        world
            .take_messages(&machine)
            .iter()
            .any(|m| matches!(m, DaemonMessage::Ack { .. }))
    );
}

#[test]
fn a_cancel_while_disconnected_waits_for_the_receipt_or_the_lease() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let (back, gone) = (world.submit(spec()), world.submit(spec()));
    let mut works = world.dispatches();
    for work in &mut works {
        world.frame(work, crate::io::session_input::FrameBody::Accepted);
    }
    world.disconnect(&machine);
    world.cancel(back).unwrap();
    world.cancel(gone).unwrap();
    world.pass(20_000);
    assert_eq!(
        (world.state(back), world.attempt_state(back)),
        (TaskState::Running, AttemptStateKind::CleaningUp)
    );
    let verdicts = world.reconnect(
        &mut machine,
        &[
            (&works[0], ActiveAttemptState::Running),
            (&works[1], ActiveAttemptState::Running),
        ],
    );
    assert_eq!(verdicts.len(), 2);
    let messages = world.take_messages(&machine);
    let cancels = messages
        .iter()
        .filter(|m| matches!(m, DaemonMessage::Cancel { .. }))
        .count();
    assert_eq!(cancels, 2, "the cancels are sent again: {messages:?}");
    works[0].session = machine.session;
    world.frame(&mut works[0], canceled());
    assert_eq!(world.state(back), TaskState::Canceled);
    world.disconnect(&machine);
    world.pass(TTL + GRACE - 1);
    assert_eq!(world.state(gone), TaskState::Running);
    world.pass(1);
    let end = world.newest(gone).state.end().unwrap().clone();
    assert_eq!(
        (world.state(gone), end.receipt),
        (TaskState::Canceled, TerminationReceipt::Unconfirmed)
    );
    assert!(
        world.store.fences.is_empty(),
        "the lease limit has passed, so the processes are dead"
    );
}

#[test]
fn a_cancel_of_an_unknown_or_foreign_task_is_refused_as_unknown() {
    let mut world = CoreHarness::new();
    let mut foreign = spec();
    foreign.tenant = crate::samples::tenant("other");
    let task = world.submit(foreign);
    let writes = world.writes;
    assert_eq!(world.cancel(task).unwrap_err(), Rejection::UnknownTask);
    let nobody = crate::ids::TaskId(uuid::Uuid::from_u128(404));
    assert_eq!(world.cancel(nobody).unwrap_err(), Rejection::UnknownTask);
    assert_eq!(world.writes, writes);
}

#[test]
fn an_offer_is_canceled_at_once() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.dispatch();
    assert_eq!(world.cancel(task).unwrap().state, TaskState::Canceled);
    assert!(
        world.take_messages(&machine).iter().any(
            |m| matches!(m, DaemonMessage::Abandon { attempt, .. } if *attempt == work.frame_ref.attempt)
        )
    );
    let mut work = work;
    world.frame(&mut work, crate::io::session_input::FrameBody::Accepted);
    assert_eq!(world.rejections(&machine), [Rejection::TaskTerminal]);
}

#[test]
fn a_cancel_of_a_task_that_never_ran_is_confirmed_at_once() {
    let mut world = CoreHarness::new();
    let task = world.submit(spec());
    let cancel = world.cancel(task).unwrap().cancel.clone().unwrap();
    assert!(cancel.delivered.is_some() && cancel.confirmed.is_some());
    assert!(cancel.attempt.is_some(), "the cancel names its attempt");
}

#[test]
fn a_cancel_between_attempts_is_confirmed_by_the_earlier_receipt() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.reconnect(&mut machine, &[]);
    assert_eq!(
        world.state(task),
        TaskState::NeedsAttention,
        "it may still run"
    );
    world.cancel(task).unwrap();
    let cancel = world.task(task).cancel.clone().unwrap();
    assert_eq!(
        (cancel.attempt, cancel.confirmed),
        (Some(work.frame_ref.attempt), None)
    );
    work.session = machine.session;
    world.frame(&mut work, canceled());
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
