//! Tests of size limits: a record is written as a whole and a journal entry has at most 1 MiB,
//! so the largest possible record must stay below that.

use std::sync::Arc;

use uuid::Uuid;

use crate::commands::AnswerInput;
use crate::goal::completion_contract::FoundArtifact;
use crate::ids::{InputId, TaskId};
use crate::io::rejection::Rejection;
use crate::io::session_input::{CompletedBody, FrameBody};
use crate::record::{AttemptStateKind, FailureCode, InputDecision, InputState, ResumeInstructions};
use crate::samples::tenant;
use crate::task::spec::{
    CompletionContract, DeadlineProfile, MissingPolicy, RequiredArtifact, TaskSpec,
};
use crate::tests::harness::{CoreHarness, DispatchedAttempt, TestDaemon, actor, errored, spec};

const OPEN_INPUTS: u128 = 256;
const DAY: u64 = 24 * 3_600_000;

fn largest_spec() -> TaskSpec {
    let mut spec = spec();
    spec.retry.max_attempts = 1;
    spec.queue_ms = Some(1_000);
    spec.total_ms = Some(10 * DAY);
    spec.effective_profile = DeadlineProfile {
        tool_idle_ms: Some(DAY),
        user_input_ms: Some(DAY),
        ..DeadlineProfile::default()
    };
    spec.contract = Some(CompletionContract {
        artifacts: (0..64).map(required).collect(),
        missing_policy: MissingPolicy::Reject,
    });
    spec
}

fn required(n: u128) -> RequiredArtifact {
    RequiredArtifact {
        path: text_of_length(n, 1024).to_string(),
        min_size: None,
        sha256: None,
    }
}

/// A result that is refused for all its required files, with the longest possible report of
/// each.
fn refused_result() -> FrameBody {
    let found = |n| FoundArtifact {
        path: text_of_length(n, 1024),
        sha256: Some(text_of_length(n, 4096)),
        resolved: Some(text_of_length(n, 1023)),
        problem: Some(text_of_length(n, 4096)),
        ..FoundArtifact::default()
    };
    FrameBody::Completed(CompletedBody {
        artifacts: (0..64).map(found).collect(),
        ..CompletedBody::default()
    })
}

/// A distinct text of this length.
fn text_of_length(n: u128, bytes: usize) -> Arc<str> {
    format!("{n:0>bytes$}").into()
}

fn permission(n: u128, bytes: usize) -> FrameBody {
    FrameBody::PermissionRequest {
        input: InputId(Uuid::from_u128(n)),
        tool_name: text_of_length(n, 4096),
        arguments: Arc::from([]),
        payload: vec![7; bytes].into(),
    }
}

fn answer(world: &mut CoreHarness, task: TaskId, n: u128, bytes: usize) -> Result<(), Rejection> {
    let answered = world.send(AnswerInput {
        tenant: tenant("acme"),
        task,
        input: InputId(Uuid::from_u128(n)),
        by: actor(),
        decision: InputDecision::Replied,
        payload: vec![8; bytes].into(),
    });
    answered.map(|_| ())
}

/// The longest possible resume instructions. They are part of every later attempt.
fn resume() -> ResumeInstructions {
    ResumeInstructions {
        by: "alice".into(),
        reason: text_of_length(1, 4 * 2048),
        instructions: "x".repeat(64 * 1024).into(),
        answers: vec![(text_of_length(3, 16 * 1024), text_of_length(4, 16 * 1024))],
    }
}

/// A history with attempts that were never offered, followed by the largest possible number of
/// failures.
fn build_longest_history(world: &mut CoreHarness, task: TaskId) -> (TestDaemon, DispatchedAttempt) {
    world.pass(1_000);
    world.resume_saying(task, None, resume()).unwrap();
    for _ in 0..79 {
        world.pass(1_000);
        assert_eq!(world.attempt_state(task), AttemptStateKind::Parked);
        world.retry(task).unwrap();
    }
    let machine = world.connect_daemon(1);
    for n in 0..19 {
        let mut work = world.take_started();
        for n in 0..20 {
            world.frame(&mut work, permission(n, 100));
        }
        let mut failure = errored(FailureCode::AgentExit, n);
        if let FrameBody::Errored(body) = &mut failure {
            body.message = Some(text_of_length(1, 4096));
            body.user_message = Some(text_of_length(2, 4096));
            body.agent_session_id = Some(text_of_length(3, 256));
        }
        world.frame(&mut work, failure);
        world.retry(task).unwrap();
    }
    let work = world.take_started();
    (machine, work)
}

