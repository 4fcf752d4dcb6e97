//! Tests of failures, losses and retries: budgets, safety, poison tasks and unhealthy daemons.

use crate::commands::ListDaemons;
use crate::io::session_input::{FrameBody, ProcessTermination};
use crate::record::{AttemptStateKind, AttentionCause, FailureCode, RejectCode, TaskState};
use crate::task::spec::{TaskSpec, UnsafeLossPolicy};
use crate::tests::harness::{CoreHarness, DispatchedAttempt, GRACE, TTL, completed, errored, spec};

#[test]
fn failures_are_retried_until_the_budget_or_a_repeated_failure() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    for (number, exit) in [(1, 1), (2, 2), (3, 3)] {
        let mut work = world.take_started();
        assert_eq!(work.frame_ref.number, number);
        world.frame(&mut work, errored(FailureCode::AgentExit, exit));
        world.advance_renewing(3_000, &machine, &[]);
    }
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Failed, 3)
    );
    assert_eq!(record.retry_stop_reason.as_deref(), Some("attempts_spent"));

    let task = world.submit(spec());
    for _ in 0..2 {
        let mut work = world.take_started();
        world.frame(&mut work, errored(FailureCode::AgentExit, 1));
        world.advance_renewing(3_000, &machine, &[]);
    }
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Failed, 2)
    );
    assert_eq!(
        record.retry_stop_reason.as_deref(),
        Some("repeated_failure")
    );
}

#[test]
fn a_failure_after_visible_output_or_a_tool_is_final() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(
        &mut work,
        FrameBody::ToolStarted {
            id: "t".into(),
            name: "rm".into(),
        },
    );
    world.frame(&mut work, errored(FailureCode::AgentExit, 1));
    let record = world.task(task);
    assert_eq!(
        (record.state, record.retry_stop_reason.as_deref()),
        (TaskState::Failed, Some("unsafe"))
    );
    assert!(!record.newest_attempt().unwrap().retry_safe);
}

#[test]
fn a_loss_after_confirmation_follows_the_unsafe_policy() {
    let rows = [
        (UnsafeLossPolicy::Park, TaskState::NeedsAttention),
        (UnsafeLossPolicy::Retry, TaskState::Pending),
        (UnsafeLossPolicy::Fail, TaskState::Lost),
    ];
    for (when_unsafe, state) in rows {
        let mut world = CoreHarness::new();
        let machine = world.connect_daemon(1);
        let mut spec = spec();
        spec.retry.when_unsafe = when_unsafe;
        let task = world.submit(spec);
        world.take_started();
        world.disconnect(&machine);
        world.pass(TTL + GRACE);
        assert_eq!(world.state(task), state, "{when_unsafe:?}");
    }
}

#[test]
fn a_loss_before_the_prompt_was_written_is_safe_to_retry() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    let termination = ProcessTermination {
        group_empty: true,
        prompt_written: Some(false),
        ..ProcessTermination::default()
    };
    world.frame(&mut work, FrameBody::Receipt { termination });
    assert_eq!(world.newest(task).state.kind(), AttemptStateKind::Lost);
    assert_eq!(world.state(task), TaskState::Pending, "retried");
}

#[test]
fn a_task_that_lost_two_daemons_is_poison() {
    let mut world = CoreHarness::new();
    let mut spec = spec();
    (spec.retry.when_unsafe, spec.retry.max_losses) = (UnsafeLossPolicy::Retry, 10);
    let mut task = None;
    for n in 1..=2 {
        let machine = world.connect_daemon(n);
        let task = *task.get_or_insert_with(|| world.submit(spec.clone()));
        world.pass(3_000);
        let mut work = world.dispatch();
        world.frame(&mut work, FrameBody::Accepted);
        world.disconnect(&machine);
        world.pass(TTL + GRACE);
        assert_eq!(world.newest(task).state.kind(), AttemptStateKind::Lost);
    }
    let record = world.task(task.unwrap());
    assert_eq!(record.state, TaskState::NeedsAttention);
    assert_eq!(
        record.attention.as_ref().unwrap().cause,
        AttentionCause::Poison
    );
    let _healthy = world.connect_daemon(3);
    world.pass(60_000);
    assert!(
        world.dispatches().is_empty(),
        "a poison task is not dispatched automatically"
    );
    world.connect_daemon(3);
    world.retry(task.unwrap()).unwrap();
    assert_eq!(world.dispatch().frame_ref.number, 3);
}

