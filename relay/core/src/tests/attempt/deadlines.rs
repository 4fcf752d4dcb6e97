//! Tests of the twelve timers: each ends its attempt with its own code, not before its limit,
//! and cancels at the daemon first.

use crate::ids::InputId;
use crate::io::effects::{CancelKind, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::io::session_input::FrameBody;
use crate::record::{
    AttemptStateKind, AttentionCause, EndState, EndedBy, FailureCode, LifecyclePhase, TaskState,
    TerminationReceipt, TimerKind,
};
use crate::task::spec::{DeadlineProfile, TaskSpec};
use crate::tests::harness::{
    CoreHarness, DispatchedAttempt, GRACE, SLACK, TTL, canceled, completed, errored, spec,
};

fn profile() -> DeadlineProfile {
    DeadlineProfile {
        process_start_ms: Some(1_000),
        prompt_write_ms: Some(1_100),
        first_event_ms: Some(1_200),
        first_visible_event_ms: Some(1_300),
        stream_idle_ms: Some(1_400),
        tool_idle_ms: Some(1_500),
        user_input_ms: Some(1_600),
        cleanup_term_ms: Some(700),
    }
}

fn timed(profile: DeadlineProfile) -> TaskSpec {
    let mut spec = TaskSpec {
        effective_profile: profile,
        ..spec()
    };
    spec.retry.max_attempts = 1;
    spec
}

fn spec_with_timer(set: impl FnOnce(&mut DeadlineProfile)) -> TaskSpec {
    let mut profile = DeadlineProfile {
        cleanup_term_ms: Some(700),
        ..DeadlineProfile::default()
    };
    set(&mut profile);
    timed(profile)
}

fn tool(id: &str) -> FrameBody {
    FrameBody::ToolStarted {
        id: id.into(),
        name: "bash".into(),
    }
}

fn question() -> FrameBody {
    FrameBody::Question {
        input: InputId(uuid::Uuid::from_u128(5)),
        payload: (*b"?").into(),
    }
}

/// A timer, and the frames that bring an attempt to the point where it runs.
type TimerSetup = fn(&mut CoreHarness, &mut DispatchedAttempt);

type TimerRow = (TimerKind, TaskSpec, u64, TimerSetup, FailureCode);

fn rows() -> [TimerRow; 8] {
    [
        (
            TimerKind::ProcessStart,
            spec_with_timer(|p| p.process_start_ms = Some(1_000)),
            1_000,
            |_, _| {},
            FailureCode::ProcessStartTimeout,
        ),
        (
            TimerKind::PromptWrite,
            spec_with_timer(|p| p.prompt_write_ms = Some(1_100)),
            1_100,
            |w, a| w.phase(a, LifecyclePhase::AgentStarted),
            FailureCode::PromptWriteTimeout,
        ),
        (
            TimerKind::FirstEvent,
            spec_with_timer(|p| p.first_event_ms = Some(1_200)),
            1_200,
            |w, a| w.phase(a, LifecyclePhase::PromptWritten),
            FailureCode::NoFirstEventTimeout,
        ),
        (
            TimerKind::FirstVisibleEvent,
            spec_with_timer(|p| p.first_visible_event_ms = Some(1_300)),
            1_300,
            |w, a| w.phase(a, LifecyclePhase::PromptWritten),
            FailureCode::NoVisibleEventTimeout,
        ),
        (
            TimerKind::StreamIdle,
            spec_with_timer(|p| p.stream_idle_ms = Some(1_400)),
            1_400,
            |w, a| w.phase(a, LifecyclePhase::FirstEventSeen),
            FailureCode::StreamIdleTimeout,
        ),
        (
            TimerKind::ToolIdle,
            spec_with_timer(|p| p.tool_idle_ms = Some(1_500)),
            1_500,
            |w, a| w.frame(a, tool("t")),
            FailureCode::ToolIdleTimeout,
        ),
        (
            TimerKind::UserInput,
            spec_with_timer(|p| p.user_input_ms = Some(1_600)),
            1_600,
            |w, a| w.frame(a, question()),
            FailureCode::UserInputTimeout,
        ),
        (
            TimerKind::Total,
            TaskSpec {
                total_ms: Some(9_000),
                ..spec_with_timer(|_| {})
            },
            9_000 - SLACK,
            |_, _| {},
            FailureCode::TaskDeadlineExceeded,
        ),
    ]
}

#[test]
fn each_phase_deadline_ends_with_its_code_after_limit_and_slack() {
    for (timer, spec, limit, lead, code) in rows() {
        let mut world = CoreHarness::new();
        let machine = world.connect_daemon(1);
        let task = world.submit(spec);
        let mut work = world.take_started();
        lead(&mut world, &mut work);
        let state = world.attempt_state(task);
        world.pass(limit + SLACK - 1);
        assert_eq!(world.attempt_state(task), state, "{timer:?} was too early");
        world.take_messages(&machine);
        world.pass(1);
        assert_eq!(
            world.attempt_state(task),
            AttemptStateKind::CleaningUp,
            "{timer:?}"
        );
        let messages = world.take_messages(&machine);
        let asked = messages.iter().any(|m| matches!(m, DaemonMessage::Cancel { kind: CancelKind::Deadline(k), grace_ms: 700, .. } if *k == timer));
        assert!(asked, "{timer:?}: {messages:?}");
        world.frame(&mut work, canceled());
        let end = world.newest(task).state.end().unwrap().clone();
        assert_eq!(
            (end.state, end.failure_code, end.ended_by),
            (EndState::TimedOut, Some(code), EndedBy::Relay)
        );
        assert_eq!(
            (end.receipt, world.state(task)),
            (TerminationReceipt::Confirmed, TaskState::TimedOut)
        );
        assert!(world.store.fences.is_empty());
    }
}

#[test]
fn a_skipped_phase_disarms_the_timers_before_it() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(timed(DeadlineProfile {
        stream_idle_ms: None,
        first_visible_event_ms: None,
        ..profile()
    }));
    let mut work = world.take_started();
    world.phase(&mut work, LifecyclePhase::FirstEventSeen);
    world.advance_renewing(60_000, &machine, &[&work]);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Streaming);
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn an_empty_profile_leaves_only_the_relays_own_timers() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(timed(DeadlineProfile::default()));
    let mut work = world.take_started();
    world.frame(&mut work, tool("t"));
    world.advance_renewing(2 * 3_600_000 - 8_000, &machine, &[&work]);
    assert_eq!(world.attempt_state(task), AttemptStateKind::ToolRunning);
    world.advance_renewing(12_000, &machine, &[&work]);
    assert_eq!(
        world.end_code(task, 1),
        Some(FailureCode::TaskDeadlineExceeded),
        "the total deadline ends it without a receipt"
    );
}

