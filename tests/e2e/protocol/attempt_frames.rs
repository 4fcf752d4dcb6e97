//! Frames on the wire: every frame about an attempt identifies it.

use std::collections::BTreeSet;
use std::path::Path;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    Attempt, AttemptRef, AttemptState, Task, TaskEvent, TaskSpec, TaskState, attempt_command,
    daemon_frame, relay_frame,
};
use baton_tests::{
    ASKING_AGENTS, EmbeddedDaemon, EmbeddedRelay, FrameTap, TappedFrame, command_task,
    scripted_task, standin_agents,
};

use crate::STANDIN;

fn frame_kind(body: &Body) -> &'static str {
    match body {
        Body::Accepted(_) => "accepted",
        Body::Started(_) => "started",
        Body::Lifecycle(_) => "lifecycle",
        Body::Stream(_) => "stream",
        Body::Complete(_) => "complete",
        Body::Error(_) => "error",
        Body::Canceled(_) => "canceled",
        Body::PermissionRequest(_) => "permission",
        Body::Question(_) => "question",
        _ => "other",
    }
}

/// Attempt ref and kind of a frame, in either direction, that concerns one attempt.
fn attempt_ref_of_frame(frame: &TappedFrame) -> Option<(Option<AttemptRef>, &'static str)> {
    match frame {
        TappedFrame::FromDaemon(up) => match &up.frame {
            Some(daemon_frame::Frame::Attempt(frame)) => {
                let body = frame.body.as_ref().expect("a frame has a body");
                Some((frame.r#ref.clone(), frame_kind(body)))
            }
            _ => None,
        },
        TappedFrame::FromRelay(down) => match &down.frame {
            Some(relay_frame::Frame::Attempt(command)) => {
                let what = match command.body {
                    Some(attempt_command::Body::Dispatch(_)) => "dispatch",
                    Some(attempt_command::Body::PermissionDecision(_)) => "decision",
                    Some(attempt_command::Body::Answer(_)) => "answer",
                    _ => "command",
                };
                Some((command.r#ref.clone(), what))
            }
            _ => None,
        },
    }
}

/// Task id, attempt id and attempt number.
type AttemptName = (String, String, u32);

fn attempt_names(task: &Task) -> impl Iterator<Item = AttemptName> {
    let name_of = |attempt: &Attempt| {
        let (task, attempt_id) = (task.task_id.clone(), attempt.attempt_id.clone());
        (task, attempt_id, attempt.attempt_number)
    };
    task.attempts.iter().map(name_of)
}

/// Checks that every frame about an attempt names a known one. Returns the number of those
/// frames and their kinds.
fn kinds_of_named_frames(
    frames: &[TappedFrame],
    known: &BTreeSet<AttemptName>,
) -> (usize, BTreeSet<&'static str>) {
    let name_of = |attempt_ref: &AttemptRef| {
        (
            attempt_ref.task_id.clone(),
            attempt_ref.attempt_id.clone(),
            attempt_ref.attempt_number,
        )
    };
    let mut kinds = BTreeSet::new();
    let mut checked = 0;
    for (attempt_ref, what) in frames.iter().filter_map(attempt_ref_of_frame) {
        let attempt_ref = attempt_ref.unwrap_or_else(|| panic!("{what} without a ref"));
        assert!(
            known.contains(&name_of(&attempt_ref)),
            "{what} names {attempt_ref:?}"
        );
        assert!(
            !attempt_ref.incarnation.is_empty() && !attempt_ref.traceparent.is_empty(),
            "{what}: {attempt_ref:?}"
        );
        kinds.insert(what);
        checked += 1;
    }
    (checked, kinds)
}

/// Frame kinds that every agent causes. Agents that can ask cause more.
const FRAMES_OF_ALL_AGENTS: [&str; 8] = [
    "accepted",
    "started",
    "lifecycle",
    "stream",
    "complete",
    "error",
    "canceled",
    "dispatch",
];
const FRAMES_OF_ASKING_AGENTS: [&str; 4] = ["permission", "question", "decision", "answer"];

#[tokio::test(flavor = "multi_thread")]
async fn every_frame_of_every_agent_kind_names_task_attempt_and_number() {
    for agent in ["command", "claude", "codex", "codex-exec", "acp"] {
        let relay = EmbeddedRelay::start().await;
        let tap = FrameTap::start(relay.url()).await;
        let token = relay.daemon_token().await;
        let _daemon = EmbeddedDaemon::start_with(&tap.url(), &token, |config| {
            let agents = standin_agents(Path::new(STANDIN), &[]);
            config.agents.extend(agents);
        })
        .await;
        let client = relay.admin();
        let can_ask = ASKING_AGENTS.contains(&agent);
        let mut known = BTreeSet::new();
        for (script, state) in [
            (ASKING_SCRIPT, TaskState::Completed),
            ("say hm; crash 7", TaskState::Failed),
            ("say hm; stall", TaskState::Canceled),
        ] {
            let task = client.submit(asking_task(agent, script)).await;
            if can_ask && script == ASKING_SCRIPT {
                client.answer_all(&task.task_id).await;
            }
            if state == TaskState::Canceled {
                let mut watch = client.watch(&task.task_id).await;
                let has_output = |event: &TaskEvent| event.state() == AttemptState::Streaming;
                watch.wait_for_event("output", has_output).await;
                client.cancel(&task.task_id).await;
            }
            let done = client.wait_for_end(&task.task_id).await;
            assert_eq!(done.state(), state, "{agent}: {done:?}");
            known.extend(attempt_names(&done));
        }
        let (checked, kinds) = kinds_of_named_frames(&tap.frames(), &known);
        println!("{agent}: {checked} frames of kinds {kinds:?}");
        let more: &[&str] = if can_ask {
            &FRAMES_OF_ASKING_AGENTS
        } else {
            &[]
        };
        for needed in FRAMES_OF_ALL_AGENTS.iter().chain(more) {
            assert!(
                kinds.contains(needed),
                "{agent}: {needed} is missing in {kinds:?}"
            );
        }
    }
}

const ASKING_SCRIPT: &str = "say hm; ask Bash ls; question Which? = A, B; say done";

/// A command plays no stand-in scripts, so it gets equivalent arguments.
fn asking_task(agent: &str, script: &str) -> TaskSpec {
    let arguments: &[&str] = match script {
        ASKING_SCRIPT => &["print", "2"],
        "say hm; stall" => &["print", "1", "pause"],
        _ => &["print", "1", "exit", "7"],
    };
    match agent {
        "command" => TaskSpec {
            retry: scripted_task(agent, "").retry,
            ..command_task(STANDIN, arguments, "wire-kinds")
        },
        agent => scripted_task(agent, script),
    }
}
