//! What the simulation found, each reduced to its few steps.

use super::world::{World, spec};
use crate::effects::CloseReason;
use crate::effects::{After, Downstream, Send};
use crate::id::SessionId;
use crate::input::{ActiveState, Frame, FrameBody, Input};
use crate::record::Receipt;
use crate::reject::Rejection;

#[test]
fn a_refusal_waits_for_the_end_that_it_speaks_of() {
    let mut world = World::new();
    let machine = world.machine(1);
    world.submit(spec());
    let work = world.dispatch();
    world.pass_renewing(11_000, &machine, &[]);
    let frame = Frame {
        session: work.session,
        re: work.re,
        control_seq: 1,
        observed: world.now.wall,
        proof: None,
        body: FrameBody::Accepted,
        workspace: None,
        finished: None,
        known: Ok(None),
    };
    let effects = world
        .core
        .handle(Input::Frame(Box::new(frame)), world.now, &mut world.mint);
    let refusal = effects.sends.iter().find_map(|out| match &out.send {
        Send::ToSession {
            message: Downstream::FrameRejected { code, .. },
            ..
        } => Some((*code, out.after)),
        _ => None,
    });
    let expected = (Rejection::StaleAttempt, After::Task(work.re.task));
    assert_eq!(
        refusal,
        Some(expected),
        "a crash before the end is durable must not have been told"
    );
}

#[test]
fn a_hello_of_an_overtaken_stream_proves_nothing() {
    let mut world = World::new();
    let overtaken = SessionId(uuid::Uuid::from_u128(1));
    let machine = world.machine(1);
    let task = world.submit(spec());
    let work = world.started();
    let mut past = machine.clone();
    (past.session, past.boot) = (overtaken, "boot-0");
    world.open(&past, Vec::new(), |_| {});
    assert!(
        world.newest(task).state.is_leased(),
        "the machine runs it under its present boot"
    );
    let closed = world.sent.iter().any(|send| {
        matches!(send, Send::CloseSession { session, reason: CloseReason::Replaced } if *session == overtaken)
    });
    assert!(closed);
    world.beat(&machine, &[&work]);
    let renewed = world.told(&machine).iter().any(
        |message| matches!(message, Downstream::HeartbeatAck { results, .. } if results.len() == 1),
    );
    assert!(renewed, "its own stream goes on");
}

#[test]
fn a_boot_proves_dead_what_a_daemon_finished_in_another_life_of_the_data() {
    let mut world = World::new();
    let mut machine = world.machine(1);
    let task = world.submit(spec());
    let work = world.started();
    world.inherit_as(60_000, 2);
    machine.boot = "boot-2";
    world.reconnect(&mut machine, &[(&work, ActiveState::Finished)]);
    let first = world.task(task).attempts[0].clone();
    let receipt = first.state.end().map(|end| end.receipt);
    assert_eq!(
        receipt,
        Some(Receipt::Confirmed),
        "its result will not be heard, and its machine has booted since"
    );
}
