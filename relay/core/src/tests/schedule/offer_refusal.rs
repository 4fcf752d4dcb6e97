//! Offers that a daemon refuses because of its machine: they cost the task nothing, and the daemon is left alone for a
//! while.

use crate::commands::ListDaemons;
use crate::ids::TenantScope;
use crate::io::session_input::SessionInput;
use crate::io::session_input::{FrameBody, HeartbeatMessage};
use crate::record::{AttemptStateKind, AttentionCause, RejectCode, TaskState};
use crate::task::spec::TaskSpec;
use crate::tests::harness::{CoreHarness, DispatchedAttempt, TestDaemon, completed, spec};

impl CoreHarness {
    fn refuse(&mut self, work: &mut DispatchedAttempt, code: RejectCode) {
        let message = None;
        self.frame(work, FrameBody::Rejected { code, message });
    }

    /// A heartbeat that says whether any work would be refused.
    fn send_fitness(&mut self, machine: &TestDaemon, unfit: bool) {
        let heartbeat = HeartbeatMessage {
            seq: 1,
            received_ack_seq: None,
            renewals: Vec::new(),
            free_slots: 4,
            draining: false,
            unfit,
            load: None,
        };
        let session = machine.session;
        self.send_input(SessionInput::Heartbeat { session, heartbeat });
    }

    /// Lets time pass with the daemons heard of.
    fn advance_with_heartbeats(&mut self, ms: u64, machines: &[&TestDaemon]) {
        for _ in 0..ms / 1_000 {
            self.pass(1_000);
            for machine in machines {
                self.send_fitness(machine, false);
            }
        }
    }

    /// The next offer, whenever it comes.
    fn next_offer(&mut self, machine: &TestDaemon) -> DispatchedAttempt {
        for _ in 0..=60 {
            if let Some(work) = self.dispatches().pop() {
                return work;
            }
            self.advance_with_heartbeats(1_000, &[machine]);
        }
        panic!("no offer within a minute");
    }

    fn is_daemon_set_aside(&mut self) -> bool {
        let scope = TenantScope::All;
        let views = self.send(ListDaemons { scope }).unwrap();
        views.iter().any(|view| view.is_sick)
    }
}

#[test]
fn a_task_that_nobody_can_run_as_submitted_fails_at_once_and_not_after_twenty_offers() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.dispatch();
    let code = RejectCode::UnsupportedOption;
    let message = Some("a command takes no option model".into());
    world.frame(&mut work, FrameBody::Rejected { code, message });
    assert_eq!(world.state(task), TaskState::Failed);
    let newest = world.newest(task);
    let end = newest.state.end().unwrap();
    assert_eq!(
        end.failure_code.as_ref().unwrap().as_str(),
        "unsupported_option"
    );
    assert_eq!(
        end.message.as_deref(),
        Some("a command takes no option model")
    );
    assert_eq!((end.retryable, newest.number), (false, 1));
}

#[test]
fn a_full_disk_ends_no_task_however_often_it_refuses() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    for number in 1..=60 {
        let mut work = world.next_offer(&machine);
        assert_eq!(work.frame_ref.number, number);
        world.refuse(&mut work, RejectCode::DiskFull);
        assert!(world.dispatches().is_empty() && world.is_daemon_set_aside());
    }
    let record = world.task(task);
    assert_eq!(record.state, TaskState::Queued);
    assert!(record.attempts.len() <= 10, "{}", record.attempts.len());
    let linked = record
        .attempts
        .windows(2)
        .all(|two| two[0].successor == Some(two[1].id) && two[1].previous == Some(two[0].id));
    assert!(linked, "what went leaves no hole");
    world.restart();
    let machine = world.connect_daemon(1);
    let mut work = world.dispatch();
    assert_eq!(world.task(task).counters.dispatches, 1);
    world.frame(&mut work, FrameBody::Accepted);
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
    assert!(!world.is_daemon_set_aside(), "{machine:?}");
}