#[test]
fn a_daemon_that_ignores_a_deadline_cancel_is_abandoned() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec_with_timer(|p| p.process_start_ms = Some(1_000)));
    let work = world.take_started();
    world.pass(1_000 + SLACK);
    world.pass(700 + SLACK - 1);
    assert_eq!(world.attempt_state(task), AttemptStateKind::CleaningUp);
    world.take_messages(&machine);
    world.pass(1);
    let end = world.newest(task).state.end().unwrap().clone();
    assert_eq!(
        (end.failure_code, end.receipt),
        (
            Some(FailureCode::ProcessStartTimeout),
            TerminationReceipt::Unconfirmed
        )
    );
    let messages = world.take_messages(&machine);
    assert!(
        messages.iter().any(
            |m| matches!(m, DaemonMessage::Abandon { attempt, .. } if *attempt == work.frame_ref.attempt)
        )
    );
    assert_eq!(
        world.store.fences.len(),
        1,
        "without a receipt its conversation and its retries wait"
    );
}

#[test]
fn a_result_during_a_deadlines_cleanup_wins_over_the_deadline() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(spec_with_timer(|p| p.process_start_ms = Some(1_000)));
    let mut work = world.take_started();
    world.pass(1_000 + SLACK);
    world.phase(&mut work, LifecyclePhase::CleanupStarted);
    world.phase(&mut work, LifecyclePhase::CleanupFinished);
    assert_eq!(
        world.attempt_state(task),
        AttemptStateKind::CleaningUp,
        "the terminal frame is still awaited"
    );
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn a_cleanup_that_never_ends_is_no_result() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let task = world.submit(timed(profile()));
    let mut work = world.take_started();
    world.phase(&mut work, LifecyclePhase::CleanupStarted);
    world.pass(700 + SLACK);
    let end = world.newest(task).state.end().unwrap().clone();
    assert_eq!(
        (end.failure_code, end.receipt),
        (Some(FailureCode::NoResult), TerminationReceipt::Unconfirmed)
    );
}

