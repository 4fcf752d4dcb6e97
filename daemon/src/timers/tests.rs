//! The table of deadlines, row by row, with time as an argument.

use super::*;

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn all(limit: u64) -> Deadlines {
    let limit = Some(Duration::from_millis(limit));
    Deadlines {
        process_start: limit,
        prompt_write: limit,
        first_event: limit,
        first_visible_event: limit,
        stream_idle: limit,
        tool_idle: limit,
        total: Some(Duration::from_secs(100)),
    }
}

fn entered(timers: &mut Timers, phases: &[(OncePhase, u64)]) {
    for (phase, millis) in phases {
        timers.apply(Fact::Entered(*phase), at(*millis));
    }
}

fn activity() -> Fact {
    Fact::Activity { tool_call_id: None }
}

#[test]
fn each_phase_arms_its_deadline_and_ends_the_one_before() {
    let mut timers = Timers::new(all(100));
    let steps = [
        (OncePhase::Started, DeadlineKind::ProcessStart),
        (OncePhase::AgentStarted, DeadlineKind::PromptWrite),
        (OncePhase::PromptWritten, DeadlineKind::FirstEvent),
    ];
    for (index, (phase, kind)) in steps.into_iter().enumerate() {
        let now = index as u64 * 10;
        timers.apply(Fact::Entered(phase), at(now));
        assert_eq!(timers.expired(at(now + 99)), None);
        assert_eq!(timers.expired(at(now + 100)), Some(kind));
    }
    timers.apply(Fact::Entered(OncePhase::FirstEventSeen), at(50));
    // first_visible_event still counts from prompt_written.
    assert_eq!(
        timers.expired(at(120)),
        Some(DeadlineKind::FirstVisibleEvent)
    );
    timers.apply(Fact::Entered(OncePhase::FirstVisibleEventSeen), at(60));
    assert_eq!(timers.expired(at(160)), Some(DeadlineKind::StreamIdle));
    timers.apply(activity(), at(150));
    assert_eq!(timers.next_deadline(), Some(at(250)));
    timers.apply(Fact::Entered(OncePhase::CleanupStarted), at(200));
    timers.apply(activity(), at(201));
    assert_eq!(timers.next_deadline(), None);
}

#[test]
fn empty_and_partial_profiles_arm_only_what_they_name() {
    let phases = [
        (OncePhase::Started, 0),
        (OncePhase::AgentStarted, 1),
        (OncePhase::PromptWritten, 2),
        (OncePhase::FirstEventSeen, 3),
    ];
    let mut none = Timers::new(Deadlines::default());
    entered(&mut none, &phases);
    none.apply(Fact::ToolStarted("t".into()), at(4));
    assert_eq!(none.next_deadline(), None);
    let limit = Some(Duration::from_millis(100));
    let mut partial = Timers::new(Deadlines {
        stream_idle: limit,
        ..Deadlines::default()
    });
    entered(&mut partial, &phases);
    assert_eq!(partial.next_deadline(), Some(at(103)));
}

#[test]
fn skipping_prompt_written_ends_its_timer_and_arms_what_follows() {
    let mut timers = Timers::new(all(100));
    entered(
        &mut timers,
        &[
            (OncePhase::AgentStarted, 0),
            (OncePhase::FirstEventSeen, 40),
        ],
    );
    assert_eq!(timers.expired(at(139)), None);
    assert_eq!(
        timers.expired(at(140)),
        Some(DeadlineKind::FirstVisibleEvent)
    );
    timers.apply(Fact::Entered(OncePhase::PromptWritten), at(90));
    assert_eq!(
        timers.expired(at(140)),
        Some(DeadlineKind::FirstVisibleEvent)
    );
}

#[test]
fn stream_idle_stands_still_while_a_tool_runs_and_each_tool_has_its_own_timer() {
    let mut timers = Timers::new(all(100));
    entered(&mut timers, &[(OncePhase::FirstVisibleEventSeen, 0)]);
    timers.apply(Fact::ToolStarted("a".into()), at(60));
    timers.apply(Fact::ToolStarted("b".into()), at(70));
    assert_eq!(timers.expired(at(160)), Some(DeadlineKind::ToolIdle));
    timers.apply(
        Fact::Activity {
            tool_call_id: Some("a".into()),
        },
        at(150),
    );
    assert_eq!(timers.next_deadline(), Some(at(170)));
    timers.apply(Fact::ToolFinished("b".into()), at(165));
    assert_eq!(timers.next_deadline(), Some(at(250)));
    timers.apply(Fact::ToolFinished("a".into()), at(200));
    assert_eq!(timers.expired(at(300)), Some(DeadlineKind::StreamIdle));
}

#[test]
fn waiting_for_a_person_pauses_and_resumes_with_what_was_left() {
    let mut timers = Timers::new(all(100));
    entered(
        &mut timers,
        &[
            (OncePhase::PromptWritten, 0),
            (OncePhase::FirstEventSeen, 10),
        ],
    );
    timers.apply(Fact::ToolStarted("t".into()), at(20));
    timers.apply(Fact::InputOpened, at(50));
    assert_eq!(timers.next_deadline(), None);
    timers.apply(Fact::InputOpened, at(60));
    timers.apply(Fact::InputClosed, at(900));
    assert_eq!(timers.next_deadline(), None);
    timers.apply(Fact::InputClosed, at(1_000));
    // 70 ms of tool_idle were left when the first input opened.
    assert_eq!(timers.expired(at(1_070)), Some(DeadlineKind::ToolIdle));
    assert_eq!(timers.expired(at(1_069)), None);
}

#[test]
fn total_counts_from_the_start_whatever_the_attempt_waits_for() {
    let total = Some(Duration::from_millis(500));
    let mut timers = Timers::new(Deadlines {
        total,
        ..Deadlines::default()
    });
    entered(
        &mut timers,
        &[(OncePhase::Started, 0), (OncePhase::FirstEventSeen, 10)],
    );
    timers.apply(Fact::InputOpened, at(20));
    timers.hold_back(true, at(30));
    assert_eq!(timers.expired(at(499)), None);
    assert_eq!(timers.expired(at(500)), Some(DeadlineKind::Total));
}

#[test]
fn a_slow_relay_does_not_count_as_a_silent_agent() {
    let mut timers = Timers::new(all(100));
    entered(&mut timers, &[(OncePhase::FirstVisibleEventSeen, 0)]);
    timers.hold_back(true, at(40));
    assert_eq!(timers.next_deadline(), None);
    timers.hold_back(false, at(5_000));
    assert_eq!(timers.next_deadline(), Some(at(5_060)));
}
