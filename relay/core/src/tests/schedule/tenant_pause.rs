//! Tests of tenant pauses: only tasks of the tenant wait, their queue timers are paused, and
//! pauses survive a restart.

use std::sync::Arc;

use crate::commands::ReadSchedulerStatus;
use crate::commands::UnpauseScheduler;
use crate::commands::{PauseOutcome, PauseScheduler};
use crate::ids::{TaskId, TenantScope};
use crate::io::effects::{PauseLevel, SchedulerView, WaitReason};
use crate::io::rejection::Rejection;
use crate::operator::task_operation::TaskOperation;
use crate::record::{AttemptStateKind, TaskState};
use crate::samples::tenant;
use crate::task::spec::{DispatchPolicy, TaskSpec};
use crate::tests::harness::{CoreHarness, TestDaemon, actor, spec};

fn acme_scope() -> TenantScope {
    TenantScope::One(tenant("acme"))
}

fn of(name: &str) -> TaskSpec {
    TaskSpec {
        tenant: tenant(name),
        queue_ms: Some(50_000),
        ..spec()
    }
}

fn pause(world: &mut CoreHarness, scope: TenantScope) -> Result<PauseOutcome, Rejection> {
    let (by, reason) = (actor(), "look".into());
    world.send(PauseScheduler { scope, by, reason })
}

fn unpause(world: &mut CoreHarness, scope: TenantScope) -> Result<(), Rejection> {
    let by = actor();
    world.send(UnpauseScheduler {
        scope,
        by,
        reason: None,
    })
}

fn status(world: &mut CoreHarness, scope: TenantScope) -> SchedulerView {
    *world.send(ReadSchedulerStatus { scope }).unwrap()
}

fn dispatched(world: &mut CoreHarness) -> Vec<TaskId> {
    world
        .dispatches()
        .iter()
        .map(|work| work.frame_ref.task)
        .collect()
}

#[test]
fn a_tenant_pause_stops_only_its_own_dispatch_and_survives_a_restart() {
    let mut world = CoreHarness::new();
    let (queued, free) = (world.submit(of("acme")), world.submit(of("globex")));
    assert!(matches!(
        pause(&mut world, acme_scope()),
        Ok(PauseOutcome::Paused)
    ));
    assert!(matches!(
        pause(&mut world, acme_scope()),
        Ok(PauseOutcome::AlreadyPaused)
    ));
    let mut machine: TestDaemon = world.connect_daemon(1);
    assert_eq!(dispatched(&mut world), [free]);
    let later = world.submit(of("acme"));
    let fast = TaskSpec {
        dispatch_policy: DispatchPolicy::FailFast,
        ..of("acme")
    };
    assert_eq!(world.try_submit(fast).unwrap_err(), Rejection::NoDaemon);
    let view = world.inspect(queued).unwrap();
    assert_eq!(view.wait_reason, Some(WaitReason::Pause));
    assert_eq!(
        view.pause.map(|(paused, _)| paused),
        Some(PauseLevel::Tenant)
    );
    world.restart();
    world.reconnect(&mut machine, &[]);
    assert!(world.dispatches().is_empty(), "the pause survives");
    assert!(matches!(unpause(&mut world, acme_scope()), Ok(())));
    assert_eq!(
        dispatched(&mut world),
        [queued, later],
        "dispatched in submission order"
    );
    assert_eq!(
        unpause(&mut world, acme_scope()).unwrap_err(),
        Rejection::NotPaused
    );
}

#[test]
fn a_tenant_pause_stops_the_queue_timers_of_the_tenant() {
    let mut world = CoreHarness::new();
    let task = world.submit(of("acme"));
    world.pass(20_000);
    pause(&mut world, acme_scope()).unwrap();
    world.pass(500_000);
    world.restart_here();
    world.pass(500_000);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Queued);
    unpause(&mut world, acme_scope()).unwrap();
    world.restart_here();
    world.pass(29_000);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Queued);
    world.pass(2_000);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Parked);
}

