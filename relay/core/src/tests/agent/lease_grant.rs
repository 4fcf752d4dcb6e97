//! Tests of how agents get leases: start, claim, permissions and races.

use crate::attempt::timers::TimerKey;
use crate::commands::EndAttempt;
use crate::commands::PauseScheduler;
use crate::commands::UnpauseScheduler;
use crate::ids::{TaskId, TenantScope};
use crate::io::command::AgentPrincipal;
use crate::io::effects::WaitReason;
use crate::io::rejection::Rejection;
use crate::operator::task_operation::TaskOperation;
use crate::record::{AttemptStateKind, EndedBy, TaskState, TerminationReceipt};
use crate::samples;
use crate::task::spec::TaskSpec;
use crate::tests::harness::{
    AgentLeaseVerb, CoreHarness, TTL, TestDaemon, agent, agent_task_spec, spec,
};

fn keyed(world: &mut CoreHarness, key: &str) -> Result<TaskId, Rejection> {
    let hand = world.start(&agent(1), agent_task_spec(), key)?;
    Ok(hand.task)
}

#[test]
fn a_start_creates_a_leased_task_that_no_daemon_gets() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let before = world.writes;
    let hand = world.start(&agent(1), agent_task_spec(), "k").unwrap();
    let record = world.task(hand.task);
    assert_eq!(record.state, TaskState::Running);
    assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Accepted);
    assert_eq!(
        world.newest(hand.task).agent_holder().unwrap().name,
        "agent-1".into()
    );
    assert!(world.writes > before && world.dispatches().is_empty());
    assert!(world.newest(hand.task).lease.unwrap().confirmed);
}

#[test]
fn a_start_key_is_refused_while_leased_and_claims_again_after_release() {
    let mut world = CoreHarness::new();
    let hand = world.start(&agent(1), agent_task_spec(), "k").unwrap();
    assert_eq!(keyed(&mut world, "k"), Err(Rejection::AlreadyTaken));
    world
        .end_by_agent(
            &hand,
            AgentLeaseVerb::End(EndAttempt::Release { reason: None }),
        )
        .unwrap();
    assert_eq!(keyed(&mut world, "k"), Ok(hand.task));
    let other = TaskSpec {
        goal: "another".into(),
        ..agent_task_spec()
    };
    let refused = world.start(&agent(1), other, "k").unwrap_err();
    assert_eq!(refused, Rejection::IdempotencyConflict);
}

#[test]
fn a_start_key_of_a_finished_task_is_refused_as_finished() {
    let mut world = CoreHarness::new();
    let hand = world.start(&agent(1), agent_task_spec(), "k").unwrap();
    world.complete_by_agent(&hand).unwrap();
    assert_eq!(keyed(&mut world, "k"), Err(Rejection::AlreadyFinished));
}

#[test]
fn an_agent_held_task_is_never_offered_to_a_daemon() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(agent_task_spec());
    world.pass(60_000);
    assert!(world.dispatches().is_empty());
    let view = world.inspect(task).unwrap();
    assert_eq!(
        (view.wait_reason, view.unmet_need),
        (Some(WaitReason::Agent), None)
    );
    assert_eq!(world.claim(&agent(1), None).unwrap().unwrap().task, task);
}

#[test]
fn a_task_with_a_scope_goes_to_the_first_agent_or_daemon() {
    let mut world = CoreHarness::new();
    let both = TaskSpec {
        agent_held: false,
        ..agent_task_spec()
    };
    let first = world.submit(both.clone());
    assert!(world.claim(&agent(1), Some(first)).unwrap().is_some());
    world.connect_daemon(1);
    assert!(world.dispatches().is_empty(), "an agent has claimed it");
    let second = world.submit(both);
    assert_eq!(world.dispatch().frame_ref.task, second);
    let taken = world.claim(&agent(2), Some(second)).unwrap_err();
    assert_eq!(taken, Rejection::AlreadyTaken);
    assert!(world.claim(&agent(2), None).unwrap().is_none());
}

