//! Tests of permission requests and questions: each belongs to one attempt and has one answer,
//! which is sent until it is received.

use crate::ids::InputId;
use crate::io::effects::{DaemonMessage, WaitReason};
use crate::io::rejection::Rejection;
use crate::io::session_input::{ActiveAttemptState, FrameBody};
use crate::record::{
    AttemptStateKind, AttentionCause, FailureCode, InputDecision, InputState, LifecyclePhase,
    TaskState, TimelineEventKind,
};
use crate::task::spec::{InputTimeoutPolicy, PermissionEffect, PermissionRule, TaskSpec};
use crate::tests::harness::{CoreHarness, DispatchedAttempt, SLACK, spec};

fn input(n: u128) -> InputId {
    InputId(uuid::Uuid::from_u128(n))
}

fn permission(n: u128) -> FrameBody {
    permission_frame_for(n, "Bash", "rm -rf")
}

fn permission_frame_for(n: u128, tool: &str, arguments: &str) -> FrameBody {
    FrameBody::PermissionRequest {
        input: input(n),
        tool_name: tool.into(),
        arguments: arguments.as_bytes().into(),
        payload: arguments.as_bytes().into(),
    }
}

fn start_waiting_input(
    world: &mut CoreHarness,
    spec: TaskSpec,
) -> (crate::ids::TaskId, DispatchedAttempt) {
    let task = world.submit(spec);
    let mut work = world.take_started();
    world.frame(&mut work, permission(1));
    (task, work)
}

#[test]
fn an_answer_is_sent_again_after_a_reconnect_until_it_is_received() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let (task, mut work) = start_waiting_input(&mut world, spec());
    assert_eq!(world.attempt_state(task), AttemptStateKind::WaitingInput);
    let view = world.inspect(task).unwrap();
    assert_eq!(view.wait_reason, Some(WaitReason::Person));
    world.disconnect(&machine);
    world.answer(task, input(1), true).unwrap();
    assert!(
        !world.newest(task).retry_safe,
        "an allowed tool may have had effects"
    );
    let writes = world.writes;
    world.answer(task, input(1), true).unwrap();
    assert_eq!(world.writes, writes, "the same answer twice is one answer");
    assert_eq!(
        world.answer(task, input(1), false).unwrap_err(),
        Rejection::AnswerConflict
    );
    world.reconnect(
        &mut machine,
        &[(&work.clone(), ActiveAttemptState::Running)],
    );
    work.session = machine.session;
    let messages = world.take_messages(&machine);
    assert!(messages.iter().any(
        |m| matches!(m, DaemonMessage::Answer { input: i, decision: InputDecision::Allowed, .. } if *i == input(1))
    ));
    world.frame(&mut work, FrameBody::InputReceived { input: input(1) });
    assert_eq!(world.attempt_state(task), AttemptStateKind::Streaming);
    let kept = world.newest(task).inputs[0].clone();
    assert!(matches!(kept.state, InputState::Received(_)) && kept.payload.is_empty());
    assert_eq!(
        world.answer(task, input(9), true).unwrap_err(),
        Rejection::UnknownInput
    );
}

#[test]
fn an_input_of_an_earlier_attempt_is_closed_for_the_next() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let (task, mut work) = start_waiting_input(&mut world, spec());
    world.frame(
        &mut work,
        crate::tests::harness::errored(FailureCode::AgentExit, 3),
    );
    world.pass(2_000);
    assert_eq!(world.dispatch().frame_ref.number, 2);
    assert_eq!(
        world.answer(task, input(1), true).unwrap_err(),
        Rejection::InputClosed
    );
}

#[test]
fn an_unanswered_input_is_denied_or_parks_the_task() {
    let timed = |policy| {
        let mut spec = TaskSpec {
            on_input_timeout: policy,
            ..spec()
        };
        spec.effective_profile.user_input_ms = Some(1_000);
        spec
    };
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let (task, mut work) = start_waiting_input(&mut world, timed(InputTimeoutPolicy::Deny));
    world.take_messages(&machine);
    world.pass(1_000 + SLACK);
    assert_eq!(
        world.attempt_state(task),
        AttemptStateKind::WaitingInput,
        "the attempt waits until the daemon has received the denial"
    );
    assert!(world.take_messages(&machine).iter().any(|m| matches!(
        m,
        DaemonMessage::Answer {
            decision: InputDecision::Expired,
            ..
        }
    )));
    world.frame(&mut work, FrameBody::InputReceived { input: input(1) });
    assert_eq!(
        (world.attempt_state(task), world.newest(task).retry_safe),
        (AttemptStateKind::Streaming, true)
    );

    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let (task, mut work) = start_waiting_input(&mut world, timed(InputTimeoutPolicy::Park));
    world.pass(1_000 + SLACK);
    world.frame(&mut work, crate::tests::harness::canceled());
    assert_eq!(
        (world.state(task), world.attempt_state(task)),
        (TaskState::NeedsAttention, AttemptStateKind::Parked)
    );
    assert_eq!(
        world.task(task).attention.as_ref().unwrap().cause,
        AttentionCause::InputTimeout
    );
    assert!(world.store.fences.is_empty());
    world.retry(task).unwrap();
    assert_eq!(world.dispatch().frame_ref.number, 2);
}

