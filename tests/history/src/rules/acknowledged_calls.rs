//! S4: everything acknowledged is contained in every later state: tasks, cancels and accepted
//! ends, and no answer is older than one that was given before the call. L2: in the end every
//! task has ended or waits for a person.

use std::collections::BTreeMap;

use super::{ENDED_STATES, IndexedHistory, TERMINAL_STATES};
use crate::history::{ClientCall, LocatedLine};
use crate::history_line::{CallOutcome, ClientOperation, Observation};
use crate::verdict::RuleViolation;

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = lost_calls(indexed);
    found.extend(unrecorded_operations(indexed));
    found.extend(lost_ends(indexed));
    found.extend(revisions_going_back(indexed));
    found.extend(unfinished_tasks(indexed));
    found
}

fn lost_calls(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for client_call in &indexed.calls {
        let Some(answer) = client_call.answer else {
            continue;
        };
        let Observation::Answer {
            outcome: CallOutcome::Ok,
            task: Some(task),
            already,
            ..
        } = &answer.line.observation
        else {
            continue;
        };
        if indexed.removed.contains(task.as_str()) {
            continue;
        }
        let Some(record) = indexed.final_tasks.get(task.as_str()) else {
            let what = format!(
                "{:?} was acknowledged, but the task is missing",
                client_call.operation
            );
            found.push(RuleViolation::new(
                "S4",
                task,
                what,
                &[client_call.call, answer],
            ));
            continue;
        };
        if client_call.operation == ClientOperation::Cancel
            && !already
            && record.state != "canceled"
        {
            let what = format!("its cancel was acknowledged, but it is {}", record.state);
            found.push(RuleViolation::new(
                "S4",
                task,
                what,
                &[client_call.call, answer, record.located_line],
            ));
        }
    }
    found
}

/// A force command is in the task's events, at the latest at the revision of its answer.
fn unrecorded_operations(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for client_call in indexed
        .calls
        .iter()
        .filter(|client_call| client_call.operation == ClientOperation::Force)
    {
        let Some(answer) = client_call.answer else {
            continue;
        };
        let Observation::Answer {
            outcome: CallOutcome::Ok,
            task: Some(task),
            revision: Some(revision),
            ..
        } = &answer.line.observation
        else {
            continue;
        };
        let Some(timeline) = indexed.timelines.get(task.as_str()) else {
            continue;
        };
        // The oldest events of a long timeline are removed.
        let cut = timeline.keys().next().is_none_or(|first| *first > 1);
        let mut events = timeline.values().map(|(_, event)| event);
        let is_recorded = events.any(|event| event.kind == "forced" && event.revision <= *revision);
        if !is_recorded && !cut {
            let what = "a force command was acknowledged but is not recorded";
            found.push(RuleViolation::new(
                "S4",
                task,
                what,
                &[client_call.call, answer],
            ));
        }
    }
    found
}

/// An end that the relay acknowledged to a daemon.
fn lost_ends(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut sent_ends: BTreeMap<(&str, &str), (u64, &LocatedLine)> = BTreeMap::new();
    let mut found = Vec::new();
    for located in &indexed.history.located_lines {
        match &located.line.observation {
            Observation::Sent { attempt, seq, .. } => {
                sent_ends.insert((&located.line.who, attempt), (*seq, located));
            }
            Observation::Acked { attempt, seq } => {
                let key = (located.line.who.as_str(), attempt.as_str());
                let Some((sent, _)) = sent_ends.get(&key).filter(|(sent, _)| seq >= sent).copied()
                else {
                    continue;
                };
                let (_, first) = sent_ends.remove(&key).unwrap_or((sent, located));
                found.extend(missing_end(indexed, attempt, first, located));
            }
            _ => {}
        }
    }
    found
}

fn missing_end(
    indexed: &IndexedHistory<'_>,
    attempt: &str,
    sent: &LocatedLine,
    acked: &LocatedLine,
) -> Option<RuleViolation> {
    let Observation::Sent { task, word, .. } = &sent.line.observation else {
        return None;
    };
    if indexed.removed.contains(task.as_str()) {
        return None;
    }
    let state = match indexed.final_attempt(attempt) {
        Some((_, one)) if ENDED_STATES.contains(&one.state.as_str()) => return None,
        // A park stops the worker, which reports that it did.
        Some((_, one)) if one.state == "parked" && word == "canceled" => return None,
        // A result without its required files is parked if the contract requires it, and its
        // timeline shows that.
        Some((_, one)) if one.state == "parked" && waits_for_person(indexed, task, attempt) => {
            return None;
        }
        Some((_, one)) => one.state.as_str(),
        // A record keeps only the newest attempts of a long series.
        None if indexed.final_tasks.contains_key(task.as_str()) => return None,
        None => "missing with its task",
    };
    let what = format!("{word} of {attempt} was acknowledged, but the attempt is {state}");
    Some(RuleViolation::new("S4", task, what, &[sent, acked]))
}

fn waits_for_person(indexed: &IndexedHistory<'_>, task: &str, attempt: &str) -> bool {
    let timeline = indexed.timelines.get(task);
    let mut events = timeline.into_iter().flat_map(BTreeMap::values);
    events.any(|(_, event)| event.kind == "attention" && event.attempt == attempt)
}