#[test]
fn pauses_of_task_tenant_and_scheduler_end_one_by_one() {
    let mut world = CoreHarness::new();
    let task = world.submit(of("acme"));
    world.operate(task, TaskOperation::Pause).unwrap();
    pause(&mut world, acme_scope()).unwrap();
    pause(&mut world, TenantScope::All).unwrap();
    let machine = world.connect_daemon(1);
    unpause(&mut world, TenantScope::All).unwrap();
    assert!(world.dispatches().is_empty());
    world.operate(task, TaskOperation::Unpause).unwrap();
    assert!(world.dispatches().is_empty());
    world.advance_renewing(200_000, &machine, &[]);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Queued);
    unpause(&mut world, acme_scope()).unwrap();
    assert_eq!(dispatched(&mut world), [task]);
}

#[test]
fn the_scheduler_status_counts_visible_tasks_and_names_the_pauser() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.submit(of("acme"));
    let work = world.take_started();
    pause(&mut world, acme_scope()).unwrap();
    world.submit(of("acme"));
    let globex = TaskSpec {
        agent: "nobody has it".into(),
        ..of("globex")
    };
    world.submit(globex);
    world.advance_renewing(7_000, &machine, &[&work]);
    let all = status(&mut world, TenantScope::All);
    assert_eq!((all.open, all.running, all.queued), (3, 1, 2));
    assert_eq!((all.daemons_online, all.free_slots), (1, 3));
    assert_eq!(all.oldest_queued_ms, 7_000);
    assert_eq!(all.tenants.len(), 1);
    let change = &all.changes[0];
    assert_eq!(
        (&*change.by, &*change.reason, change.paused),
        ("alice", "look", true)
    );
    let globex = status(&mut world, TenantScope::One(tenant("globex")));
    assert_eq!((globex.open, globex.queued), (1, 1));
    assert!(globex.tenants.is_empty() && globex.changes.is_empty());
}

#[test]
fn a_blank_reason_or_the_eleventh_pause_in_a_minute_is_refused() {
    let mut world = CoreHarness::new();
    let by = actor();
    let blank = world.send(PauseScheduler {
        scope: acme_scope(),
        by,
        reason: "  ".into(),
    });
    assert_eq!(blank.unwrap_err(), Rejection::ReasonMissing);
    for _ in 0..5 {
        pause(&mut world, acme_scope()).unwrap();
        unpause(&mut world, acme_scope()).unwrap();
    }
    assert_eq!(
        pause(&mut world, acme_scope()).unwrap_err(),
        Rejection::RateLimited
    );
    pause(&mut world, TenantScope::All).unwrap();
    let task = world.submit(of("acme"));
    assert_eq!(world.state(task), TaskState::Queued);
}

#[test]
fn the_number_of_paused_tenants_is_limited() {
    let mut world = CoreHarness::new();
    let long: Arc<str> = "because ".repeat(256).into();
    let mut refused = None;
    for number in 0.. {
        // A new actor for each pause, so that the rate limit is not reached.
        world.pass(60_000);
        let scope = TenantScope::One(tenant(&format!("{number:063}")));
        let (by, reason) = (actor(), Arc::clone(&long));
        let reply = world.send(PauseScheduler { scope, by, reason });
        if let Err(code) = reply {
            refused = Some((number, code));
            break;
        }
    }
    assert_eq!(refused, Some((1_500, Rejection::TooManyPauses)));
    let record = postcard::to_stdvec(&world.store.pauses).unwrap();
    assert!(record.len() < 1024 * 1024, "{} bytes", record.len());
    // A tenant that is already paused may be paused again.
    let known = TenantScope::One(tenant(&format!("{:063}", 7)));
    assert!(matches!(unpause(&mut world, known.clone()), Ok(())));
    assert!(matches!(pause(&mut world, known), Ok(PauseOutcome::Paused)));
}
