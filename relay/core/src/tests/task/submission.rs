//! Tests of submit: idempotency, limits, fail_fast and the caller's trace.

use crate::ids::TaskId;
use crate::io::rejection::{ExceededBound, Rejection};
use crate::record::TaskState;
use crate::task::spec::{DispatchPolicy, TaskSpec};
use crate::task::submit::SubmitTask;
use crate::tests::harness::{CoreHarness, completed, spec};

fn keyed(prompt: &str) -> TaskSpec {
    TaskSpec {
        idempotency_key: Some("k".into()),
        prompt: prompt.into(),
        ..spec()
    }
}

#[test]
fn one_key_is_one_task_also_after_its_end_and_a_restart() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let (task, created) = world.try_submit(keyed("a")).unwrap();
    assert!(created);
    let again = |world: &mut CoreHarness| {
        let writes = world.writes;
        assert_eq!(world.try_submit(keyed("a")).unwrap(), (task, false));
        assert_eq!(
            world.try_submit(keyed("b")).unwrap_err(),
            Rejection::IdempotencyConflict
        );
        assert_eq!(world.writes, writes);
    };
    again(&mut world);
    world.restart();
    again(&mut world);
    let mut machine = machine;
    let mut work = world.dispatch();
    world.reconnect(
        &mut machine,
        &[(
            &work.clone(),
            crate::io::session_input::ActiveAttemptState::Running,
        )],
    );
    work.session = machine.session;
    world.frame(&mut work, crate::io::session_input::FrameBody::Accepted);
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
    again(&mut world);
    let mut other = keyed("a");
    other.tenant = crate::samples::tenant("other");
    assert!(
        world.try_submit(other).unwrap().1,
        "keys belong to a tenant"
    );
}

#[test]
fn a_full_queue_refuses_a_submission_without_a_write() {
    let mut config = crate::samples::config();
    (config.max_open_tasks, config.max_open_tasks_per_tenant) = (3, 2);
    let mut world = CoreHarness::with(config);
    world.submit(spec());
    let second = world.submit(spec());
    let writes = world.writes;
    assert_eq!(
        world.try_submit(spec()).unwrap_err(),
        Rejection::TenantQueueFull(ExceededBound::Tasks)
    );
    let other = TaskSpec {
        tenant: crate::samples::tenant("other"),
        ..spec()
    };
    world.submit(other.clone());
    let after = world.writes;
    assert_eq!(
        world.try_submit(other).unwrap_err(),
        Rejection::QueueFull(ExceededBound::Tasks)
    );
    assert_eq!((after - writes, world.writes), (2, after));
    world.cancel(second).unwrap();
    world.submit(spec());
}

#[test]
fn fail_fast_is_refused_without_a_free_daemon() {
    let mut world = CoreHarness::new();
    let fast = TaskSpec {
        dispatch_policy: DispatchPolicy::FailFast,
        ..spec()
    };
    let writes = world.writes;
    assert_eq!(
        world.try_submit(fast.clone()).unwrap_err(),
        Rejection::NoDaemon
    );
    assert_eq!(world.writes, writes);
    let _machine = world.connect_daemon(1);
    let unknown = TaskSpec {
        agent: "codex".into(),
        ..fast.clone()
    };
    assert_eq!(world.try_submit(unknown).unwrap_err(), Rejection::NoDaemon);
    for _ in 0..4 {
        world.submit(fast.clone());
    }
    assert_eq!(
        world.try_submit(fast).unwrap_err(),
        Rejection::NoDaemon,
        "every slot is taken"
    );
}

#[test]
fn the_callers_trace_is_continued_and_a_malformed_one_is_ignored() {
    let mut world = CoreHarness::new();
    let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let task = world.submit(TaskSpec {
        traceparent: Some(good.into()),
        ..spec()
    });
    let trace = world.task(task).trace;
    assert_eq!(
        trace.trace_id,
        0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes()
    );
    assert_eq!(
        (trace.parent_span, trace.sampled),
        (Some(0xb7ad_6b71_6920_3331_u64.to_be_bytes()), true)
    );
    let zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
    for bad in [
        "",
        "00-xyz",
        zero,
        &good.to_uppercase(),
        &format!("{good}-1"),
        &format!("01{}", &good[2..]),
    ] {
        let task = world.submit(TaskSpec {
            traceparent: Some(bad.into()),
            ..spec()
        });
        assert_eq!(world.task(task).trace.parent_span, None, "{bad:?}");
    }
}

#[test]
fn an_unreadable_key_refuses_the_submission() {
    let mut world = CoreHarness::new();
    let spec = std::sync::Arc::new(keyed("a"));
    let writes = world.writes;
    world.store.keys_damaged = true;
    let refused = world.send(SubmitTask {
        task: TaskId(uuid::Uuid::from_u128(77)),
        spec,
        digest: [0; 32],
    });
    assert_eq!(refused.unwrap_err(), Rejection::Unreadable);
    assert_eq!((world.writes, world.core.open_task_count()), (writes, 0));
}
