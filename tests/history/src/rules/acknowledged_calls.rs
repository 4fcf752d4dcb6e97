//! S4: what was acknowledged is in every later state: tasks, cancels and ends that were taken, and no answer is older than one that had been
//! given before the question. L2: in the end everything has ended or waits for a person.

use std::collections::BTreeMap;

use super::{ENDED_STATES, IndexedHistory, TERMINAL_STATES};
use crate::history::{ClientCall, LocatedLine};
use crate::history_line::{CallOutcome, ClientOperation, Observation};
use crate::verdict::RuleViolation;

pub(super) fn check(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = lost_calls(case);
    found.extend(unrecorded_operations(case));
    found.extend(lost_ends(case));
    found.extend(revisions_going_back(case));
    found.extend(unfinished_tasks(case));
    found
}

fn lost_calls(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for asked in &case.calls {
        let Some(answer) = asked.answer else { continue };
        let Observation::Answer {
            outcome: CallOutcome::Ok,
            task: Some(task),
            already,
            ..
        } = &answer.line.observation
        else {
            continue;
        };
        if case.removed.contains(task.as_str()) {
            continue;
        }
        let Some(record) = case.final_tasks.get(task.as_str()) else {
            let what = format!(
                "{:?} was acknowledged, and the task is gone",
                asked.operation
            );
            found.push(RuleViolation::new("S4", task, what, &[asked.call, answer]));
            continue;
        };
        if asked.operation == ClientOperation::Cancel && !already && record.state != "canceled" {
            let what = format!("its cancel was acknowledged, and it is {}", record.state);
            found.push(RuleViolation::new(
                "S4",
                task,
                what,
                &[asked.call, answer, record.located_line],
            ));
        }
    }
    found
}

/// An operator's verb is in the task's events, at the latest where its answer says how far they went.
fn unrecorded_operations(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for asked in case
        .calls
        .iter()
        .filter(|asked| asked.operation == ClientOperation::Force)
    {
        let Some(answer) = asked.answer else { continue };
        let Observation::Answer {
            outcome: CallOutcome::Ok,
            task: Some(task),
            revision: Some(revision),
            ..
        } = &answer.line.observation
        else {
            continue;
        };
        let Some(timeline) = case.timelines.get(task.as_str()) else {
            continue;
        };
        // Of a long story the oldest events are not kept.
        let cut = timeline.keys().next().is_none_or(|first| *first > 1);
        let mut events = timeline.values().map(|(_, event)| event);
        let told = events.any(|event| event.kind == "forced" && event.revision <= *revision);
        if !told && !cut {
            let what = "an operator's verb was acknowledged and is not on record";
            found.push(RuleViolation::new("S4", task, what, &[asked.call, answer]));
        }
    }
    found
}

/// An end that the relay told a daemon to be durable.
fn lost_ends(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut told: BTreeMap<(&str, &str), (u64, &LocatedLine)> = BTreeMap::new();
    let mut found = Vec::new();
    for seen in &case.history.located_lines {
        match &seen.line.observation {
            Observation::Sent { attempt, seq, .. } => {
                told.insert((&seen.line.who, attempt), (*seq, seen));
            }
            Observation::Acked { attempt, seq } => {
                let key = (seen.line.who.as_str(), attempt.as_str());
                let Some((sent, _)) = told.get(&key).filter(|(sent, _)| seq >= sent).copied()
                else {
                    continue;
                };
                let (_, first) = told.remove(&key).unwrap_or((sent, seen));
                found.extend(missing_end(case, attempt, first, seen));
            }
            _ => {}
        }
    }
    found
}

