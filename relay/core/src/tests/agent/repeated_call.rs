//! Tests of repeated calls of agents whose answers were lost: they are answered again and
//! executed once.

use uuid::Uuid;

use crate::agent::repeated_call::MAX_ANSWERED_CALLS;
use crate::commands::EndAttempt;
use crate::goal::progress::{
    BlockDraft, CheckpointDraft, GoalReport, ProgressUpdate, SanitizedText,
};
use crate::ids::CallId;
use crate::io::rejection::Rejection;
use crate::io::session_input::LeaseToken;
use crate::record::{CallFingerprint, FailureCode, TaskState};
use crate::tests::harness::{
    AgentAnswer, AgentLeaseHandle, AgentLeaseVerb, CoreHarness, TTL, agent, agent_task_spec,
    complete_verb, fail,
};

fn mark(call: u8) -> CallFingerprint {
    CallFingerprint {
        id: CallId(Uuid::from_u128(call.into())),
        digest: [call; 32],
    }
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

fn block() -> AgentLeaseVerb {
    AgentLeaseVerb::Goal(GoalReport::Block(SanitizedText::new(BlockDraft {
        reason: "which branch?".into(),
        ..BlockDraft::default()
    })))
}

fn call_with_mark(
    world: &mut CoreHarness,
    call: u8,
    hand: &AgentLeaseHandle,
    verb: AgentLeaseVerb,
) -> Result<AgentAnswer, Rejection> {
    world.mark = Some(mark(call));
    let reply = world.call_as_agent(hand, verb);
    world.mark = None;
    reply
}

fn repeated(reply: Result<AgentAnswer, Rejection>) -> (TaskState, Option<u64>) {
    match reply.unwrap() {
        AgentAnswer::Repeated { record, checkpoint } => (record.state, checkpoint),
        other => panic!("the call was executed again: {other:?}"),
    }
}

/// Every verb that changes something, with the state of the task after it and the checkpoint
/// that it writes.
fn verbs() -> Vec<(AgentLeaseVerb, TaskState, Option<u64>)> {
    vec![
        (checkpoint("half"), TaskState::Running, Some(1)),
        (progress("one"), TaskState::Running, None),
        (block(), TaskState::NeedsAttention, Some(1)),
        (
            AgentLeaseVerb::End(EndAttempt::Release { reason: None }),
            TaskState::Queued,
            None,
        ),
        (complete_verb(b"done"), TaskState::Completed, None),
        (fail(FailureCode::ProviderError), TaskState::Pending, None),
        (
            AgentLeaseVerb::End(EndAttempt::Cancel { reason: None }),
            TaskState::Canceled,
            None,
        ),
    ]
}

#[test]
fn a_repeated_call_is_answered_and_changes_nothing() {
    for (verb, state, written) in verbs() {
        let mut world = CoreHarness::new();
        let hand = world.claimed_task(&agent(1));
        call_with_mark(&mut world, 1, &hand, verb.clone()).unwrap();
        let before = (world.task(hand.task), world.writes);
        let again = call_with_mark(&mut world, 1, &hand, verb.clone());
        assert_eq!(repeated(again), (state, written), "{verb:?}");
        assert_eq!(
            (world.task(hand.task), world.writes),
            before,
            "{verb:?}: the repeated call wrote something"
        );
        world.restart();
        let again = call_with_mark(&mut world, 1, &hand, verb.clone());
        assert_eq!(repeated(again), (state, written), "{verb:?}");
    }
}

#[test]
fn a_call_without_an_id_or_with_a_new_one_is_a_new_call() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    for call in [1, 2] {
        let reply = call_with_mark(&mut world, call, &hand, checkpoint("half")).unwrap();
        assert!(
            matches!(reply, AgentAnswer::Checkpointed { .. }),
            "{reply:?}"
        );
    }
    world.call_as_agent(&hand, checkpoint("half")).unwrap();
    assert_eq!(world.task(hand.task).checkpoint_count, 3);
}

#[test]
fn a_reused_call_id_or_a_wrong_token_is_refused() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    call_with_mark(&mut world, 1, &hand, checkpoint("half")).unwrap();
    world.mark = Some(CallFingerprint {
        digest: [9; 32],
        ..mark(1)
    });
    let other = world.call_as_agent(&hand, checkpoint("another"));
    assert_eq!(other.unwrap_err(), Rejection::IdempotencyConflict);
    let forged = AgentLeaseHandle {
        token: LeaseToken([0; 32]),
        ..hand.clone()
    };
    let refused = call_with_mark(&mut world, 1, &forged, checkpoint("half"));
    assert_eq!(refused.unwrap_err(), Rejection::BadProof);
    let other_agent = AgentLeaseHandle {
        agent: agent(66),
        ..hand.clone()
    };
    let refused = call_with_mark(&mut world, 1, &other_agent, checkpoint("half"));
    assert_eq!(refused.unwrap_err(), Rejection::UnknownAttempt);
    assert_eq!(world.task(hand.task).checkpoint_count, 1);
}

