//! Tasks, attempts and events as single lines for people. Text from the relay is sanitized.

use baton_proto::v1::{
    Attempt, AttemptState, LifecyclePhase, Task, TaskEvent, TaskEventKind, TaskState, WaitsFor,
};
use baton_proto::{ShortName, short_name_of};
use prost_types::Timestamp;

use crate::args::duration;
use crate::render::sanitizer::one_line;
use crate::render::style::{TextStyle, TextTone};

pub(crate) fn state_tone(state: TaskState) -> TextTone {
    match state {
        TaskState::Completed => TextTone::Good,
        TaskState::Failed | TaskState::TimedOut | TaskState::Lost => TextTone::Bad,
        TaskState::NeedsAttention | TaskState::Canceled => TextTone::Caution,
        TaskState::Unspecified | TaskState::Pending | TaskState::Queued | TaskState::Running => {
            TextTone::Quiet
        }
    }
}

/// `3m 05s`; empty without a timestamp.
pub(crate) fn age(at: Option<&Timestamp>, now_ms: u64) -> String {
    at.map(|at| duration::format_short(now_ms.saturating_sub(unix_ms(at))))
        .unwrap_or_default()
}

pub(crate) fn unix_ms(at: &Timestamp) -> u64 {
    let ms = at.seconds.saturating_mul(1000) + i64::from(at.nanos / 1_000_000);
    u64::try_from(ms).unwrap_or(0)
}

/// `16:04:05.250` in UTC.
pub(crate) fn time_of_day(at: Option<&Timestamp>) -> String {
    let Some(at) = at else {
        return String::new();
    };
    let ms = unix_ms(at);
    let seconds = ms / 1000 % 86_400;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!(
        "{hours:02}:{minutes:02}:{:02}.{:03}",
        seconds % 60,
        ms % 1000
    )
}

/// The goal of a task, else the beginning of its prompt or command.
pub(crate) fn task_description(task: &Task) -> String {
    match task.goal.as_str() {
        "" => one_line(&task.about),
        goal => one_line(goal),
    }
}

/// One event as a line of `watch`.
pub(crate) fn event_line(event: &TaskEvent, style: TextStyle) -> String {
    let time = style.paint(TextTone::Quiet, &time_of_day(event.recorded_at.as_ref()));
    let mut words = vec![time, short_name_of::<TaskEventKind>(event.kind)];
    if event.attempt_number > 0 {
        words.push(format!("attempt {}", event.attempt_number));
    }
    let phase =
        event.kind() == TaskEventKind::Phase && event.phase() != LifecyclePhase::Unspecified;
    if phase {
        words.push(short_name_of::<LifecyclePhase>(event.phase));
    } else if event.state() != AttemptState::Unspecified {
        words.push(short_name_of::<AttemptState>(event.state));
    }
    let task_state = style.paint(
        state_tone(event.task_state()),
        event.task_state().short_name(),
    );
    words.push(format!("[{task_state}]"));
    words.extend(event_details(event));
    words.join("  ")
}

fn event_details(event: &TaskEvent) -> Vec<String> {
    let texts = [
        &event.failure_code,
        &event.message,
        &event.tool_name,
        &event.reason,
        &event.detail,
    ];
    let mut details: Vec<String> = texts
        .into_iter()
        .filter(|text| !text.is_empty())
        .map(|text| one_line(text))
        .collect();
    if event.kind() == TaskEventKind::Forced {
        details.push(format!("by {}", one_line(&event.principal)));
    }
    if let Some(cut) = &event.cut {
        details.push(format!("{} bytes", cut.length));
    }
    details
}

/// The lines of `--wait`: one for each change, without repetitions.
#[derive(Debug, Default)]
pub(crate) struct ChangeLines {
    last_line: String,
}

impl ChangeLines {
    pub(crate) fn next_line(&mut self, event: &TaskEvent, style: TextStyle) -> Option<String> {
        let line = change_line(event, style);
        (self.last_line != line).then(|| {
            self.last_line.clone_from(&line);
            line
        })
    }
}

fn change_line(event: &TaskEvent, style: TextStyle) -> String {
    let task = style.paint(
        state_tone(event.task_state()),
        event.task_state().short_name(),
    );
    match event.kind() {
        TaskEventKind::Paused => return format!("{task}, paused: {}", one_line(&event.reason)),
        TaskEventKind::Unpaused => return format!("{task}, no longer paused"),
        _of_an_attempt => {}
    }
    let waiting = matches!(
        event.state(),
        AttemptState::Unspecified | AttemptState::Queued
    );
    if event.attempt_number == 0 || waiting {
        return task;
    }
    let mut line = format!(
        "{task}: attempt {} {}",
        event.attempt_number,
        event.state().short_name()
    );
    for detail in event_details(event) {
        line.push_str(", ");
        line.push_str(&detail);
    }
    line
}

/// The state of a task with its duration and reason, in one line.
pub(crate) fn ending_line(task: &Task, style: TextStyle) -> String {
    let state = style.paint(state_tone(task.state()), task.state().short_name());
    let took = match (&task.created_at, &task.ended_at) {
        (Some(from), Some(to)) => {
            format!(
                " after {}",
                duration::format_short(unix_ms(to).saturating_sub(unix_ms(from)))
            )
        }
        (None | Some(_), None | Some(_)) => String::new(),
    };
    let why = reason_text(task)
        .map(|why| format!(": {why}"))
        .unwrap_or_default();
    format!("{state}{took}{why}")
}

