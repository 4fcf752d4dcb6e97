//! How much a history shows, and whether that is as much as its run promised to show.

use std::collections::BTreeMap;

use crate::history::History;
use crate::history_line::{CallOutcome, ClientOperation, Observation};
use crate::verdict::RuleViolation;

pub(crate) type NamedCounts = BTreeMap<String, u64>;

/// Codes of refusals that are a fence: the frame spoke for an attempt that has no say any more, or never had.
const FENCE_CODES: [&str; 6] = [
    "stale_attempt",
    "unknown_attempt",
    "task_terminal",
    "not_leased",
    "bad_proof",
    "stale_incarnation",
];

/// What each kind of line is counted as.
pub(crate) fn count_lines(history: &History) -> NamedCounts {
    let mut counts = NamedCounts::new();
    let mut add = |name: &str| *counts.entry(name.to_owned()).or_default() += 1;
    for asked in history.calls() {
        let answer = asked.answer.map(|seen| &seen.line.observation);
        match (asked.operation, answer) {
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
    for seen in &history.located_lines {
        match &seen.line.observation {
            Observation::WatchOpened { after, .. } if *after > 0 => add("watches taken up again"),
            Observation::WatchOpened { .. } => add("watches"),
            Observation::Watched { .. } => add("watched events"),
            Observation::Offered { .. } => add("offers"),
            Observation::Granted { .. } => add("leases of agents"),
            Observation::Confirmed { .. } => add("confirmations"),
            Observation::Sent { .. } => add("ends told by daemons"),
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
                "late_terminal" => add("late ends kept as evidence"),
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
        (ClientOperation::Submit, CallOutcome::Ok) if already => "submits answered again",
        (ClientOperation::Submit, CallOutcome::Ok) => "submits acknowledged",
        (ClientOperation::Cancel, CallOutcome::Ok) if already => "cancels that came late",
        (ClientOperation::Cancel, CallOutcome::Ok) => "cancels acknowledged",
        (ClientOperation::Force, CallOutcome::Ok) => "operators' verbs acknowledged",
        (ClientOperation::Block, CallOutcome::Ok) => "blocks acknowledged",
        (ClientOperation::Resume, CallOutcome::Ok) => "resumes acknowledged",
        (ClientOperation::PickUp, CallOutcome::Ok) => "pick-ups acknowledged",
        (ClientOperation::Resume | ClientOperation::PickUp, CallOutcome::Fail) => {
            "hand-offs refused"
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

/// The run's own minimums.
pub(crate) fn find_unmet_minimums(history: &History, counts: &NamedCounts) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for seen in &history.located_lines {
        let Observation::Least { count, least } = &seen.line.observation else {
            continue;
        };
        let had = counts.get(count).copied().unwrap_or(0);
        if had < *least {
            let what = format!("{had} {count}, and fewer than {least} show nothing");
            found.push(RuleViolation::new("vacuous", "", what, &[seen]));
        }
    }
    found
}
