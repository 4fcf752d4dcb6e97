//! Tests of offers that a daemon refuses because of its machine: they use no budget of the
//! task, and the daemon gets no offers for a while.

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

    /// Sends a heartbeat that reports whether the daemon would refuse any task.
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

    /// Moves the clock with heartbeats of these daemons.
    fn advance_with_heartbeats(&mut self, ms: u64, machines: &[&TestDaemon]) {
        for _ in 0..ms / 1_000 {
            self.pass(1_000);
            for machine in machines {
                self.send_fitness(machine, false);
            }
        }
    }

    /// Waits for the next offer.
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
fn an_invalid_task_fails_at_its_first_rejection() {
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
fn refusals_for_a_full_disk_never_end_a_task() {
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
    assert!(linked, "removed attempts leave no gap in the chain");
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
fn a_task_refused_by_a_full_machine_goes_to_another_one() {
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
        assert_eq!(
            next.session, other.session,
            "{code}: the refusing daemon gets no task"
        );
        for work in [&mut elsewhere, &mut next] {
            world.frame(work, FrameBody::Accepted);
            world.frame(work, completed());
        }
        world.advance_with_heartbeats(20_000, &[full, other]);
    }
}

#[test]
fn a_refusing_daemon_gets_offers_after_increasing_pauses() {
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
        "a completed task resets the pause"
    );
}

#[test]
fn an_unfit_daemon_gets_no_offers_until_it_is_fit_again() {
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
    assert_eq!(work.frame_ref.number, 1, "no offer was made before");
    // The daemon refuses this offer too, and reports itself fit before the pause is over.
    world.refuse(&mut work, RejectCode::DiskFull);
    world.send_fitness(&machine, true);
    world.send_fitness(&machine, false);
    assert_eq!(world.dispatch().frame_ref.task, task);
}

#[test]
fn a_task_that_is_always_refused_starves_at_its_queue_deadline() {
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
fn a_task_with_a_busy_workspace_is_offered_when_an_attempt_ends() {
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
        assert!(
            !world.is_daemon_set_aside(),
            "a busy workspace does not set the daemon aside"
        );
        // The refusal of one task does not cause a new offer of the other.
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
    assert_eq!(offers.len(), 2, "both are offered at once");
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
