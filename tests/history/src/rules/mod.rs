//! The rules, one file for each or for two that belong together. A rule checks a promise
//! independent of its implementation.

mod acknowledged_calls;
mod ended_attempts;
mod goal_hand_offs;
mod idempotency_keys;
mod lease_overlap;
mod output_reads;
mod single_end;
mod stored_events;
mod tenant_isolation;
mod watch_order;

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{ClientCall, History, LocatedLine};
use crate::history_line::{FinalAttempt, HistoryEvent, Observation};
use crate::line_counts;
use crate::verdict::{HistoryVerdict, RuleViolation};

/// Final states of a task, except for the reopening events that README names.
const TERMINAL_STATES: [&str; 5] = ["completed", "failed", "canceled", "timed_out", "lost"];
/// States in which an attempt has a lease.
const LEASED_STATES: [&str; 8] = [
    "offered",
    "accepted",
    "starting",
    "prompted",
    "streaming",
    "tool_running",
    "waiting_input",
    "cleaning_up",
];
/// States in which an attempt has ended for good.
const ENDED_STATES: [&str; 7] = [
    "completed",
    "failed",
    "canceled",
    "timed_out",
    "lost",
    "released",
    "handed_off",
];

/// A task in its final state.
#[derive(Clone, Copy, Debug)]
struct FinalTask<'a> {
    located_line: &'a LocatedLine,
    tenant: &'a str,
    state: &'a str,
    attempts: &'a [FinalAttempt],
}

/// A history with the lookups that all rules need.
#[derive(Debug)]
struct IndexedHistory<'a> {
    history: &'a History,
    calls: Vec<ClientCall<'a>>,
    final_tasks: BTreeMap<&'a str, FinalTask<'a>>,
    timelines: BTreeMap<&'a str, StoredTimeline<'a>>,
    tasks_by_attempt: BTreeMap<&'a str, &'a str>,
    removed: BTreeSet<&'a str>,
}

impl<'a> IndexedHistory<'a> {
    fn new(history: &'a History) -> Self {
        let mut indexed = Self {
            calls: history.calls(),
            final_tasks: BTreeMap::new(),
            timelines: BTreeMap::new(),
            tasks_by_attempt: history.tasks_by_attempt(),
            removed: BTreeSet::new(),
            history,
        };
        for located in &history.located_lines {
            match &located.line.observation {
                Observation::Record {
                    tenant,
                    task,
                    state,
                    attempts,
                    ..
                } => {
                    let record = FinalTask {
                        located_line: located,
                        tenant,
                        state,
                        attempts,
                    };
                    indexed.final_tasks.insert(task, record);
                }
                Observation::Timeline { task, event } => {
                    let timeline = indexed.timelines.entry(task).or_default();
                    timeline.insert(event.revision, (located, event));
                }
                Observation::Removed { task } => {
                    indexed.removed.insert(task);
                }
                _ => {}
            }
        }
        indexed
    }

    /// The task of an attempt; empty if no observation names it.
    fn task_of(&self, attempt: &str) -> &'a str {
        self.tasks_by_attempt
            .get(attempt)
            .copied()
            .unwrap_or_default()
    }

    fn final_attempt(&self, attempt: &str) -> Option<(FinalTask<'a>, &'a FinalAttempt)> {
        let record = self.final_tasks.get(self.task_of(attempt))?;
        let found = record.attempts.iter().find(|one| one.attempt == attempt)?;
        Some((*record, found))
    }
}

/// A task's stored events by revision, with their lines.
type StoredTimeline<'a> = BTreeMap<u64, (&'a LocatedLine, &'a HistoryEvent)>;

/// Whether an event is part of the adoption of a late result: the end and the adoption, in one
/// commit. Before them there may be a receipt and the release of a waiting successor.
fn is_late_adoption(timeline: &StoredTimeline<'_>, event: &HistoryEvent) -> bool {
    let next = timeline.get(&(event.revision + 1)).map(|(_, next)| *next);
    match (event.kind.as_str(), next) {
        ("adopted_late", _) => true,
        ("ended", Some(next)) if next.kind == "adopted_late" => next.attempt == event.attempt,
        ("ended" | "receipt_arrived", Some(next)) => {
            let before = event.kind == "receipt_arrived" || event.state == "released";
            before && next.kind != "adopted_late" && is_late_adoption(timeline, next)
        }
        _ => false,
    }
}

/// Checks all rules.
pub fn check_history(history: &History) -> HistoryVerdict {
    let indexed = IndexedHistory::new(history);
    let counts = line_counts::count_lines(history);
    let mut violations = line_counts::find_unmet_minimums(history, &counts);
    let rules: [fn(&IndexedHistory<'_>) -> Vec<RuleViolation>; 10] = [
        lease_overlap::check,
        ended_attempts::check,
        acknowledged_calls::check,
        stored_events::check,
        single_end::check,
        idempotency_keys::check,
        tenant_isolation::check,
        output_reads::check,
        watch_order::check,
        goal_hand_offs::check,
    ];
    violations.extend(rules.iter().flat_map(|rule| rule(&indexed)));
    HistoryVerdict { counts, violations }
}
