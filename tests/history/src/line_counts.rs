//! Counts the lines of a history by kind, and compares the counts with the run's required
//! minimums.

use std::collections::BTreeMap;

use crate::history::History;
use crate::history_line::{CallOutcome, ClientOperation, Observation};
use crate::verdict::RuleViolation;

pub(crate) type NamedCounts = BTreeMap<String, u64>;

/// Rejection codes of a fence: the frame was sent for an attempt that is no longer leased to
/// its sender, or never was.
const FENCE_CODES: [&str; 6] = [
    "stale_attempt",
    "unknown_attempt",
    "task_terminal",
    "not_leased",
    "bad_proof",
    "stale_incarnation",
];

/// Counts each kind of line under its name.
pub(crate) fn count_lines(history: &History) -> NamedCounts {
    let mut counts = NamedCounts::new();
    let mut add = |name: &str| *counts.entry(name.to_owned()).or_default() += 1;
    for client_call in history.calls() {
        let answer = client_call.answer.map(|located| &located.line.observation);
        match (client_call.operation, answer) {
            (_, None)
            | (
                _,
                Some(Observation::Answer {
                    outcome: CallOutcome::Info,
                    ..
                }),
            ) => add("unknown outcomes"),
            (
                op,
                Some(Observation::Answer {
                    outcome, already, ..
                }),
            ) => add(call_count_name(op, *outcome, *already)),
            (_, Some(_)) => {}
        }
    }
    for located in &history.located_lines {
        match &located.line.observation {
            Observation::WatchOpened { after, .. } if *after > 0 => add("watches resumed"),
            Observation::WatchOpened { .. } => add("watches"),
            Observation::Watched { .. } => add("watched events"),
            Observation::Offered { .. } => add("offers"),
            Observation::Granted { .. } => add("leases granted to agents"),
            Observation::Confirmed { .. } => add("confirmations"),
            Observation::Sent { .. } => add("ends reported by daemons"),
            Observation::Refused { code, .. } if FENCE_CODES.contains(&code.as_str()) => {
                add("fenced frames")
            }
            Observation::Refused { .. } => add("refused frames"),
            Observation::Began { .. } => add("processes"),
            Observation::Wrote { .. } => add("written pieces"),
            Observation::ReadEnd { .. } => add("outputs read"),
            Observation::ReadCut { .. } => add("output cuts"),
            Observation::Record { state, .. } => {
                add("records");
                add(&format!("tasks {state}"));
            }
            Observation::Timeline { event, .. } => match event.kind.as_str() {
                "late_terminal" => add("late ends recorded"),
                "adopted_late" => add("late results adopted"),
                "ended" if event.state == "lost" => add("lost attempts"),
                _ => {}
            },
            Observation::Fault { fault, .. } => add(&format!("fault: {fault}")),
            Observation::Call { .. }
            | Observation::Made { .. }
            | Observation::Goal { .. }
            | Observation::Answer { .. }
            | Observation::Acked { .. }
            | Observation::Ended { .. }
            | Observation::Read { .. }
            | Observation::Removed { .. }
            | Observation::Least { .. } => {}
        }
    }
    counts
}

fn call_count_name(op: ClientOperation, outcome: CallOutcome, already: bool) -> &'static str {
    match (op, outcome) {
        (ClientOperation::Submit, CallOutcome::Ok) if already => "submits repeated",
        (ClientOperation::Submit, CallOutcome::Ok) => "submits acknowledged",
        (ClientOperation::Cancel, CallOutcome::Ok) if already => "cancels of finished tasks",
        (ClientOperation::Cancel, CallOutcome::Ok) => "cancels acknowledged",
        (ClientOperation::Force, CallOutcome::Ok) => "operator commands acknowledged",
        (ClientOperation::Block, CallOutcome::Ok) => "blocks acknowledged",
        (ClientOperation::Resume, CallOutcome::Ok) => "resumes acknowledged",
        (ClientOperation::PickUp, CallOutcome::Ok) => "pick-ups acknowledged",
        (ClientOperation::Resume | ClientOperation::PickUp, CallOutcome::Fail) => {
            "hand-offs rejected"
        }
        (ClientOperation::Progress, CallOutcome::Ok) => "progress acknowledged",
        (ClientOperation::Checkpoint, CallOutcome::Ok) => "checkpoints acknowledged",
        (ClientOperation::Get, CallOutcome::Ok) => "reads",
        (ClientOperation::Probe, _) => "probes of another tenant",
        (
            ClientOperation::Submit
            | ClientOperation::Cancel
            | ClientOperation::Force
            | ClientOperation::Block
            | ClientOperation::Resume
            | ClientOperation::PickUp
            | ClientOperation::Progress
            | ClientOperation::Checkpoint
            | ClientOperation::Get,
            CallOutcome::Fail | CallOutcome::Info,
        ) => "refused calls",
    }
}

/// Checks the minimums that the history itself requires.
pub(crate) fn find_unmet_minimums(history: &History, counts: &NamedCounts) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for located in &history.located_lines {
        let Observation::Least { count, least } = &located.line.observation else {
            continue;
        };
        let had = counts.get(count).copied().unwrap_or(0);
        if had < *least {
            let what = format!("{had} {count}, but at least {least} are required");
            found.push(RuleViolation::new("vacuous", "", what, &[located]));
        }
    }
    found
}
