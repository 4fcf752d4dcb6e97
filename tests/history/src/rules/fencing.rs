//! S3: an attempt that has ended changes nothing any more, and a result is one that its own holder sent.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, ENDED, adopts};
use crate::history::Seen;
use crate::line::{Event, Saw};
use crate::verdict::Violation;

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = after_the_end(case);
    found.extend(results(case));
    found
}

/// Two exceptions: a late result that was adopted, and the last of too many attempts that were given back, which takes the limit as
/// its failure in the commit that stops the retries.
fn after_the_end(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (task, timeline) in &case.timelines {
        let mut over: BTreeMap<&str, (&str, &Seen)> = BTreeMap::new();
        for (seen, event) in timeline
            .values()
            .filter(|(_, event)| !event.state.is_empty())
        {
            if let Some((state, since)) = over.get(event.attempt.as_str())
                && *state != event.state
                && !adopts(timeline, event)
                && (*state, event.kind.as_str()) != ("released", "retry_stopped")
            {
                let what = format!(
                    "{} was {state} and became {} by {}",
                    event.attempt, event.state, event.kind
                );
                found.push(Violation::new("S3", task, what, &[since, seen]));
            }
            if ENDED.contains(&event.state.as_str()) {
                over.insert(&event.attempt, (&event.state, seen));
            }
        }
    }
    found
}

/// Only where daemons wrote down what they heard and said.
fn results(case: &Case<'_>) -> Vec<Violation> {
    let mut holders: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut sent: BTreeMap<&str, Vec<&Seen>> = BTreeMap::new();
    for seen in &case.history.seen {
        match &seen.line.saw {
            Saw::Offered { attempt, .. } | Saw::Granted { attempt, .. } => {
                holders.insert((attempt, &seen.line.who));
            }
            Saw::Sent { attempt, word, .. } if word == "complete" => {
                sent.entry(attempt).or_default().push(seen);
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    if holders.is_empty() {
        return found;
    }
    for (task, record) in &case.records {
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
            if !own && !by_hand(case, task, &one.attempt) {
                let what = format!("{} is completed, and its holder never said so", one.attempt);
                let lines: Vec<&Seen> = std::iter::once(record.seen).chain(sent.to_vec()).collect();
                found.push(Violation::new("S3", task, what, &lines));
            }
        }
    }
    found
}

/// An operator completed it: a verb is on record in the commit of its end, at most two events before.
fn by_hand(case: &Case<'_>, task: &str, attempt: &str) -> bool {
    let Some(timeline) = case.timelines.get(task) else {
        return false;
    };
    let events = || timeline.values().map(|(_, event)| *event);
    let ended = |event: &&Event| event.kind == "ended" && event.attempt == attempt;
    let end = events().find(ended).map(|event| event.revision);
    end.is_some_and(|end| {
        let before = end.saturating_sub(2)..end;
        events().any(|event| event.kind == "forced" && before.contains(&event.revision))
    })
}

#[cfg(test)]
mod tests {
    use crate::line::Saw;
    use crate::samples::{self, expect};

    #[test]
    fn a_change_after_the_end_is_found() {
        let mut run = samples::sound();
        run.relay.push(samples::timeline(
            "t1",
            30,
            "phase",
            "a1",
            "streaming",
            "completed",
        ));
        expect(&run, "S3", "t1", "relay.jsonl");
    }

    #[test]
    fn a_result_that_somebody_else_sent_is_found() {
        let mut run = samples::sound();
        run.daemon
            .retain(|line| !matches!(line.saw, Saw::Sent { .. }));
        let mut ghost = samples::sent("t1", "a1");
        ghost.who = "ghost".into();
        run.other.push(ghost);
        expect(&run, "S3", "t1", "other.jsonl:1");
    }
}