fn missing_end(
    case: &IndexedHistory<'_>,
    attempt: &str,
    sent: &LocatedLine,
    acked: &LocatedLine,
) -> Option<RuleViolation> {
    let Observation::Sent { task, word, .. } = &sent.line.observation else {
        return None;
    };
    if case.removed.contains(task.as_str()) {
        return None;
    }
    let state = match case.final_attempt(attempt) {
        Some((_, one)) if ENDED_STATES.contains(&one.state.as_str()) => return None,
        // A park stops the worker, which says that it did.
        Some((_, one)) if one.state == "parked" && word == "canceled" => return None,
        // A result without its files waits for a person where that was asked for, and its timeline says so.
        Some((_, one)) if one.state == "parked" && waits_for_person(case, task, attempt) => {
            return None;
        }
        Some((_, one)) => one.state.as_str(),
        // A record keeps the newest attempts of a long row only.
        None if case.final_tasks.contains_key(task.as_str()) => return None,
        None => "gone with its task",
    };
    let what = format!("{word} of {attempt} was acknowledged, and the attempt is {state}");
    Some(RuleViolation::new("S4", task, what, &[sent, acked]))
}

fn waits_for_person(case: &IndexedHistory<'_>, task: &str, attempt: &str) -> bool {
    let timeline = case.timelines.get(task);
    let mut events = timeline.into_iter().flat_map(BTreeMap::values);
    events.any(|(_, event)| event.kind == "attention" && event.attempt == attempt)
}

/// By real time: whoever asks after an answer was given sees at least as much.
fn revisions_going_back(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut by_task: BTreeMap<&str, Vec<(&ClientCall<'_>, &LocatedLine, u64)>> = BTreeMap::new();
    for asked in &case.calls {
        if let Some(answer) = asked.answer
            && let Observation::Answer {
                outcome: CallOutcome::Ok,
                task: Some(task),
                revision: Some(revision),
                ..
            } = &answer.line.observation
        {
            let answers = by_task.entry(task).or_default();
            answers.push((asked, answer, *revision));
        }
    }
    let mut found = Vec::new();
    for (task, mut answers) in by_task {
        answers.sort_by_key(|(asked, ..)| asked.call.line.at);
        let mut given: Vec<(u64, u64, &LocatedLine)> = answers
            .iter()
            .map(|(_, answer, revision)| (answer.line.at, *revision, *answer))
            .collect();
        given.sort_by_key(|(at, ..)| *at);
        let (mut next, mut most): (usize, Option<(u64, &LocatedLine)>) = (0, None);
        for (asked, answer, revision) in &answers {
            while next < given.len() && given[next].0 < asked.call.line.at {
                let (_, seen_revision, seen) = given[next];
                if most.is_none_or(|(most, _)| seen_revision > most) {
                    most = Some((seen_revision, seen));
                }
                next += 1;
            }
            if let Some((most, earlier)) = most.filter(|(most, _)| most > revision) {
                let what = format!("it was at revision {most} and later at {revision}");
                found.push(RuleViolation::new(
                    "S4",
                    task,
                    what,
                    &[earlier, asked.call, answer],
                ));
            }
        }
    }
    found
}

fn unfinished_tasks(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let open = case.final_tasks.iter().filter(|(_, record)| {
        !TERMINAL_STATES.contains(&record.state) && record.state != "needs_attention"
    });
    open.map(|(task, record)| {
        let what = format!("it is {} in the end", record.state);
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
    fn an_acknowledged_task_that_is_gone_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Submit, "acme", None));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t7"), 1, "queued"));
        expect_violation(&run, "S4", "t7", "client.jsonl");
    }

    #[test]
    fn a_submit_without_an_answer_claims_nothing() {
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
    fn a_task_that_was_removed_as_it_may_be_is_not_missed() {
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
    fn an_acknowledged_cancel_that_did_not_hold_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Cancel, "acme", Some("t1")));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t1"), 5, "running"));
        expect_violation(&run, "S4", "t1", "client.jsonl");
    }

    #[test]
    fn an_operators_verb_that_is_not_on_record_is_found() {
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
    fn an_acknowledged_end_that_is_gone_is_found() {
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
