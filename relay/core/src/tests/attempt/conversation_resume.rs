//! Tests of conversations over several attempts: which agent session the next attempt resumes,
//! and failed resumes.

use crate::io::effects::DaemonMessage;
use crate::io::session_input::FrameBody;
use crate::record::{FailureCode, RejectCode, TaskState, TimelineEventKind};
use crate::tests::harness::{CoreHarness, errored, spec};

fn unresumed_frame(session: &str) -> FrameBody {
    let mut failure = errored(FailureCode::ResumeFailed, 1);
    if let FrameBody::Errored(body) = &mut failure {
        body.agent_session_id = Some(session.into());
    }
    failure
}

fn offered_session(
    world: &mut CoreHarness,
    machine: &crate::tests::harness::TestDaemon,
) -> (Option<String>, bool) {
    let messages = world.take_messages(machine).into_iter();
    let mut dispatches = messages.filter_map(|message| match message {
        DaemonMessage::Dispatch(dispatch) => {
            let session = dispatch.agent_session_id.as_deref().map(str::to_owned);
            Some((session, dispatch.fresh_conversation))
        }
        _other => None,
    });
    dispatches.next().expect("the attempt is offered")
}

#[test]
fn a_failed_resume_starts_a_new_conversation_and_uses_no_budget() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let mut spec = spec();
    spec.retry.max_attempts = 1;
    spec.conversation_id = Some("talk".into());
    let task = world.submit(spec);
    let mut work = world.take_started();
    world.take_messages(&machine);
    world.frame(&mut work, unresumed_frame("gone"));
    assert_eq!(offered_session(&mut world, &machine), (None, true));
    let record = world.task(task);
    assert_eq!(record.counters.failures, 0);
    assert!(record.attempts[1].fresh_conversation && !record.attempts[0].fresh_conversation);
    let events = &record.timeline.events;
    assert!(
        events
            .iter()
            .any(|event| event.kind == TimelineEventKind::ResumeFallback)
    );

    // The fallback happens once; a second failed resume is an ordinary failure.
    let mut work = world.take_started();
    world.frame(&mut work, unresumed_frame("gone"));
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Failed, 2)
    );
    assert_eq!(record.counters.failures, 1);
}

#[test]
fn a_retry_continues_the_new_conversation_and_never_the_old_one() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let other = world.connect_daemon(2);
    let mut spec = spec();
    spec.retry.backoff_initial_ms = 0;
    let task = world.submit(spec);
    let mut work = world.take_started();
    world.frame(&mut work, unresumed_frame("gone"));
    let mut work = world.dispatch();
    let rejected = FrameBody::Rejected {
        code: RejectCode::Invalid,
        message: None,
    };
    world.take_messages(&machine);
    world.take_messages(&other);
    world.frame(&mut work, rejected);
    assert!(
        world.newest(task).fresh_conversation,
        "a rejected attempt was not started, so its successor still starts a new conversation"
    );
    let mut work = world.take_started();
    let mut failure = errored(FailureCode::AgentExit, 1);
    if let FrameBody::Errored(body) = &mut failure {
        body.agent_session_id = Some("new".into());
    }
    world.frame(&mut work, failure);
    world.take_messages(&machine);
    world.take_messages(&other);
    world.pass(1);
    let offers = [&machine, &other].map(|machine| {
        let messages = world.take_messages(machine).into_iter();
        let mut dispatches = messages.filter_map(|message| match message {
            DaemonMessage::Dispatch(dispatch) => {
                Some((dispatch.agent_session_id, dispatch.fresh_conversation))
            }
            _other => None,
        });
        dispatches.next()
    });
    let offer = offers
        .into_iter()
        .flatten()
        .next()
        .expect("the attempt is offered");
    assert_eq!(offer, (Some("new".into()), false));
}

#[test]
fn a_failed_resume_after_visible_output_is_final() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(
        &mut work,
        FrameBody::ToolStarted {
            id: "t".into(),
            name: "bash".into(),
        },
    );
    world.frame(&mut work, unresumed_frame("gone"));
    let record = world.task(task);
    assert_eq!(
        (record.state, record.attempts.len()),
        (TaskState::Failed, 1)
    );
}
