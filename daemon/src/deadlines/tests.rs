//! The table of deadlines, row by row, with time as an argument.

use super::*;

fn at(millis: u64) -> BootTime {
    BootTime::from_millis(millis)
}

fn all(limit: u64) -> DeadlineLimits {
    let limit = Some(Duration::from_millis(limit));
    DeadlineLimits {
        process_start: limit,
        prompt_write: limit,
        first_event: limit,
        first_visible_event: limit,
        stream_idle: limit,
        tool_idle: limit,
        total: Some(Duration::from_secs(100)),
    }
}

fn entered(timers: &mut DeadlineTimers, phases: &[(OneTimePhase, u64)]) {
    for (phase, millis) in phases {
        timers.apply(TimerEvent::Entered(*phase), at(*millis));
    }
}

fn activity() -> TimerEvent {
    TimerEvent::Activity { tool_call_id: None }
}

#[test]
fn each_phase_arms_its_deadline_and_ends_the_one_before() {
    let mut timers = DeadlineTimers::new(all(100));
    let steps = [
        (OneTimePhase::Started, DeadlineKind::ProcessStart),
        (OneTimePhase::AgentStarted, DeadlineKind::PromptWrite),
        (OneTimePhase::PromptWritten, DeadlineKind::FirstEvent),
    ];
    for (index, (phase, kind)) in steps.into_iter().enumerate() {
        let now = index as u64 * 10;
        timers.apply(TimerEvent::Entered(phase), at(now));
        assert_eq!(timers.expired(at(now + 99)), None);
        assert_eq!(timers.expired(at(now + 100)), Some(kind));
    }
    timers.apply(TimerEvent::Entered(OneTimePhase::FirstEventSeen), at(50));
    // first_visible_event still counts from prompt_written.
    assert_eq!(
        timers.expired(at(120)),
        Some(DeadlineKind::FirstVisibleEvent)
    );
    timers.apply(
        TimerEvent::Entered(OneTimePhase::FirstVisibleEventSeen),
        at(60),
    );
    assert_eq!(timers.expired(at(160)), Some(DeadlineKind::StreamIdle));
    timers.apply(activity(), at(150));
    assert_eq!(timers.next_deadline(), Some(at(250)));
    timers.apply(TimerEvent::Entered(OneTimePhase::CleanupStarted), at(200));
    timers.apply(activity(), at(201));
    assert_eq!(timers.next_deadline(), None);
}

#[test]
fn empty_and_partial_profiles_arm_only_what_they_name() {
    let phases = [
        (OneTimePhase::Started, 0),
        (OneTimePhase::AgentStarted, 1),
        (OneTimePhase::PromptWritten, 2),
        (OneTimePhase::FirstEventSeen, 3),
    ];
    let mut none = DeadlineTimers::new(DeadlineLimits::default());
    entered(&mut none, &phases);
    none.apply(TimerEvent::ToolStarted("t".into()), at(4));
    assert_eq!(none.next_deadline(), None);
    let limit = Some(Duration::from_millis(100));
    let mut partial = DeadlineTimers::new(DeadlineLimits {
        stream_idle: limit,
        ..DeadlineLimits::default()
    });
    entered(&mut partial, &phases);
    assert_eq!(partial.next_deadline(), Some(at(103)));
}

#[test]
fn skipping_prompt_written_ends_its_timer_and_arms_what_follows() {
    let mut timers = DeadlineTimers::new(all(100));
    entered(
        &mut timers,
        &[
            (OneTimePhase::AgentStarted, 0),
            (OneTimePhase::FirstEventSeen, 40),
        ],
    );
    assert_eq!(timers.expired(at(139)), None);
    assert_eq!(
        timers.expired(at(140)),
        Some(DeadlineKind::FirstVisibleEvent)
    );
    timers.apply(TimerEvent::Entered(OneTimePhase::PromptWritten), at(90));
    assert_eq!(
        timers.expired(at(140)),
        Some(DeadlineKind::FirstVisibleEvent)
    );
}

#[test]
fn stream_idle_is_paused_while_a_tool_runs() {
    let mut timers = DeadlineTimers::new(all(100));
    entered(&mut timers, &[(OneTimePhase::FirstVisibleEventSeen, 0)]);
    timers.apply(TimerEvent::ToolStarted("a".into()), at(60));
    timers.apply(TimerEvent::ToolStarted("b".into()), at(70));
    assert_eq!(timers.expired(at(160)), Some(DeadlineKind::ToolIdle));
    timers.apply(
        TimerEvent::Activity {
            tool_call_id: Some("a".into()),
        },
        at(150),
    );
    assert_eq!(timers.next_deadline(), Some(at(170)));
    timers.apply(TimerEvent::ToolFinished("b".into()), at(165));
    assert_eq!(timers.next_deadline(), Some(at(250)));
    timers.apply(TimerEvent::ToolFinished("a".into()), at(200));
    assert_eq!(timers.expired(at(300)), Some(DeadlineKind::StreamIdle));
}

#[test]
fn waiting_for_a_person_pauses_and_resumes_with_what_was_left() {
    let mut timers = DeadlineTimers::new(all(100));
    entered(
        &mut timers,
        &[
            (OneTimePhase::PromptWritten, 0),
            (OneTimePhase::FirstEventSeen, 10),
        ],
    );
    timers.apply(TimerEvent::ToolStarted("t".into()), at(20));
    timers.apply(TimerEvent::InputOpened, at(50));
    assert_eq!(timers.next_deadline(), None);
    timers.apply(TimerEvent::InputOpened, at(60));
    timers.apply(TimerEvent::InputClosed, at(900));
    assert_eq!(timers.next_deadline(), None);
    timers.apply(TimerEvent::InputClosed, at(1_000));
    // 70 ms of tool_idle were left when the first input opened.
    assert_eq!(timers.expired(at(1_070)), Some(DeadlineKind::ToolIdle));
    assert_eq!(timers.expired(at(1_069)), None);
}

#[test]
fn total_counts_from_the_start_whatever_the_attempt_waits_for() {
    let total = Some(Duration::from_millis(500));
    let mut timers = DeadlineTimers::new(DeadlineLimits {
        total,
        ..DeadlineLimits::default()
    });
    entered(
        &mut timers,
        &[
            (OneTimePhase::Started, 0),
            (OneTimePhase::FirstEventSeen, 10),
        ],
    );
    timers.apply(TimerEvent::InputOpened, at(20));
    timers.set_backpressure(true, at(30));
    assert_eq!(timers.expired(at(499)), None);
    assert_eq!(timers.expired(at(500)), Some(DeadlineKind::Total));
}

#[test]
fn a_slow_relay_does_not_count_as_a_silent_agent() {
    let mut timers = DeadlineTimers::new(all(100));
    entered(&mut timers, &[(OneTimePhase::FirstVisibleEventSeen, 0)]);
    timers.set_backpressure(true, at(40));
    assert_eq!(timers.next_deadline(), None);
    timers.set_backpressure(false, at(5_000));
    assert_eq!(timers.next_deadline(), Some(at(5_060)));
}
