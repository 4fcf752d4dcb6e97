//! The rules, one file for each promise or two that belong together. A rule knows the promise and not the way it is kept.

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

/// States after which a task changes no more, but for what README names.
const TERMINAL_STATES: [&str; 5] = ["completed", "failed", "canceled", "timed_out", "lost"];
/// States in which an attempt has the right to speak.
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
/// States in which it never will again.
const ENDED_STATES: [&str; 7] = [
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
struct FinalTask<'a> {
    located_line: &'a LocatedLine,
    tenant: &'a str,
    state: &'a str,
    attempts: &'a [FinalAttempt],
}

/// A history with what every rule looks up.
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
        let mut case = Self {
            calls: history.calls(),
            final_tasks: BTreeMap::new(),
            timelines: BTreeMap::new(),
            tasks_by_attempt: history.tasks_by_attempt(),
            removed: BTreeSet::new(),
            history,
        };
        for seen in &history.located_lines {
            match &seen.line.observation {
                Observation::Record {
                    tenant,
                    task,
                    state,
                    attempts,
                    ..
                } => {
                    let record = FinalTask {
                        located_line: seen,
                        tenant,
                        state,
                        attempts,
                    };
                    case.final_tasks.insert(task, record);
                }
                Observation::Timeline { task, event } => {
                    let timeline = case.timelines.entry(task).or_default();
                    timeline.insert(event.revision, (seen, event));
                }
                Observation::Removed { task } => {
                    case.removed.insert(task);
                }
                _ => {}
            }
        }
        case
    }

    /// The task that an attempt belongs to; empty when nobody said.
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

/// Whether an event is part of the adoption of a late result: the end and the adoption, in one commit. Before them there may be a proof of death and
/// the release of a successor that only waited.
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

/// Looks at everything.
pub fn check_history(history: &History) -> HistoryVerdict {
    let case = IndexedHistory::new(history);
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
    violations.extend(rules.iter().flat_map(|rule| rule(&case)));
    HistoryVerdict { counts, violations }
}
