//! Tests of progress and checkpoints: they belong to the task and accumulate over attempts and
//! restarts.

use std::sync::Arc;

use crate::commands::UpdateProgress;
use crate::goal::progress::{
    CheckpointDraft, GoalReport, MAX_CHECKPOINTS, ProgressUpdate, SanitizedText,
};
use crate::ids::TaskId;
use crate::io::effects::DaemonMessage;
use crate::io::rejection::Rejection;
use crate::io::session_input::FrameBody;
use crate::record::{CheckpointKind, TaskState};
use crate::samples::tenant;

use crate::tests::harness::{CoreHarness, completed, spec};

fn item(n: usize) -> ProgressUpdate {
    ProgressUpdate {
        completed: vec![format!("item {n}").into()],
        ..ProgressUpdate::default()
    }
}

fn update(world: &mut CoreHarness, task: TaskId, update: ProgressUpdate) -> Result<(), Rejection> {
    let told = world.send(UpdateProgress {
        tenant: tenant("acme"),
        task,
        update: Box::new(SanitizedText::new(update)),
    });
    told.map(|_| ())
}

fn checkpoint(summary: &str) -> FrameBody {
    let draft = CheckpointDraft {
        summary: summary.into(),
        ..CheckpointDraft::default()
    };
    FrameBody::Goal(GoalReport::Checkpoint(SanitizedText::new(draft)))
}

#[test]
fn progress_of_clients_and_holders_accumulates_over_a_restart() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    for n in 0..600 {
        update(&mut world, task, item(n)).unwrap();
    }
    world.frame(
        &mut work,
        FrameBody::Goal(GoalReport::Progress(SanitizedText::new(item(600)))),
    );
    world.restart();
    let progress = Arc::clone(&world.store.progress[&task]);
    assert_eq!(
        (progress.completed.len(), progress.completed_truncated),
        (500, 101)
    );
    assert_eq!(
        world.state(task),
        TaskState::Running,
        "progress does not change the state"
    );
}

#[test]
fn checkpoint_numbers_never_restart_and_the_newest_are_kept() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    let kept = usize::try_from(MAX_CHECKPOINTS).unwrap();
    for n in 1..=kept + 5 {
        world.frame(&mut work, checkpoint(&format!("step {n}")));
    }
    let stored: Vec<u64> = world.store.checkpoints.keys().map(|(_, n)| *n).collect();
    assert_eq!(stored.len(), kept);
    assert_eq!(stored[0], 6);
    let (first, last) = (
        &world.store.checkpoints[&(task, 6)],
        &world.store.checkpoints[&(task, MAX_CHECKPOINTS + 5)],
    );
    assert_eq!(
        (first.kind, last.kind),
        (CheckpointKind::Progress, CheckpointKind::Progress)
    );
    assert_eq!(
        first.to_revision,
        world.store.checkpoints[&(task, 7)].after_revision
    );
    assert_eq!(world.task(task).checkpoint_count, MAX_CHECKPOINTS + 5);
    assert_eq!(
        &*world.store.progress[&task].summary,
        &format!("step {}", kept + 5)
    );
}

#[test]
fn progress_of_a_finished_or_foreign_task_is_refused() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, completed());
    assert_eq!(
        update(&mut world, task, item(1)),
        Err(Rejection::AlreadyFinished)
    );
    let unknown = TaskId(uuid::Uuid::from_u128(404));
    assert_eq!(
        update(&mut world, unknown, item(1)),
        Err(Rejection::UnknownTask)
    );
    let foreign = world.send(UpdateProgress {
        tenant: tenant("other"),
        task,
        update: Box::new(SanitizedText::new(item(1))),
    });
    assert_eq!(foreign.unwrap_err(), Rejection::UnknownTask);
    assert!(world.store.progress.is_empty());
}

#[test]
fn credentials_in_progress_texts_are_never_stored() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, checkpoint("done with password=hunter2 as asked"));
    let stored = &world.store.checkpoints[&(task, 1)];
    assert!(stored.redacted);
    let everything = format!(
        "{:?} {:?} {:?}",
        stored,
        world.store.progress[&task],
        world.task(task)
    );
    assert!(!everything.contains("hunter2"), "{everything}");
}

#[test]
fn unreadable_progress_is_never_overwritten_and_a_block_still_works() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    update(&mut world, task, item(1)).unwrap();
    let before = Arc::clone(&world.store.progress[&task]);
    world.store.damaged.insert(task);
    let refused = update(&mut world, task, item(2));
    assert_eq!(refused, Err(Rejection::Unreadable));
    world.take_messages(&machine);
    let body = FrameBody::Goal(GoalReport::Progress(SanitizedText::new(item(3))));
    world.frame(&mut work, body);
    let refused = world.take_messages(&machine).into_iter().any(|message| {
        matches!(
            message,
            DaemonMessage::FrameRejected {
                code: Rejection::Unreadable,
                ..
            }
        )
    });
    assert!(
        refused,
        "the daemon gets a rejection, and the number is consumed"
    );
    world.frame(&mut work, checkpoint("half"));
    assert_eq!(
        world.task(task).checkpoint_count,
        1,
        "the checkpoint is stored"
    );
    let parked = world.block(task, "no key").unwrap();
    assert_eq!(
        (parked.state, parked.checkpoint_count),
        (TaskState::NeedsAttention, 2)
    );
    assert_eq!(
        world.store.progress[&task], before,
        "the unreadable progress is not overwritten"
    );
}
