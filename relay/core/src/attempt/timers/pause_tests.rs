//! The last column of the table: who stands still, and that what was left is left afterwards.

use super::timer_set_tests::*;
use super::*;
use crate::record::LifecyclePhase;
use crate::time::MonotonicTime;

const HOUR: u64 = 3_600_000;

/// Arms `key` at 0, lets 1 s run, pauses, waits for an hour, resumes: it must fire an hour later than before.
fn keeps_what_was_left(
    mut bench: TimerSetFixture,
    key: TimerKey,
    pause: TimerFact,
    resume: TimerFact,
) {
    let before = bench
        .fires_at_ms(&key)
        .expect("armed and running before the pause");
    bench.apply_fact(1_000, pause);
    assert_eq!(bench.fires_at_ms(&key), None, "{key:?} ran on");
    let mut due = bench.set.clone();
    while let Some(fired) = due.take_due(MonotonicTime(1_000 + HOUR)) {
        assert_ne!(fired, key);
    }
    bench.apply_fact(1_000 + HOUR, resume);
    assert_eq!(bench.fires_at_ms(&key), Some(before + HOUR), "{key:?}");
}

/// While `pause` lasts, `key` runs on and fires when it would have.
fn runs_on(mut bench: TimerSetFixture, key: TimerKey, pause: TimerFact) {
    let before = bench.fires_at_ms(&key).expect("armed and running");
    bench.apply_fact(1_000, pause);
    assert_eq!(bench.fires_at_ms(&key), Some(before), "{key:?}");
}

#[test]
fn queue_stands_still_while_paused_even_if_it_was_queued_then() {
    let mut bench = TimerSetFixture::new();
    bench.apply_fact(0, TimerFact::Queued);
    keeps_what_was_left(
        bench,
        TimerKey::Queue,
        TimerFact::Paused,
        TimerFact::Unpaused,
    );
    let mut bench = TimerSetFixture::new();
    bench
        .apply_fact(0, TimerFact::Paused)
        .apply_fact(5, TimerFact::Queued);
    assert_eq!(bench.set.next_due_at(), None);
    bench.apply_fact(HOUR, TimerFact::Unpaused);
    assert_eq!(bench.fires_at_ms(&TimerKey::Queue), Some(HOUR + 86_400_000));
}

#[test]
fn first_visible_event_stands_still_while_a_person_is_asked() {
    let bench = TimerSetFixture::at_phase(LifecyclePhase::PromptWritten);
    let (ask, close) = (
        TimerFact::InputAsked(input(1)),
        TimerFact::InputClosed(input(1)),
    );
    keeps_what_was_left(bench, TimerKey::FirstVisibleEvent, ask, close);
}

#[test]
fn stream_idle_stands_still_while_a_person_is_asked() {
    let bench = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    let (ask, close) = (
        TimerFact::InputAsked(input(1)),
        TimerFact::InputClosed(input(1)),
    );
    keeps_what_was_left(bench, TimerKey::StreamIdle, ask, close);
}

#[test]
fn stream_idle_stands_still_while_a_tool_runs_and_its_end_is_news() {
    let mut bench = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    bench.apply_fact(1_000, TimerFact::ToolStarted(tool("a")));
    bench.apply_fact(1_500, TimerFact::ToolStarted(tool("b")));
    bench.apply_fact(HOUR, TimerFact::ToolFinished(tool("a")));
    assert_eq!(bench.fires_at_ms(&TimerKey::StreamIdle), None);
    // A tool's edges are phases of the agent, so the timer starts over with the last one.
    bench.apply_fact(2 * HOUR, TimerFact::ToolFinished(tool("b")));
    assert_eq!(
        bench.fires_at_ms(&TimerKey::StreamIdle),
        Some(2 * HOUR + 122_000)
    );
}

#[test]
fn tool_idle_stands_still_while_a_person_is_asked() {
    let mut bench = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
    bench.apply_fact(0, TimerFact::ToolStarted(tool("a")));
    let key = TimerKey::ToolIdle(tool("a"));
    let (ask, close) = (
        TimerFact::InputAsked(input(1)),
        TimerFact::InputClosed(input(1)),
    );
    keeps_what_was_left(bench, key, ask, close);
}

