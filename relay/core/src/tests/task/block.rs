//! Tests of block and resume: a block parks the task and frees its resources, and a person
//! resumes it once.

use crate::goal::progress::{BlockDraft, CheckpointDraft, GoalReport, SanitizedText};
use crate::io::effects::DaemonMessage;
use crate::io::rejection::Rejection;
use crate::io::session_input::FrameBody;
use crate::record::{
    AttemptState, AttemptStateKind, AttentionCause, CheckpointKind, FailureCode, TaskState,
    TerminationReceipt, TimelineEventKind,
};

use crate::tests::harness::{
    CoreHarness, GRACE, TTL, completed, errored, spec, termination_receipt,
};

fn block(reason: &str) -> FrameBody {
    let draft = BlockDraft {
        reason: reason.into(),
        hint: Some("a key for the store".into()),
        checkpoint: Some(CheckpointDraft {
            summary: "half of it".into(),
            cursor: "page 3".into(),
            ..CheckpointDraft::default()
        }),
    };
    FrameBody::Goal(GoalReport::Block(SanitizedText::new(draft)))
}

fn receipt() -> FrameBody {
    FrameBody::Receipt {
        termination: termination_receipt(),
    }
}

#[test]
fn a_block_parks_the_attempt_and_frees_its_lease_and_timers() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, block("no access"));
    assert_eq!(world.state(task), TaskState::NeedsAttention);
    let newest = world.newest(task);
    assert_eq!(newest.state.kind(), AttemptStateKind::Parked);
    assert!(newest.lease.is_none() && newest.budgets.is_empty());
    let record = world.task(task);
    let attention = record.attention.as_ref().unwrap();
    assert_eq!(attention.cause, AttentionCause::Blocked);
    assert_eq!(&*attention.reason, "no access");
    assert_eq!(attention.hint.as_deref(), Some("a key for the store"));
    let checkpoint = &world.store.checkpoints[&(task, 1)];
    assert_eq!(attention.checkpoint, Some(checkpoint.id));
    assert_eq!(
        (checkpoint.kind, &*checkpoint.summary, &*checkpoint.cursor),
        (CheckpointKind::Blocked, "half of it", "page 3")
    );
    assert_eq!(&*world.store.progress[&task].summary, "half of it");
    let messages = world.take_messages(&machine);
    let position_of = |of: fn(&DaemonMessage) -> bool| messages.iter().rposition(of);
    let acked = position_of(|m| matches!(m, DaemonMessage::Ack { .. }));
    let stopped = position_of(|m| matches!(m, DaemonMessage::Abandon { .. }));
    assert!(
        acked.is_some() && acked < stopped,
        "the ack is sent before the abandon: {messages:?}"
    );
    let view = world.inspect(task).unwrap();
    assert!(view.deadlines.is_empty(), "{:?}", view.deadlines);
}

#[test]
fn the_successor_of_a_block_waits_for_the_receipt_and_gets_the_answer() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, block("no access"));
    let resumed = world.resume(task, Some(work.frame_ref.attempt)).unwrap();
    assert_eq!(resumed.attempts.len(), 2);
    let handed = &resumed.attempts[0];
    assert_eq!(handed.state.kind(), AttemptStateKind::HandedOff);
    assert_eq!(handed.handed_off_to.as_deref(), Some("alice"));
    assert_eq!(handed.successor, Some(resumed.attempts[1].id));
    assert!(
        world.dispatches().is_empty(),
        "the blocked attempt may still run"
    );
    work.seq += 1;
    world.replay(&work, work.seq, receipt());
    let next = world.dispatch();
    assert_eq!(next.frame_ref.number, 2);
    let dispatch = world
        .take_messages(&machine)
        .into_iter()
        .find_map(|message| match message {
            DaemonMessage::Dispatch(dispatch) if dispatch.to.number == 2 => Some(dispatch),
            _ => None,
        });
    let dispatch = dispatch.unwrap();
    assert_eq!(dispatch.checkpoint, Some(1));
    assert_eq!(&*dispatch.resume.unwrap().instructions, "use the other key");
}

#[test]
fn without_a_receipt_the_successor_of_a_block_waits_for_lease_and_grace() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, block("no access"));
    world.resume(task, None).unwrap();
    world.disconnect(&machine);
    let other = world.connect_daemon(2);
    world.advance_renewing(TTL + GRACE - 4_000, &other, &[]);
    assert!(world.dispatches().is_empty());
    world.advance_renewing(5_000, &other, &[]);
    assert_eq!(world.dispatch().frame_ref.number, 2);
    assert!(matches!(
        world.task(task).attempts[0].state,
        AttemptState::Ended(_)
    ));
}

