//! After an import or an accepted loss: what was inherited waits, and an operator's word ends that.

use crate::commands::PauseScheduler;
use crate::commands::ReleaseInherited;
use crate::commands::UnpauseScheduler;
use crate::ids::{TaskId, TenantScope};
use crate::io::effects::WaitReason;
use crate::io::session_input::{ActiveAttemptState, FrameBody};
use crate::record::{AttemptStateKind, FailureCode, TaskState};
use crate::task::spec::TaskSpec;
use crate::tests::harness::{CoreHarness, GRACE, TTL, actor, completed, errored, spec};

const INHERITED_HOLD_MS: u64 = 100_000;

fn release_inherited(world: &mut CoreHarness) -> u64 {
    let (by, reason) = (actor(), "the old machines are off".into());
    let reply = world.send(ReleaseInherited { by, reason });
    reply.unwrap()
}

fn wait_reason_and_time(
    world: &mut CoreHarness,
    task: TaskId,
) -> (Option<WaitReason>, Option<u64>) {
    let view = world.inspect(task).unwrap();
    (view.wait_reason, view.max_wait_ms)
}

#[test]
fn after_an_accepted_loss_nothing_inherited_is_placed_before_every_lease_is_over() {
    let mut world = CoreHarness::new();
    let waiting = world.submit(spec());
    world.restart_inherited(INHERITED_HOLD_MS);
    let mut machine = world.connect_daemon(1);
    world.advance_renewing(40_000, &machine, &[]);
    assert!(world.dispatches().is_empty(), "an unknown attempt may run");
    let fresh = world.submit(spec());
    assert_eq!(world.dispatch().frame_ref.task, fresh);
    world.restart_inherited(0);
    world.reconnect(&mut machine, &[]);
    world.advance_renewing(50_000, &machine, &[]);
    let early = world.dispatches();
    assert!(
        early.iter().all(|work| work.frame_ref.task != waiting),
        "a second boot remembers the hold"
    );
    world.advance_renewing(60_000, &machine, &[]);
    let late = world.dispatches();
    assert!(late.iter().any(|work| work.frame_ref.task == waiting));
}

#[test]
fn what_was_submitted_after_the_loss_is_held_by_no_later_boot() {
    let mut world = CoreHarness::new();
    let old = world.submit(spec());
    world.restart_inherited(INHERITED_HOLD_MS);
    let new = world.submit(spec());
    world.restart_inherited(0);
    let _machine = world.connect_daemon(1);
    assert_eq!(world.dispatch().frame_ref.task, new);
    assert_eq!(
        wait_reason_and_time(&mut world, old),
        (Some(WaitReason::Inheritance), Some(INHERITED_HOLD_MS)),
        "and the time that the relay was down does not count"
    );
}

#[test]
fn what_waited_goes_on_under_an_id_that_was_never_leased() {
    let mut world = CoreHarness::new();
    let task = world.submit(spec());
    let before = world.newest(task);
    world.restart_inherited(INHERITED_HOLD_MS);
    let after = world.task(task);
    let names: Vec<_> = after.attempts.iter().map(|a| a.state.kind()).collect();
    assert_eq!(
        names,
        [AttemptStateKind::Released, AttemptStateKind::Queued]
    );
    assert_eq!(
        (after.attempts[0].id, after.state),
        (before.id, TaskState::Queued)
    );
    // A daemon that was given the old one in what is lost is told to stop, and confuses nobody.
    let mut machine = world.connect_daemon(1);
    release_inherited(&mut world);
    let work = world.dispatch();
    assert_eq!(work.frame_ref.number, 2);
    assert_ne!(work.frame_ref.attempt, before.id);
    let mut ghost = work.clone();
    (ghost.frame_ref.attempt, ghost.frame_ref.number) = (before.id, 1);
    let verdicts = world.reconnect(
        &mut machine,
        &[
            (&work, ActiveAttemptState::Running),
            (&ghost, ActiveAttemptState::Running),
        ],
    );
    assert!(matches!(
        verdicts[..],
        [
            crate::io::effects::SettlementVerdict::Keep { .. },
            crate::io::effects::SettlementVerdict::Kill { .. }
        ]
    ));
}

#[test]
fn an_operators_word_ends_the_hold_at_once_and_is_kept() {
    let mut world = CoreHarness::new();
    let (one, two) = (world.submit(spec()), world.submit(spec()));
    world.restart_inherited(INHERITED_HOLD_MS);
    let machine = world.connect_daemon(1);
    world.advance_renewing(1_000, &machine, &[]);
    assert_eq!(
        wait_reason_and_time(&mut world, one),
        (
            Some(WaitReason::Inheritance),
            Some(INHERITED_HOLD_MS - 1_000)
        )
    );
    world.cancel(two).unwrap();
    assert_eq!(release_inherited(&mut world), 1);
    assert_eq!(world.dispatch().frame_ref.task, one);
    let word = world.store.scheduler.suspensions[0]
        .released
        .clone()
        .unwrap();
    assert_eq!(
        (&*word.by, &*word.reason, word.at),
        ("alice", "the old machines are off", world.now.wall)
    );
    assert_eq!(release_inherited(&mut world), 0, "nothing is held any more");
    assert_eq!(
        world.store.scheduler.suspensions[0].released,
        Some(word),
        "and the first word stays"
    );
    world.restart_inherited(0);
    let waiting = world.submit(spec());
    assert_eq!(
        wait_reason_and_time(&mut world, waiting).0,
        Some(WaitReason::Daemon)
    );
}