#[test]
fn an_input_within_a_tool_resumes_the_tool_and_duplicates_are_refused() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(
        &mut work,
        FrameBody::ToolStarted {
            id: "t".into(),
            name: "bash".into(),
        },
    );
    world.frame(&mut work, permission(1));
    world.frame(&mut work, permission(2));
    world.take_messages(&machine);
    world.frame(&mut work, permission(2));
    world.frame(&mut work, FrameBody::InputReceived { input: input(2) });
    assert_eq!(
        world.rejections(&machine),
        [Rejection::DuplicateInput, Rejection::WrongOrder]
    );
    world.frame(&mut work, FrameBody::InputWithdrawn { input: input(1) });
    assert_eq!(world.attempt_state(task), AttemptStateKind::WaitingInput);
    world.answer(task, input(2), true).unwrap();
    world.frame(&mut work, FrameBody::InputReceived { input: input(2) });
    assert_eq!(world.attempt_state(task), AttemptStateKind::ToolRunning);
    assert_eq!(
        world.newest(task).phase,
        Some(LifecyclePhase::InputReceived)
    );
    assert_eq!(
        world.answer(task, input(1), true).unwrap_err(),
        Rejection::InputClosed
    );
}

#[test]
fn open_tools_and_inputs_are_bounded() {
    let mut config = crate::samples::config();
    (config.max_tools, config.max_inputs) = (2, 2);
    let mut world = CoreHarness::with(config);
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.take_messages(&machine);
    for n in 1..=3 {
        world.frame(&mut work, permission(n));
        let id = n.to_string();
        world.frame(
            &mut work,
            FrameBody::ToolStarted {
                id: id.as_str().into(),
                name: "x".into(),
            },
        );
    }
    assert_eq!(
        world.rejections(&machine),
        [Rejection::TooManyInputs, Rejection::TooManyTools]
    );
    world.frame(&mut work, FrameBody::InputWithdrawn { input: input(1) });
    world.frame(&mut work, permission(4));
    let ids: Vec<InputId> = world.newest(task).inputs.iter().map(|i| i.id).collect();
    assert_eq!(ids, [input(2), input(4)], "a closed input frees its place");
}

fn rule(effect: PermissionEffect, tool: &str, pattern: &str) -> PermissionRule {
    PermissionRule {
        effect,
        tool: tool.into(),
        pattern: pattern.into(),
    }
}

#[test]
fn a_permission_rule_answers_is_recorded_and_binds_the_arguments() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let rules = vec![
        rule(PermissionEffect::Deny, "Bash", "*rm *"),
        rule(PermissionEffect::Allow, "Bash", "git *"),
    ];
    let task = world.submit(TaskSpec {
        permission_rules: rules,
        ..spec()
    });
    let mut work = world.take_started();
    for (n, command, decision, by) in [
        (1, "git log", InputDecision::Allowed, "rule:2"),
        (2, "rm -r .", InputDecision::Denied, "rule:1"),
    ] {
        world.take_messages(&machine);
        let arguments = format!(r#"{{"command":"{command}"}}"#);
        world.frame(&mut work, permission_frame_for(n, "Bash", &arguments));
        assert_eq!(world.attempt_state(task), AttemptStateKind::WaitingInput);
        let asked = world.newest(task).inputs.last().unwrap().clone();
        let sent = world
            .take_messages(&machine)
            .into_iter()
            .find_map(|message| match message {
                DaemonMessage::Answer {
                    decision,
                    digest,
                    by,
                    ..
                } => Some((decision, digest, by)),
                _other => None,
            });
        assert_eq!(sent, Some((decision, asked.digest, by.into())));
        let mut events = world.task(task).timeline.events.clone();
        let answered = events.pop().unwrap();
        assert_eq!(
            answered.kind,
            TimelineEventKind::InputAnswered { input: input(n) }
        );
        assert!(answered.message.as_deref().unwrap().contains("Bash:"));
        assert_eq!(
            world
                .answer(task, input(n), decision != InputDecision::Allowed)
                .unwrap_err(),
            Rejection::AnswerConflict
        );
        world.frame(&mut work, FrameBody::InputReceived { input: input(n) });
        assert_eq!(world.attempt_state(task), AttemptStateKind::Streaming);
    }
    assert!(
        !world.newest(task).retry_safe,
        "an allowing rule counts like an answer of a person"
    );
    world.frame(&mut work, permission_frame_for(3, "Write", "{}"));
    assert_eq!(world.newest(task).inputs[2].state, InputState::Open);
}

#[test]
fn the_same_answer_is_accepted_again_after_the_end() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let (task, mut work) = start_waiting_input(&mut world, spec());
    world.answer(task, input(1), false).unwrap();
    world.frame(&mut work, permission(2));
    world.cancel(task).unwrap();
    world
        .answer(task, input(1), false)
        .expect("a repeated answer during the cancel");
    let late = world.answer(task, input(2), false);
    assert_eq!(late.unwrap_err(), Rejection::InputClosed);
    world.frame(&mut work, crate::tests::harness::canceled());
    let over = world
        .answer(task, input(1), false)
        .expect("a repeated answer after the end");
    let states: Vec<&InputState> = over.attempts[0].inputs.iter().map(|i| &i.state).collect();
    let denied =
        matches!(states[0], InputState::Superseded(Some(a)) if a.decision == InputDecision::Denied);
    assert!(
        denied && *states[1] == InputState::Superseded(None),
        "{states:?}"
    );
    for (n, code) in [
        (1, Rejection::AnswerConflict),
        (2, Rejection::InputClosed),
        (9, Rejection::UnknownInput),
    ] {
        assert_eq!(world.answer(task, input(n), true).unwrap_err(), code);
    }
}
