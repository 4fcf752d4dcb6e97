//! The ordinary life of a task, from submit to its result.

use super::world::{World, completed, spec};
use crate::effects::{After, Downstream, Send};
use crate::input::Sign;
use crate::record::{AttemptState, EndState, EventKind, Phase, Receipt, TaskState};

#[test]
fn a_task_goes_from_submit_to_its_result_in_five_writes() {
    let mut world = World::new();
    let machine = world.machine(1);
    let before = world.writes;
    let task = world.submit(spec());
    assert_eq!(
        world.state(task),
        TaskState::Running,
        "dispatched in the same turn"
    );
    let mut work = world.dispatch();
    assert_eq!(world.attempt_state(task), AttemptState::Offered);
    world.frame(&mut work, crate::input::FrameBody::Accepted);
    let told = world.told(&machine);
    assert!(told.iter().any(|m| matches!(
        m,
        Downstream::LeaseConfirmed {
            granted_ms: 30_000,
            ..
        }
    )));
    assert!(
        told.iter()
            .any(|m| matches!(m, Downstream::Ack { control_seq: 1, .. }))
    );
    world.frame(&mut work, crate::input::FrameBody::Started);
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(record.state, TaskState::Completed);
    let end = record.newest().unwrap().state.end().unwrap();
    assert_eq!(
        (end.state, end.receipt),
        (EndState::Completed, Receipt::Confirmed)
    );
    assert_eq!(
        record.newest().unwrap().result.as_deref(),
        Some(&b"done"[..])
    );
    // The spec, then submit, dispatch, accepted with its confirmation, started, completed.
    assert_eq!(world.writes - before, 6);
    assert!(world.store.live.is_empty() && world.store.fences.is_empty());
    assert_eq!(world.core.open_tasks(), 0);
    assert_eq!(
        world.core.next_deadline().map(|at| at > world.now.at),
        Some(true),
        "only the session is timed"
    );
}

#[test]
fn phases_tools_and_output_move_the_state_and_skipping_is_allowed() {
    let mut world = World::new();
    let _machine = world.machine(1);
    let task = world.submit(spec());
    let mut work = world.started();
    let (session, re) = (work.session, work.re);
    let printed = |sign, output_end| {
        crate::input::Input::Activity(crate::input::Activity {
            session,
            re,
            sign,
            tools: Vec::new(),
            output_end,
        })
    };
    world.phase(&mut work, Phase::AgentStarted);
    world.say(printed(Sign::BeforePrompt, 5));
    assert_eq!(world.attempt_state(task), AttemptState::Starting);
    assert_eq!(world.newest(task).prompt_written, None);
    world.phase(&mut work, Phase::PromptWritten);
    assert_eq!(world.newest(task).output_end, 5);
    assert_eq!(world.attempt_state(task), AttemptState::Prompted);
    world.phase(&mut work, Phase::AgentStarted);
    assert_eq!(
        world.attempt_state(task),
        AttemptState::Prompted,
        "backwards changes nothing"
    );
    assert!(world.newest(task).retry_safe);
    world.say(printed(Sign::VisibleEvent, 12));
    assert_eq!(world.attempt_state(task), AttemptState::Streaming);
    assert!(!world.newest(task).retry_safe, "people have seen something");
    let tool = |id: &str| crate::input::FrameBody::ToolStarted {
        id: id.into(),
        name: "bash".into(),
    };
    world.frame(&mut work, tool("a"));
    world.frame(&mut work, tool("b"));
    world.frame(
        &mut work,
        crate::input::FrameBody::ToolFinished { id: "a".into() },
    );
    assert_eq!(world.attempt_state(task), AttemptState::ToolRunning);
    world.frame(
        &mut work,
        crate::input::FrameBody::ToolFinished { id: "b".into() },
    );
    assert_eq!(world.attempt_state(task), AttemptState::Streaming);
    world.frame(&mut work, completed());
    let phases: Vec<&str> = world
        .task(task)
        .timeline
        .events
        .iter()
        .map(|event| event.kind.as_str())
        .collect();
    assert!(
        phases.ends_with(&["tool_finished", "tool_finished", "ended"]),
        "{phases:?}"
    );
    assert!(phases.contains(&"first_event_seen") && phases.contains(&"first_visible_event_seen"));
}

#[test]
fn nothing_about_a_task_is_sent_before_its_own_write() {
    let mut world = World::new();
    let _machine = world.machine(1);
    let request = crate::id::RequestId(77);
    let task = crate::id::TaskId(uuid::Uuid::from_u128(77));
    let submit = crate::input::Submit {
        request,
        task,
        spec: std::sync::Arc::new(spec()),
        digest: [0; 32],
        prior: Ok(None),
    };
    let effects = world.core.handle(
        crate::input::Input::Submit(submit),
        world.now,
        &mut world.mint,
    );
    for outgoing in &effects.sends {
        match &outgoing.send {
            Send::Reply { .. } | Send::ToSession { .. } | Send::Published { .. } => {
                assert_eq!(outgoing.after, After::Task(task));
            }
            Send::CloseSession { .. } => panic!("nobody is closed here"),
        }
    }
    let events = effects
        .sends
        .iter()
        .filter_map(|outgoing| match &outgoing.send {
            Send::Published { events, .. } => {
                Some(events.iter().map(|e| e.kind.clone()).collect::<Vec<_>>())
            }
            _ => None,
        });
    let events: Vec<EventKind> = events.flatten().collect();
    assert!(matches!(
        events[..],
        [
            EventKind::Submitted,
            EventKind::Queued,
            EventKind::Offered { .. }
        ]
    ));
}