#[test]
fn the_largest_possible_record_fits_into_a_journal_entry() {
    let mut world = CoreHarness::new();
    let task = world.submit(largest_spec());
    let (machine, mut work) = build_longest_history(&mut world, task);
    let share = crate::task::size_limits::MAX_ASKED_BYTES / 256;
    for n in 0..OPEN_INPUTS {
        let (id, name) = (text_of_length(n, 256), text_of_length(n, 4096));
        world.frame(&mut work, FrameBody::ToolStarted { id, name });
        world.frame(&mut work, permission(n, share));
    }
    for n in 0..OPEN_INPUTS {
        answer(
            &mut world,
            task,
            n,
            crate::task::size_limits::MAX_ANSWERED_BYTES / 256,
        )
        .unwrap();
    }
    for n in (0..OPEN_INPUTS).take(10) {
        // Every further request is refused and not stored.
        world.take_messages(&machine);
        world.frame(&mut work, permission(1_000 + n, share));
        assert_eq!(world.rejections(&machine), [Rejection::TooManyInputs]);
    }
    for n in 0..OPEN_INPUTS {
        let id = text_of_length(n, 256);
        world.frame(&mut work, FrameBody::ToolFinished { id: id.clone() });
        let name = text_of_length(n, 4096);
        world.frame(&mut work, FrameBody::ToolStarted { id, name });
    }
    world.frame(&mut work, refused_result());
    let record = world.task(task);
    assert_eq!(record.newest_attempt().unwrap().artifacts.len(), 64);
    assert_eq!(record.attempts.len(), 100);
    let open = record.newest_attempt().unwrap();
    assert_eq!((open.inputs.len(), open.open_tools.len()), (256, 256));
    let bytes = postcard::to_stdvec(&*record).unwrap().len();
    assert!(bytes < 1000 * 1024, "{bytes} bytes");
    assert!(
        bytes > 700 * 1024,
        "{bytes} bytes are not the largest record"
    );
    world.advance_renewing(4_000, &machine, &[&work]);
    world.frame(&mut work, errored(FailureCode::AgentExit, 7));
    assert_eq!(world.retry(task).unwrap_err(), Rejection::DispatchLimit);
    let bytes = postcard::to_stdvec(&*world.task(task)).unwrap().len();
    assert!(bytes < 400 * 1024, "{bytes} bytes after its end");
}

#[test]
fn the_largest_input_fits_and_its_payloads_are_dropped_once_received() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(largest_spec());
    let mut work = world.take_started();
    world.frame(&mut work, permission(1, 256 * 1024 + 4096));
    world.take_messages(&machine);
    world.frame(&mut work, permission(2, 8 * 1024));
    assert_eq!(world.rejections(&machine), [Rejection::TooManyInputs]);
    let long = 48 * 1024;
    answer(&mut world, task, 1, long).unwrap();
    let input = InputId(Uuid::from_u128(1));
    world.frame(&mut work, FrameBody::InputReceived { input });
    let known = &world.newest(task).inputs[0];
    let InputState::Received(given) = &known.state else {
        panic!("not received: {known:?}");
    };
    assert!(given.payload.is_empty() && known.payload.is_empty());
    answer(&mut world, task, 1, long).expect("a repeated answer");
    world.frame(&mut work, permission(3, 8 * 1024));
    answer(&mut world, task, 3, 10).unwrap();
    let changed = answer(&mut world, task, 3, 11);
    assert_eq!(changed.unwrap_err(), Rejection::AnswerConflict);
}

#[test]
fn text_is_cut_at_a_character_boundary() {
    let mut cut: Arc<str> = "ab\u{20ac}".into();
    crate::task::size_limits::clip(&mut cut, 4);
    assert_eq!(&*cut, "ab");
}
