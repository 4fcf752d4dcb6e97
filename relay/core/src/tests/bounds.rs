//! A record is written whole and the journal takes no entry over 1 MiB, so the worst that anybody may do stays below.

use std::sync::Arc;

use uuid::Uuid;

use super::world::{Machine, Work, World, actor, errored, spec};
use crate::contract::FoundFile;
use crate::id::{InputId, TaskId};
use crate::input::{Completed, FrameBody, Input};
use crate::record::{AttemptState, Decision, FailureCode, InputState, Resume};
use crate::reject::Rejection;
use crate::samples::tenant;
use crate::spec::{CompletionContract, MissingPolicy, Profile, RequiredArtifact, TaskSpec};

const OPEN: u128 = 256;
const DAY: u64 = 24 * 3_600_000;

fn greedy() -> TaskSpec {
    let mut spec = spec();
    spec.retry.max_attempts = 1;
    spec.queue_ms = Some(1_000);
    spec.total_ms = Some(10 * DAY);
    spec.effective_profile = Profile {
        tool_idle_ms: Some(DAY),
        user_input_ms: Some(DAY),
        ..Profile::default()
    };
    spec.contract = Some(CompletionContract {
        artifacts: (0..64).map(required).collect(),
        missing_policy: MissingPolicy::Reject,
    });
    spec
}

fn required(n: u128) -> RequiredArtifact {
    RequiredArtifact {
        path: words(n, 1024).to_string(),
        min_size: None,
        sha256: None,
    }
}

/// A result that is refused for every file that it needs, with all that a daemon may say of each.
fn refused() -> FrameBody {
    let found = |n| FoundFile {
        path: words(n, 1024),
        sha256: Some(words(n, 4096)),
        resolved: Some(words(n, 1023)),
        problem: Some(words(n, 4096)),
        ..FoundFile::default()
    };
    FrameBody::Completed(Completed {
        artifacts: (0..64).map(found).collect(),
        ..Completed::default()
    })
}

/// As long as a daemon's words may be, each its own.
fn words(n: u128, bytes: usize) -> Arc<str> {
    format!("{n:0>bytes$}").into()
}

fn permission(n: u128, bytes: usize) -> FrameBody {
    FrameBody::PermissionRequest {
        input: InputId(Uuid::from_u128(n)),
        tool_name: words(n, 4096),
        arguments: Arc::from([]),
        payload: vec![7; bytes].into(),
    }
}

fn answer(world: &mut World, task: TaskId, n: u128, bytes: usize) -> Result<(), Rejection> {
    let answered = world.ask(|request| Input::Answer {
        request,
        tenant: tenant("acme"),
        task,
        input: InputId(Uuid::from_u128(n)),
        by: actor(),
        decision: Decision::Replied,
        payload: vec![8; bytes].into(),
        finished: None,
    });
    answered.map(|_| ())
}

/// As much as a person may say, which holds for every attempt behind it.
fn resume() -> Resume {
    Resume {
        by: "alice".into(),
        reason: words(1, 4 * 2048),
        instructions: "x".repeat(64 * 1024).into(),
        answers: vec![(words(3, 16 * 1024), words(4, 16 * 1024))],
    }
}

/// Attempts that nobody was offered, then as many failures as a chain may have.
fn with_history(world: &mut World, task: TaskId) -> (Machine, Work) {
    world.pass(1_000);
    world.resume_saying(task, None, resume()).unwrap();
    for _ in 0..79 {
        world.pass(1_000);
        assert_eq!(world.attempt_state(task), AttemptState::Parked);
        world.retry(task).unwrap();
    }
    let machine = world.machine(1);
    for n in 0..19 {
        let mut work = world.started();
        for n in 0..20 {
            world.frame(&mut work, permission(n, 100));
        }
        let mut failure = errored(FailureCode::AgentExit, n);
        if let FrameBody::Errored(body) = &mut failure {
            body.message = Some(words(1, 4096));
            body.user_message = Some(words(2, 4096));
            body.agent_session_id = Some(words(3, 256));
        }
        world.frame(&mut work, failure);
        world.retry(task).unwrap();
    }
    let work = world.started();
    (machine, work)
}

#[test]
fn the_worst_legal_task_stays_well_below_what_the_journal_takes() {
    let mut world = World::new();
    let task = world.submit(greedy());
    let (machine, mut work) = with_history(&mut world, task);
    let share = crate::bounds::ASKED_BYTES / 256;
    for n in 0..OPEN {
        let (id, name) = (words(n, 256), words(n, 4096));
        world.frame(&mut work, FrameBody::ToolStarted { id, name });
        world.frame(&mut work, permission(n, share));
    }
    for n in 0..OPEN {
        answer(&mut world, task, n, crate::bounds::ANSWERED_BYTES / 256).unwrap();
    }
    for n in (0..OPEN).take(10) {
        // Only what was refused is left to say: nothing of it is kept.
        world.told(&machine);
        world.frame(&mut work, permission(1_000 + n, share));
        assert_eq!(world.rejections(&machine), [Rejection::TooManyInputs]);
    }
    for n in 0..OPEN {
        let id = words(n, 256);
        world.frame(&mut work, FrameBody::ToolFinished { id: id.clone() });
        let name = words(n, 4096);
        world.frame(&mut work, FrameBody::ToolStarted { id, name });
    }
    world.frame(&mut work, refused());
    let record = world.task(task);
    assert_eq!(record.newest().unwrap().artifacts.len(), 64);
    assert_eq!(record.attempts.len(), 100);
    let open = record.newest().unwrap();
    assert_eq!((open.inputs.len(), open.tools.len()), (256, 256));
    let bytes = postcard::to_stdvec(&*record).unwrap().len();
    assert!(bytes < 1000 * 1024, "{bytes} bytes");
    assert!(bytes > 700 * 1024, "{bytes} bytes are not the worst");
    world.pass_renewing(4_000, &machine, &[&work]);
    world.frame(&mut work, errored(FailureCode::AgentExit, 7));
    assert_eq!(world.retry(task).unwrap_err(), Rejection::DispatchLimit);
    let bytes = postcard::to_stdvec(&*world.task(task)).unwrap().len();
    assert!(bytes < 400 * 1024, "{bytes} bytes after its end");
}

#[test]
fn one_input_of_the_largest_kind_fits_and_its_answer_is_forgotten_once_received() {
    let mut world = World::new();
    let machine = world.machine(1);
    let task = world.submit(greedy());
    let mut work = world.started();
    world.frame(&mut work, permission(1, 256 * 1024 + 4096));
    world.told(&machine);
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
    answer(&mut world, task, 1, long).expect("said again, it is the same");
    world.frame(&mut work, permission(3, 8 * 1024));
    answer(&mut world, task, 3, 10).unwrap();
    let changed = answer(&mut world, task, 3, 11);
    assert_eq!(changed.unwrap_err(), Rejection::AnswerConflict);
}

#[test]
fn words_are_cut_at_a_characters_edge() {
    let mut cut: Arc<str> = "ab\u{20ac}".into();
    crate::bounds::clip(&mut cut, 4);
    assert_eq!(&*cut, "ab");
}
