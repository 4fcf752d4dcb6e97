//! Tests of agents' calls on their own leases: the order of the checks, and the effect of each
//! verb.

use std::sync::Arc;

use crate::commands::EndAttempt;
use crate::ids::{AttemptId, TaskId};
use crate::io::command::AgentPrincipal;
use crate::io::rejection::Rejection;
use crate::io::session_input::LeaseToken;
use crate::record::{
    AttemptStateKind, EndState, EndedBy, FailureCode, TaskState, TerminationReceipt, TimelineEvent,
    TimelineEventKind,
};
use crate::samples;
use crate::task::spec::{
    CompletionContract, MissingPolicy, RequiredArtifact, RetryPolicy, TaskSpec, UnsafeLossPolicy,
};
use crate::tests::harness::{
    AgentLeaseHandle, AgentLeaseVerb, CoreHarness, GRACE, TTL, agent, agent_task_spec,
    complete_verb, fail,
};

pub(super) fn verbs() -> Vec<AgentLeaseVerb> {
    vec![
        AgentLeaseVerb::Renew,
        AgentLeaseVerb::End(EndAttempt::Release { reason: None }),
        complete_verb(b"done"),
        fail(FailureCode::AgentExit),
        AgentLeaseVerb::End(EndAttempt::Cancel { reason: None }),
    ]
}

fn lease_of_other_agent(hand: &AgentLeaseHandle) -> AgentLeaseHandle {
    AgentLeaseHandle {
        agent: agent(66),
        ..hand.clone()
    }
}

fn lease_with_forged_token(hand: &AgentLeaseHandle) -> AgentLeaseHandle {
    AgentLeaseHandle {
        token: LeaseToken([0; 32]),
        ..hand.clone()
    }
}

/// For every verb, the first failed check determines the code and nothing is written.
#[test]
fn each_verb_is_checked_in_the_same_order() {
    for verb in verbs() {
        let mut world = CoreHarness::new();
        let hand = world.claimed_task(&agent(1));
        let elsewhere = AgentPrincipal {
            tenant: samples::tenant("other"),
            ..agent(1)
        };
        let cases = [
            (
                AgentLeaseHandle {
                    task: TaskId(uuid::Uuid::from_u128(9)),
                    ..lease_with_forged_token(&hand)
                },
                Rejection::UnknownTask,
            ),
            (
                AgentLeaseHandle {
                    agent: elsewhere,
                    ..hand.clone()
                },
                Rejection::UnknownTask,
            ),
            (
                AgentLeaseHandle {
                    attempt: AttemptId(uuid::Uuid::from_u128(9)),
                    ..lease_with_forged_token(&hand)
                },
                Rejection::UnknownAttempt,
            ),
            (
                lease_of_other_agent(&lease_with_forged_token(&hand)),
                Rejection::UnknownAttempt,
            ),
            (lease_of_other_agent(&hand), Rejection::UnknownAttempt),
            (lease_with_forged_token(&hand), Rejection::BadProof),
        ];
        for (wrong, code) in cases {
            let before = (world.task(hand.task), world.writes);
            assert_eq!(
                world.call_as_agent(&wrong, verb.clone()).unwrap_err(),
                code,
                "{verb:?}"
            );
            assert_eq!(before, (world.task(hand.task), world.writes), "{verb:?}");
        }
        world.pass(TTL + GRACE);
        assert_eq!(
            world
                .call_as_agent(&lease_with_forged_token(&hand), verb.clone())
                .unwrap_err(),
            Rejection::BadProof
        );
        let late = world.call_as_agent(&hand, verb.clone()).unwrap_err();
        assert_eq!(late, Rejection::LeaseExpired, "{verb:?}");
    }
}

#[test]
fn a_lease_at_its_limit_is_expired_even_before_its_timer_ran() {
    for verb in verbs() {
        let mut world = CoreHarness::new();
        let hand = world.claimed_task(&agent(1));
        // The loop is busy with requests and has not run its timers yet.
        for _ in 0..(TTL + GRACE) / 500 {
            world.skip_time(500);
            world.inspect(hand.task).unwrap();
        }
        assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Accepted);
        let late = world.call_as_agent(&hand, verb).unwrap_err();
        assert_eq!(late, Rejection::LeaseExpired);
        assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Lost);
        assert_eq!(
            world.complete_by_agent(&hand).unwrap_err(),
            Rejection::LeaseExpired
        );
    }
}

