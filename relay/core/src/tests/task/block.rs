//! A block parks the work and frees everything; a person sends it on, once.

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
fn a_block_parks_the_attempt_and_frees_lease_timers_and_slot_in_one_write() {
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
    let told = world.take_messages(&machine);
    let place = |of: fn(&DaemonMessage) -> bool| told.iter().rposition(of);
    let heard = place(|m| matches!(m, DaemonMessage::Ack { .. }));
    let stopped = place(|m| matches!(m, DaemonMessage::Abandon { .. }));
    assert!(
        heard.is_some() && heard < stopped,
        "the holder hears that it was heard, then that it has to stop: {told:?}"
    );
    let view = world.inspect(task).unwrap();
    assert!(view.deadlines.is_empty(), "{:?}", view.deadlines);
}

#[test]
fn the_successor_waits_until_the_blocked_one_is_proved_dead_and_knows_what_was_said() {
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
    assert!(world.dispatches().is_empty(), "it may still run");
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
fn without_a_receipt_the_successor_waits_for_the_last_limit_and_its_grace() {
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
fn it_is_sent_on_once_and_only_the_newest_block_is_listed() {
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
        "the first one stays handed off"
    );
}

#[test]
fn a_person_may_block_what_waits_and_what_runs_but_nothing_that_is_over() {
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
        "it waits for its backoff"
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
fn parked_work_stays_parked_and_listed_in_order_over_a_restart() {
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
fn a_cancel_wins_over_a_block_and_a_block_is_refused_while_an_end_is_on_its_way() {
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

/// The next attempt goes by the newest checkpoint, so a block that says only why hides nothing of what was known.
#[test]
fn a_block_without_a_checkpoint_stands_where_the_work_stood() {
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
