//! Records that hold work back and cannot be read at a boot: nothing runs because of it that had to wait.

use crate::commands::UnpauseScheduler;
use crate::ids::TenantScope;
use crate::record::TaskState;
use crate::recovery::damage::RecordDamage;
use crate::task::spec::UnsafeLossPolicy;
use crate::tests::harness::{CoreHarness, GRACE, TTL, actor, spec};

fn restart_with(world: &mut CoreHarness, damage: RecordDamage) {
    world.store.damage = damage;
    world.restart();
    world.store.damage = RecordDamage::default();
}

fn unpause(world: &mut CoreHarness) -> Result<(), crate::io::rejection::Rejection> {
    let by = actor();
    world.send(UnpauseScheduler {
        scope: TenantScope::All,
        by,
        reason: None,
    })
}

#[test]
fn a_fence_that_cannot_be_read_stands_for_the_longest_there_is() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let mut repeatable = spec();
    repeatable.retry.when_unsafe = UnsafeLossPolicy::Retry;
    let task = world.submit(repeatable);
    let _lost = world.take_started();
    world.reconnect(&mut machine, &[]);
    let (&attempt, _) = world.store.fences.first_key_value().unwrap();
    let fence = world.store.fences.remove(&attempt).unwrap();
    assert_eq!(fence.task, task);
    let damage = RecordDamage {
        fences: vec![attempt],
        ..RecordDamage::default()
    };
    restart_with(&mut world, damage);
    world.reconnect(&mut machine, &[]);
    world.advance_renewing(10 * (TTL + GRACE), &machine, &[]);
    assert!(world.dispatches().is_empty(), "its holder may be at work");
    let fresh = world.submit(spec());
    assert_eq!(
        world.dispatch().frame_ref.task,
        fresh,
        "what is new is not held"
    );
    // The hold has taken the place of the damaged record, so the next boot begins no other one.
    let held = world.store.scheduler.clone();
    world.restart();
    assert_eq!(world.store.scheduler.suspensions, held.suspensions);
    let longest_ms = world.core.config().longest_grant_ms();
    world.pass(longest_ms);
    assert_eq!(world.store.scheduler.active_suspension(), None);
}

#[test]
fn pauses_that_cannot_be_read_pause_everything_until_an_operator_speaks() {
    let lost = [
        RecordDamage {
            scheduler: true,
            ..RecordDamage::default()
        },
        RecordDamage {
            pauses: true,
            ..RecordDamage::default()
        },
        RecordDamage::unknown_extent(),
    ];
    for damage in lost {
        let mut world = CoreHarness::new();
        restart_with(&mut world, damage.clone());
        let machine = world.connect_daemon(1);
        let task = world.submit(spec());
        world.advance_renewing(TTL, &machine, &[]);
        assert_eq!(world.state(task), TaskState::Queued, "{damage:?}");
        // Who did it is told like any other pause, and a restart does not do it again.
        let change = world.store.pauses.changes.last().unwrap();
        assert_eq!((&*change.by, change.paused), ("relay", true));
        assert!(matches!(unpause(&mut world), Ok(())));
        assert_eq!(world.dispatch().frame_ref.task, task);
        world.restart();
        assert!(world.store.scheduler.paused.is_none());
    }
}

#[test]
fn an_uptime_that_cannot_be_read_is_at_least_what_records_were_dated_by() {
    let mut world = CoreHarness::new();
    world.pass(90_000);
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let _work = world.take_started();
    let dated_ms = world.newest(task).budgets_at_ms;
    assert!(dated_ms >= 90_000);
    world.store.scheduler = Default::default();
    let damage = RecordDamage {
        scheduler: true,
        ..RecordDamage::default()
    };
    restart_with(&mut world, damage);
    assert!(world.store.scheduler.uptime_ms >= dated_ms);
}