#[test]
fn an_agent_lease_lasts_while_it_is_renewed() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    let before = world.writes;
    for _ in 0..10 {
        world.pass(TTL - 1_000);
        assert_eq!(world.renew(&hand), Ok((TTL, false)));
    }
    assert!(world.writes - before < 12, "a renewal writes nothing");
    world.pass(TTL + GRACE - 1);
    assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Accepted);
    world.pass(1);
    assert_eq!(
        world.end_code(hand.task, 1),
        Some(FailureCode::LeaseExpired)
    );
    assert_eq!(
        world.state(hand.task),
        TaskState::NeedsAttention,
        "the lost attempt may have had effects"
    );
    assert!(
        world.store.fences.is_empty(),
        "the lease has ended, so no fence is needed"
    );
}

#[test]
fn a_retried_agent_loss_can_be_claimed_and_never_counts_as_poison() {
    let mut world = CoreHarness::new();
    let spec = TaskSpec {
        retry: RetryPolicy {
            when_unsafe: UnsafeLossPolicy::Retry,
            ..samples::task_spec().retry
        },
        ..agent_task_spec()
    };
    let first = world.start(&agent(1), spec, "k").unwrap();
    world.pass(TTL + GRACE + 60_000);
    let second = world.claim(&agent(2), None).unwrap().unwrap();
    assert_eq!(
        (second.task, world.newest(first.task).number),
        (first.task, 2)
    );
    assert_eq!(
        world.complete_by_agent(&first).unwrap_err(),
        Rejection::LeaseExpired
    );
    assert_eq!(
        world.renew(&lease_of_other_agent(&second)),
        Err(Rejection::UnknownAttempt)
    );
    world.pass(TTL + GRACE);
    let record = world.task(first.task);
    assert_eq!(
        (record.counters.losses, record.counters.daemons_lost.len()),
        (2, 0)
    );
}

#[test]
fn a_completion_is_final_and_can_be_repeated() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    let record = world.complete_by_agent(&hand).unwrap();
    assert_eq!(record.state, TaskState::Completed);
    let end = record.newest_attempt().unwrap().state.end().unwrap();
    assert_eq!(
        (end.ended_by, end.receipt),
        (EndedBy::Agent, TerminationReceipt::Confirmed)
    );
    let again = world.complete_by_agent(&hand).unwrap();
    assert_eq!(again, record);
    world.restart();
    assert_eq!(world.complete_by_agent(&hand).unwrap(), record);
    let other = world
        .end_by_agent(&hand, complete_verb(b"other"))
        .unwrap_err();
    assert_eq!(other, Rejection::TaskTerminal);
    assert_eq!(
        world
            .complete_by_agent(&lease_with_forged_token(&hand))
            .unwrap_err(),
        Rejection::BadProof
    );
    let other_agent = lease_of_other_agent(&hand);
    assert_eq!(
        world.complete_by_agent(&other_agent).unwrap_err(),
        Rejection::UnknownAttempt
    );
}

#[test]
fn a_released_task_is_queued_at_once_and_its_old_holder_is_refused() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    let reason = Some("out of time".into());
    let released = AgentLeaseVerb::End(EndAttempt::Release { reason });
    let record = world.end_by_agent(&hand, released.clone()).unwrap();
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Queued, 2)
    );
    assert!(
        world.store.fences.is_empty(),
        "a release proves that the agent has stopped"
    );
    assert_eq!(
        world.end_by_agent(&hand, released).unwrap().attempts.len(),
        2
    );
    let next = world.claim(&agent(2), None).unwrap().unwrap();
    assert_ne!(next.attempt, hand.attempt);
    assert_eq!(
        world.complete_by_agent(&hand).unwrap_err(),
        Rejection::NotLeased
    );
    assert_eq!(world.renew(&hand), Err(Rejection::NotLeased));
    world.complete_by_agent(&next).unwrap();
}

#[test]
fn only_a_transient_failure_is_retried() {
    for (code, state) in [
        (FailureCode::ProviderError, TaskState::Pending),
        (
            FailureCode::Other("agent_reported".into()),
            TaskState::Failed,
        ),
    ] {
        let mut world = CoreHarness::new();
        let hand = world.claimed_task(&agent(1));
        let record = world.end_by_agent(&hand, fail(code.clone())).unwrap();
        assert_eq!(record.state, state);
        assert_eq!(
            world.end_by_agent(&hand, fail(code)).unwrap().state,
            state,
            "asked again"
        );
        world.pass(120_000);
        let next = world.claim(&agent(2), None).unwrap();
        assert_eq!(next.is_some(), state == TaskState::Pending);
    }
}

