//! Tests of operators' commands on tasks: their effects, their refusals and their audit events.

use std::sync::Arc;

use uuid::Uuid;

use super::verb_table::{once, reach_situation};
use crate::config::Config;
use crate::ids::{AttemptId, TaskId, TokenId};
use crate::io::command::RequestActor;
use crate::io::effects::DaemonMessage;
use crate::io::rejection::Rejection;
use crate::io::session_input::{ActiveAttemptState, FrameBody, ProcessTermination};
use crate::operator::task_operation::TaskOperation;
use crate::record::{
    AttemptStateKind, AuditedOperation, EndedBy, FailureCode, LifecyclePhase, OperatorAudit,
    TaskRecord, TaskState, TerminationReceipt, TimelineEventKind,
};
use crate::samples;
use crate::task::spec::{CompletionContract, MissingPolicy, RequiredArtifact, TaskSpec};
use crate::tests::harness::{
    CoreHarness, DispatchedAttempt, GRACE, TTL, TestDaemon, actor, completed, errored, spec,
    termination_receipt,
};

pub(crate) const RELEASE: TaskOperation = TaskOperation::ForceRelease { attempt: None };
pub(crate) const FAIL: TaskOperation = TaskOperation::ForceFail { attempt: None };
pub(crate) const RETRY: TaskOperation = TaskOperation::Retry {
    allow_unsafe: false,
};
pub(crate) const COMPLETE: TaskOperation = TaskOperation::Complete {
    overridden: false,
    result: None,
};

pub(crate) fn audits(record: &TaskRecord) -> Vec<(OperatorAudit, Option<Arc<str>>)> {
    let events = record.timeline.events.iter();
    let audits = events.filter_map(|event| match &event.kind {
        TimelineEventKind::Forced(audit) => Some((audit.clone(), event.message.clone())),
        _ => None,
    });
    audits.collect()
}

fn take_abandons(world: &mut CoreHarness, machine: &TestDaemon) -> Vec<AttemptId> {
    let messages = world.take_messages(machine).into_iter();
    let abandons = messages.filter_map(|message| match message {
        DaemonMessage::Abandon { attempt, .. } => Some(attempt),
        _ => None,
    });
    abandons.collect()
}

#[test]
fn a_released_attempt_is_abandoned_and_its_successor_waits_for_the_receipt() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let _other = world.connect_daemon(2);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.take_messages(&machine);
    let record = world.operate(task, RELEASE).unwrap();
    let first = &record.attempts[0];
    let end = first.state.end().unwrap();
    assert_eq!(
        (first.state.kind(), end.ended_by, end.receipt),
        (
            AttemptStateKind::Released,
            EndedBy::Operator,
            TerminationReceipt::Unconfirmed
        )
    );
    assert_eq!(end.message.as_deref(), Some("a reason"));
    assert_eq!(
        take_abandons(&mut world, &machine),
        [work.frame_ref.attempt]
    );
    world.pass(8_000);
    assert!(world.dispatches().is_empty(), "the attempt may still run");
    let termination = termination_receipt();
    world.frame(&mut work, FrameBody::Receipt { termination });
    assert_eq!(world.dispatch().frame_ref.number, 2);
    assert_eq!(record.counters.failures + record.counters.losses, 0);
}

#[test]
fn without_a_receipt_the_successor_waits_for_the_lease_limit_and_grace() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    let other = world.connect_daemon(2);
    world.pass(5_000);
    world.beat(&machine, &[&work]);
    world.operate(task, RELEASE).unwrap();
    world.advance_renewing(TTL + GRACE - 1, &other, &[]);
    assert!(world.dispatches().is_empty());
    world.pass(1);
    assert_eq!(world.dispatch().frame_ref.number, 2);
}

#[test]
fn a_released_attempt_is_killed_on_reconnect_and_its_result_is_evidence() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.disconnect(&machine);
    world.operate(task, RELEASE).unwrap();
    let verdicts = world.reconnect(&mut machine, &[(&work, ActiveAttemptState::Running)]);
    assert!(matches!(
        verdicts[0],
        crate::io::effects::SettlementVerdict::Kill { .. }
    ));
    work.session = machine.session;
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(record.attempts[0].state.kind(), AttemptStateKind::Released);
    assert!(!record.state.is_terminal());
}