/// The cleanup_started frame of a daemon whose own timer expired first.
fn timer_cleanup_frame(timer: TimerKind) -> FrameBody {
    FrameBody::Phase {
        phase: LifecyclePhase::CleanupStarted,
        message: None,
        deadline: Some(timer),
    }
}

#[test]
fn a_cleanup_for_a_deadline_that_never_ends_is_that_timeout() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(timed(profile()));
    let mut work = world.take_started();
    world.frame(&mut work, timer_cleanup_frame(TimerKind::StreamIdle));
    assert_eq!(world.attempt_state(task), AttemptStateKind::CleaningUp);
    world.pass(700 + SLACK - 1);
    assert_eq!(world.attempt_state(task), AttemptStateKind::CleaningUp);
    world.pass(1);
    let end = world.newest(task).state.end().unwrap().clone();
    assert_eq!(
        (end.state, end.failure_code, end.receipt),
        (
            EndState::TimedOut,
            Some(FailureCode::StreamIdleTimeout),
            TerminationReceipt::Unconfirmed
        )
    );
    // While the daemon is disconnected its terminal frame may still arrive; the lease limits
    // the wait.
    let task = world.submit(timed(profile()));
    let mut work = world.take_started();
    world.frame(&mut work, timer_cleanup_frame(TimerKind::ProcessStart));
    world.disconnect(&machine);
    world.pass(700 + SLACK);
    assert_eq!(world.attempt_state(task), AttemptStateKind::CleaningUp);
    world.pass(TTL + GRACE);
    let end = world.newest(task).state.end().unwrap().clone();
    assert_eq!(end.failure_code, Some(FailureCode::ProcessStartTimeout));
}

#[test]
fn a_terminal_frame_wins_over_the_deadline_of_its_cleanup() {
    for (body, state, code) in [
        (completed(), EndState::Completed, None),
        (
            errored(FailureCode::AgentExit, 3),
            EndState::Failed,
            Some(FailureCode::AgentExit),
        ),
    ] {
        let mut world = CoreHarness::new();
        let _machine = world.connect_daemon(1);
        let task = world.submit(timed(profile()));
        let mut work = world.take_started();
        world.frame(&mut work, timer_cleanup_frame(TimerKind::StreamIdle));
        world.frame(&mut work, body);
        let end = world.newest(task).state.end().unwrap().clone();
        assert_eq!((end.state, end.failure_code), (state, code));
        assert_eq!(end.ended_by, EndedBy::Daemon);
    }
}

