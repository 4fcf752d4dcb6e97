//! S3: an attempt that has ended has no further effect, and a result was sent by the attempt's
//! own holder.

use std::collections::{BTreeMap, BTreeSet};

use super::{ENDED_STATES, IndexedHistory, is_late_adoption};
use crate::history::LocatedLine;
use crate::history_line::{HistoryEvent, Observation};
use crate::verdict::RuleViolation;

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = changes_after_end(indexed);
    found.extend(results_of_other_holders(indexed));
    found
}

/// Two exceptions: an adopted late result, and the last of too many released attempts, which
/// fails with the dispatch limit in the commit that stops the retries.
fn changes_after_end(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (task, timeline) in &indexed.timelines {
        let mut ended: BTreeMap<&str, (&str, &LocatedLine)> = BTreeMap::new();
        for (located, event) in timeline
            .values()
            .filter(|(_, event)| !event.state.is_empty())
        {
            if let Some((state, since)) = ended.get(event.attempt.as_str())
                && *state != event.state
                && !is_late_adoption(timeline, event)
                && (*state, event.kind.as_str()) != ("released", "retry_stopped")
            {
                let what = format!(
                    "{} was {state} and became {} by {}",
                    event.attempt, event.state, event.kind
                );
                found.push(RuleViolation::new("S3", task, what, &[since, located]));
            }
            if ENDED_STATES.contains(&event.state.as_str()) {
                ended.insert(&event.attempt, (&event.state, located));
            }
        }
    }
    found
}

/// Only if daemons recorded their frames.
fn results_of_other_holders(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut holders: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut sent: BTreeMap<&str, Vec<&LocatedLine>> = BTreeMap::new();
    for located in &indexed.history.located_lines {
        match &located.line.observation {
            Observation::Offered { attempt, .. } | Observation::Granted { attempt, .. } => {
                holders.insert((attempt, &located.line.who));
            }
            Observation::Sent { attempt, word, .. } if word == "complete" => {
                sent.entry(attempt).or_default().push(located);
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    if holders.is_empty() {
        return found;
    }
    for (task, record) in &indexed.final_tasks {
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
                .any(|located| holders.contains(&(&one.attempt, &located.line.who)));
            if !own && !is_completed_by_operator(indexed, task, &one.attempt) {
                let what = format!(
                    "{} is completed, but its holder never reported it",
                    one.attempt
                );
                let lines: Vec<&LocatedLine> = std::iter::once(record.located_line)
                    .chain(sent.to_vec())
                    .collect();
                found.push(RuleViolation::new("S3", task, what, &lines));
            }
        }
    }
    found
}

/// An operator completed it: a force command is recorded in the commit of its end, at most two
/// events before.
fn is_completed_by_operator(indexed: &IndexedHistory<'_>, task: &str, attempt: &str) -> bool {
    let Some(timeline) = indexed.timelines.get(task) else {
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
    fn a_result_of_another_holder_is_found() {
        let mut run = sample_run::sound_run();
        run.daemon
            .retain(|line| !matches!(line.observation, Observation::Sent { .. }));
        let mut ghost = sample_run::sent("t1", "a1");
        ghost.who = "ghost".into();
        run.other.push(ghost);
        expect_violation(&run, "S3", "t1", "other.jsonl:1");
    }
}
