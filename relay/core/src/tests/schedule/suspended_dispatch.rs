//! Tests of suspended dispatch (disk full): nothing new is leased, leased attempts continue,
//! and queued tasks show the reason.

use crate::commands::InspectTask;
use crate::ids::TaskId;
use crate::io::command::CoreInput;
use crate::io::effects::WaitReason;
use crate::record::TaskState;
use crate::samples;
use crate::tests::harness::{CoreHarness, completed, spec};

fn wait_reason(world: &mut CoreHarness, task: TaskId) -> Option<WaitReason> {
    let tenant = samples::tenant("acme");
    let inspected = world.send(InspectTask { tenant, task });
    inspected.unwrap().wait_reason
}

#[test]
fn suspended_dispatch_delays_queued_tasks_and_not_leased_ones() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let running = world.submit(spec());
    let mut work = world.take_started();
    world.send_input(CoreInput::SuspendDispatch { suspended: true });
    let queued = world.submit(spec());
    assert_eq!(world.state(queued), TaskState::Queued);
    assert_eq!(wait_reason(&mut world, queued), Some(WaitReason::DiskSpace));
    world.frame(&mut work, completed());
    assert_eq!(world.state(running), TaskState::Completed);
    assert_eq!(
        world.state(queued),
        TaskState::Queued,
        "the slot stays free"
    );
    world.send_input(CoreInput::SuspendDispatch { suspended: false });
    let mut work = world.take_started();
    world.frame(&mut work, completed());
    assert_eq!(world.state(queued), TaskState::Completed);
}

#[test]
fn a_restart_ends_the_suspended_dispatch() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    world.send_input(CoreInput::SuspendDispatch { suspended: true });
    let queued = world.submit(spec());
    world.restart_here();
    world.reconnect(&mut machine, &[]);
    let mut work = world.take_started();
    world.frame(&mut work, completed());
    assert_eq!(world.state(queued), TaskState::Completed);
}