#[test]
fn a_deadline_while_disconnected_ends_at_once_and_fences_the_successor() {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let other = world.connect_daemon(2);
    let mut spec = spec_with_timer(|p| p.process_start_ms = Some(1_000));
    spec.retry.max_attempts = 3;
    let task = world.submit(spec);
    let work = world.take_started();
    let ours = if work.session == machine.session {
        &mut machine
    } else {
        panic!("the first daemon has the attempt")
    };
    world.disconnect(ours);
    world.pass(1_000 + SLACK);
    let end = world.newest(task).state.end().unwrap().clone();
    assert_eq!(
        (end.failure_code, end.receipt),
        (
            Some(FailureCode::ProcessStartTimeout),
            TerminationReceipt::Unconfirmed
        )
    );
    assert!(
        !world.newest(task).retry_safe,
        "its effects while disconnected are unknown"
    );
    assert_eq!(world.state(task), TaskState::TimedOut);
    let again = world.retry(task).unwrap();
    assert_eq!((again.state, again.attempts.len()), (TaskState::Queued, 2));
    world.advance_renewing(TTL + GRACE - 3_001, &other, &[]);
    assert!(
        world.dispatches().is_empty(),
        "the predecessor may still run"
    );
    world.pass(1);
    assert_eq!(world.dispatch().session, other.session);
    assert!(world.store.fences.is_empty());
}

#[test]
fn an_unaccepted_offer_is_lost_and_safe_to_retry() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let work = world.dispatch();
    world.advance_renewing(9_999, &machine, &[]);
    assert_eq!(world.attempt_state(task), AttemptStateKind::Offered);
    world.pass(1);
    assert_eq!(world.end_code(task, 1), Some(FailureCode::NotAccepted));
    assert!(
        world.store.fences.is_empty(),
        "without LeaseConfirmed there is no process"
    );
    assert_eq!(world.state(task), TaskState::Pending);
    // An accept that arrives too late does not start the attempt.
    let mut late = work;
    world.take_messages(&machine);
    world.frame(&mut late, FrameBody::Accepted);
    assert_eq!(world.rejections(&machine), [Rejection::StaleAttempt]);
    world.beat(&machine, &[]);
    world.pass(2_000);
    assert_eq!(world.dispatch().frame_ref.number, 2);
}

#[test]
fn the_queue_deadline_parks_a_task_and_a_retry_hands_it_off() {
    let mut world = CoreHarness::new();
    let task = world.submit(TaskSpec {
        queue_ms: Some(5_000),
        ..spec()
    });
    world.pass(4_999);
    assert_eq!(world.state(task), TaskState::Queued);
    world.pass(1);
    let record = world.task(task);
    assert_eq!(record.state, TaskState::NeedsAttention);
    assert_eq!(
        record.attention.as_ref().unwrap().cause,
        AttentionCause::Starved
    );
    assert_eq!(world.attempt_state(task), AttemptStateKind::Parked);
    let again = world.retry(task).unwrap();
    assert_eq!(
        (again.state, again.attempts[0].state.kind()),
        (TaskState::Queued, AttemptStateKind::HandedOff)
    );
    assert_eq!(again.attempts[0].successor, Some(again.attempts[1].id));
    let _machine = world.connect_daemon(1);
    assert_eq!(world.dispatch().frame_ref.number, 2);
}

#[test]
fn a_daemons_retry_hint_can_only_prevent_a_retry() {
    let mut world = CoreHarness::new();
    let _machine = world.connect_daemon(1);
    let mut spec = spec();
    spec.retry.max_attempts = 2;
    let task = world.submit(spec.clone());
    let mut work = world.take_started();
    world.frame(&mut work, errored(FailureCode::NoFirstEventTimeout, 0));
    assert_eq!(world.newest(task).state.kind(), AttemptStateKind::TimedOut);
    assert_eq!(world.state(task), TaskState::Pending, "retried");
    let other = world.submit(spec);
    let mut work = world.take_started();
    let FrameBody::Errored(mut body) = errored(FailureCode::AgentExit, 1) else {
        unreachable!()
    };
    body.retryable_hint = Some(false);
    world.frame(&mut work, FrameBody::Errored(body));
    assert_eq!(world.state(other), TaskState::Failed);
    assert!(!world.newest(other).state.end().unwrap().retryable);
}
