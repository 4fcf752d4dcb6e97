//! The last column of the table: who stands still, and that what was left is left afterwards.

use super::set_tests::*;
use super::*;
use crate::record::Phase;
use crate::time::Moment;

const HOUR: u64 = 3_600_000;

/// Arms `key` at 0, lets 1 s run, pauses, waits for an hour, resumes: it must fire an hour later than before.
fn keeps_what_was_left(mut bench: Bench, key: TimerKey, pause: Fact, resume: Fact) {
    let before = bench
        .fires(&key)
        .expect("armed and running before the pause");
    bench.tell(1_000, pause);
    assert_eq!(bench.fires(&key), None, "{key:?} ran on");
    let mut due = bench.set.clone();
    while let Some(fired) = due.take_due(Moment(1_000 + HOUR)) {
        assert_ne!(fired, key);
    }
    bench.tell(1_000 + HOUR, resume);
    assert_eq!(bench.fires(&key), Some(before + HOUR), "{key:?}");
}

/// While `pause` lasts, `key` runs on and fires when it would have.
fn runs_on(mut bench: Bench, key: TimerKey, pause: Fact) {
    let before = bench.fires(&key).expect("armed and running");
    bench.tell(1_000, pause);
    assert_eq!(bench.fires(&key), Some(before), "{key:?}");
}

#[test]
fn queue_stands_still_while_paused_even_if_it_was_queued_then() {
    let mut bench = Bench::new();
    bench.tell(0, Fact::Queued);
    keeps_what_was_left(bench, TimerKey::Queue, Fact::Paused, Fact::Unpaused);
    let mut bench = Bench::new();
    bench.tell(0, Fact::Paused).tell(5, Fact::Queued);
    assert_eq!(bench.set.next(), None);
    bench.tell(HOUR, Fact::Unpaused);
    assert_eq!(bench.fires(&TimerKey::Queue), Some(HOUR + 86_400_000));
}

#[test]
fn first_visible_event_stands_still_while_a_person_is_asked() {
    let bench = Bench::at_phase(Phase::PromptWritten);
    let (ask, close) = (Fact::InputAsked(input(1)), Fact::InputClosed(input(1)));
    keeps_what_was_left(bench, TimerKey::FirstVisibleEvent, ask, close);
}

#[test]
fn stream_idle_stands_still_while_a_person_is_asked() {
    let bench = Bench::at_phase(Phase::FirstVisibleEventSeen);
    let (ask, close) = (Fact::InputAsked(input(1)), Fact::InputClosed(input(1)));
    keeps_what_was_left(bench, TimerKey::StreamIdle, ask, close);
}

#[test]
fn stream_idle_stands_still_while_a_tool_runs_and_its_end_is_news() {
    let mut bench = Bench::at_phase(Phase::FirstVisibleEventSeen);
    bench.tell(1_000, Fact::ToolStarted(tool("a")));
    bench.tell(1_500, Fact::ToolStarted(tool("b")));
    bench.tell(HOUR, Fact::ToolFinished(tool("a")));
    assert_eq!(bench.fires(&TimerKey::StreamIdle), None);
    // A tool's edges are phases of the agent, so the timer starts over with the last one.
    bench.tell(2 * HOUR, Fact::ToolFinished(tool("b")));
    assert_eq!(bench.fires(&TimerKey::StreamIdle), Some(2 * HOUR + 122_000));
}

#[test]
fn tool_idle_stands_still_while_a_person_is_asked() {
    let mut bench = Bench::at_phase(Phase::FirstEventSeen);
    bench.tell(0, Fact::ToolStarted(tool("a")));
    let key = TimerKey::ToolIdle(tool("a"));
    let (ask, close) = (Fact::InputAsked(input(1)), Fact::InputClosed(input(1)));
    keeps_what_was_left(bench, key, ask, close);
}

#[test]
fn a_tool_that_starts_or_speaks_during_a_question_has_its_full_time_after_it() {
    let mut bench = Bench::at_phase(Phase::FirstEventSeen);
    bench.tell(0, Fact::ToolStarted(tool("old")));
    bench.tell(100_000, Fact::InputAsked(input(1)));
    bench.tell(100_000, Fact::ToolStarted(tool("new")));
    bench.tell(
        200_000,
        Fact::Output {
            tool: Some(tool("old")),
        },
    );
    bench.tell(HOUR, Fact::InputClosed(input(1)));
    for name in ["old", "new"] {
        let fires = bench.fires(&TimerKey::ToolIdle(tool(name)));
        assert_eq!(fires, Some(HOUR + 302_000), "{name}");
    }
}

#[test]
fn two_questions_pause_until_both_are_closed_and_an_answer_alone_does_not_resume() {
    let mut bench = Bench::at_phase(Phase::FirstVisibleEventSeen);
    bench.tell(1_000, Fact::InputAsked(input(1)));
    bench.tell(2_000, Fact::InputAsked(input(2)));
    bench.tell(3_000, Fact::InputAnswered(input(1)));
    assert!(!bench.set.is_armed(&TimerKey::UserInput(input(1))));
    bench.tell(4_000, Fact::InputClosed(input(1)));
    bench.tell(5_000, Fact::InputAnswered(input(2)));
    assert_eq!(bench.fires(&TimerKey::StreamIdle), None);
    bench.tell(11_000, Fact::InputClosed(input(2)));
    assert_eq!(bench.fires(&TimerKey::StreamIdle), Some(122_000 + 10_000));
}

#[test]
fn a_question_inside_a_tool_resumes_to_the_tool_not_to_the_stream() {
    let mut bench = Bench::at_phase(Phase::FirstVisibleEventSeen);
    bench.tell(0, Fact::ToolStarted(tool("a")));
    bench.tell(1_000, Fact::InputAsked(input(1)));
    bench.tell(51_000, Fact::InputClosed(input(1)));
    assert_eq!(bench.fires(&TimerKey::ToolIdle(tool("a"))), Some(352_000));
    assert_eq!(bench.fires(&TimerKey::StreamIdle), None);
}

#[test]
fn the_other_timers_never_stand_still() {
    let ask = || Fact::InputAsked(input(7));
    let everything = || vec![ask(), Fact::ToolStarted(tool("t")), Fact::Paused];
    for pause in everything() {
        let confirmed = || Bench::at_phase(Phase::FirstVisibleEventSeen);
        runs_on(confirmed(), TimerKey::Total, pause.clone());
        runs_on(confirmed(), TimerKey::Lease, pause.clone());
        let mut asked = confirmed();
        asked.tell(0, Fact::InputAsked(input(1)));
        runs_on(asked, TimerKey::UserInput(input(1)), pause.clone());
        let mut killed = confirmed();
        killed.tell(0, Fact::CancelSent);
        runs_on(killed, TimerKey::CleanupTerm, pause);
    }
    // The phases before the first event end with a tool or a question, so only a pause of the task can meet them.
    let mut offered = Bench::new();
    offered.tell(0, Fact::Offered);
    runs_on(offered, TimerKey::Accept, Fact::Paused);
    for (phase, key) in [
        (Phase::Started, TimerKey::ProcessStart),
        (Phase::AgentStarted, TimerKey::PromptWrite),
        (Phase::PromptWritten, TimerKey::FirstEvent),
        (Phase::PromptWritten, TimerKey::FirstVisibleEvent),
        (Phase::FirstEventSeen, TimerKey::StreamIdle),
    ] {
        runs_on(Bench::at_phase(phase), key, Fact::Paused);
    }
}
