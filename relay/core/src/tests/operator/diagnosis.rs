//! Tests of the diagnosis: each problem is found in the history that causes it and not earlier.

use crate::ids::TaskId;
use crate::io::session_input::{FrameBody, LossReason, ProcessTermination};
use crate::record::{AttemptState, LifecyclePhase, TimelineEventKind};
use crate::task::diagnosis;
use crate::task::diagnosis::{DiagnosisFacts, TaskDiagnosis, TaskProblem};
use crate::task::spec::TaskSpec;
use crate::tests::harness::{
    CoreHarness, DispatchedAttempt, GRACE, TTL, agent, agent_task_spec, spec, termination_receipt,
};

fn problems(world: &mut CoreHarness, task: TaskId) -> Vec<TaskProblem> {
    let view = world.inspect(task).unwrap();
    let problem = |found: &TaskDiagnosis| {
        assert!(!found.message.is_empty());
        found.problem
    };
    view.diagnoses.iter().map(problem).collect()
}

fn running(
    world: &mut CoreHarness,
) -> (crate::tests::harness::TestDaemon, TaskId, DispatchedAttempt) {
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.phase(&mut work, LifecyclePhase::Streaming);
    assert!(problems(world, task).is_empty());
    (machine, task, work)
}

#[test]
fn ten_silent_minutes_are_stuck_unless_an_input_is_open() {
    let mut world = CoreHarness::new();
    let (machine, task, mut work) = running(&mut world);
    world.advance_renewing(599_000, &machine, &[&work]);
    assert!(problems(&mut world, task).is_empty());
    world.advance_renewing(1_000, &machine, &[&work]);
    assert_eq!(problems(&mut world, task), [TaskProblem::Stuck]);
    let input = crate::ids::InputId(uuid::Uuid::from_u128(5));
    let payload = std::sync::Arc::from(*b"may I?");
    world.frame(&mut work, FrameBody::Question { input, payload });
    world.advance_renewing(700_000, &machine, &[&work]);
    assert!(problems(&mut world, task).is_empty());
}

#[test]
fn a_disconnected_holder_is_an_orphan_and_then_a_stale_lease() {
    let mut world = CoreHarness::new();
    let (machine, task, _work) = running(&mut world);
    world.disconnect(&machine);
    assert_eq!(problems(&mut world, task), [TaskProblem::Orphan]);
    world.pass(10_001);
    assert_eq!(
        problems(&mut world, task),
        [TaskProblem::Orphan, TaskProblem::StaleLease]
    );
}

#[test]
fn heartbeats_without_renewals_make_a_lease_stale() {
    let mut world = CoreHarness::new();
    let (machine, task, work) = running(&mut world);
    world.advance_renewing(8_000, &machine, &[&work]);
    assert!(problems(&mut world, task).is_empty());
    world.pass(10_001);
    assert_eq!(problems(&mut world, task), [TaskProblem::StaleLease]);
}

/// An agent renews at the pace of its own lease, not of a daemon's heartbeat.
#[test]
fn an_agent_with_a_long_lease_is_not_stale_between_two_renewals() {
    let mut world = CoreHarness::new();
    let spec = TaskSpec {
        lease_ttl_ms: 600_000,
        ..agent_task_spec()
    };
    let hand = world.start(&agent(1), spec, "k").unwrap();
    world.renew(&hand).unwrap();
    world.pass(200_000);
    assert!(problems(&mut world, hand.task).is_empty());
    world.pass(200_001);
    assert_eq!(problems(&mut world, hand.task), [TaskProblem::StaleLease]);
}

#[test]
fn a_task_that_no_known_daemon_can_run_is_stranded() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let elsewhere = TaskSpec {
        agent: "codex".into(),
        ..spec()
    };
    let stranded = world.submit(elsewhere);
    assert_eq!(problems(&mut world, stranded), [TaskProblem::Stranded]);
    world.disconnect(&machine);
    let waiting = world.submit(spec());
    assert!(
        problems(&mut world, waiting).is_empty(),
        "its daemon may reconnect"
    );
}

