//! Conversations over attempts: what the next attempt goes on with, and what happens when the agent has forgotten it.

use super::world::{World, errored, spec};
use crate::effects::Downstream;
use crate::input::FrameBody;
use crate::record::{EventKind, FailureCode, RejectCode, TaskState};

fn unresumed(session: &str) -> FrameBody {
    let mut failure = errored(FailureCode::ResumeFailed, 1);
    if let FrameBody::Errored(body) = &mut failure {
        body.agent_session_id = Some(session.into());
    }
    failure
}

fn offered(world: &mut World, machine: &super::world::Machine) -> (Option<String>, bool) {
    let told = world.told(machine).into_iter();
    let mut dispatches = told.filter_map(|message| match message {
        Downstream::Dispatch(dispatch) => {
            let session = dispatch.agent_session_id.as_deref().map(str::to_owned);
            Some((session, dispatch.fresh))
        }
        _other => None,
    });
    dispatches.next().expect("it is offered")
}

#[test]
fn what_cannot_be_resumed_begins_anew_at_once_and_counts_in_no_budget() {
    let mut world = World::new();
    let machine = world.machine(1);
    let mut spec = spec();
    spec.retry.max_attempts = 1;
    spec.conversation_id = Some("talk".into());
    let task = world.submit(spec);
    let mut work = world.started();
    world.told(&machine);
    world.frame(&mut work, unresumed("gone"));
    assert_eq!(offered(&mut world, &machine), (None, true));
    let record = world.task(task);
    assert_eq!(record.counters.failures, 0);
    assert!(record.attempts[1].fresh && !record.attempts[0].fresh);
    let events = &record.timeline.events;
    assert!(
        events
            .iter()
            .any(|event| event.kind == EventKind::ResumeFallback)
    );

    // Once: the same word again is a failure like any other.
    let mut work = world.started();
    world.frame(&mut work, unresumed("gone"));
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Failed, 2)
    );
    assert_eq!(record.counters.failures, 1);
}

#[test]
fn what_was_begun_anew_is_gone_on_with_and_the_old_one_never_again() {
    let mut world = World::new();
    let machine = world.machine(1);
    let other = world.machine(2);
    let mut spec = spec();
    spec.retry.backoff_initial_ms = 0;
    let task = world.submit(spec);
    let mut work = world.started();
    world.frame(&mut work, unresumed("gone"));
    let mut work = world.dispatch();
    let rejected = FrameBody::Rejected {
        code: RejectCode::Invalid,
        message: None,
    };
    world.told(&machine);
    world.told(&other);
    world.frame(&mut work, rejected);
    assert!(
        world.newest(task).fresh,
        "given back without a try, it is still to begin anew"
    );
    let mut work = world.started();
    let mut failure = errored(FailureCode::AgentExit, 1);
    if let FrameBody::Errored(body) = &mut failure {
        body.agent_session_id = Some("new".into());
    }
    world.frame(&mut work, failure);
    world.told(&machine);
    world.told(&other);
    world.pass(1);
    let told = [&machine, &other].map(|machine| {
        let told = world.told(machine).into_iter();
        let mut told = told.filter_map(|message| match message {
            Downstream::Dispatch(dispatch) => Some((dispatch.agent_session_id, dispatch.fresh)),
            _other => None,
        });
        told.next()
    });
    let told = told.into_iter().flatten().next().expect("it is offered");
    assert_eq!(told, (Some("new".into()), false));
}

#[test]
fn nothing_begins_anew_once_something_was_visible() {
    let mut world = World::new();
    let _machine = world.machine(1);
    let task = world.submit(spec());
    let mut work = world.started();
    world.frame(
        &mut work,
        FrameBody::ToolStarted {
            id: "t".into(),
            name: "bash".into(),
        },
    );
    world.frame(&mut work, unresumed("gone"));
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Failed, 1)
    );
}