/// By real time: a call after an answer sees at least the same revision.
fn revisions_going_back(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut by_task: BTreeMap<&str, Vec<(&ClientCall<'_>, &LocatedLine, u64)>> = BTreeMap::new();
    for client_call in &indexed.calls {
        if let Some(answer) = client_call.answer
            && let Observation::Answer {
                outcome: CallOutcome::Ok,
                task: Some(task),
                revision: Some(revision),
                ..
            } = &answer.line.observation
        {
            let answers = by_task.entry(task).or_default();
            answers.push((client_call, answer, *revision));
        }
    }
    let mut found = Vec::new();
    for (task, mut answers) in by_task {
        answers.sort_by_key(|(client_call, ..)| client_call.call.line.at);
        let mut given: Vec<(u64, u64, &LocatedLine)> = answers
            .iter()
            .map(|(_, answer, revision)| (answer.line.at, *revision, *answer))
            .collect();
        given.sort_by_key(|(at, ..)| *at);
        let (mut next, mut most): (usize, Option<(u64, &LocatedLine)>) = (0, None);
        for (client_call, answer, revision) in &answers {
            while next < given.len() && given[next].0 < client_call.call.line.at {
                let (_, seen_revision, located) = given[next];
                if most.is_none_or(|(most, _)| seen_revision > most) {
                    most = Some((seen_revision, located));
                }
                next += 1;
            }
            if let Some((most, earlier)) = most.filter(|(most, _)| most > revision) {
                let what = format!("it was at revision {most} and later at {revision}");
                found.push(RuleViolation::new(
                    "S4",
                    task,
                    what,
                    &[earlier, client_call.call, answer],
                ));
            }
        }
    }
    found
}

fn unfinished_tasks(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let open = indexed.final_tasks.iter().filter(|(_, record)| {
        !TERMINAL_STATES.contains(&record.state) && record.state != "needs_attention"
    });
    open.map(|(task, record)| {
        let what = format!("it is {} at the end", record.state);
        RuleViolation::new("L2", task, what, &[record.located_line])
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use crate::history_line::{CallOutcome, ClientOperation, Observation};
    use crate::sample_run;
    use crate::sample_run::{answer, call, expect_violation};

    #[test]
    fn a_missing_acknowledged_task_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Submit, "acme", None));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t7"), 1, "queued"));
        expect_violation(&run, "S4", "t7", "client.jsonl");
    }

    #[test]
    fn a_submit_without_an_answer_is_no_violation() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Submit, "acme", None));
        run.client
            .push(answer(9, CallOutcome::Info, Some("t7"), 1, "queued"));
        run.client
            .push(call(10, ClientOperation::Submit, "acme", None));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
        assert_eq!(run.verdict().count("unknown outcomes"), 2);
    }

    #[test]
    fn a_removed_task_is_no_violation() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Submit, "acme", None));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t7"), 1, "queued"));
        run.relay.push(sample_run::line(
            "relay",
            Observation::Removed { task: "t7".into() },
        ));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
    }

    #[test]
    fn an_acknowledged_cancel_without_effect_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Cancel, "acme", Some("t1")));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t1"), 5, "running"));
        expect_violation(&run, "S4", "t1", "client.jsonl");
    }

    #[test]
    fn an_unrecorded_force_command_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Force, "acme", Some("t9")));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t9"), 2, "failed"));
        run.relay.push(sample_run::record(
            "acme",
            "t9",
            "failed",
            &[("d1", 1, "failed")],
        ));
        let event =
            |revision, kind| sample_run::timeline("t9", revision, kind, "d1", "failed", "failed");
        run.relay.push(event(1, "submitted"));
        run.relay.push(event(2, "ended"));
        expect_violation(&run, "S4", "t9", "client.jsonl");
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Force, "acme", Some("t9")));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t9"), 2, "failed"));
        run.relay.push(sample_run::record(
            "acme",
            "t9",
            "failed",
            &[("d1", 1, "failed")],
        ));
        run.relay.push(event(1, "forced"));
        run.relay.push(event(2, "ended"));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
    }

    #[test]
    fn a_missing_acknowledged_end_is_found() {
        let mut run = sample_run::sound_run();
        run.daemon.push(sample_run::offered("acme", "t2", "a2"));
        run.daemon.push(sample_run::sent("t2", "a2"));
        run.daemon.push(sample_run::acked("a2"));
        run.relay.push(sample_run::record(
            "acme",
            "t2",
            "needs_attention",
            &[("a2", 1, "parked")],
        ));
        expect_violation(&run, "S4", "t2", "daemon.jsonl");
    }

    #[test]
    fn an_answer_older_than_an_earlier_one_is_found() {
        let mut run = sample_run::sound_run();
        for (number, revision, state) in [(9, 5, "completed"), (10, 2, "queued")] {
            run.client
                .push(call(number, ClientOperation::Get, "acme", Some("t1")));
            run.client
                .push(answer(number, CallOutcome::Ok, Some("t1"), revision, state));
        }
        expect_violation(&run, "S4", "t1", "client.jsonl");
    }

    #[test]
    fn a_task_that_never_ends_is_found() {
        let mut run = sample_run::sound_run();
        run.relay
            .push(sample_run::record("acme", "t5", "running", &[]));
        expect_violation(&run, "L2", "t5", "relay.jsonl");
    }
}
