//! Tests of pick-up: an agent blocks its task, and exactly one other agent picks it up.

use crate::commands::EndAttempt;
use crate::goal::progress::{
    BlockDraft, CheckpointDraft, GoalReport, ProgressUpdate, SanitizedText,
};
use crate::io::command::AgentPrincipal;
use crate::io::rejection::Rejection;
use crate::record::{AttemptState, AttemptStateKind, ParkCause, TaskState, TimelineEventKind};
use crate::task::spec::TaskSpec;
use crate::tests::harness::{
    AgentAnswer, AgentLeaseHandle, AgentLeaseVerb, CoreHarness, GRACE, TTL, agent, agent_task_spec,
    complete_verb,
};

fn block(reason: &str) -> AgentLeaseVerb {
    AgentLeaseVerb::Goal(GoalReport::Block(SanitizedText::new(BlockDraft {
        reason: reason.into(),
        hint: None,
        checkpoint: None,
    })))
}

fn checkpoint(summary: &str) -> AgentLeaseVerb {
    AgentLeaseVerb::Goal(GoalReport::Checkpoint(SanitizedText::new(
        CheckpointDraft {
            summary: summary.into(),
            ..CheckpointDraft::default()
        },
    )))
}

fn progress(item: &str) -> AgentLeaseVerb {
    AgentLeaseVerb::Goal(GoalReport::Progress(SanitizedText::new(ProgressUpdate {
        completed: vec![item.into()],
        ..ProgressUpdate::default()
    })))
}

fn block_claimed_task(world: &mut CoreHarness) -> AgentLeaseHandle {
    let hand = world.claimed_task(&agent(1));
    let parked = world.call_as_agent(&hand, block("which branch?")).unwrap();
    assert!(
        matches!(parked, AgentAnswer::Checkpointed { .. }),
        "{parked:?}"
    );
    hand
}

#[test]
fn a_block_by_an_agent_gives_up_the_lease_without_a_fence() {
    let mut world = CoreHarness::new();
    let hand = block_claimed_task(&mut world);
    let parked = world.newest(hand.task);
    assert_eq!(world.state(hand.task), TaskState::NeedsAttention);
    assert!(matches!(&parked.state, AttemptState::Parked(p) if p.cause == ParkCause::Blocked));
    assert!(parked.lease.is_none() && world.store.fences.is_empty());
    let attention = world.task(hand.task).attention.clone().unwrap();
    assert!(&*attention.reason == "which branch?" && attention.checkpoint.is_some());
    for verb in [
        AgentLeaseVerb::Renew,
        complete_verb(b"done"),
        block("again"),
    ] {
        let refused = world.call_as_agent(&hand, verb).unwrap_err();
        assert_eq!(refused, Rejection::NotLeased);
    }
    assert!(
        world.claim(&agent(2), None).unwrap().is_none(),
        "a parked task cannot be claimed"
    );
}

#[test]
fn one_of_many_pick_ups_wins_and_the_parked_attempt_is_handed_off() {
    let mut world = CoreHarness::new();
    let hand = block_claimed_task(&mut world);
    let winner = world
        .pick_up(&agent(2), hand.task, Some(hand.attempt))
        .unwrap();
    let record = world.task(hand.task);
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Running, 2)
    );
    assert_eq!(record.attempts[0].state.kind(), AttemptStateKind::HandedOff);
    assert_eq!(record.attempts[0].successor, Some(winner.attempt));
    assert_eq!(record.attempts[0].handed_off_to.as_deref(), Some("agent-2"));
    let events = record.timeline.events.iter();
    let pick_ups = events.filter(|event| matches!(event.kind, TimelineEventKind::PickedUp { .. }));
    assert_eq!(pick_ups.count(), 1);
    for seen in [Some(hand.attempt), None] {
        for n in 3..=9 {
            let refused = world.pick_up(&agent(n), hand.task, seen).unwrap_err();
            assert_eq!(refused, Rejection::HandedOff);
        }
    }
    world.complete_by_agent(&winner).unwrap();
    let over = world.pick_up(&agent(3), hand.task, None).unwrap_err();
    assert_eq!(over, Rejection::AlreadyFinished);
}