#[test]
fn renew_reports_a_cancel_without_renewing_and_cancel_confirms_it() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    world.pass(10_000);
    let asked = world.cancel(hand.task).unwrap();
    assert_eq!(asked.state, TaskState::Running);
    assert_eq!(world.renew(&hand), Ok((TTL - 10_000, true)));
    let cancel = world.task(hand.task).cancel.clone().unwrap();
    assert!(cancel.delivered.is_some() && cancel.confirmed.is_none());
    assert_eq!(
        world.complete_by_agent(&hand).unwrap_err(),
        Rejection::BeingCanceled
    );
    let record = world
        .end_by_agent(
            &hand,
            AgentLeaseVerb::End(EndAttempt::Cancel { reason: None }),
        )
        .unwrap();
    assert_eq!(record.state, TaskState::Canceled);
    assert!(record.cancel.as_ref().unwrap().confirmed.is_some());
    assert!(world.store.fences.is_empty());
    assert_eq!(
        world
            .end_by_agent(
                &hand,
                AgentLeaseVerb::End(EndAttempt::Cancel { reason: None })
            )
            .unwrap(),
        record
    );
}

#[test]
fn an_agent_can_delay_a_cancel_by_at_most_its_lease() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    world.cancel(hand.task).unwrap();
    let mut left = TTL + GRACE;
    while left > 2_000 {
        world.pass(2_000);
        left -= 2_000;
        assert!(world.renew(&hand).unwrap().1);
    }
    world.pass(left);
    assert_eq!(world.state(hand.task), TaskState::Canceled);
}

#[test]
fn an_agent_may_cancel_the_task_that_it_holds() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    let reason = Some("not wanted any more".into());
    let record = world
        .end_by_agent(&hand, AgentLeaseVerb::End(EndAttempt::Cancel { reason }))
        .unwrap();
    let cancel = record.cancel.as_ref().unwrap();
    assert_eq!(
        (record.state, &*cancel.by),
        (TaskState::Canceled, "agent-1")
    );
    assert!(cancel.confirmed.is_some() && world.store.fences.is_empty());
    let end = record.newest_attempt().unwrap().state.end().unwrap();
    assert_eq!(
        (end.state, end.ended_by),
        (EndState::Canceled, EndedBy::Agent)
    );
}

#[test]
fn a_completion_without_its_files_is_refused_and_can_be_repeated() {
    let mut world = CoreHarness::new();
    let spec = TaskSpec {
        contract: Some(CompletionContract {
            artifacts: vec![RequiredArtifact {
                path: "report.md".into(),
                min_size: None,
                sha256: None,
            }],
            missing_policy: MissingPolicy::Reject,
        }),
        ..agent_task_spec()
    };
    let hand = world.start(&agent(1), spec, "k").unwrap();
    assert_eq!(
        world.complete_by_agent(&hand).unwrap_err(),
        Rejection::ContractUnmet
    );
    let refused = |event: &Arc<TimelineEvent>| {
        matches!(
            event.kind,
            TimelineEventKind::CompletionRefused { missing: 1 }
        )
    };
    let stored = world.task(hand.task);
    let on_record = stored.timeline.events.iter().any(refused);
    assert!(
        on_record,
        "the refusal is in the timeline with the missing files"
    );
    assert_eq!(
        world.renew(&hand),
        Ok((TTL, false)),
        "the attempt is still leased"
    );
    let AgentLeaseVerb::End(EndAttempt::Complete(mut completed, _)) = complete_verb(b"done") else {
        panic!("not a completion");
    };
    completed
        .artifacts
        .push(crate::goal::completion_contract::FoundArtifact {
            path: "report.md".into(),
            exists: true,
            is_file: true,
            size: 1,
            sha256: None,
            modified: None,
            resolved: None,
            problem: None,
        });
    let record = world
        .end_by_agent(
            &hand,
            AgentLeaseVerb::End(EndAttempt::Complete(completed, None)),
        )
        .unwrap();
    assert_eq!(record.state, TaskState::Completed);
}
