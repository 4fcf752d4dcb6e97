//! How inputs, writes and messages look in a trace: short, and the same for the same seed.

use baton_core::effects::Write;
use baton_core::input::Input;

pub(crate) fn shown(input: &Input) -> String {
    match input {
        Input::Frame(frame) => format!(
            "relay <- frame {} of {} {:?}",
            frame.control_seq, frame.re.attempt, frame.body
        ),
        Input::Heartbeat { session, heartbeat } => {
            let named: Vec<_> = heartbeat.renewals.iter().map(|(a, _)| *a).collect();
            format!(
                "relay <- heartbeat {} on {session} {named:?}",
                heartbeat.seq
            )
        }
        Input::SessionOpened { session, hello } => {
            let active: Vec<_> = hello
                .active
                .iter()
                .map(|a| (a.re.attempt, a.state, a.control_seq))
                .collect();
            format!(
                "relay <- hello on {session} of {} boot {} {active:?}",
                hello.name, hello.boot_id
            )
        }
        other => format!("relay <- {}", short(&format!("{other:?}"))),
    }
}

pub(crate) fn shown_write(write: &Write) -> String {
    match write {
        Write::PutLive(r) | Write::PutDone(r) | Write::Reopen(r) => {
            let attempts: Vec<_> = r
                .attempts
                .iter()
                .map(|a| (a.id, a.state.name().as_str(), a.control_seq))
                .collect();
            format!(
                "   write {} r{} {} {attempts:?}",
                r.task,
                r.revision,
                r.state.as_str()
            )
        }
        other => format!("   write {}", short(&format!("{other:?}"))),
    }
}

pub(crate) fn short(text: &str) -> &str {
    text.char_indices()
        .nth(180)
        .map_or(text, |(at, _)| &text[..at])
}