/// A task in NeedsAttention may have an ended attempt, whose state does not change to handed
/// off.
#[test]
fn a_late_pick_up_of_an_ended_attempt_is_refused_as_handed_off() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    world.pass(TTL + GRACE);
    assert_eq!(world.state(hand.task), TaskState::NeedsAttention);
    let seen = Some(hand.attempt);
    world.pick_up(&agent(2), hand.task, seen).unwrap();
    let record = world.task(hand.task);
    assert_eq!(record.attempts[0].state.kind(), AttemptStateKind::Lost);
    assert_eq!(record.attempts[0].handed_off_to.as_deref(), Some("agent-2"));
    for seen in [seen, None] {
        let refused = world.pick_up(&agent(3), hand.task, seen).unwrap_err();
        assert_eq!(refused, Rejection::HandedOff);
    }
}

#[test]
fn only_the_newest_block_can_be_picked_up() {
    let mut world = CoreHarness::new();
    let first = block_claimed_task(&mut world);
    let second = world.pick_up(&agent(2), first.task, None).unwrap();
    world.call_as_agent(&second, block("and now?")).unwrap();
    let stale = world
        .pick_up(&agent(3), first.task, Some(first.attempt))
        .unwrap_err();
    assert_eq!(stale, Rejection::HandedOff);
    let third = world
        .pick_up(&agent(3), first.task, Some(second.attempt))
        .unwrap();
    assert_eq!(world.newest(first.task).number, 3);
    world.complete_by_agent(&third).unwrap();
}

#[test]
fn a_pick_up_needs_the_scope_and_a_parked_task() {
    let mut world = CoreHarness::new();
    let hand = block_claimed_task(&mut world);
    let other_scope = AgentPrincipal {
        scope: "writers".into(),
        ..agent(2)
    };
    let refused = world.pick_up(&other_scope, hand.task, None).unwrap_err();
    assert_eq!(refused, Rejection::UnknownTask);
    let waiting = world.submit(agent_task_spec());
    let refused = world.pick_up(&agent(2), waiting, None).unwrap_err();
    assert_eq!(refused, Rejection::NotParked);
}

#[test]
fn a_pick_up_waits_for_the_fence_of_the_daemon_that_blocked() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let both = TaskSpec {
        agent_held: false,
        ..agent_task_spec()
    };
    let task = world.submit(both);
    let mut work = world.take_started();
    let stuck = BlockDraft {
        reason: "stuck".into(),
        ..BlockDraft::default()
    };
    let report = GoalReport::Block(SanitizedText::new(stuck));
    world.frame(&mut work, crate::io::session_input::FrameBody::Goal(report));
    assert_eq!(world.state(task), TaskState::NeedsAttention);
    let early = world.pick_up(&agent(1), task, None).unwrap_err();
    assert_eq!(early, Rejection::NotClaimable);
    world.disconnect(&machine);
    world.pass(TTL + GRACE);
    let hand = world.pick_up(&agent(1), task, None).unwrap();
    world.complete_by_agent(&hand).unwrap();
}

#[test]
fn reports_of_an_agent_are_stored_with_the_task_and_renew_nothing() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    for n in 1..=3 {
        let written = world
            .call_as_agent(&hand, checkpoint(&format!("step {n}")))
            .unwrap();
        let AgentAnswer::Checkpointed { checkpoint, .. } = written else {
            panic!("not a checkpoint: {written:?}");
        };
        assert_eq!((checkpoint.number, &*checkpoint.by), (n, "agent-1"));
        world
            .call_as_agent(&hand, progress(&format!("item {n}")))
            .unwrap();
    }
    let ends = world.core.tasks().get(hand.task).unwrap().lease_ends_at();
    world.pass(10_000);
    world.call_as_agent(&hand, progress("item 4")).unwrap();
    assert_eq!(
        world.core.tasks().get(hand.task).unwrap().lease_ends_at(),
        ends,
        "only Renew renews"
    );
    world.call_as_agent(&hand, block("help")).unwrap();
    world.restart();
    let next = world.pick_up(&agent(2), hand.task, None).unwrap();
    let known = world.store.progress[&hand.task].clone();
    assert_eq!(
        (
            known.completed.len(),
            world.task(hand.task).checkpoint_count
        ),
        (4, 4)
    );
    let last_words = SanitizedText::new(ProgressUpdate {
        summary: Some("all done".into()),
        ..ProgressUpdate::default()
    });
    let AgentLeaseVerb::End(EndAttempt::Complete(completed, _)) = complete_verb(b"done") else {
        panic!("not a completion");
    };
    world
        .end_by_agent(
            &next,
            AgentLeaseVerb::End(EndAttempt::Complete(completed, Some(last_words))),
        )
        .unwrap();
    assert_eq!(&*world.store.progress[&hand.task].summary, "all done");
}
