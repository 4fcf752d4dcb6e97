//! S6: a task ends once, with one result, and keeps that end. Only the events that README names
//! may reopen it: an operator's command, and a late result of a lost attempt.

use super::{IndexedHistory, StoredTimeline, TERMINAL_STATES, is_late_adoption};
use crate::history::LocatedLine;
use crate::verdict::RuleViolation;

const REOPENING_EVENTS: [&str; 3] = ["retry_asked", "resumed", "forced"];
/// Ends after which no late result is adopted: there is a result already, or the task was
/// canceled.
const SETTLED_STATES: [&str; 2] = ["completed", "canceled"];

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found: Vec<RuleViolation> = indexed
        .timelines
        .iter()
        .flat_map(|(task, timeline)| ends_more_than_once(task, timeline))
        .collect();
    for (task, record) in &indexed.final_tasks {
        let results = record
            .attempts
            .iter()
            .filter(|one| one.state == "completed");
        let results = results.count();
        if results > 1 {
            let what = format!("it has {results} results");
            found.push(RuleViolation::new("S6", task, what, &[record.located_line]));
        }
        if record.state == "completed" && results == 0 && !record.attempts.is_empty() {
            found.push(RuleViolation::new(
                "S6",
                task,
                "it is completed without a result",
                &[record.located_line],
            ));
        }
    }
    found
}

fn ends_more_than_once(task: &str, timeline: &StoredTimeline<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let (mut end, mut ended): (Option<(&str, &LocatedLine)>, bool) = (None, false);
    let mut adopting = false;
    for (located, event) in timeline.values() {
        let began = adopting;
        adopting = is_late_adoption(timeline, event);
        let adopted = adopting && !began;
        match end {
            Some((state, since)) if adopted && SETTLED_STATES.contains(&state) => {
                let what = format!("a late result was adopted when it was {state}");
                found.push(RuleViolation::new("S6", task, what, &[since, located]));
            }
            Some((state, since))
                if !adopting
                    && !REOPENING_EVENTS.contains(&event.kind.as_str())
                    && (event.task_state != state || (ended && event.kind == "ended")) =>
            {
                let what = format!(
                    "it was {state} and became {} by {}",
                    event.task_state, event.kind
                );
                found.push(RuleViolation::new("S6", task, what, &[since, located]));
            }
            Some(_) | None => {}
        }
        let terminal = TERMINAL_STATES.contains(&event.task_state.as_str());
        ended = terminal && (ended || event.kind == "ended");
        // The first event that ended the task is reported. All events of one commit have the
        // task's state after it, so the first one with a final state need not be the end
        // itself.
        if !terminal {
            end = None;
        } else if end.is_none() || adopting {
            end = Some((&event.task_state, located));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::sample_run;
    use crate::sample_run::expect_violation;

    #[test]
    fn a_second_end_is_found() {
        let mut run = sample_run::sound_run();
        run.relay.push(sample_run::timeline(
            "t1",
            40,
            "ended",
            "a1",
            "completed",
            "completed",
        ));
        expect_violation(&run, "S6", "t1", "relay.jsonl");
    }

    #[test]
    fn a_cancel_that_ends_its_task_in_one_commit_is_one_end() {
        let mut run = sample_run::sound_run();
        let (kind, state) = ("cancel_requested", "canceled");
        run.relay
            .push(sample_run::timeline("t9", 1, kind, "d1", "queued", state));
        run.relay
            .push(sample_run::timeline("t9", 2, "ended", "d1", state, state));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
        run.relay
            .push(sample_run::timeline("t9", 3, "ended", "d1", state, state));
        expect_violation(&run, "S6", "t9", "relay.jsonl");
    }

    #[test]
    fn an_end_that_changes_is_found() {
        let mut run = sample_run::sound_run();
        run.relay
            .push(sample_run::timeline("t1", 40, "phase", "", "", "failed"));
        expect_violation(&run, "S6", "t1", "relay.jsonl");
    }

    #[test]
    fn two_results_are_found() {
        let mut run = sample_run::sound_run();
        let attempts = [("c1", 1, "completed"), ("c2", 2, "completed")];
        run.relay
            .push(sample_run::record("acme", "t4", "completed", &attempts));
        expect_violation(&run, "S6", "t4", "relay.jsonl");
    }

    #[test]
    fn a_late_result_is_adopted_only_after_a_loss() {
        let mut run = sample_run::sound_run();
        run.relay.push(sample_run::timeline(
            "t1",
            40,
            "adopted_late",
            "a1",
            "completed",
            "completed",
        ));
        expect_violation(&run, "S6", "t1", "relay.jsonl");

        let mut run = sample_run::sound_run();
        run.relay
            .push(sample_run::timeline("t9", 1, "ended", "d1", "lost", "lost"));
        run.relay.push(sample_run::timeline(
            "t9",
            2,
            "receipt_arrived",
            "d1",
            "lost",
            "completed",
        ));
        let (successor, released) = ("d2", "released");
        run.relay.push(sample_run::timeline(
            "t9",
            3,
            "ended",
            successor,
            released,
            "completed",
        ));
        for (revision, kind) in [(4, "ended"), (5, "adopted_late")] {
            run.relay.push(sample_run::timeline(
                "t9",
                revision,
                kind,
                "d1",
                "completed",
                "completed",
            ));
        }
        assert!(run.verdict().is_clean(), "{}", run.verdict());
    }
}
