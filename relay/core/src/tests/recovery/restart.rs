//! Tests of restarts: nothing acknowledged is lost, nothing runs twice, and nothing waits
//! forever.

use crate::io::session_input::{ActiveAttemptState, FrameBody};
use crate::record::{AttemptStateKind, FailureCode, LifecyclePhase, TaskState, TerminationReceipt};
use crate::task::spec::TaskSpec;
use crate::tests::harness::{CoreHarness, GRACE, TTL, completed, spec};

#[test]
fn running_attempts_go_on_after_a_restart_and_their_frames_are_replayed() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.phase(&mut work, LifecyclePhase::PromptWritten);
    world.restart();
    assert_eq!(world.attempt_state(task), AttemptStateKind::Prompted);
    world.pass(20_000);
    let verdicts = world.reconnect(
        &mut machine,
        &[(&work.clone(), ActiveAttemptState::Running)],
    );
    assert_eq!(
        verdicts,
        [crate::io::effects::SettlementVerdict::Keep {
            acked: 3,
            granted_ms: Some(30_000)
        }]
    );
    work.session = machine.session;
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Completed, 1)
    );
}

#[test]
fn each_lease_gets_a_full_grant_from_boot_and_then_expires() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let _work = world.take_started();
    world.pass(TTL);
    world.restart();
    world.pass(TTL + GRACE - 1);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    world.pass(1);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::LeaseExpired));
}

#[test]
fn after_a_restart_an_offer_counts_as_confirmed() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let _work = world.dispatch();
    world.restart();
    world.reconnect(&mut machine, &[]);
    let end = world.newest(task).state.end().unwrap().clone();
    assert_eq!(
        (end.failure_code, end.receipt),
        (
            Some(FailureCode::DaemonLostAttempt),
            TerminationReceipt::Unconfirmed
        )
    );
    assert_eq!(world.state(task), TaskState::NeedsAttention);
    assert_eq!(world.store.fences.len(), 1);
}

#[test]
fn repeated_restarts_do_not_postpone_the_total_deadline() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(TaskSpec {
        total_ms: Some(600_000),
        ..spec()
    });
    let queued = world.submit(TaskSpec {
        queue_ms: Some(600_000),
        agent: "nobody".into(),
        ..spec()
    });
    let work = world.take_started();
    let mut ran = 0;
    while world.attempt_state(task) == AttemptStateKind::Starting {
        assert!(ran < 900_000, "restarts postpone the total deadline");
        world.restart();
        world.reconnect(
            &mut machine,
            &[(&work.clone(), ActiveAttemptState::Running)],
        );
        world.advance_renewing(40_000, &machine, &[&work]);
        ran += 40_000;
    }
    world.pass(10_000);
    assert_eq!(
        world.end_code(task, 1),
        Some(FailureCode::TaskDeadlineExceeded)
    );
    assert_eq!(world.attempt_state(queued), AttemptStateKind::Parked);
}

#[test]
fn a_backoff_a_park_and_a_cancel_survive() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let backing_off = world.submit(spec());
    let mut work = world.take_started();
    world.frame(
        &mut work,
        crate::tests::harness::errored(FailureCode::AgentExit, 1),
    );
    let canceling = world.submit(spec());
    let running = world.take_started();
    world.cancel(canceling).unwrap();
    world.restart();
    assert_eq!(world.state(backing_off), TaskState::Pending);
    world.reconnect(&mut machine, &[(&running, ActiveAttemptState::Running)]);
    let messages = world.take_messages(&machine);
    assert!(
        messages
            .iter()
            .any(|m| matches!(m, crate::io::effects::DaemonMessage::Cancel { .. })),
        "{messages:?}"
    );
    let mut running = running;
    running.session = machine.session;
    world.frame(&mut running, crate::tests::harness::canceled());
    assert_eq!(world.state(canceling), TaskState::Canceled);
    world.pass(1_500);
    assert_eq!(world.dispatch().frame_ref.task, backing_off);
}

#[test]
fn a_finished_task_can_be_retried_after_a_restart() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let mut plain = spec();
    plain.retry.max_attempts = 1;
    let task = world.submit(plain);
    let mut work = world.take_started();
    world.frame(
        &mut work,
        crate::tests::harness::errored(FailureCode::AgentExit, 1),
    );
    assert_eq!(world.state(task), TaskState::Failed);
    world.restart();
    world.reconnect(&mut machine, &[]);
    let again = world.retry(task).unwrap();
    assert_eq!((again.attempts.len(), world.core.open_task_count()), (2, 1));
    let mut second = world.dispatch();
    work.session = machine.session;
    world.frame(&mut work, FrameBody::Started);
    world.frame(&mut second, FrameBody::Accepted);
    world.frame(&mut second, completed());
    assert_eq!(world.state(task), TaskState::Completed);
    assert_eq!(
        world.retry(task).unwrap_err(),
        crate::io::rejection::Rejection::AlreadyFinished
    );
}

#[test]
fn a_boot_alone_changes_no_live_record() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    for n in 0..6 {
        let task = world.submit(TaskSpec {
            prompt: n.to_string(),
            ..spec()
        });
        if n == 2 {
            world.cancel(task).unwrap();
        }
    }
    let before = world.store.live.clone();
    world.restart();
    assert_eq!(world.core.open_task_count(), before.len());
    assert_eq!(world.store.live, before, "a boot alone changes no task");
}
