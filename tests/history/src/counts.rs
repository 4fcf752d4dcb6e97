//! How much a history shows, and whether that is as much as its run promised to show.

use std::collections::BTreeMap;

use crate::history::History;
use crate::line::{Op, Outcome, Saw};
use crate::verdict::Violation;

pub(crate) type Counts = BTreeMap<String, u64>;

/// Codes of refusals that are a fence: the frame spoke for an attempt that has no say any more, or never had.
const FENCES: [&str; 6] = [
    "stale_attempt",
    "unknown_attempt",
    "task_terminal",
    "not_leased",
    "bad_proof",
    "stale_incarnation",
];

/// What each kind of line is counted as.
pub(crate) fn count(history: &History) -> Counts {
    let mut counts = Counts::new();
    let mut add = |name: &str| *counts.entry(name.to_owned()).or_default() += 1;
    for asked in history.calls() {
        let answer = asked.answer.map(|seen| &seen.line.saw);
        match (asked.op, answer) {
            (_, None)
            | (
                _,
                Some(Saw::Answer {
                    outcome: Outcome::Info,
                    ..
                }),
            ) => add("unknown outcomes"),
            (
                op,
                Some(Saw::Answer {
                    outcome, already, ..
                }),
            ) => add(answered(op, *outcome, *already)),
            (_, Some(_)) => {}
        }
    }
    for seen in &history.seen {
        match &seen.line.saw {
            Saw::WatchOpened { after, .. } if *after > 0 => add("watches taken up again"),
            Saw::WatchOpened { .. } => add("watches"),
            Saw::Watched { .. } => add("watched events"),
            Saw::Offered { .. } => add("offers"),
            Saw::Granted { .. } => add("leases of agents"),
            Saw::Confirmed { .. } => add("confirmations"),
            Saw::Sent { .. } => add("ends told by daemons"),
            Saw::Refused { code, .. } if FENCES.contains(&code.as_str()) => add("fenced frames"),
            Saw::Refused { .. } => add("refused frames"),
            Saw::Began { .. } => add("processes"),
            Saw::Wrote { .. } => add("written pieces"),
            Saw::ReadEnd { .. } => add("outputs read"),
            Saw::ReadCut { .. } => add("output cuts"),
            Saw::Record { state, .. } => {
                add("records");
                add(&format!("tasks {state}"));
            }
            Saw::Timeline { event, .. } => match event.kind.as_str() {
                "late_terminal" => add("late ends kept as evidence"),
                "adopted_late" => add("late results adopted"),
                "ended" if event.state == "lost" => add("lost attempts"),
                _ => {}
            },
            Saw::Fault { fault, .. } => add(&format!("fault: {fault}")),
            Saw::Call { .. }
            | Saw::Made { .. }
            | Saw::Goal { .. }
            | Saw::Answer { .. }
            | Saw::Acked { .. }
            | Saw::Ended { .. }
            | Saw::Read { .. }
            | Saw::Removed { .. }
            | Saw::Least { .. } => {}
        }
    }
    counts
}

fn answered(op: Op, outcome: Outcome, already: bool) -> &'static str {
    match (op, outcome) {
        (Op::Submit, Outcome::Ok) if already => "submits answered again",
        (Op::Submit, Outcome::Ok) => "submits acknowledged",
        (Op::Cancel, Outcome::Ok) if already => "cancels that came late",
        (Op::Cancel, Outcome::Ok) => "cancels acknowledged",
        (Op::Force, Outcome::Ok) => "operators' verbs acknowledged",
        (Op::Block, Outcome::Ok) => "blocks acknowledged",
        (Op::Resume, Outcome::Ok) => "resumes acknowledged",
        (Op::PickUp, Outcome::Ok) => "pick-ups acknowledged",
        (Op::Resume | Op::PickUp, Outcome::Fail) => "hand-offs refused",
        (Op::Progress, Outcome::Ok) => "progress acknowledged",
        (Op::Checkpoint, Outcome::Ok) => "checkpoints acknowledged",
        (Op::Get, Outcome::Ok) => "reads",
        (Op::Probe, _) => "probes of another tenant",
        (
            Op::Submit
            | Op::Cancel
            | Op::Force
            | Op::Block
            | Op::Resume
            | Op::PickUp
            | Op::Progress
            | Op::Checkpoint
            | Op::Get,
            Outcome::Fail | Outcome::Info,
        ) => "refused calls",
    }
}

/// The run's own minimums.
pub(crate) fn vacuous(history: &History, counts: &Counts) -> Vec<Violation> {
    let mut found = Vec::new();
    for seen in &history.seen {
        let Saw::Least { count, least } = &seen.line.saw else {
            continue;
        };
        let had = counts.get(count).copied().unwrap_or(0);
        if had < *least {
            let what = format!("{had} {count}, and fewer than {least} show nothing");
            found.push(Violation::new("vacuous", "", what, &[seen]));
        }
    }
    found
}