#[test]
fn what_one_machine_cannot_take_another_gets_and_nothing_else_goes_there() {
    let mut world = CoreHarness::new();
    let (first, second) = (world.connect_daemon(1), world.connect_daemon(2));
    for code in ["disk_full", "low_memory", "at_capacity", "draining"] {
        world.submit(spec());
        let mut work = world.dispatch();
        let (full, other) = if work.session == first.session {
            (&first, &second)
        } else {
            (&second, &first)
        };
        world.refuse(&mut work, RejectCode::parse(code));
        let mut elsewhere = world.dispatch();
        assert_eq!(elsewhere.session, other.session, "{code}");
        world.submit(spec());
        let mut next = world.dispatch();
        assert_eq!(next.session, other.session, "{code}: no task goes there");
        for work in [&mut elsewhere, &mut next] {
            world.frame(work, FrameBody::Accepted);
            world.frame(work, completed());
        }
        world.advance_with_heartbeats(20_000, &[full, other]);
    }
}

#[test]
fn it_is_asked_again_after_longer_and_longer_pauses() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.submit(spec());
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        let mut work = world.dispatch();
        world.frame(&mut work, FrameBody::Accepted);
        world.refuse(&mut work, RejectCode::LowMemory);
        world.advance_with_heartbeats(pause * 1_000 - 1_000, &[&machine]);
        world.pass(999);
        assert!(world.dispatches().is_empty(), "{pause}");
        world.pass(1);
        world.send_fitness(&machine, false);
    }
    let mut work = world.dispatch();
    world.frame(&mut work, FrameBody::Accepted);
    world.frame(&mut work, completed());
    world.submit(spec());
    let mut work = world.dispatch();
    world.refuse(&mut work, RejectCode::LowMemory);
    world.pass(1_000);
    assert_eq!(
        world.dispatches().len(),
        1,
        "it ran one since, so it begins anew"
    );
}

#[test]
fn who_says_that_its_machine_is_full_is_offered_nothing_until_it_says_otherwise() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.send_fitness(&machine, true);
    let task = world.submit(spec());
    for _ in 0..30 {
        world.pass(5_000);
        world.send_fitness(&machine, true);
        assert!(world.dispatches().is_empty());
    }
    world.send_fitness(&machine, false);
    let mut work = world.dispatch();
    assert_eq!(work.frame_ref.number, 1, "not one offer was wasted");
    // Refused all the same, and well again before the pause is over.
    world.refuse(&mut work, RejectCode::DiskFull);
    world.send_fitness(&machine, true);
    world.send_fitness(&machine, false);
    assert_eq!(world.dispatch().frame_ref.task, task);
}

#[test]
fn a_task_that_is_refused_for_ever_starves_by_its_queue_deadline() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let patience = TaskSpec {
        queue_ms: Some(90_000),
        ..spec()
    };
    let task = world.submit(patience);
    for _ in 0..200 {
        for mut work in world.dispatches() {
            world.refuse(&mut work, RejectCode::DiskFull);
        }
        if world.attempt_state(task) == AttemptStateKind::Parked {
            break;
        }
        world.advance_with_heartbeats(1_000, &[&machine]);
    }
    let attention = world.task(task).attention.clone().unwrap();
    assert_eq!(attention.cause, AttentionCause::Starved);
}

#[test]
fn a_workspace_in_use_costs_a_task_nothing_and_is_offered_when_something_ends_there() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let first = world.submit(spec());
    let mut running = world.dispatch();
    world.frame(&mut running, FrameBody::Accepted);
    let waiting = [world.submit(spec()), world.submit(spec())];
    for round in 0..15 {
        let offers = world.dispatches();
        assert_eq!(offers.len(), 2, "{round}");
        for mut work in offers {
            world.refuse(&mut work, RejectCode::WorkspaceBusy);
        }
        assert!(!world.is_daemon_set_aside(), "the machine is well");
        // One's refusal is no reason to ask the other again.
        world.pass(4_000);
        assert!(world.dispatches().is_empty(), "{round}");
        world.beat(&machine, &[&running]);
        world.pass(1_000);
    }
    for mut work in world.dispatches() {
        world.refuse(&mut work, RejectCode::WorkspaceBusy);
    }
    world.frame(&mut running, completed());
    assert_eq!(world.state(first), TaskState::Completed);
    let offers = world.dispatches();
    assert_eq!(offers.len(), 2, "at once");
    for task in waiting {
        assert_eq!(world.task(task).counters.dispatches, 1);
    }
    for mut work in offers {
        world.frame(&mut work, FrameBody::Accepted);
        world.frame(&mut work, completed());
    }
    for task in waiting {
        assert_eq!(world.state(task), TaskState::Completed);
    }
}
