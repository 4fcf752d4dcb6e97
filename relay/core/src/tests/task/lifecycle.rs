//! Tests of an ordinary task, from submit to its result.

use crate::io::effects::{CommitDependency, DaemonMessage, Delivery};
use crate::io::session_input::OutputSignal;
use crate::io::session_input::SessionInput;
use crate::record::{
    AttemptStateKind, EndState, LifecyclePhase, TaskState, TerminationReceipt, TimelineEventKind,
};
use crate::tests::harness::{CoreHarness, completed, spec};

#[test]
fn a_task_completes_in_five_writes() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let before = world.writes;
    let task = world.submit(spec());
    assert_eq!(
        world.state(task),
        TaskState::Running,
        "dispatched with the submission"
    );
    let mut work = world.dispatch();
    assert_eq!(world.attempt_state(task), AttemptStateKind::Offered);
    world.frame(&mut work, crate::io::session_input::FrameBody::Accepted);
    let messages = world.take_messages(&machine);
    assert!(messages.iter().any(|m| matches!(
        m,
        DaemonMessage::LeaseConfirmed {
            granted_ms: 30_000,
            ..
        }
    )));
    assert!(
        messages
            .iter()
            .any(|m| matches!(m, DaemonMessage::Ack { control_seq: 1, .. }))
    );
    world.frame(&mut work, crate::io::session_input::FrameBody::Started);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    world.frame(&mut work, completed());
    let record = world.task(task);
    assert_eq!(record.state, TaskState::Completed);
    let end = record.newest_attempt().unwrap().state.end().unwrap();
    assert_eq!(
        (end.state, end.receipt),
        (EndState::Completed, TerminationReceipt::Confirmed)
    );
    assert_eq!(
        record.newest_attempt().unwrap().result.as_deref(),
        Some(&b"done"[..])
    );
    // The spec, then submit and dispatch, accepted with its confirmation, started, completed.
    assert_eq!(world.writes - before, 6);
    assert!(world.store.live.is_empty() && world.store.fences.is_empty());
    assert_eq!(world.core.open_task_count(), 0);
    assert_eq!(
        world
            .core
            .next_deadline()
            .map(|at| at > world.now.monotonic),
        Some(true),
        "only the session has a timer left"
    );
}

#[test]
fn phases_tools_and_output_move_the_state_and_may_be_skipped() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    let (session, re) = (work.session, work.frame_ref);
    let printed = |sign, output_end| {
        SessionInput::Activity(crate::io::session_input::OutputActivity {
            session,
            frame_ref: re,
            signal: sign,
            tools: Vec::new(),
            output_end,
        })
    };
    world.phase(&mut work, LifecyclePhase::AgentStarted);
    world.send_input(printed(OutputSignal::BeforePrompt, 5));
    assert_eq!(world.attempt_state(task), AttemptStateKind::Starting);
    assert_eq!(world.newest(task).prompt_written, None);
    world.phase(&mut work, LifecyclePhase::PromptWritten);
    assert_eq!(world.newest(task).output_end, 5);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Prompted);
    world.phase(&mut work, LifecyclePhase::AgentStarted);
    assert_eq!(
        world.attempt_state(task),
        AttemptStateKind::Prompted,
        "an earlier phase changes nothing"
    );
    assert!(world.newest(task).retry_safe);
    world.send_input(printed(OutputSignal::VisibleEvent, 12));
    assert_eq!(world.attempt_state(task), AttemptStateKind::Streaming);
    assert!(
        !world.newest(task).retry_safe,
        "visible output makes a retry unsafe"
    );
    let tool = |id: &str| crate::io::session_input::FrameBody::ToolStarted {
        id: id.into(),
        name: "bash".into(),
    };
    world.frame(&mut work, tool("a"));
    world.frame(&mut work, tool("b"));
    world.frame(
        &mut work,
        crate::io::session_input::FrameBody::ToolFinished { id: "a".into() },
    );
    assert_eq!(world.attempt_state(task), AttemptStateKind::ToolRunning);
    world.frame(
        &mut work,
        crate::io::session_input::FrameBody::ToolFinished { id: "b".into() },
    );
    assert_eq!(world.attempt_state(task), AttemptStateKind::Streaming);
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
fn every_message_of_a_task_depends_on_its_write() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = crate::ids::TaskId(uuid::Uuid::from_u128(77));
    let submit = crate::task::submit::SubmitTask {
        task,
        spec: std::sync::Arc::new(spec()),
        digest: [0; 32],
    };
    let effects = world.core.handle(
        crate::io::command::CoreInput::command(submit, |_| ()),
        &world.store,
        world.now,
        &mut world.ids,
    );
    for outgoing in &effects.deliveries {
        match &outgoing.delivery {
            Delivery::Reply(_) | Delivery::ToSession { .. } | Delivery::Published { .. } => {
                assert_eq!(outgoing.depends_on, CommitDependency::Task(task));
            }
            Delivery::CloseSession { .. } => panic!("no session is closed here"),
        }
    }
    let events = effects
        .deliveries
        .iter()
        .filter_map(|outgoing| match &outgoing.delivery {
            Delivery::Published { events, .. } => {
                Some(events.iter().map(|e| e.kind.clone()).collect::<Vec<_>>())
            }
            _ => None,
        });
    let events: Vec<TimelineEventKind> = events.flatten().collect();
    assert!(matches!(
        events[..],
        [
            TimelineEventKind::Submitted,
            TimelineEventKind::Queued,
            TimelineEventKind::Offered { .. }
        ]
    ));
}