#[test]
fn the_queue_timer_stands_still_in_the_hold_and_over_restarts() {
    let mut world = CoreHarness::new();
    let queue = |queue_ms| TaskSpec {
        queue_ms: Some(queue_ms),
        ..spec()
    };
    // A boot may forget half a minute of uptime, so everything here is much longer.
    let old = world.submit(queue(1_000_000));
    world.pass(200_000);
    world.restart_inherited(2_000_000);
    let new = world.submit(queue(1_000_000));
    world.pass(1_100_000);
    assert_eq!(
        world.attempt_state(new),
        AttemptStateKind::Parked,
        "nothing holds it, and nobody took it"
    );
    world.restart_inherited(0);
    world.pass(990_000);
    assert_eq!(
        wait_reason_and_time(&mut world, old).0,
        Some(WaitReason::Daemon)
    );
    // A boot reads from the record what the timer had used: the hold is not in it.
    world.restart_inherited(0);
    world.pass(600_000);
    assert_eq!(world.attempt_state(old), AttemptStateKind::Queued);
    world.pass(300_000);
    assert_eq!(world.attempt_state(old), AttemptStateKind::Parked);
}

#[test]
fn a_pause_within_the_hold_is_not_counted_twice() {
    let mut world = CoreHarness::new();
    let old = world.submit(TaskSpec {
        queue_ms: Some(50_000),
        ..spec()
    });
    world.restart_inherited(INHERITED_HOLD_MS);
    let (by, reason) = (actor(), "look".into());
    world
        .send(PauseScheduler {
            scope: TenantScope::All,
            by,
            reason,
        })
        .unwrap();
    world.pass(30_000);
    let by = actor();
    world
        .send(UnpauseScheduler {
            scope: TenantScope::All,
            by,
            reason: None,
        })
        .unwrap();
    world.pass(10_000);
    assert_eq!(
        world.attempt_state(old),
        AttemptStateKind::Queued,
        "still held"
    );
    release_inherited(&mut world);
    world.restart_inherited(0);
    world.pass(49_000);
    assert_eq!(world.attempt_state(old), AttemptStateKind::Queued);
    world.pass(2_000);
    assert_eq!(world.attempt_state(old), AttemptStateKind::Parked);
}

#[test]
fn a_finished_task_that_is_retried_in_the_hold_waits_as_well() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let mut plain = spec();
    plain.retry.max_attempts = 1;
    let task = world.submit(plain);
    let mut work = world.take_started();
    world.frame(&mut work, errored(FailureCode::AgentExit, 1));
    assert_eq!(world.state(task), TaskState::Failed);
    world.restart_inherited(INHERITED_HOLD_MS);
    let _machine = world.connect_daemon(1);
    world.retry(task).unwrap();
    assert!(
        world.dispatches().is_empty(),
        "somebody may have retried it in the part that was lost"
    );
    assert_eq!(release_inherited(&mut world), 1);
    assert_eq!(world.dispatch().frame_ref.task, task);
}

#[test]
fn a_second_loss_holds_for_the_longer_of_both() {
    let mut world = CoreHarness::new();
    let old = world.submit(spec());
    world.restart_inherited(INHERITED_HOLD_MS);
    world.restart_inherited(INHERITED_HOLD_MS / 2);
    let between = world.submit(spec());
    assert_eq!(
        wait_reason_and_time(&mut world, old),
        (Some(WaitReason::Inheritance), Some(INHERITED_HOLD_MS))
    );
    assert_eq!(
        wait_reason_and_time(&mut world, between).0,
        Some(WaitReason::Daemon)
    );
    let by_time = world.store.scheduler.suspensions.clone();
    assert_eq!(
        by_time
            .iter()
            .filter(|hold| hold.ended_clock_ms.is_none())
            .count(),
        1
    );
}

#[test]
fn attempts_of_an_older_incarnation_are_killed_and_over_at_once() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.restart_as_incarnation(INHERITED_HOLD_MS, 2);
    let verdicts = world.reconnect(
        &mut machine,
        &[(&work.clone(), ActiveAttemptState::Running)],
    );
    assert!(
        matches!(
            verdicts[..],
            [crate::io::effects::SettlementVerdict::Kill {
                code: crate::io::rejection::Rejection::StaleIncarnation,
                acked: None
            }]
        ),
        "{verdicts:?}"
    );
    assert_eq!(
        world.end_code(task, 1),
        Some(FailureCode::DaemonLostAttempt),
        "nobody will speak for it again"
    );
    let before = world.task(task);
    work.session = machine.session;
    for body in [
        FrameBody::Started,
        FrameBody::Receipt {
            termination: crate::tests::harness::termination_receipt(),
        },
        completed(),
    ] {
        world.frame(&mut work, body);
    }
    assert_eq!(world.task(task), before, "old frames are fenced");
    world.beat(&machine, &[&work]);
    assert_eq!(world.task(task), before);
    assert!(!world.store.fences.is_empty(), "and its lease still counts");
    release_inherited(&mut world);
    world.retry(task).unwrap();
    assert!(
        world.dispatches().is_empty(),
        "what is known to be leased is not forgotten"
    );
    world.advance_renewing(TTL + GRACE, &machine, &[]);
    assert_eq!(world.dispatch().frame_ref.number, 2);
}