#[test]
fn a_tool_that_starts_or_speaks_during_a_question_has_its_full_time_after_it() {
    let mut bench = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
    bench.apply_fact(0, TimerFact::ToolStarted(tool("old")));
    bench.apply_fact(100_000, TimerFact::InputAsked(input(1)));
    bench.apply_fact(100_000, TimerFact::ToolStarted(tool("new")));
    bench.apply_fact(
        200_000,
        TimerFact::Output {
            tool: Some(tool("old")),
        },
    );
    bench.apply_fact(HOUR, TimerFact::InputClosed(input(1)));
    for name in ["old", "new"] {
        let fires = bench.fires_at_ms(&TimerKey::ToolIdle(tool(name)));
        assert_eq!(fires, Some(HOUR + 302_000), "{name}");
    }
}

#[test]
fn two_questions_pause_until_both_are_closed_and_an_answer_alone_does_not_resume() {
    let mut bench = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    bench.apply_fact(1_000, TimerFact::InputAsked(input(1)));
    bench.apply_fact(2_000, TimerFact::InputAsked(input(2)));
    bench.apply_fact(3_000, TimerFact::InputAnswered(input(1)));
    assert!(!bench.set.is_armed(&TimerKey::UserInput(input(1))));
    bench.apply_fact(4_000, TimerFact::InputClosed(input(1)));
    bench.apply_fact(5_000, TimerFact::InputAnswered(input(2)));
    assert_eq!(bench.fires_at_ms(&TimerKey::StreamIdle), None);
    bench.apply_fact(11_000, TimerFact::InputClosed(input(2)));
    assert_eq!(
        bench.fires_at_ms(&TimerKey::StreamIdle),
        Some(122_000 + 10_000)
    );
}

#[test]
fn a_question_inside_a_tool_resumes_to_the_tool_not_to_the_stream() {
    let mut bench = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    bench.apply_fact(0, TimerFact::ToolStarted(tool("a")));
    bench.apply_fact(1_000, TimerFact::InputAsked(input(1)));
    bench.apply_fact(51_000, TimerFact::InputClosed(input(1)));
    assert_eq!(
        bench.fires_at_ms(&TimerKey::ToolIdle(tool("a"))),
        Some(352_000)
    );
    assert_eq!(bench.fires_at_ms(&TimerKey::StreamIdle), None);
}

#[test]
fn the_other_timers_never_stand_still() {
    let ask = || TimerFact::InputAsked(input(7));
    let everything = || vec![ask(), TimerFact::ToolStarted(tool("t")), TimerFact::Paused];
    for pause in everything() {
        let confirmed = || TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
        runs_on(confirmed(), TimerKey::Total, pause.clone());
        runs_on(confirmed(), TimerKey::Lease, pause.clone());
        let mut asked = confirmed();
        asked.apply_fact(0, TimerFact::InputAsked(input(1)));
        runs_on(asked, TimerKey::UserInput(input(1)), pause.clone());
        let mut killed = confirmed();
        killed.apply_fact(0, TimerFact::CancelSent);
        runs_on(killed, TimerKey::CleanupTerm, pause);
    }
    // The phases before the first event end with a tool or a question, so only a pause of the task can meet them.
    let mut offered = TimerSetFixture::new();
    offered.apply_fact(0, TimerFact::Offered);
    runs_on(offered, TimerKey::Accept, TimerFact::Paused);
    for (phase, key) in [
        (LifecyclePhase::Started, TimerKey::ProcessStart),
        (LifecyclePhase::AgentStarted, TimerKey::PromptWrite),
        (LifecyclePhase::PromptWritten, TimerKey::FirstEvent),
        (LifecyclePhase::PromptWritten, TimerKey::FirstVisibleEvent),
        (LifecyclePhase::FirstEventSeen, TimerKey::StreamIdle),
    ] {
        runs_on(TimerSetFixture::at_phase(phase), key, TimerFact::Paused);
    }
}
