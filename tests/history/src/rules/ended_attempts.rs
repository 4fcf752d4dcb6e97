//! S3: an attempt that has ended changes nothing any more, and a result is one that its own holder sent.

use std::collections::{BTreeMap, BTreeSet};

use super::{ENDED_STATES, IndexedHistory, is_late_adoption};
use crate::history::LocatedLine;
use crate::history_line::{HistoryEvent, Observation};
use crate::verdict::RuleViolation;

pub(super) fn check(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = changes_after_end(case);
    found.extend(results_of_other_holders(case));
    found
}

/// Two exceptions: a late result that was adopted, and the last of too many attempts that were given back, which takes the limit as
/// its failure in the commit that stops the retries.
fn changes_after_end(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (task, timeline) in &case.timelines {
        let mut over: BTreeMap<&str, (&str, &LocatedLine)> = BTreeMap::new();
        for (seen, event) in timeline
            .values()
            .filter(|(_, event)| !event.state.is_empty())
        {
            if let Some((state, since)) = over.get(event.attempt.as_str())
                && *state != event.state
                && !is_late_adoption(timeline, event)
                && (*state, event.kind.as_str()) != ("released", "retry_stopped")
            {
                let what = format!(
                    "{} was {state} and became {} by {}",
                    event.attempt, event.state, event.kind
                );
                found.push(RuleViolation::new("S3", task, what, &[since, seen]));
            }
            if ENDED_STATES.contains(&event.state.as_str()) {
                over.insert(&event.attempt, (&event.state, seen));
            }
        }
    }
    found
}

/// Only where daemons wrote down what they heard and said.
fn results_of_other_holders(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut holders: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut sent: BTreeMap<&str, Vec<&LocatedLine>> = BTreeMap::new();
    for seen in &case.history.located_lines {
        match &seen.line.observation {
            Observation::Offered { attempt, .. } | Observation::Granted { attempt, .. } => {
                holders.insert((attempt, &seen.line.who));
            }
            Observation::Sent { attempt, word, .. } if word == "complete" => {
                sent.entry(attempt).or_default().push(seen);
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    if holders.is_empty() {
        return found;
    }
    for (task, record) in &case.final_tasks {
        for one in record
            .attempts
            .iter()
            .filter(|one| one.state == "completed")
        {
            let sent = sent
                .get(one.attempt.as_str())
                .map_or(&[][..], Vec::as_slice);
            let own = sent
                .iter()
                .any(|seen| holders.contains(&(&one.attempt, &seen.line.who)));
            if !own && !is_completed_by_operator(case, task, &one.attempt) {
                let what = format!("{} is completed, and its holder never said so", one.attempt);
                let lines: Vec<&LocatedLine> = std::iter::once(record.located_line)
                    .chain(sent.to_vec())
                    .collect();
                found.push(RuleViolation::new("S3", task, what, &lines));
            }
        }
    }
    found
}

/// An operator completed it: a verb is on record in the commit of its end, at most two events before.
fn is_completed_by_operator(case: &IndexedHistory<'_>, task: &str, attempt: &str) -> bool {
    let Some(timeline) = case.timelines.get(task) else {
        return false;
    };
    let events = || timeline.values().map(|(_, event)| *event);
    let ended = |event: &&HistoryEvent| event.kind == "ended" && event.attempt == attempt;
    let end = events().find(ended).map(|event| event.revision);
    end.is_some_and(|end| {
        let before = end.saturating_sub(2)..end;
        events().any(|event| event.kind == "forced" && before.contains(&event.revision))
    })
}

#[cfg(test)]
mod tests {
    use crate::history_line::Observation;
    use crate::sample_run;
    use crate::sample_run::expect_violation;

    #[test]
    fn a_change_after_the_end_is_found() {
        let mut run = sample_run::sound_run();
        run.relay.push(sample_run::timeline(
            "t1",
            30,
            "phase",
            "a1",
            "streaming",
            "completed",
        ));
        expect_violation(&run, "S3", "t1", "relay.jsonl");
    }

    #[test]
    fn a_result_that_somebody_else_sent_is_found() {
        let mut run = sample_run::sound_run();
        run.daemon
            .retain(|line| !matches!(line.observation, Observation::Sent { .. }));
        let mut ghost = sample_run::sent("t1", "a1");
        ghost.who = "ghost".into();
        run.other.push(ghost);
        expect_violation(&run, "S3", "t1", "other.jsonl:1");
    }
}