#[test]
fn a_block_is_resumed_once_and_only_the_newest_is_listed() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, block("first"));
    assert_eq!(world.parked(), [task]);
    world.resume(task, Some(work.frame_ref.attempt)).unwrap();
    assert_eq!(world.parked(), []);
    assert_eq!(
        world
            .resume(task, Some(work.frame_ref.attempt))
            .unwrap_err(),
        Rejection::HandedOff
    );
    assert_eq!(world.resume(task, None).unwrap_err(), Rejection::HandedOff);
    work.seq += 1;
    world.replay(&work, work.seq, receipt());
    let mut next = world.dispatch();
    world.frame(&mut next, FrameBody::Accepted);
    world.frame(&mut next, block("second"));
    assert_eq!(world.parked(), [task]);
    let record = world.task(task);
    assert_eq!(&*record.attention.as_ref().unwrap().reason, "second");
    assert_eq!(record.checkpoint_count, 2);
    assert_eq!(
        world
            .resume(task, Some(work.frame_ref.attempt))
            .unwrap_err(),
        Rejection::HandedOff,
        "the first attempt stays handed off"
    );
}

#[test]
fn a_person_may_block_an_open_task_but_not_a_finished_one() {
    let mut world = CoreHarness::new();
    let queued = world.submit(spec());
    world.block(queued, "not yet").unwrap();
    assert_eq!(world.state(queued), TaskState::NeedsAttention);
    assert_eq!(
        world.block(queued, "again").unwrap_err(),
        Rejection::AlreadyParked
    );
    let AttemptState::Parked(parked) = world.newest(queued).state else {
        panic!("parked");
    };
    assert_eq!(parked.receipt, TerminationReceipt::NotNeeded);
    let machine = world.connect_daemon(1);
    assert!(
        world.dispatches().is_empty(),
        "a parked task is never offered"
    );

    let running = world.submit(spec());
    let mut work = world.take_started();
    world.block(running, "stop here").unwrap();
    assert_eq!(world.state(running), TaskState::NeedsAttention);
    world.frame(&mut work, completed());
    assert_eq!(
        world.state(running),
        TaskState::NeedsAttention,
        "a result after the block is evidence"
    );
    let events = &world.task(running).timeline.events;
    assert!(
        events
            .iter()
            .any(|e| e.kind == TimelineEventKind::LateTerminal)
    );

    let failing = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, errored(FailureCode::AgentExit, 1));
    assert_eq!(
        world.state(failing),
        TaskState::Pending,
        "the task waits for its backoff"
    );
    world.block(failing, "look first").unwrap();
    world.advance_renewing(600_000, &machine, &[]);
    assert_eq!(world.state(failing), TaskState::NeedsAttention);
    world.resume(failing, None).unwrap();
    let mut work = world.take_started();
    world.frame(&mut work, completed());
    assert_eq!(world.state(failing), TaskState::Completed);
    assert_eq!(
        world.block(failing, "late").unwrap_err(),
        Rejection::AlreadyFinished
    );
    assert_eq!(
        world.resume(failing, None).unwrap_err(),
        Rejection::AlreadyFinished
    );
}

#[test]
fn parked_tasks_stay_parked_and_keep_their_order_over_a_restart() {
    let mut world = CoreHarness::new();
    let tasks: Vec<_> = (0..3).map(|_| world.submit(spec())).collect();
    for task in [tasks[1], tasks[2], tasks[0]] {
        world.pass(1_000);
        world.block(task, "later").unwrap();
    }
    assert_eq!(world.parked(), [tasks[0], tasks[2], tasks[1]]);
    world.restart();
    assert_eq!(world.parked(), [tasks[0], tasks[2], tasks[1]]);
    world.connect_daemon(1);
    world.pass(1_000);
    assert!(world.dispatches().is_empty());
    world.cancel(tasks[2]).unwrap();
    assert_eq!(world.parked(), [tasks[0], tasks[1]]);
}

#[test]
fn a_cancel_wins_over_a_block() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.cancel(task).unwrap();
    assert_eq!(
        world.block(task, "wait").unwrap_err(),
        Rejection::BeingCanceled
    );
    world.frame(&mut work, block("wait"));
    world.frame(&mut work, crate::tests::harness::canceled());
    assert_eq!(world.state(task), TaskState::Canceled);
}

/// The next attempt continues from the newest checkpoint, so a block with only a reason must
/// keep the earlier summary and cursor.
#[test]
fn a_block_without_a_checkpoint_keeps_the_newest_one() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    let draft = CheckpointDraft {
        summary: "half of it".into(),
        cursor: "page 3".into(),
        ..CheckpointDraft::default()
    };
    world.frame(
        &mut work,
        FrameBody::Goal(GoalReport::Checkpoint(SanitizedText::new(draft))),
    );
    world.block(task, "a key is missing").unwrap();
    let written = &world.store.checkpoints[&(task, 2)];
    assert_eq!(
        (&*written.summary, &*written.cursor),
        ("half of it", "page 3")
    );
    assert_eq!(&*world.store.progress[&task].summary, "half of it");
}