#[test]
fn a_repeated_call_is_answered_after_its_lease_ended() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    call_with_mark(&mut world, 1, &hand, checkpoint("half")).unwrap();
    world.pass(TTL * 2);
    let again = call_with_mark(&mut world, 1, &hand, checkpoint("half"));
    assert_eq!(repeated(again).1, Some(1));
    let new = call_with_mark(&mut world, 2, &hand, checkpoint("whole"));
    assert_eq!(new.unwrap_err(), Rejection::LeaseExpired);
}

#[test]
fn a_refused_call_is_not_stored() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    let task = world.cancel(hand.task).unwrap().task;
    let refused = call_with_mark(&mut world, 1, &hand, complete_verb(b"done"));
    assert_eq!(refused.unwrap_err(), Rejection::BeingCanceled);
    assert!(
        world
            .newest(task)
            .agent_holder()
            .unwrap()
            .answered_calls
            .is_empty()
    );
}

#[test]
fn only_the_newest_calls_of_an_attempt_are_stored() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    for call in 0..20 {
        call_with_mark(&mut world, call, &hand, progress("one")).unwrap();
    }
    let holder = world.newest(hand.task).agent_holder().unwrap().clone();
    let kept: Vec<CallFingerprint> = holder
        .answered_calls
        .into_iter()
        .map(|call| call.fingerprint)
        .collect();
    assert_eq!(kept.len(), MAX_ANSWERED_CALLS);
    assert_eq!(kept, [16, 17, 18, 19].map(mark));
}

/// Asks for a lease in one of the three ways: start, claim, pick-up.
fn granted(world: &mut CoreHarness, way: u8, call: u8) -> Result<AgentLeaseHandle, Rejection> {
    world.mark = Some(mark(call));
    let hand = match way {
        0 => world.start(&agent(1), agent_task_spec(), "k"),
        1 => world.claim(&agent(1), None).map(Option::unwrap),
        _ => {
            let parked = world.parked();
            let task = parked.first().copied();
            // A task that was picked up is no longer listed; a repeated call uses its id.
            let task = task.unwrap_or_else(|| world.core.tasks().iter().next().unwrap().id());
            world.pick_up(&agent(1), task, None)
        }
    };
    world.mark = None;
    hand
}

fn prepare_lease_way(way: u8) -> CoreHarness {
    let mut world = CoreHarness::new();
    match way {
        0 => {}
        1 => drop(world.submit(agent_task_spec())),
        _ => {
            let hand = world.claimed_task(&agent(2));
            world.call_as_agent(&hand, block()).unwrap();
        }
    }
    world
}

#[test]
fn a_repeated_grant_returns_the_same_lease_with_a_new_token() {
    for way in 0..3 {
        for restarts in [false, true] {
            let mut world = prepare_lease_way(way);
            let lost = granted(&mut world, way, 1).unwrap();
            world.pass(TTL / 2);
            if restarts {
                world.restart();
            }
            let hand = granted(&mut world, way, 1).unwrap();
            assert_eq!(
                (hand.task, hand.attempt),
                (lost.task, lost.attempt),
                "{way}"
            );
            let attempts = world.task(hand.task).attempts.len();
            assert_eq!(attempts, if way == 2 { 2 } else { 1 }, "{way}");
            assert_eq!(world.renew(&lost), Err(Rejection::BadProof), "{way}");
            world.pass(TTL - 1);
            assert_eq!(world.renew(&hand), Ok((TTL, false)), "{way}");
            world.complete_by_agent(&hand).unwrap();
        }
    }
}

#[test]
fn a_leased_task_is_not_granted_to_another_call() {
    for way in 0..3 {
        let mut world = prepare_lease_way(way);
        let hand = granted(&mut world, way, 1).unwrap();
        if way != 1 {
            let code = granted(&mut world, way, 2).unwrap_err();
            let taken = [Rejection::AlreadyTaken, Rejection::HandedOff];
            assert!(taken.contains(&code), "{way}: {code:?}");
        }
        world.mark = Some(mark(1));
        let foreign = world.claim(&agent(3), Some(hand.task)).map(drop);
        assert_eq!(foreign, Err(Rejection::AlreadyTaken), "{way}");
        world.mark = Some(CallFingerprint {
            digest: [9; 32],
            ..mark(1)
        });
        let conflict = world.claim(&agent(1), Some(hand.task)).map(drop);
        assert_eq!(conflict, Err(Rejection::IdempotencyConflict), "{way}");
        world.mark = None;
        assert_eq!(world.renew(&hand), Ok((TTL, false)), "{way}");
    }
}

#[test]
fn an_expired_lease_is_not_granted_again() {
    let mut world = prepare_lease_way(1);
    let lost = granted(&mut world, 1, 1).unwrap();
    world.pass(TTL * 2);
    world.mark = Some(mark(1));
    let again = world.claim(&agent(1), Some(lost.task)).map(drop);
    world.mark = None;
    assert!(again.is_err(), "the lease has expired");
    assert_eq!(world.renew(&lost), Err(Rejection::LeaseExpired));
}

#[test]
fn a_repeated_grant_during_a_cancel_gets_the_remaining_time() {
    let mut world = prepare_lease_way(1);
    let lost = granted(&mut world, 1, 1).unwrap();
    world.pass(10_000);
    world.cancel(lost.task).unwrap();
    let hand = granted(&mut world, 1, 1).unwrap();
    world.pass(5_000);
    assert_eq!(world.renew(&hand), Ok((TTL - 15_000, true)));
}
