//! Tests of agent leases over restarts, stalls and calls of other holders.

use super::lease_call::verbs;
use crate::commands::EndAttempt;
use crate::io::command::CoreInput;
use crate::io::rejection::Rejection;
use crate::io::session_input::CompletedBody;
use crate::operator::task_operation::TaskOperation;
use crate::record::{AttemptStateKind, TaskState};
use crate::samples;
use crate::tests::harness::{AgentLeaseVerb, CoreHarness, GRACE, TTL, agent};

#[test]
fn a_restart_grants_agent_leases_in_full_and_the_agent_goes_on() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    world.pass(TTL - 1_000);
    world.restart();
    world.pass(TTL + GRACE - 1);
    assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Accepted);
    assert_eq!(world.renew(&hand), Ok((TTL, false)));
    assert!(world.claim(&agent(2), Some(hand.task)).is_err());
    world.complete_by_agent(&hand).unwrap();
}

#[test]
fn a_stalled_relay_credits_agent_leases() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    world.pass(TTL - 10_000);
    world.skip_time(GRACE + 10_000);
    world.send_input(CoreInput::Tick);
    assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Accepted);
    assert_eq!(world.renew(&hand), Ok((TTL, false)));
    // Stall credit is limited, so stalls alone do not keep a lease forever.
    for _ in 0..8 {
        world.skip_time(TTL);
        world.send_input(CoreInput::Tick);
    }
    assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Lost);
}

/// Stall credit that an earlier holder used does not reduce the credit of its successor.
#[test]
fn stall_credit_is_counted_for_each_holder() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    for _ in 0..8 {
        world.skip_time(TTL);
        world.send_input(CoreInput::Tick);
    }
    assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Lost);
    let next = world.pick_up(&agent(2), hand.task, None).unwrap();
    world.skip_time(TTL + GRACE);
    world.send_input(CoreInput::Tick);
    assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Accepted);
    assert_eq!(world.renew(&next), Ok((TTL, false)));
}

#[test]
fn an_agent_lease_of_an_older_incarnation_is_refused() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    world.restart_as_incarnation(86_400_000, 2);
    for verb in verbs() {
        let refused = world.call_as_agent(&hand, verb).unwrap_err();
        assert_eq!(refused, Rejection::StaleIncarnation);
    }
    assert!(world.claim(&agent(2), Some(hand.task)).is_err());
    world.pass(TTL + GRACE);
    assert_eq!(world.attempt_state(hand.task), AttemptStateKind::Lost);
}

#[test]
fn a_daemon_cannot_change_an_attempt_that_an_agent_holds() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    let before = world.task(hand.task);
    let mut machine = world.connect_daemon(1);
    let mut work = {
        let both = world.submit(samples::task_spec());
        let work = world.take_started();
        assert_eq!(work.frame_ref.task, both);
        work
    };
    work.frame_ref.task = hand.task;
    work.frame_ref.attempt = hand.attempt;
    work.token = hand.token.clone();
    world.frame(&mut work, crate::tests::harness::completed());
    world.beat(&machine, &[&work]);
    machine.boot = "boot-2";
    world.reconnect(
        &mut machine,
        &[(&work, crate::io::session_input::ActiveAttemptState::Running)],
    );
    assert_eq!(world.task(hand.task), before);
    world.complete_by_agent(&hand).unwrap();
}

#[test]
fn a_completion_by_an_operator_is_not_repeatable_by_the_agent() {
    let mut world = CoreHarness::new();
    let hand = world.claimed_task(&agent(1));
    let by_hand = TaskOperation::Complete {
        overridden: true,
        result: None,
    };
    assert_eq!(
        world.operate(hand.task, by_hand).unwrap().state,
        TaskState::Completed
    );
    let nothing = AgentLeaseVerb::End(EndAttempt::Complete(CompletedBody::default(), None));
    assert_eq!(
        world.end_by_agent(&hand, nothing).unwrap_err(),
        Rejection::TaskTerminal
    );
}
