//! Tests of placement: conversations, fairness, priority, pause, drain, and fences before
//! successors.

use crate::commands::PauseScheduler;
use crate::commands::UnpauseScheduler;
use crate::ids::{TaskId, TenantScope};
use crate::io::effects::{DaemonMessage, WaitReason};
use crate::io::rejection::Rejection;
use crate::io::session_input::FrameBody;
use crate::operator::task_operation::TaskOperation;
use crate::record::{DaemonOperation, TaskState};
use crate::samples::tenant;
use crate::task::spec::{TaskSpec, WorkspaceSpec};
use crate::tests::harness::{CoreHarness, GRACE, TTL, actor, completed, daemon_operation, spec};

fn spec_in_conversation(name: &str) -> TaskSpec {
    TaskSpec {
        conversation_id: Some(name.into()),
        ..spec()
    }
}

#[test]
fn turns_of_a_conversation_run_one_at_a_time_on_one_daemon() {
    let mut world = CoreHarness::new();
    let (_first, _second) = (world.connect_daemon(1), world.connect_daemon(2));
    let turns: Vec<TaskId> = (0..3)
        .map(|_| world.submit(spec_in_conversation("c")))
        .collect();
    let mut sessions = Vec::new();
    for turn in &turns {
        let mut work = world.dispatch();
        assert_eq!(work.frame_ref.task, *turn);
        sessions.push(work.session);
        world.frame(&mut work, FrameBody::Accepted);
        assert!(world.dispatches().is_empty());
        world.frame(&mut work, completed());
    }
    assert!(
        sessions.iter().all(|session| *session == sessions[0]),
        "the conversation stays on the daemon with its files"
    );
}

#[test]
fn a_waiting_turn_shows_the_task_that_it_waits_for() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let (first, second) = (
        world.submit(spec_in_conversation("c")),
        world.submit(spec_in_conversation("c")),
    );
    let mut work = world.dispatch();
    world.frame(&mut work, FrameBody::Accepted);
    let view = world.inspect(second).unwrap();
    assert_eq!(
        (view.wait_reason, view.waits_for_task),
        (Some(WaitReason::Conversation), Some(first))
    );
    assert_eq!(world.inspect(first).unwrap().waits_for_task, None);
}

#[test]
fn a_conversation_waits_for_the_fence_of_a_finished_task() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let other = world.connect_daemon(2);
    let first = world.submit(spec_in_conversation("c"));
    let mut work = world.dispatch();
    world.frame(&mut work, FrameBody::Accepted);
    let (away, here) = if work.session == machine.session {
        (&machine, &other)
    } else {
        (&other, &machine)
    };
    world.cancel(first).unwrap();
    world.pass(2_000 + 2_000);
    assert_eq!(world.state(first), TaskState::Canceled, "unconfirmed");
    let second = world.submit(spec_in_conversation("c"));
    assert!(world.dispatches().is_empty());
    assert_eq!(
        world.inspect(second).unwrap().wait_reason,
        Some(WaitReason::Fence)
    );
    world.restart();
    let mut back = here.clone();
    world.reconnect(&mut back, &[]);
    let mut gone = away.clone();
    world.reconnect(&mut gone, &[]);
    assert!(
        world.dispatches().is_empty(),
        "a boot arms the fence again in full"
    );
    world.advance_renewing(TTL + GRACE - 8_000, &back, &[]);
    assert!(world.dispatches().is_empty());
    world.advance_renewing(8_000, &back, &[]);
    assert_eq!(world.dispatch().frame_ref.task, second);
    assert!(world.store.fences.is_empty());
}

#[test]
fn a_small_tenant_is_not_starved_by_a_large_one() {
    let mut world = CoreHarness::new();
    for _ in 0..2_000 {
        world.submit(TaskSpec {
            tenant: tenant("large"),
            ..spec()
        });
    }
    for _ in 0..10 {
        world.submit(TaskSpec {
            tenant: tenant("small"),
            ..spec()
        });
    }
    let _machine = world.connect_daemon(1);
    let mut done = (0, 0);
    while done.0 < 10 {
        for mut work in world.dispatches() {
            let small = world.store.specs[&work.frame_ref.task].tenant == tenant("small");
            world.frame(&mut work, FrameBody::Accepted);
            world.frame(&mut work, completed());
            done = if small {
                (done.0 + 1, done.1)
            } else {
                (done.0, done.1 + 1)
            };
        }
    }
    assert!(
        done.1 <= 12,
        "the small tenant waited for {} tasks of the large one",
        done.1
    );
}

#[test]
fn a_higher_priority_is_dispatched_first() {
    let mut world = CoreHarness::new();
    let low = world.submit(TaskSpec {
        priority: 10,
        ..spec()
    });
    let high = world.submit(TaskSpec {
        priority: 90,
        ..spec()
    });
    let _machine = world.connect_daemon(1);
    let order: Vec<TaskId> = world
        .dispatches()
        .iter()
        .map(|work| work.frame_ref.task)
        .collect();
    assert_eq!(order, [high, low]);
}

