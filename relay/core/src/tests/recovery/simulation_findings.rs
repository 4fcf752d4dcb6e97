//! Regression tests for defects that the simulation found, each reduced to a few steps.

use crate::ids::SessionId;
use crate::io::effects::CloseReason;
use crate::io::effects::{CommitDependency, DaemonMessage, Delivery};
use crate::io::rejection::Rejection;
use crate::io::session_input::SessionInput;
use crate::io::session_input::{ActiveAttemptState, AttemptFrame, FrameBody};
use crate::record::TerminationReceipt;
use crate::tests::harness::{CoreHarness, spec};

#[test]
fn a_rejection_depends_on_the_commit_of_the_end_that_caused_it() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.submit(spec());
    let work = world.dispatch();
    world.advance_renewing(11_000, &machine, &[]);
    let frame = AttemptFrame {
        session: work.session,
        frame_ref: work.frame_ref,
        control_seq: 1,
        observed: world.now.wall,
        proof: None,
        body: FrameBody::Accepted,
        workspace: None,
    };
    let effects = world.core.handle(
        SessionInput::Frame(Box::new(frame)).into(),
        &world.store,
        world.now,
        &mut world.ids,
    );
    let refusal = effects
        .deliveries
        .iter()
        .find_map(|out| match &out.delivery {
            Delivery::ToSession {
                message: DaemonMessage::FrameRejected { code, .. },
                ..
            } => Some((*code, out.depends_on)),
            _ => None,
        });
    let expected = (
        Rejection::StaleAttempt,
        CommitDependency::Task(work.frame_ref.task),
    );
    assert_eq!(
        refusal,
        Some(expected),
        "the rejection must not be sent before the end is durable"
    );
}

#[test]
fn a_hello_of_an_older_stream_proves_nothing() {
    let mut world = CoreHarness::new();
    let older = SessionId(uuid::Uuid::from_u128(1));
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    let mut older_daemon = machine.clone();
    (older_daemon.session, older_daemon.boot) = (older, "boot-0");
    world.open(&older_daemon, Vec::new(), |_| {});
    assert!(
        world.newest(task).state.is_leased(),
        "the attempt runs under the current boot of the machine"
    );
    let closed = world.deliveries.iter().any(|send| {
        matches!(send, Delivery::CloseSession { session, reason: CloseReason::Replaced } if *session == older)
    });
    assert!(closed);
    world.beat(&machine, &[&work]);
    let renewed = world.take_messages(&machine).iter().any(
        |message| matches!(message, DaemonMessage::HeartbeatAck { results, .. } if results.len() == 1),
    );
    assert!(renewed, "the newer stream goes on");
}

#[test]
fn a_new_boot_confirms_the_end_of_attempts_of_an_older_incarnation() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.take_started();
    world.restart_as_incarnation(60_000, 2);
    machine.boot = "boot-2";
    world.reconnect(&mut machine, &[(&work, ActiveAttemptState::Finished)]);
    let first = world.task(task).attempts[0].clone();
    let receipt = first.state.end().map(|end| end.receipt);
    assert_eq!(
        receipt,
        Some(TerminationReceipt::Confirmed),
        "its result is not accepted, and its machine has rebooted since"
    );
}