#[test]
fn claims_follow_priority_and_then_age() {
    let mut world = CoreHarness::new();
    let of = |priority| TaskSpec {
        priority,
        ..agent_task_spec()
    };
    let (low, old, young) = (
        world.submit(of(10)),
        world.submit(of(50)),
        world.submit(of(50)),
    );
    let claimed: Vec<TaskId> = (1..=3)
        .map(|n| world.claim(&agent(n), None).unwrap().unwrap().task)
        .collect();
    assert_eq!(claimed, [old, young, low]);
    assert!(world.claim(&agent(9), None).unwrap().is_none());
}

#[test]
fn a_claim_outside_tenant_or_scope_is_refused_as_unknown() {
    let mut world = CoreHarness::new();
    let theirs = world.submit(agent_task_spec());
    let nobodys = world.submit(spec());
    let strangers = [
        AgentPrincipal {
            scope: "writers".into(),
            ..agent(1)
        },
        AgentPrincipal {
            tenant: samples::tenant("other"),
            ..agent(1)
        },
    ];
    for stranger in &strangers {
        let refused = world.claim(stranger, Some(theirs)).unwrap_err();
        assert_eq!(refused, Rejection::UnknownTask);
        assert!(world.claim(stranger, None).unwrap().is_none());
    }
    let unscoped = world.claim(&agent(1), Some(nobodys)).unwrap_err();
    assert_eq!(unscoped, Rejection::UnknownTask);
}

#[test]
fn of_two_claims_one_wins() {
    let mut world = CoreHarness::new();
    let task = world.submit(agent_task_spec());
    let winner = world.claim(&agent(1), Some(task)).unwrap().unwrap();
    for n in 2..=9 {
        let refused = world.claim(&agent(n), Some(task)).unwrap_err();
        assert_eq!(refused, Rejection::AlreadyTaken);
        assert!(world.claim(&agent(n), None).unwrap().is_none());
    }
    world.complete_by_agent(&winner).unwrap();
    let over = world.claim(&agent(2), Some(task)).unwrap_err();
    assert_eq!(over, Rejection::AlreadyFinished);
}

#[test]
fn nothing_is_claimed_during_a_pause() {
    let mut world = CoreHarness::new();
    let task = world.submit(agent_task_spec());
    let by = crate::tests::harness::actor();
    let pause = PauseScheduler {
        scope: TenantScope::All,
        by: by.clone(),
        reason: "r".into(),
    };
    world.send(pause).unwrap();
    assert!(world.claim(&agent(1), None).unwrap().is_none());
    let refused = world.claim(&agent(1), Some(task)).unwrap_err();
    assert_eq!(refused, Rejection::NotClaimable);
    assert_eq!(keyed(&mut world, "k"), Err(Rejection::NotClaimable));
    assert!(
        world.store.keys.is_empty(),
        "a refused start creates no task"
    );
    let unpause = UnpauseScheduler {
        scope: TenantScope::All,
        by,
        reason: None,
    };
    world.send(unpause).unwrap();
    world.operate(task, TaskOperation::Pause).unwrap();
    assert!(world.claim(&agent(1), None).unwrap().is_none());
    let refused = world.claim(&agent(1), Some(task)).unwrap_err();
    assert_eq!(refused, Rejection::NotClaimable);
}

#[test]
fn turns_of_a_conversation_are_claimed_one_at_a_time_in_order() {
    let mut world = CoreHarness::new();
    let turn = || TaskSpec {
        conversation_id: Some("c".into()),
        ..agent_task_spec()
    };
    let (first, second) = (world.submit(turn()), world.submit(turn()));
    let refused = world.claim(&agent(1), Some(second)).unwrap_err();
    assert_eq!(refused, Rejection::NotClaimable);
    let hand = world.claim(&agent(1), None).unwrap().unwrap();
    assert_eq!(hand.task, first);
    assert!(world.claim(&agent(2), None).unwrap().is_none());
    let refused = world.start(&agent(2), turn(), "k").unwrap_err();
    assert_eq!(refused, Rejection::NotClaimable);
    world.complete_by_agent(&hand).unwrap();
    assert_eq!(world.claim(&agent(2), None).unwrap().unwrap().task, second);
}