#[test]
fn labels_capabilities_agents_and_tenants_restrict_placement() {
    let mut world = CoreHarness::new();
    let plain = world.connect_daemon(1);
    let mut labeled = spec();
    labeled.target.labels.insert("gpu".into(), "yes".into());
    let mut capable = spec();
    capable.target.capabilities.push("docker".into());
    let codex = TaskSpec {
        agent: "codex".into(),
        ..spec()
    };
    let placed = TaskSpec {
        workspace: Some(WorkspaceSpec {
            root: Some("api".into()),
            ..WorkspaceSpec::default()
        }),
        ..spec()
    };
    let tasks = [labeled, capable, codex, placed].map(|spec| world.submit(spec));
    assert!(world.dispatches().is_empty());
    let mut right = plain;
    right.daemon = crate::ids::DaemonId(uuid::Uuid::from_u128(2));
    right.session = crate::ids::SessionId(uuid::Uuid::from_u128(2));
    world.connect_with(&right, Vec::new(), |hello| {
        hello.scope = TenantScope::One(tenant("other"))
    });
    assert!(
        world.dispatches().is_empty(),
        "the daemon belongs to another tenant"
    );
    right.session = crate::ids::SessionId(uuid::Uuid::from_u128(3));
    world.connect_with(&right, Vec::new(), |hello| {
        hello.labels.insert("gpu".into(), "yes".into());
        hello.capabilities.push("docker".into());
        hello.agents.push("codex".into());
        hello.workspaces.push("api".into());
    });
    let works = world.dispatches();
    assert!(works.iter().all(|work| work.session == right.session));
    assert_eq!(works.len(), tasks.len());
}

#[test]
fn a_paused_task_and_a_paused_scheduler_stop_new_dispatch_only() {
    let mut world = CoreHarness::new();
    let running = world.submit(spec());
    let machine = world.connect_daemon(1);
    let mut work = world.take_started();
    world
        .send(PauseScheduler {
            scope: TenantScope::All,
            by: actor(),
            reason: "upgrade".into(),
        })
        .unwrap();
    let waiting = world.submit(TaskSpec {
        queue_ms: Some(5_000),
        ..spec()
    });
    assert!(world.dispatches().is_empty());
    assert_eq!(
        world.inspect(waiting).unwrap().wait_reason,
        Some(WaitReason::Pause)
    );
    world.advance_renewing(20_000, &machine, &[&work]);
    assert_eq!(
        world.state(waiting),
        TaskState::Queued,
        "its queue timer is paused"
    );
    world.frame(&mut work, completed());
    assert_eq!(world.state(running), TaskState::Completed);
    world.restart();
    let mut machine = machine;
    world.reconnect(&mut machine, &[]);
    assert!(
        world.dispatches().is_empty(),
        "the pause survives a restart"
    );
    world.operate(waiting, TaskOperation::Pause).unwrap();
    assert_eq!(world.state(waiting), TaskState::Pending);
    world
        .send(UnpauseScheduler {
            scope: TenantScope::All,
            by: actor(),
            reason: None,
        })
        .unwrap();
    assert!(world.dispatches().is_empty());
    world.operate(waiting, TaskOperation::Unpause).unwrap();
    assert_eq!(world.dispatch().frame_ref.task, waiting);
}

#[test]
fn a_drained_daemon_keeps_its_attempts_and_gets_no_new_ones() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let running = world.submit(spec());
    let mut work = world.take_started();
    let drain = |scope| {
        let word = daemon_operation(machine.daemon, DaemonOperation::Drain).of(scope);
        word.command()
    };
    let foreign = world.send(drain(TenantScope::One(tenant("acme"))));
    assert_eq!(
        foreign.unwrap_err(),
        Rejection::UnknownDaemon,
        "a tenant may not drain a shared daemon"
    );
    world.send(drain(TenantScope::All)).unwrap();
    let machine = &crate::tests::harness::TestDaemon {
        session: work.session,
        ..machine.clone()
    };
    assert!(
        world
            .take_messages(machine)
            .iter()
            .any(|m| matches!(m, DaemonMessage::Drain { withdrawn: false }))
    );
    let waiting = world.submit(spec());
    world.frame(&mut work, completed());
    assert_eq!(
        (world.state(running), world.state(waiting)),
        (TaskState::Completed, TaskState::Queued)
    );
    world.restart();
    let mut machine = machine.clone();
    world.reconnect(&mut machine, &[]);
    assert!(
        world.dispatches().is_empty(),
        "the drain survives a restart"
    );
    let undrain = daemon_operation(machine.daemon, DaemonOperation::Undrain);
    let view = world.send(undrain.command()).unwrap();
    assert!(!view.draining);
    assert!(
        world
            .take_messages(&machine)
            .iter()
            .any(|m| matches!(m, DaemonMessage::Drain { withdrawn: true }))
    );
    assert_eq!(world.dispatch().frame_ref.task, waiting);
}
