//! Tests of unreadable fences, pauses and uptime at a boot: a task that had to wait must not
//! run because of the damage.

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
fn an_unreadable_fence_counts_as_the_longest_possible_one() {
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
    assert!(world.dispatches().is_empty(), "its holder may still run it");
    let fresh = world.submit(spec());
    assert_eq!(
        world.dispatch().frame_ref.task,
        fresh,
        "a new task is not suspended"
    );
    // The suspension replaces the damaged record, so the next boot does not begin another one.
    let held = world.store.scheduler.clone();
    world.restart();
    assert_eq!(world.store.scheduler.suspensions, held.suspensions);
    let longest_ms = world.core.config().longest_grant_ms();
    world.pass(longest_ms);
    assert_eq!(world.store.scheduler.active_suspension(), None);
}

#[test]
fn unreadable_pauses_pause_everything_until_an_operator_unpauses() {
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
        // The pause is audited like any other, and a restart does not repeat it.
        let change = world.store.pauses.changes.last().unwrap();
        assert_eq!((&*change.by, change.paused), ("relay", true));
        assert!(matches!(unpause(&mut world), Ok(())));
        assert_eq!(world.dispatch().frame_ref.task, task);
        world.restart();
        assert!(world.store.scheduler.paused.is_none());
    }
}

#[test]
fn an_unreadable_uptime_is_at_least_the_newest_record_time() {
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
