//! Tests of inherited tasks after an import or an accepted loss: they wait until all earlier
//! leases have ended, or until an operator releases them.

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
fn inherited_tasks_are_not_placed_before_every_lease_has_ended() {
    let mut world = CoreHarness::new();
    let waiting = world.submit(spec());
    world.restart_inherited(INHERITED_HOLD_MS);
    let mut machine = world.connect_daemon(1);
    world.advance_renewing(40_000, &machine, &[]);
    assert!(
        world.dispatches().is_empty(),
        "an attempt that the data lacks may run"
    );
    let fresh = world.submit(spec());
    assert_eq!(world.dispatch().frame_ref.task, fresh);
    world.restart_inherited(0);
    world.reconnect(&mut machine, &[]);
    world.advance_renewing(50_000, &machine, &[]);
    let early = world.dispatches();
    assert!(
        early.iter().all(|work| work.frame_ref.task != waiting),
        "the suspension survives a second boot"
    );
    world.advance_renewing(60_000, &machine, &[]);
    let late = world.dispatches();
    assert!(late.iter().any(|work| work.frame_ref.task == waiting));
}

#[test]
fn tasks_submitted_after_the_loss_are_never_suspended() {
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
        "the downtime of the relay does not count"
    );
}

#[test]
fn an_inherited_task_continues_with_a_new_attempt_id() {
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
    // A daemon that got the old attempt id in the lost part must stop it, without any effect on
    // the task.
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
fn an_operator_can_end_the_inherited_suspension_and_is_audited() {
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
    let release = world.store.scheduler.suspensions[0]
        .released
        .clone()
        .unwrap();
    assert_eq!(
        (&*release.by, &*release.reason, release.at),
        ("alice", "the old machines are off", world.now.wall)
    );
    assert_eq!(
        release_inherited(&mut world),
        0,
        "no task is suspended any more"
    );
    assert_eq!(
        world.store.scheduler.suspensions[0].released,
        Some(release),
        "the first release stays in the record"
    );
    world.restart_inherited(0);
    let waiting = world.submit(spec());
    assert_eq!(
        wait_reason_and_time(&mut world, waiting).0,
        Some(WaitReason::Daemon)
    );
}

#[test]
fn the_queue_timer_is_paused_during_the_inherited_suspension() {
    let mut world = CoreHarness::new();
    let queue = |queue_ms| TaskSpec {
        queue_ms: Some(queue_ms),
        ..spec()
    };
    // A boot may lose half a minute of uptime, so all times here are much longer.
    let old = world.submit(queue(1_000_000));
    world.pass(200_000);
    world.restart_inherited(2_000_000);
    let new = world.submit(queue(1_000_000));
    world.pass(1_100_000);
    assert_eq!(
        world.attempt_state(new),
        AttemptStateKind::Parked,
        "it is not suspended and no daemon took it"
    );
    world.restart_inherited(0);
    world.pass(990_000);
    assert_eq!(
        wait_reason_and_time(&mut world, old).0,
        Some(WaitReason::Daemon)
    );
    // A boot reads the used queue time from the record, without the suspension.
    world.restart_inherited(0);
    world.pass(600_000);
    assert_eq!(world.attempt_state(old), AttemptStateKind::Queued);
    world.pass(300_000);
    assert_eq!(world.attempt_state(old), AttemptStateKind::Parked);
}

#[test]
fn a_pause_within_the_inherited_suspension_is_not_counted_twice() {
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
        "the suspension has not ended"
    );
    release_inherited(&mut world);
    world.restart_inherited(0);
    world.pass(49_000);
    assert_eq!(world.attempt_state(old), AttemptStateKind::Queued);
    world.pass(2_000);
    assert_eq!(world.attempt_state(old), AttemptStateKind::Parked);
}

#[test]
fn a_finished_inherited_task_waits_too_when_it_is_retried() {
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
        "it may have been retried in the lost part"
    );
    assert_eq!(release_inherited(&mut world), 1);
    assert_eq!(world.dispatch().frame_ref.task, task);
}

#[test]
fn two_inherited_suspensions_last_as_long_as_the_longer_one() {
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
fn attempts_of_an_older_incarnation_are_killed_and_end_at_once() {
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
        "no daemon can send frames for it any more"
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
    assert!(!world.store.fences.is_empty(), "its lease still counts");
    release_inherited(&mut world);
    world.retry(task).unwrap();
    assert!(
        world.dispatches().is_empty(),
        "the release does not lift the fence of a known lease"
    );
    world.advance_renewing(TTL + GRACE, &machine, &[]);
    assert_eq!(world.dispatch().frame_ref.number, 2);
}
