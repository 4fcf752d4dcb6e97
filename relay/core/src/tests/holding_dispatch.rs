//! The shell has no room: nothing is leased, what is leased goes on, and what waits says why.

use super::world::{World, completed, spec};
use crate::effects::{Reply, WaitsFor};
use crate::id::TaskId;
use crate::input::Input;
use crate::record::TaskState;
use crate::samples;

fn waits(world: &mut World, task: TaskId) -> Option<WaitsFor> {
    let tenant = samples::tenant("acme");
    let inspected = world.ask(|request| Input::Inspect {
        request,
        tenant,
        task,
    });
    match inspected {
        Ok(Reply::Inspected(view)) => view.waits_for,
        other => panic!("not an inspection: {other:?}"),
    }
}

#[test]
fn held_work_waits_for_space_and_leased_work_ends() {
    let mut world = World::new();
    world.machine(1);
    let running = world.submit(spec());
    let mut work = world.started();
    world.say(Input::HoldDispatch { held: true });
    let held = world.submit(spec());
    assert_eq!(world.state(held), TaskState::Queued);
    assert_eq!(waits(&mut world, held), Some(WaitsFor::Space));
    world.frame(&mut work, completed());
    assert_eq!(world.state(running), TaskState::Completed);
    assert_eq!(world.state(held), TaskState::Queued, "the slot stays free");
    world.say(Input::HoldDispatch { held: false });
    let mut work = world.started();
    world.frame(&mut work, completed());
    assert_eq!(world.state(held), TaskState::Completed);
}

#[test]
fn a_start_forgets_the_hold() {
    let mut world = World::new();
    let mut machine = world.machine(1);
    world.say(Input::HoldDispatch { held: true });
    let held = world.submit(spec());
    world.restart_here();
    world.reconnect(&mut machine, &[]);
    let mut work = world.started();
    world.frame(&mut work, completed());
    assert_eq!(world.state(held), TaskState::Completed);
}
