//! Text of inputs, writes and messages in a trace: short, and the same for the same seed.

use baton_core::io::command::CoreInput;
use baton_core::io::effects::RecordChange;
use baton_core::io::session_input::SessionInput;

pub(crate) fn describe_input(input: &CoreInput) -> String {
    match input {
        CoreInput::Session(SessionInput::Frame(frame)) => format!(
            "relay <- frame {} of {} {:?}",
            frame.control_seq, frame.frame_ref.attempt, frame.body
        ),
        CoreInput::Session(SessionInput::Heartbeat { session, heartbeat }) => {
            let named: Vec<_> = heartbeat.renewals.iter().map(|(a, _)| *a).collect();
            format!(
                "relay <- heartbeat {} on {session} {named:?}",
                heartbeat.seq
            )
        }
        CoreInput::Session(SessionInput::Opened { session, hello }) => {
            let active: Vec<_> = hello
                .active
                .iter()
                .map(|a| (a.frame_ref.attempt, a.state, a.control_seq))
                .collect();
            format!(
                "relay <- hello on {session} of {} boot {} {active:?}",
                hello.name, hello.boot_id
            )
        }
        other => format!("relay <- {}", truncate_text(&format!("{other:?}"))),
    }
}

pub(crate) fn describe_change(write: &RecordChange) -> String {
    match write {
        RecordChange::PutLive(r) | RecordChange::PutDone(r) | RecordChange::Reopen(r) => {
            let attempts: Vec<_> = r
                .attempts
                .iter()
                .map(|a| (a.id, a.state.kind().as_str(), a.control_seq))
                .collect();
            format!(
                "   write {} r{} {} {attempts:?}",
                r.task,
                r.revision,
                r.state.as_str()
            )
        }
        other => format!("   write {}", truncate_text(&format!("{other:?}"))),
    }
}

pub(crate) fn truncate_text(text: &str) -> &str {
    text.char_indices()
        .nth(180)
        .map_or(text, |(at, _)| &text[..at])
}