#[test]
fn released_and_rejected_attempts_use_no_budget_up_to_twenty_dispatches() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    for number in 1..=20 {
        let mut work = world.dispatch();
        assert_eq!(work.frame_ref.number, number);
        world.frame(
            &mut work,
            FrameBody::Rejected {
                code: RejectCode::UnsupportedAgent,
                message: None,
            },
        );
        assert!(
            world.dispatches().is_empty(),
            "the same daemon gets no new offer at once"
        );
        world.beat(&machine, &[]);
        world.pass(5_000);
        world.beat(&machine, &[]);
    }
    let record = world.task(task);
    assert_eq!(
        (
            record.state,
            record.counters.failures,
            record.counters.losses
        ),
        (TaskState::Failed, 0, 0)
    );
    assert_eq!(world.end_code(task, 20), Some(FailureCode::DispatchLimit));
    assert_eq!(
        world.retry(task).unwrap_err(),
        crate::io::rejection::Rejection::DispatchLimit
    );
}

#[test]
fn a_rejected_task_goes_to_another_daemon() {
    let mut world = CoreHarness::new();
    let (first, second) = (world.connect_daemon(1), world.connect_daemon(2));
    world.submit(spec());
    let mut work = world.dispatch();
    let other = if work.session == first.session {
        &second
    } else {
        &first
    };
    world.frame(
        &mut work,
        FrameBody::Rejected {
            code: RejectCode::BadCwd,
            message: None,
        },
    );
    assert_eq!(world.dispatch().session, other.session);
}

#[test]
fn a_daemon_with_five_failures_in_a_row_is_set_aside() {
    let mut world = CoreHarness::new();
    let bad = world.connect_daemon(1);
    let mut spec = TaskSpec { ..spec() };
    spec.retry.max_attempts = 1;
    for _ in 0..5 {
        world.submit(spec.clone());
        let mut work = world.take_started();
        world.frame(&mut work, errored(FailureCode::SpawnFailed, 1));
    }
    let good = world.connect_daemon(2);
    for _ in 0..4 {
        world.submit(spec.clone());
    }
    let mut works = world.dispatches();
    let sessions: Vec<_> = works.iter().map(|work| work.session).collect();
    assert_eq!(
        sessions, [good.session; 4],
        "the unhealthy daemon is free and gets nothing"
    );
    for work in &mut works {
        world.frame(work, FrameBody::Accepted);
    }
    let works: Vec<&DispatchedAttempt> = works.iter().collect();
    let waiting = world.submit(spec);
    assert!(
        world.dispatches().is_empty(),
        "also not when the healthy daemon is full"
    );
    for _ in 0..15 {
        world.pass(4_000);
        world.beat(&bad, &[]);
        world.beat(&good, &works);
    }
    let work = world
        .dispatches()
        .into_iter()
        .find(|work| work.frame_ref.task == waiting);
    assert_eq!(
        work.unwrap().session,
        bad.session,
        "the daemon is tried again after a minute"
    );
}

#[test]
fn a_success_resets_the_failures_of_a_daemon() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let mut spec = spec();
    spec.retry.max_attempts = 1;
    for n in 0..9 {
        world.submit(spec.clone());
        let mut work = world.take_started();
        let body = if n == 4 {
            completed()
        } else {
            errored(FailureCode::SpawnFailed, 1)
        };
        world.frame(&mut work, body);
    }
    let scope = crate::ids::TenantScope::All;
    let views = world.send(ListDaemons { scope }).unwrap();
    assert_eq!(
        (views.len(), views[0].is_sick, views[0].record.daemon),
        (1, false, machine.daemon)
    );
}
