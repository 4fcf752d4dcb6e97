//! The last column of the table: which timers pause, and that a pause keeps the remaining time.

use super::timer_set_tests::*;
use super::*;
use crate::record::LifecyclePhase;
use crate::time::MonotonicTime;

const HOUR: u64 = 3_600_000;

/// Pauses `key` 1 s after it was armed and resumes it an hour later: it must fire an hour later
/// than before.
fn assert_keeps_remaining_time(
    mut fixture: TimerSetFixture,
    key: TimerKey,
    pause: TimerFact,
    resume: TimerFact,
) {
    let before = fixture
        .fires_at_ms(&key)
        .expect("armed and running before the pause");
    fixture.apply_fact(1_000, pause);
    assert_eq!(fixture.fires_at_ms(&key), None, "{key:?} was not paused");
    let mut due = fixture.set.clone();
    while let Some(fired) = due.take_due(MonotonicTime(1_000 + HOUR)) {
        assert_ne!(fired, key);
    }
    fixture.apply_fact(1_000 + HOUR, resume);
    assert_eq!(fixture.fires_at_ms(&key), Some(before + HOUR), "{key:?}");
}

/// Asserts that `pause` does not change when `key` fires.
fn assert_keeps_running(mut fixture: TimerSetFixture, key: TimerKey, pause: TimerFact) {
    let before = fixture.fires_at_ms(&key).expect("armed and running");
    fixture.apply_fact(1_000, pause);
    assert_eq!(fixture.fires_at_ms(&key), Some(before), "{key:?}");
}

#[test]
fn the_queue_timer_is_paused_while_the_task_is_paused() {
    let mut fixture = TimerSetFixture::new();
    fixture.apply_fact(0, TimerFact::Queued);
    assert_keeps_remaining_time(
        fixture,
        TimerKey::Queue,
        TimerFact::Paused,
        TimerFact::Unpaused,
    );
    let mut fixture = TimerSetFixture::new();
    fixture
        .apply_fact(0, TimerFact::Paused)
        .apply_fact(5, TimerFact::Queued);
    assert_eq!(fixture.set.next_due_at(), None);
    fixture.apply_fact(HOUR, TimerFact::Unpaused);
    assert_eq!(
        fixture.fires_at_ms(&TimerKey::Queue),
        Some(HOUR + 86_400_000)
    );
}

#[test]
fn first_visible_event_is_paused_while_an_input_is_open() {
    let fixture = TimerSetFixture::at_phase(LifecyclePhase::PromptWritten);
    let (ask, close) = (
        TimerFact::InputAsked(input(1)),
        TimerFact::InputClosed(input(1)),
    );
    assert_keeps_remaining_time(fixture, TimerKey::FirstVisibleEvent, ask, close);
}

#[test]
fn stream_idle_is_paused_while_an_input_is_open() {
    let fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    let (ask, close) = (
        TimerFact::InputAsked(input(1)),
        TimerFact::InputClosed(input(1)),
    );
    assert_keeps_remaining_time(fixture, TimerKey::StreamIdle, ask, close);
}

#[test]
fn stream_idle_is_paused_during_a_tool_and_restarts_after_it() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    fixture.apply_fact(1_000, TimerFact::ToolStarted(tool("a")));
    fixture.apply_fact(1_500, TimerFact::ToolStarted(tool("b")));
    fixture.apply_fact(HOUR, TimerFact::ToolFinished(tool("a")));
    assert_eq!(fixture.fires_at_ms(&TimerKey::StreamIdle), None);
    // The start and finish of a tool count as activity, so the timer restarts at the last one.
    fixture.apply_fact(2 * HOUR, TimerFact::ToolFinished(tool("b")));
    assert_eq!(
        fixture.fires_at_ms(&TimerKey::StreamIdle),
        Some(2 * HOUR + 122_000)
    );
}

#[test]
fn tool_idle_is_paused_while_an_input_is_open() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
    fixture.apply_fact(0, TimerFact::ToolStarted(tool("a")));
    let key = TimerKey::ToolIdle(tool("a"));
    let (ask, close) = (
        TimerFact::InputAsked(input(1)),
        TimerFact::InputClosed(input(1)),
    );
    assert_keeps_remaining_time(fixture, key, ask, close);
}

