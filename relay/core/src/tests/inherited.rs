//! After an import or an accepted loss: what was inherited waits, and an operator's word ends that.

use super::world::{GRACE, TTL, World, actor, completed, errored, spec};
use crate::effects::{Reply, WaitsFor};
use crate::id::{TaskId, TenantScope};
use crate::input::{ActiveState, FrameBody, Input};
use crate::record::{AttemptState, FailureCode, TaskState};
use crate::spec::TaskSpec;

const HOLD: u64 = 100_000;

fn release(world: &mut World) -> u64 {
    let (by, reason) = (actor(), "the old machines are off".into());
    let reply = world.ask(|request| Input::ReleaseInherited {
        request,
        by,
        reason,
    });
    match reply {
        Ok(Reply::Released { tasks }) => tasks,
        other => panic!("not the reply to a release: {other:?}"),
    }
}

fn waits(world: &mut World, task: TaskId) -> (Option<WaitsFor>, Option<u64>) {
    let view = world.inspect(task).unwrap();
    (view.waits_for, view.waits_ms)
}

#[test]
fn after_an_accepted_loss_nothing_inherited_is_placed_before_every_lease_is_over() {
    let mut world = World::new();
    let waiting = world.submit(spec());
    world.inherit(HOLD);
    let mut machine = world.machine(1);
    world.pass_renewing(40_000, &machine, &[]);
    assert!(world.dispatches().is_empty(), "an unknown attempt may run");
    let fresh = world.submit(spec());
    assert_eq!(world.dispatch().re.task, fresh);
    world.inherit(0);
    world.reconnect(&mut machine, &[]);
    world.pass_renewing(50_000, &machine, &[]);
    let early = world.dispatches();
    assert!(
        early.iter().all(|work| work.re.task != waiting),
        "a second boot remembers the hold"
    );
    world.pass_renewing(60_000, &machine, &[]);
    let late = world.dispatches();
    assert!(late.iter().any(|work| work.re.task == waiting));
}

#[test]
fn what_was_submitted_after_the_loss_is_held_by_no_later_boot() {
    let mut world = World::new();
    let old = world.submit(spec());
    world.inherit(HOLD);
    let new = world.submit(spec());
    world.inherit(0);
    let _machine = world.machine(1);
    assert_eq!(world.dispatch().re.task, new);
    assert_eq!(
        waits(&mut world, old),
        (Some(WaitsFor::Inheritance), Some(HOLD)),
        "and the time that the relay was down does not count"
    );
}

#[test]
fn what_waited_goes_on_under_an_id_that_was_never_leased() {
    let mut world = World::new();
    let task = world.submit(spec());
    let before = world.newest(task);
    world.inherit(HOLD);
    let after = world.task(task);
    let names: Vec<_> = after.attempts.iter().map(|a| a.state.name()).collect();
    assert_eq!(names, [AttemptState::Released, AttemptState::Queued]);
    assert_eq!(
        (after.attempts[0].id, after.state),
        (before.id, TaskState::Queued)
    );
    // A daemon that was given the old one in what is lost is told to stop, and confuses nobody.
    let mut machine = world.machine(1);
    release(&mut world);
    let work = world.dispatch();
    assert_eq!(work.re.number, 2);
    assert_ne!(work.re.attempt, before.id);
    let mut ghost = work.clone();
    (ghost.re.attempt, ghost.re.number) = (before.id, 1);
    let verdicts = world.reconnect(
        &mut machine,
        &[
            (&work, ActiveState::Running),
            (&ghost, ActiveState::Running),
        ],
    );
    assert!(matches!(
        verdicts[..],
        [
            crate::effects::Verdict::Keep { .. },
            crate::effects::Verdict::Kill { .. }
        ]
    ));
}

#[test]
fn an_operators_word_ends_the_hold_at_once_and_is_kept() {
    let mut world = World::new();
    let (one, two) = (world.submit(spec()), world.submit(spec()));
    world.inherit(HOLD);
    let machine = world.machine(1);
    world.pass_renewing(1_000, &machine, &[]);
    assert_eq!(
        waits(&mut world, one),
        (Some(WaitsFor::Inheritance), Some(HOLD - 1_000))
    );
    world.cancel(two).unwrap();
    assert_eq!(release(&mut world), 1);
    assert_eq!(world.dispatch().re.task, one);
    let word = world.store.scheduler.holds[0].released.clone().unwrap();
    assert_eq!(
        (&*word.by, &*word.reason, word.at),
        ("alice", "the old machines are off", world.now.wall)
    );
    assert_eq!(release(&mut world), 0, "nothing is held any more");
    assert_eq!(
        world.store.scheduler.holds[0].released,
        Some(word),
        "and the first word stays"
    );
    world.inherit(0);
    let waiting = world.submit(spec());
    assert_eq!(waits(&mut world, waiting).0, Some(WaitsFor::Daemon));
}

