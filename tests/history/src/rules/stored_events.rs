//! S5: everything that was reported is implied by the stored data. Offers and confirmations are
//! in the task's record, each watched event equals the one stored under its revision, and each
//! answer matches the event of its revision.

use super::IndexedHistory;
use crate::history::LocatedLine;
use crate::history_line::{CallOutcome, HistoryEvent, Observation};
use crate::verdict::RuleViolation;

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut watches = std::collections::BTreeMap::new();
    for located in &indexed.history.located_lines {
        match &located.line.observation {
            Observation::Offered { task, attempt, .. } => {
                found.extend(unstored_attempt_event(
                    indexed, located, task, attempt, "offered",
                ));
            }
            Observation::Confirmed { task, attempt } => {
                found.extend(unstored_attempt_event(
                    indexed,
                    located,
                    task,
                    attempt,
                    "confirmed",
                ));
            }
            Observation::Granted { task, attempt, .. } => {
                found.extend(unstored_attempt_event(
                    indexed,
                    located,
                    task,
                    attempt,
                    "confirmed",
                ));
            }
            Observation::WatchOpened { watch, task, .. } => {
                watches.insert((located.line.who.as_str(), *watch), task.as_str());
            }
            Observation::Watched { watch, event } => {
                if let Some(task) = watches.get(&(located.line.who.as_str(), *watch)) {
                    found.extend(different_stored_event(indexed, located, task, event));
                }
            }
            Observation::Answer {
                outcome: CallOutcome::Ok,
                task: Some(task),
                revision: Some(revision),
                state: Some(state),
                ..
            } => found.extend(different_stored_state(
                indexed, located, task, *revision, state,
            )),
            _ => {}
        }
    }
    found
}

/// Not checked if the record no longer has its oldest events.
fn unstored_attempt_event(
    indexed: &IndexedHistory<'_>,
    located: &LocatedLine,
    task: &str,
    attempt: &str,
    kind: &str,
) -> Option<RuleViolation> {
    if indexed.removed.contains(task) {
        return None;
    }
    let Some(timeline) = indexed.timelines.get(task) else {
        let what = format!("{attempt} was {kind}, but its task is not stored");
        return Some(RuleViolation::new("S5", task, what, &[located]));
    };
    let whole = timeline.contains_key(&1);
    let stored = timeline
        .values()
        .any(|(_, event)| event.attempt == attempt && event.kind == kind);
    // A settlement confirms without its own event.
    let known = timeline.values().any(|(_, event)| event.attempt == attempt);
    if !whole || stored || (kind == "confirmed" && known) {
        return None;
    }
    let what = format!("{attempt} was {kind} to a daemon, but that is not stored");
    Some(RuleViolation::new("S5", task, what, &[located]))
}

fn different_stored_event(
    indexed: &IndexedHistory<'_>,
    located: &LocatedLine,
    task: &str,
    event: &HistoryEvent,
) -> Option<RuleViolation> {
    if indexed.removed.contains(task) {
        return None;
    }
    let timeline = indexed.timelines.get(task)?;
    match timeline.get(&event.revision) {
        Some((_, stored)) if *stored == event => None,
        Some((stored_at, stored)) => {
            let what = format!(
                "a watcher got {} at revision {}, but {} is stored",
                event.kind, event.revision, stored.kind
            );
            Some(RuleViolation::new("S5", task, what, &[located, stored_at]))
        }
        // Older events are removed in time; newer ones cannot be missing.
        None if timeline.keys().next() > Some(&event.revision) => None,
        None => {
            let what = format!(
                "a watcher got revision {}, which is not stored",
                event.revision
            );
            Some(RuleViolation::new("S5", task, what, &[located]))
        }
    }
}

fn different_stored_state(
    indexed: &IndexedHistory<'_>,
    located: &LocatedLine,
    task: &str,
    revision: u64,
    state: &str,
) -> Option<RuleViolation> {
    let (stored_at, stored) = indexed.timelines.get(task)?.get(&revision)?;
    if indexed.removed.contains(task) || stored.task_state == state {
        return None;
    }
    let what = format!(
        "it was reported as {state} at revision {revision}, but {} is stored",
        stored.task_state
    );
    Some(RuleViolation::new("S5", task, what, &[located, stored_at]))
}

#[cfg(test)]
mod tests {
    use crate::history_line::{CallOutcome, ClientOperation};
    use crate::sample_run;
    use crate::sample_run::{answer, call, expect_violation};

    #[test]
    fn an_offer_that_is_not_stored_is_found() {
        let mut run = sample_run::sound_run();
        run.daemon.push(sample_run::offered("acme", "t1", "a5"));
        expect_violation(&run, "S5", "t1", "daemon.jsonl");
    }

    #[test]
    fn an_offer_of_a_task_that_is_not_stored_is_found() {
        let mut run = sample_run::sound_run();
        run.daemon.push(sample_run::offered("acme", "t6", "a6"));
        expect_violation(&run, "S5", "t6", "daemon.jsonl");
    }

    #[test]
    fn a_watched_event_unlike_the_stored_one_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(sample_run::watch_opened(3, "acme", "t1", 1));
        run.client
            .push(sample_run::watched(3, 2, "ended", "a1", "failed", "failed"));
        expect_violation(&run, "S5", "t1", "client.jsonl");
    }

    #[test]
    fn a_watched_event_that_is_not_stored_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(sample_run::watch_opened(3, "acme", "t1", 49));
        run.client.push(sample_run::watched(
            3,
            50,
            "receipt_arrived",
            "a1",
            "completed",
            "completed",
        ));
        expect_violation(&run, "S5", "t1", "client.jsonl");
    }

    #[test]
    fn an_answer_unlike_its_stored_revision_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Get, "acme", Some("t1")));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t1"), 3, "completed"));
        expect_violation(&run, "S5", "t1", "client.jsonl");
    }
}