#[test]
fn a_forced_failure_is_final_and_fenced_and_counts_in_no_budget() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.take_messages(&machine);
    let record = world.operate(task, FAIL).unwrap();
    let end = record.newest_attempt().unwrap().state.end().unwrap();
    assert_eq!(
        (end.failure_code.clone(), end.ended_by, end.retryable),
        (Some(FailureCode::OperatorForced), EndedBy::Operator, false)
    );
    assert_eq!(record.counters.failures, 0);
    assert_eq!(
        take_abandons(&mut world, &machine),
        [work.frame_ref.attempt]
    );
    assert_eq!(world.store.fences.len(), 1, "its processes may still run");
    world.frame(&mut work, completed());
    assert_eq!(
        world.state(task),
        TaskState::Failed,
        "a late result changes nothing"
    );
    // Its effects are unknown, so a retry needs allow_unsafe.
    assert_eq!(
        world.operate(task, RETRY).unwrap_err(),
        Rejection::UnsafeRetry
    );
    let allowed = TaskOperation::Retry { allow_unsafe: true };
    assert_eq!(world.operate(task, allowed).unwrap().attempts.len(), 2);
}

#[test]
fn a_forced_operation_with_a_stale_attempt_is_refused() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    let unknown = Some(AttemptId(Uuid::from_u128(99)));
    for verb in [
        TaskOperation::ForceRelease { attempt: unknown },
        TaskOperation::ForceFail { attempt: unknown },
    ] {
        assert_eq!(
            world.operate(task, verb).unwrap_err(),
            Rejection::StaleAttempt
        );
    }
    let attempt = Some(work.frame_ref.attempt);
    world
        .operate(task, TaskOperation::ForceFail { attempt })
        .unwrap();
}

fn spec_with_artifact(path: &str) -> TaskSpec {
    let artifact = RequiredArtifact {
        path: path.into(),
        min_size: None,
        sha256: None,
    };
    TaskSpec {
        contract: Some(CompletionContract {
            artifacts: vec![artifact],
            missing_policy: MissingPolicy::Reject,
        }),
        ..spec()
    }
}

#[test]
fn a_manual_completion_checks_the_contract_unless_overridden() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec_with_artifact("report.md"));
    let work = world.take_started();
    world.take_messages(&machine);
    assert_eq!(
        world.operate(task, COMPLETE).unwrap_err(),
        Rejection::ContractUnmet
    );
    let verb = TaskOperation::Complete {
        overridden: true,
        result: Some(Arc::from(*b"by hand")),
    };
    let record = world.operate(task, verb).unwrap();
    assert_eq!(record.state, TaskState::Completed);
    let newest = record.newest_attempt().unwrap();
    assert_eq!(newest.result.as_deref(), Some(&b"by hand"[..]));
    assert_eq!(
        audits(&record)[0].0,
        OperatorAudit {
            operation: AuditedOperation::CompleteOverridden,
            by: "alice".into(),
            attempt_before: AttemptStateKind::Starting,
            attempt_after: AttemptStateKind::Completed,
            task_before: TaskState::Running,
        }
    );
    assert_eq!(
        take_abandons(&mut world, &machine),
        [work.frame_ref.attempt]
    );
}

#[test]
fn a_manual_completion_of_a_lost_task_adds_an_attempt() {
    let mut world = CoreHarness::new();
    let task = reach_situation(&mut world, "unsafe loss");
    let lost = world.newest(task);
    let record = world.operate(task, COMPLETE).unwrap();
    assert_eq!(record.state, TaskState::Completed);
    assert_eq!(record.attempts[0].state, lost.state);
    let by_hand = &record.attempts[1];
    assert_eq!(by_hand.state.kind(), AttemptStateKind::Completed);
    assert!(by_hand.holder.is_none() && world.dispatches().is_empty());
}