#[test]
fn processes_that_end_without_a_result_are_a_crash() {
    let mut world = CoreHarness::new();
    let (_machine, task, mut work) = running(&mut world);
    let termination = termination_receipt();
    world.frame(&mut work, FrameBody::Receipt { termination });
    assert_eq!(problems(&mut world, task), [TaskProblem::Crashed]);
    let mut world = CoreHarness::new();
    let (_machine, task, mut work) = running(&mut world);
    world.phase(&mut work, LifecyclePhase::CleanupStarted);
    assert!(problems(&mut world, task).is_empty());
    world.phase(&mut work, LifecyclePhase::CleanupFinished);
    assert_eq!(problems(&mut world, task), [TaskProblem::Crashed]);
    let termination = termination_receipt();
    world.frame(&mut work, FrameBody::Receipt { termination });
    let AttemptState::Ended(end) = &world.newest(task).state else {
        panic!("the receipt ends the attempt");
    };
    let words = "its processes ended without reporting a result";
    assert_eq!(end.message.as_deref(), Some(words));
}

#[test]
fn the_reported_loss_reason_is_shown_everywhere() {
    let mut seen = std::collections::BTreeSet::new();
    for loss in [
        LossReason::LeaseEnded,
        LossReason::DaemonStopped,
        LossReason::SupervisorDied,
    ] {
        let mut world = CoreHarness::new();
        let (_machine, task, mut work) = running(&mut world);
        let termination = ProcessTermination {
            loss: Some(loss),
            ..termination_receipt()
        };
        world.frame(&mut work, FrameBody::Receipt { termination });
        let record = world.task(task);
        let end = record
            .newest_attempt()
            .and_then(|newest| newest.state.end());
        let message = end.and_then(|end| end.message.clone()).expect("a message");
        let found = diagnosis::diagnose(&record, &DiagnosisFacts::default());
        assert_eq!(found[0].message, *message, "{loss:?}");
        let attention = record
            .attention
            .as_ref()
            .expect("a loss with possible effects needs attention");
        assert!(attention.reason.starts_with(&*message), "{attention:?}");
        seen.insert(message);
    }
    assert_eq!(seen.len(), 3, "each loss has its own message: {seen:?}");
}

#[test]
fn a_loss_by_lease_expiry_is_not_a_crash() {
    let mut world = CoreHarness::new();
    let (machine, task, _work) = running(&mut world);
    world.disconnect(&machine);
    world.pass(TTL + GRACE);
    assert!(problems(&mut world, task).is_empty());
}

#[test]
fn a_phase_regression_is_recorded_once_and_survives_a_restart() {
    let mut world = CoreHarness::new();
    let (_machine, task, mut work) = running(&mut world);
    for _ in 0..5 {
        world.phase(&mut work, LifecyclePhase::AgentStarted);
    }
    assert_eq!(problems(&mut world, task), [TaskProblem::PhaseRegression]);
    let events = &world.task(task).timeline.events;
    let noted = events.iter().filter(|event| {
        matches!(
            event.kind,
            TimelineEventKind::PhaseRegression(LifecyclePhase::AgentStarted)
        )
    });
    assert_eq!(noted.count(), 1);
    world.restart_here();
    let found = problems(&mut world, task);
    assert!(found.contains(&TaskProblem::PhaseRegression), "{found:?}");
}

#[test]
fn output_that_ends_before_its_final_offset_is_a_gap() {
    let mut world = CoreHarness::new();
    let (_machine, task, mut work) = running(&mut world);
    let body = FrameBody::Completed(crate::io::session_input::CompletedBody {
        final_offset: 100,
        termination: ProcessTermination {
            group_empty: true,
            ..ProcessTermination::default()
        },
        ended_in_lease: true,
        ..crate::io::attempt_report::CompletedBody::default()
    });
    world.frame(&mut work, body);
    let record = world.task(task);
    let found = |durable| {
        let facts = DiagnosisFacts {
            stored_output_bytes: durable,
            ..DiagnosisFacts::default()
        };
        let found = diagnosis::diagnose(&record, &facts);
        found.first().map(|found| found.problem)
    };
    assert_eq!(found(Some(99)), Some(TaskProblem::StreamGap));
    assert_eq!(found(Some(100)), None);
    assert_eq!(
        found(None),
        None,
        "the output log no longer has this attempt"
    );
}
