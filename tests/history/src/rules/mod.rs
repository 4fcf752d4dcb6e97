//! The rules, one file for each promise or two that belong together. A rule knows the promise and not the way it is kept.

mod acknowledged;
mod ends;
mod fencing;
mod goals;
mod keys;
mod leases;
mod output;
mod tenants;
mod told;
mod watching;

use std::collections::{BTreeMap, BTreeSet};

use crate::counts;
use crate::history::{Asked, History, Seen};
use crate::line::{Event, FinalAttempt, Saw};
use crate::verdict::{Verdict, Violation};

/// States after which a task changes no more, but for what README names.
const TERMINAL: [&str; 5] = ["completed", "failed", "canceled", "timed_out", "lost"];
/// States in which an attempt has the right to speak.
const LEASED: [&str; 8] = [
    "offered",
    "accepted",
    "starting",
    "prompted",
    "streaming",
    "tool_running",
    "waiting_input",
    "cleaning_up",
];
/// States in which it never will again.
const ENDED: [&str; 7] = [
    "completed",
    "failed",
    "canceled",
    "timed_out",
    "lost",
    "released",
    "handed_off",
];

/// A task in the end.
#[derive(Clone, Copy, Debug)]
struct Final<'a> {
    seen: &'a Seen,
    tenant: &'a str,
    state: &'a str,
    attempts: &'a [FinalAttempt],
}

/// A history with what every rule looks up.
#[derive(Debug)]
struct Case<'a> {
    history: &'a History,
    calls: Vec<Asked<'a>>,
    records: BTreeMap<&'a str, Final<'a>>,
    timelines: BTreeMap<&'a str, Timeline<'a>>,
    task_of: BTreeMap<&'a str, &'a str>,
    removed: BTreeSet<&'a str>,
}

impl<'a> Case<'a> {
    fn new(history: &'a History) -> Self {
        let mut case = Self {
            calls: history.calls(),
            records: BTreeMap::new(),
            timelines: BTreeMap::new(),
            task_of: history.task_of_attempt(),
            removed: BTreeSet::new(),
            history,
        };
        for seen in &history.seen {
            match &seen.line.saw {
                Saw::Record {
                    tenant,
                    task,
                    state,
                    attempts,
                    ..
                } => {
                    let record = Final {
                        seen,
                        tenant,
                        state,
                        attempts,
                    };
                    case.records.insert(task, record);
                }
                Saw::Timeline { task, event } => {
                    let timeline = case.timelines.entry(task).or_default();
                    timeline.insert(event.revision, (seen, event));
                }
                Saw::Removed { task } => {
                    case.removed.insert(task);
                }
                _ => {}
            }
        }
        case
    }

    /// The task that an attempt belongs to; empty when nobody said.
    fn task(&self, attempt: &str) -> &'a str {
        self.task_of.get(attempt).copied().unwrap_or_default()
    }

    fn attempt(&self, attempt: &str) -> Option<(Final<'a>, &'a FinalAttempt)> {
        let record = self.records.get(self.task(attempt))?;
        let found = record.attempts.iter().find(|one| one.attempt == attempt)?;
        Some((*record, found))
    }
}

/// A task's stored events by revision, with their lines.
type Timeline<'a> = BTreeMap<u64, (&'a Seen, &'a Event)>;

/// Whether an event is part of the adoption of a late result: the end and the adoption, in one commit. Before them there may be a proof of death and
/// the release of a successor that only waited.
fn adopts(timeline: &Timeline<'_>, event: &Event) -> bool {
    let next = timeline.get(&(event.revision + 1)).map(|(_, next)| *next);
    match (event.kind.as_str(), next) {
        ("adopted_late", _) => true,
        ("ended", Some(next)) if next.kind == "adopted_late" => next.attempt == event.attempt,
        ("ended" | "receipt_arrived", Some(next)) => {
            let before = event.kind == "receipt_arrived" || event.state == "released";
            before && next.kind != "adopted_late" && adopts(timeline, next)
        }
        _ => false,
    }
}

/// Looks at everything.
pub fn judge(history: &History) -> Verdict {
    let case = Case::new(history);
    let counts = counts::count(history);
    let mut violations = counts::vacuous(history, &counts);
    let rules: [fn(&Case<'_>) -> Vec<Violation>; 10] = [
        leases::check,
        fencing::check,
        acknowledged::check,
        told::check,
        ends::check,
        keys::check,
        tenants::check,
        output::check,
        watching::check,
        goals::check,
    ];
    violations.extend(rules.iter().flat_map(|rule| rule(&case)));
    Verdict { counts, violations }
}