#[test]
fn a_blank_reason_is_refused_before_the_lookup_and_uses_no_rate_limit() {
    let mut world = CoreHarness::new();
    let task = world.submit(spec());
    let unknown = TaskId(Uuid::from_u128(42));
    for _ in 0..20 {
        for id in [task, unknown] {
            for verb in [RELEASE, FAIL, RETRY, COMPLETE, TaskOperation::Pause] {
                let refused = world.operate_as(actor(), id, " \t\n", verb);
                assert_eq!(refused.unwrap_err(), Rejection::ReasonMissing);
            }
        }
    }
    assert_eq!(
        world.operate(unknown, FAIL).unwrap_err(),
        Rejection::UnknownTask
    );
    world.operate(task, TaskOperation::Pause).unwrap();
    let again = world.operate_as(actor(), task, "once more", TaskOperation::Pause);
    assert!(!again.unwrap().changed);
}

#[test]
fn each_credential_has_ten_operations_per_minute_and_task() {
    let mut world = CoreHarness::new();
    let (task, other) = (world.submit(spec()), world.submit(spec()));
    for n in 0..10 {
        let verb = if n % 2 == 0 {
            TaskOperation::Pause
        } else {
            TaskOperation::Unpause
        };
        world.operate(task, verb).unwrap();
    }
    let writes = world.writes;
    assert_eq!(
        world.operate(task, FAIL).unwrap_err(),
        Rejection::RateLimited
    );
    assert_eq!(world.writes, writes);
    world.operate(other, TaskOperation::Pause).unwrap();
    let bob = RequestActor {
        name: "alice".into(),
        token: TokenId(Uuid::from_u128(78)),
        operator: true,
    };
    let reply = world.operate_as(bob, task, "my turn", TaskOperation::Pause);
    assert!(reply.is_ok(), "the limit counts credentials, not names");
    world.pass(60_000);
    world.operate(task, FAIL).unwrap();
}

#[test]
fn a_retry_is_audited_and_an_unsafe_one_needs_permission() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(once());
    let mut work: DispatchedAttempt = world.take_started();
    world.phase(&mut work, LifecyclePhase::FirstVisibleEventSeen);
    let termination = ProcessTermination {
        group_empty: true,
        ..ProcessTermination::default()
    };
    let FrameBody::Errored(error) = errored(FailureCode::AgentExit, 1) else {
        panic!("an error");
    };
    let body = FrameBody::Errored(crate::io::session_input::ErroredBody {
        termination,
        ..error
    });
    world.frame(&mut work, body);
    assert_eq!(
        world.operate(task, RETRY).unwrap_err(),
        Rejection::UnsafeRetry
    );
    let record = world
        .operate(task, TaskOperation::Retry { allow_unsafe: true })
        .unwrap();
    let audit = &audits(&record)[0].0;
    assert_eq!(
        (audit.operation, audit.attempt_before, audit.task_before),
        (
            AuditedOperation::Retry,
            AttemptStateKind::Failed,
            TaskState::Failed
        )
    );
}

#[test]
fn a_retry_of_a_completed_task_is_refused_as_already_finished() {
    let mut config = samples::config();
    config.max_dispatches = 1;
    let mut world = CoreHarness::with(config);
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, completed());
    assert_eq!(world.retry(task).unwrap_err(), Rejection::AlreadyFinished);
}

#[test]
fn a_forced_release_uses_up_no_dispatch() {
    let mut world = CoreHarness::with(Config {
        max_dispatches: 3,
        ..samples::config()
    });
    // A daemon gets no offer for a while after a release, so there are many daemons.
    let _machines: Vec<_> = (1..=9).map(|n| world.connect_daemon(n)).collect();
    let task = world.submit(spec());
    for n in 1..=8 {
        let mut work = world.take_started();
        assert_eq!(world.task(task).counters.dispatches, 1, "of {n} attempts");
        world.operate(task, RELEASE).unwrap();
        let termination = termination_receipt();
        world.frame(&mut work, FrameBody::Receipt { termination });
    }
    assert_eq!(world.task(task).attempts.len(), 9);
    assert!(!world.state(task).is_terminal());
}