#[test]
fn a_claim_waits_for_the_fence_of_an_earlier_daemon() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let both = TaskSpec {
        agent_held: false,
        retry: crate::task::spec::RetryPolicy {
            when_unsafe: crate::task::spec::UnsafeLossPolicy::Retry,
            ..spec().retry
        },
        ..agent_task_spec()
    };
    let task = world.submit(both);
    let _work = world.take_started();
    omit_from_two_heartbeats(&mut world, &machine);
    world.pass(3_000);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Queued);
    assert_eq!(world.store.fences.len(), 1);
    let refused = world.claim(&agent(1), Some(task)).unwrap_err();
    assert_eq!(
        refused,
        Rejection::NotClaimable,
        "processes of the earlier attempt may still run"
    );
    world.disconnect(&machine);
    world.pass(TTL + crate::tests::harness::GRACE);
    assert!(world.claim(&agent(1), Some(task)).unwrap().is_some());
}

fn omit_from_two_heartbeats(world: &mut CoreHarness, machine: &TestDaemon) {
    for _ in 0..3 {
        world.pass(5_000);
        world.beat(machine, &[]);
    }
}

#[test]
fn an_agent_lease_has_only_the_lease_and_total_timers() {
    let mut world = CoreHarness::new();
    let timed = TaskSpec {
        effective_profile: crate::attempt::deadline_profile::default_for_turn(
            crate::task::spec::TurnKind::User,
        ),
        ..agent_task_spec()
    };
    let hand = world.start(&agent(1), timed, "k").unwrap();
    let armed = |world: &CoreHarness| -> Vec<TimerKey> {
        let timers = world
            .core
            .tasks()
            .get(hand.task)
            .unwrap()
            .timers
            .armed_timers();
        let keys = timers.map(|armed| match armed {
            crate::attempt::timers::ArmedTimerView::Running { key, .. }
            | crate::attempt::timers::ArmedTimerView::Paused { key, .. } => key,
        });
        keys.collect()
    };
    assert_eq!(armed(&world), [TimerKey::Total, TimerKey::Lease]);
    world.restart();
    assert_eq!(armed(&world), [TimerKey::Total, TimerKey::Lease]);
}

#[test]
fn the_total_deadline_ends_an_agent_attempt_with_a_fence() {
    let mut world = CoreHarness::new();
    let short = TaskSpec {
        total_ms: Some(20_000),
        ..agent_task_spec()
    };
    let hand = world.start(&agent(1), short, "k").unwrap();
    world.pass(20_000);
    assert_eq!(world.state(hand.task), TaskState::TimedOut);
    assert_eq!(
        world.store.fences.len(),
        1,
        "the end of the agent is not proved"
    );
    let end = world.newest(hand.task).state.end().cloned().unwrap();
    assert_eq!(
        (end.ended_by, end.receipt),
        (EndedBy::Relay, TerminationReceipt::Unconfirmed)
    );
    assert_eq!(world.renew(&hand), Err(Rejection::TaskTerminal));
}

#[test]
fn a_queue_deadline_parks_an_unclaimed_task() {
    let mut world = CoreHarness::new();
    let task = world.submit(TaskSpec {
        queue_ms: Some(60_000),
        ..agent_task_spec()
    });
    world.pass(60_000);
    assert_eq!(world.state(task), TaskState::NeedsAttention);
    assert!(world.claim(&agent(1), None).unwrap().is_none());
    let refused = world.claim(&agent(1), Some(task)).unwrap_err();
    assert_eq!(refused, Rejection::NotClaimable);
}