#[test]
fn the_queue_timer_stands_still_in_the_hold_and_over_restarts() {
    let mut world = World::new();
    let queue = |queue_ms| TaskSpec {
        queue_ms: Some(queue_ms),
        ..spec()
    };
    // A boot may forget half a minute of uptime, so everything here is much longer.
    let old = world.submit(queue(1_000_000));
    world.pass(200_000);
    world.inherit(2_000_000);
    let new = world.submit(queue(1_000_000));
    world.pass(1_100_000);
    assert_eq!(
        world.attempt_state(new),
        AttemptState::Parked,
        "nothing holds it, and nobody took it"
    );
    world.inherit(0);
    world.pass(990_000);
    assert_eq!(waits(&mut world, old).0, Some(WaitsFor::Daemon));
    // A boot reads from the record what the timer had used: the hold is not in it.
    world.inherit(0);
    world.pass(600_000);
    assert_eq!(world.attempt_state(old), AttemptState::Queued);
    world.pass(300_000);
    assert_eq!(world.attempt_state(old), AttemptState::Parked);
}

#[test]
fn a_pause_within_the_hold_is_not_counted_twice() {
    let mut world = World::new();
    let old = world.submit(TaskSpec {
        queue_ms: Some(50_000),
        ..spec()
    });
    world.inherit(HOLD);
    let (by, reason) = (actor(), "look".into());
    world
        .ask(|request| Input::PauseScheduler {
            request,
            scope: TenantScope::All,
            by,
            reason,
        })
        .unwrap();
    world.pass(30_000);
    let by = actor();
    world
        .ask(|request| Input::UnpauseScheduler {
            request,
            scope: TenantScope::All,
            by,
            reason: None,
        })
        .unwrap();
    world.pass(10_000);
    assert_eq!(world.attempt_state(old), AttemptState::Queued, "still held");
    release(&mut world);
    world.inherit(0);
    world.pass(49_000);
    assert_eq!(world.attempt_state(old), AttemptState::Queued);
    world.pass(2_000);
    assert_eq!(world.attempt_state(old), AttemptState::Parked);
}

#[test]
fn a_finished_task_that_is_retried_in_the_hold_waits_as_well() {
    let mut world = World::new();
    let _machine = world.machine(1);
    let mut plain = spec();
    plain.retry.max_attempts = 1;
    let task = world.submit(plain);
    let mut work = world.started();
    world.frame(&mut work, errored(FailureCode::AgentExit, 1));
    assert_eq!(world.state(task), TaskState::Failed);
    world.inherit(HOLD);
    let _machine = world.machine(1);
    world.retry(task).unwrap();
    assert!(
        world.dispatches().is_empty(),
        "somebody may have retried it in the part that was lost"
    );
    assert_eq!(release(&mut world), 1);
    assert_eq!(world.dispatch().re.task, task);
}

#[test]
fn a_second_loss_holds_for_the_longer_of_both() {
    let mut world = World::new();
    let old = world.submit(spec());
    world.inherit(HOLD);
    world.inherit(HOLD / 2);
    let between = world.submit(spec());
    assert_eq!(
        waits(&mut world, old),
        (Some(WaitsFor::Inheritance), Some(HOLD))
    );
    assert_eq!(waits(&mut world, between).0, Some(WaitsFor::Daemon));
    let by_time = world.store.scheduler.holds.clone();
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
    let mut world = World::new();
    let mut machine = world.machine(1);
    let task = world.submit(spec());
    let mut work = world.started();
    world.inherit_as(HOLD, 2);
    let verdicts = world.reconnect(&mut machine, &[(&work.clone(), ActiveState::Running)]);
    assert!(
        matches!(
            verdicts[..],
            [crate::effects::Verdict::Kill {
                code: crate::reject::Rejection::StaleIncarnation,
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
            termination: super::world::gone(),
        },
        completed(),
    ] {
        world.frame(&mut work, body);
    }
    assert_eq!(world.task(task), before, "old frames are fenced");
    world.beat(&machine, &[&work]);
    assert_eq!(world.task(task), before);
    assert!(!world.store.fences.is_empty(), "and its lease still counts");
    release(&mut world);
    world.retry(task).unwrap();
    assert!(
        world.dispatches().is_empty(),
        "what is known to be leased is not forgotten"
    );
    world.pass_renewing(TTL + GRACE, &machine, &[]);
    assert_eq!(world.dispatch().re.number, 2);
}