#[test]
fn a_tool_active_during_an_input_has_its_full_time_after_it() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
    fixture.apply_fact(0, TimerFact::ToolStarted(tool("old")));
    fixture.apply_fact(100_000, TimerFact::InputAsked(input(1)));
    fixture.apply_fact(100_000, TimerFact::ToolStarted(tool("new")));
    fixture.apply_fact(
        200_000,
        TimerFact::Output {
            tool: Some(tool("old")),
        },
    );
    fixture.apply_fact(HOUR, TimerFact::InputClosed(input(1)));
    for name in ["old", "new"] {
        let fires = fixture.fires_at_ms(&TimerKey::ToolIdle(tool(name)));
        assert_eq!(fires, Some(HOUR + 302_000), "{name}");
    }
}

#[test]
fn timers_resume_only_after_every_input_is_closed() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    fixture.apply_fact(1_000, TimerFact::InputAsked(input(1)));
    fixture.apply_fact(2_000, TimerFact::InputAsked(input(2)));
    fixture.apply_fact(3_000, TimerFact::InputAnswered(input(1)));
    assert!(!fixture.set.is_armed(&TimerKey::UserInput(input(1))));
    fixture.apply_fact(4_000, TimerFact::InputClosed(input(1)));
    fixture.apply_fact(5_000, TimerFact::InputAnswered(input(2)));
    assert_eq!(fixture.fires_at_ms(&TimerKey::StreamIdle), None);
    fixture.apply_fact(11_000, TimerFact::InputClosed(input(2)));
    assert_eq!(
        fixture.fires_at_ms(&TimerKey::StreamIdle),
        Some(122_000 + 10_000)
    );
}

#[test]
fn stream_idle_stays_paused_after_an_input_during_a_tool() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    fixture.apply_fact(0, TimerFact::ToolStarted(tool("a")));
    fixture.apply_fact(1_000, TimerFact::InputAsked(input(1)));
    fixture.apply_fact(51_000, TimerFact::InputClosed(input(1)));
    assert_eq!(
        fixture.fires_at_ms(&TimerKey::ToolIdle(tool("a"))),
        Some(352_000)
    );
    assert_eq!(fixture.fires_at_ms(&TimerKey::StreamIdle), None);
}

#[test]
fn the_other_timers_are_never_paused() {
    let ask = || TimerFact::InputAsked(input(7));
    let everything = || vec![ask(), TimerFact::ToolStarted(tool("t")), TimerFact::Paused];
    for pause in everything() {
        let confirmed = || TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
        assert_keeps_running(confirmed(), TimerKey::Total, pause.clone());
        assert_keeps_running(confirmed(), TimerKey::Lease, pause.clone());
        let mut asked = confirmed();
        asked.apply_fact(0, TimerFact::InputAsked(input(1)));
        assert_keeps_running(asked, TimerKey::UserInput(input(1)), pause.clone());
        let mut killed = confirmed();
        killed.apply_fact(0, TimerFact::CancelSent);
        assert_keeps_running(killed, TimerKey::CleanupTerm, pause);
    }
    // A tool call or a question ends the phases before the first event, so only a pause of the
    // task can overlap with them.
    let mut offered = TimerSetFixture::new();
    offered.apply_fact(0, TimerFact::Offered);
    assert_keeps_running(offered, TimerKey::Accept, TimerFact::Paused);
    for (phase, key) in [
        (LifecyclePhase::Started, TimerKey::ProcessStart),
        (LifecyclePhase::AgentStarted, TimerKey::PromptWrite),
        (LifecyclePhase::PromptWritten, TimerKey::FirstEvent),
        (LifecyclePhase::PromptWritten, TimerKey::FirstVisibleEvent),
        (LifecyclePhase::FirstEventSeen, TimerKey::StreamIdle),
    ] {
        assert_keeps_running(TimerSetFixture::at_phase(phase), key, TimerFact::Paused);
    }
}
