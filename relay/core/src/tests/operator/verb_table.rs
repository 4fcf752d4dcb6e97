//! Every operator command in every state of a task, as one table. Each acknowledged change
//! survives a restart.

use std::sync::Arc;

use uuid::Uuid;

use super::force::{COMPLETE, FAIL, RELEASE, RETRY, audits};
use crate::ids::TaskId;
use crate::io::rejection::Rejection;
use crate::io::session_input::FrameBody;
use crate::operator::task_operation::TaskOperation;
use crate::record::{FailureCode, LifecyclePhase, TaskState};
use crate::task::spec::TaskSpec;
use crate::tests::harness::{CoreHarness, GRACE, SLACK, TTL, TestDaemon, completed, errored, spec};

/// Names of the states of a task. `reach_situation` produces each of them with one attempt.
const SITUATIONS: [&str; 12] = [
    "queued",
    "offered",
    "accepted",
    "streaming",
    "waiting_input",
    "cleaning_up",
    "being canceled",
    "parked",
    "unsafe loss",
    "backoff",
    "failed",
    "completed",
];

pub(crate) fn once() -> TaskSpec {
    let mut spec = spec();
    spec.retry.max_attempts = 1;
    spec
}

pub(in crate::tests) fn reach_situation(world: &mut CoreHarness, name: &str) -> TaskId {
    if name == "queued" {
        return world.submit(spec());
    }
    let machine = world.connect_daemon(1);
    let spec = match name {
        "parked" => TaskSpec {
            agent: "nobody has it".into(),
            queue_ms: Some(1_000),
            ..spec()
        },
        "failed" => once(),
        _others => spec(),
    };
    let task = world.submit(spec);
    match name {
        "offered" => {}
        "parked" => world.pass(1_000 + SLACK),
        "accepted" => {
            let mut work = world.dispatch();
            world.frame(&mut work, FrameBody::Accepted);
        }
        _begun => start_situation(world, &machine, task, name),
    }
    task
}

fn start_situation(world: &mut CoreHarness, machine: &TestDaemon, task: TaskId, name: &str) {
    let mut work = world.take_started();
    match name {
        "streaming" => world.phase(&mut work, LifecyclePhase::Streaming),
        "waiting_input" => {
            let input = crate::ids::InputId(Uuid::from_u128(5));
            let payload = Arc::from(*b"may I?");
            world.frame(&mut work, FrameBody::Question { input, payload });
        }
        "cleaning_up" => world.phase(&mut work, LifecyclePhase::CleanupStarted),
        "being canceled" => {
            world.cancel(task).unwrap();
        }
        "unsafe loss" => {
            world.disconnect(machine);
            world.pass(TTL + GRACE);
        }
        "backoff" | "failed" => world.frame(&mut work, errored(FailureCode::AgentExit, 1)),
        "completed" => world.frame(&mut work, completed()),
        other => panic!("no situation {other}"),
    }
}

/// The state of the task after the command, or the rejection.
fn outcome(name: &str, verb: &TaskOperation) -> Result<TaskState, Rejection> {
    let mut world = CoreHarness::new();
    let task = reach_situation(&mut world, name);
    let before = (world.task(task).revision, world.writes);
    let outcome = world.operate(task, verb.clone());
    match &outcome {
        Ok(record) => {
            let audits = audits(record);
            assert_eq!(audits.len(), 1, "{name}: {verb:?} has one audit event");
            assert_eq!(audits[0].1.as_deref(), Some("a reason"));
            assert_eq!(&*audits[0].0.by, "alice");
        }
        Err(_) => {
            let after = (world.task(task).revision, world.writes);
            assert_eq!(before, after, "{name}: a refusal writes nothing");
        }
    }
    // An acknowledged change survives a crash.
    let (state, shown) = (outcome.map(|record| record.state), world.task(task));
    world.restart_here();
    assert_eq!(world.task(task).timeline, shown.timeline);
    state
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn every_operation_in_every_state_matches_the_table() {
    use Rejection::{AlreadyFinished, BeingCanceled, NotBegun, NotFinished, NotHeld, NotOpen};
    use TaskState::{Completed, Failed, NeedsAttention, Pending, Queued, Running};
    let table: [(TaskOperation, [Result<TaskState, Rejection>; 12]); 6] = [
        (
            RELEASE,
            [
                Err(NotHeld),
                Ok(Queued),
                Ok(Queued),
                Ok(Queued),
                Ok(Queued),
                Ok(Queued),
                Err(BeingCanceled),
                Err(NotHeld),
                Err(NotHeld),
                Err(NotHeld),
                Err(AlreadyFinished),
                Err(AlreadyFinished),
            ],
        ),
        (
            FAIL,
            [
                Ok(Failed),
                Ok(Failed),
                Ok(Failed),
                Ok(Failed),
                Ok(Failed),
                Ok(Failed),
                Err(BeingCanceled),
                Ok(Failed),
                Err(NotOpen),
                Err(NotOpen),
                Err(AlreadyFinished),
                Err(AlreadyFinished),
            ],
        ),
        (
            RETRY,
            [
                Err(NotFinished),
                Err(NotFinished),
                Err(NotFinished),
                Err(NotFinished),
                Err(NotFinished),
                Err(NotFinished),
                Err(BeingCanceled),
                Ok(Queued),
                Err(Rejection::UnsafeRetry),
                Ok(Queued),
                Ok(Queued),
                Err(AlreadyFinished),
            ],
        ),
        (
            COMPLETE,
            [
                Err(NotBegun),
                Ok(Completed),
                Ok(Completed),
                Ok(Completed),
                Ok(Completed),
                Ok(Completed),
                Err(BeingCanceled),
                Ok(Completed),
                Ok(Completed),
                Err(NotOpen),
                Err(AlreadyFinished),
                Err(AlreadyFinished),
            ],
        ),
        (
            TaskOperation::Pause,
            [
                Ok(Pending),
                Ok(Running),
                Ok(Running),
                Ok(Running),
                Ok(Running),
                Ok(Running),
                Ok(Running),
                Ok(NeedsAttention),
                Ok(NeedsAttention),
                Ok(Pending),
                Err(AlreadyFinished),
                Err(AlreadyFinished),
            ],
        ),
        (
            TaskOperation::Unpause,
            [Err(Rejection::NotPaused); 10]
                .into_iter()
                .chain([Err(AlreadyFinished); 2])
                .collect::<Vec<_>>()
                .try_into()
                .unwrap(),
        ),
    ];
    for (verb, expected) in &table {
        for (name, expected) in SITUATIONS.iter().zip(expected) {
            assert_eq!(outcome(name, verb), *expected, "{verb:?} when {name}");
        }
    }
}