/// What an open task waits for, and for how long: `inheritance, at most 23h 59m`.
pub(crate) fn wait_text(task: &Task, now_ms: u64) -> Option<String> {
    let waits = task.waits_for();
    if waits == WaitsFor::Unspecified {
        return None;
    }
    let left = task.waits_until.as_ref().map(|at| {
        let left = unix_ms(at).saturating_sub(now_ms);
        format!(", at most {}", duration::format_short(left))
    });
    Some(format!(
        "{}{}",
        waits.short_name(),
        left.unwrap_or_default()
    ))
}

/// What a person can do to let an open task continue: unpause it, or answer an input.
pub(crate) fn pending_action_text(task: &Task) -> Option<String> {
    let waits_for_answer = match task.state() {
        TaskState::Pending | TaskState::Queued => false,
        TaskState::Running => task.waits_for() == WaitsFor::Person,
        TaskState::Unspecified
        | TaskState::NeedsAttention
        | TaskState::Completed
        | TaskState::Failed
        | TaskState::Canceled
        | TaskState::TimedOut
        | TaskState::Lost => return None,
    };
    let mut parts = Vec::new();
    if waits_for_answer {
        parts.push("waiting for an answer: baton inbox".to_owned());
    }
    if task.paused {
        parts.push(format!("paused: {}", one_line(&task.pause_reason)));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Why a task is parked, or how its last attempt failed.
pub(crate) fn reason_text(task: &Task) -> Option<String> {
    if let Some(attention) = &task.attention {
        let cause = attention.cause().short_name();
        let reason = one_line(&attention.reason);
        return Some(if reason.is_empty() {
            cause.to_owned()
        } else {
            format!("{cause}, {reason}")
        });
    }
    let failed = |attempt: &&Attempt| !attempt.failure_code.is_empty();
    let attempt = task.attempts.last().filter(failed)?;
    let message = if attempt.user_message.is_empty() {
        &attempt.message
    } else {
        &attempt.user_message
    };
    let code = one_line(&attempt.failure_code);
    Some(if message.is_empty() {
        code
    } else {
        format!("{code}, {}", one_line(message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style() -> TextStyle {
        // The stderr of a test may be a terminal; /dev/null is not one.
        TextStyle::for_stream(&std::fs::File::open("/dev/null").expect("/dev/null exists"))
    }

    #[test]
    fn a_progress_line_is_not_repeated() {
        let event = |state: AttemptState| TaskEvent {
            attempt_number: 1,
            state: state.into(),
            task_state: TaskState::Running.into(),
            ..TaskEvent::default()
        };
        let mut progress = ChangeLines::default();
        let first = progress.next_line(&event(AttemptState::Starting), style());
        assert_eq!(first.as_deref(), Some("running: attempt 1 starting"));
        assert_eq!(
            progress.next_line(&event(AttemptState::Starting), style()),
            None
        );
        assert!(
            progress
                .next_line(&event(AttemptState::Streaming), style())
                .is_some()
        );
    }

    #[test]
    fn an_open_task_shows_its_pause_and_its_open_input() {
        let task = |state: TaskState, waits: WaitsFor, paused: bool| Task {
            state: state.into(),
            waits_for: waits.into(),
            paused,
            pause_reason: if paused { "upgrade" } else { "" }.to_owned(),
            ..Task::default()
        };
        let (waits, asks) = (WaitsFor::Pause, WaitsFor::Person);
        let shown = |task: Task| pending_action_text(&task).unwrap_or_default();
        assert_eq!(
            shown(task(TaskState::Queued, waits, true)),
            "paused: upgrade"
        );
        let both = "waiting for an answer: baton inbox; paused: upgrade";
        assert_eq!(shown(task(TaskState::Running, asks, true)), both);
        assert_eq!(
            shown(task(TaskState::Running, WaitsFor::Unspecified, false)),
            ""
        );
        assert_eq!(
            shown(task(TaskState::Completed, WaitsFor::Unspecified, true)),
            ""
        );
        let event = TaskEvent {
            kind: TaskEventKind::Paused.into(),
            task_state: TaskState::Queued.into(),
            reason: "upgrade".to_owned(),
            ..TaskEvent::default()
        };
        let line = ChangeLines::default().next_line(&event, style());
        assert_eq!(line.as_deref(), Some("queued, paused: upgrade"));
    }

    #[test]
    fn an_ending_line_has_the_sanitized_cause() {
        let attempt = Attempt {
            failure_code: "agent_exit".to_owned(),
            message: "exit \u{1b}]0;x\u{7}code 3".to_owned(),
            ..Attempt::default()
        };
        let task = Task {
            state: TaskState::Failed.into(),
            created_at: Some(Timestamp {
                seconds: 10,
                nanos: 0,
            }),
            ended_at: Some(Timestamp {
                seconds: 11,
                nanos: 500_000_000,
            }),
            attempts: vec![attempt],
            ..Task::default()
        };
        assert_eq!(
            ending_line(&task, style()),
            "failed after 1.5s: agent_exit, exit code 3"
        );
    }

    #[test]
    fn times_are_shown_in_utc_to_the_millisecond() {
        let at = Timestamp {
            seconds: 86_400 + 3_661,
            nanos: 7_000_000,
        };
        assert_eq!(time_of_day(Some(&at)), "01:01:01.007");
        assert_eq!(age(Some(&at), unix_ms(&at) + 65_000), "1m 05s");
        assert_eq!(age(None, 5), "");
    }
}
