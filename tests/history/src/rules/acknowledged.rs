//! S4: what was acknowledged is in every later state: tasks, cancels and ends that were taken, and no answer is older than one that had been
//! given before the question. L2: in the end everything has ended or waits for a person.

use std::collections::BTreeMap;

use super::{Case, ENDED, TERMINAL};
use crate::history::{Asked, Seen};
use crate::line::{Op, Outcome, Saw};
use crate::verdict::Violation;

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = calls(case);
    found.extend(unrecorded(case));
    found.extend(ends(case));
    found.extend(going_back(case));
    found.extend(stuck(case));
    found
}

fn calls(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for asked in &case.calls {
        let Some(answer) = asked.answer else { continue };
        let Saw::Answer {
            outcome: Outcome::Ok,
            task: Some(task),
            already,
            ..
        } = &answer.line.saw
        else {
            continue;
        };
        if case.removed.contains(task.as_str()) {
            continue;
        }
        let Some(record) = case.records.get(task.as_str()) else {
            let what = format!("{:?} was acknowledged, and the task is gone", asked.op);
            found.push(Violation::new("S4", task, what, &[asked.call, answer]));
            continue;
        };
        if asked.op == Op::Cancel && !already && record.state != "canceled" {
            let what = format!("its cancel was acknowledged, and it is {}", record.state);
            found.push(Violation::new(
                "S4",
                task,
                what,
                &[asked.call, answer, record.seen],
            ));
        }
    }
    found
}

/// An operator's verb is in the task's events, at the latest where its answer says how far they went.
fn unrecorded(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for asked in case.calls.iter().filter(|asked| asked.op == Op::Force) {
        let Some(answer) = asked.answer else { continue };
        let Saw::Answer {
            outcome: Outcome::Ok,
            task: Some(task),
            revision: Some(revision),
            ..
        } = &answer.line.saw
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
            found.push(Violation::new("S4", task, what, &[asked.call, answer]));
        }
    }
    found
}

/// An end that the relay told a daemon to be durable.
fn ends(case: &Case<'_>) -> Vec<Violation> {
    let mut told: BTreeMap<(&str, &str), (u64, &Seen)> = BTreeMap::new();
    let mut found = Vec::new();
    for seen in &case.history.seen {
        match &seen.line.saw {
            Saw::Sent { attempt, seq, .. } => {
                told.insert((&seen.line.who, attempt), (*seq, seen));
            }
            Saw::Acked { attempt, seq } => {
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

fn missing_end(case: &Case<'_>, attempt: &str, sent: &Seen, acked: &Seen) -> Option<Violation> {
    let Saw::Sent { task, word, .. } = &sent.line.saw else {
        return None;
    };
    if case.removed.contains(task.as_str()) {
        return None;
    }
    let state = match case.attempt(attempt) {
        Some((_, one)) if ENDED.contains(&one.state.as_str()) => return None,
        // A park stops the worker, which says that it did.
        Some((_, one)) if one.state == "parked" && word == "canceled" => return None,
        // A result without its files waits for a person where that was asked for, and its timeline says so.
        Some((_, one)) if one.state == "parked" && waits(case, task, attempt) => return None,
        Some((_, one)) => one.state.as_str(),
        // A record keeps the newest attempts of a long row only.
        None if case.records.contains_key(task.as_str()) => return None,
        None => "gone with its task",
    };
    let what = format!("{word} of {attempt} was acknowledged, and the attempt is {state}");
    Some(Violation::new("S4", task, what, &[sent, acked]))
}

fn waits(case: &Case<'_>, task: &str, attempt: &str) -> bool {
    let timeline = case.timelines.get(task);
    let mut events = timeline.into_iter().flat_map(BTreeMap::values);
    events.any(|(_, event)| event.kind == "attention" && event.attempt == attempt)
}

/// By real time: whoever asks after an answer was given sees at least as much.
fn going_back(case: &Case<'_>) -> Vec<Violation> {
    let mut by_task: BTreeMap<&str, Vec<(&Asked<'_>, &Seen, u64)>> = BTreeMap::new();
    for asked in &case.calls {
        if let Some(answer) = asked.answer
            && let Saw::Answer {
                outcome: Outcome::Ok,
                task: Some(task),
                revision: Some(revision),
                ..
            } = &answer.line.saw
        {
            let answers = by_task.entry(task).or_default();
            answers.push((asked, answer, *revision));
        }
    }
    let mut found = Vec::new();
    for (task, mut answers) in by_task {
        answers.sort_by_key(|(asked, ..)| asked.call.line.at);
        let mut given: Vec<(u64, u64, &Seen)> = answers
            .iter()
            .map(|(_, answer, revision)| (answer.line.at, *revision, *answer))
            .collect();
        given.sort_by_key(|(at, ..)| *at);
        let (mut next, mut most): (usize, Option<(u64, &Seen)>) = (0, None);
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
                found.push(Violation::new(
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

fn stuck(case: &Case<'_>) -> Vec<Violation> {
    let open = case.records.iter().filter(|(_, record)| {
        !TERMINAL.contains(&record.state) && record.state != "needs_attention"
    });
    open.map(|(task, record)| {
        let what = format!("it is {} in the end", record.state);
        Violation::new("L2", task, what, &[record.seen])
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use crate::line::{Op, Outcome, Saw};
    use crate::samples::{self, answer, call, expect};

    #[test]
    fn an_acknowledged_task_that_is_gone_is_found() {
        let mut run = samples::sound();
        run.client.push(call(9, Op::Submit, "acme", None));
        run.client
            .push(answer(9, Outcome::Ok, Some("t7"), 1, "queued"));
        expect(&run, "S4", "t7", "client.jsonl");
    }

    #[test]
    fn a_submit_without_an_answer_claims_nothing() {
        let mut run = samples::sound();
        run.client.push(call(9, Op::Submit, "acme", None));
        run.client
            .push(answer(9, Outcome::Info, Some("t7"), 1, "queued"));
        run.client.push(call(10, Op::Submit, "acme", None));
        assert!(run.judged().holds(), "{}", run.judged());
        assert_eq!(run.judged().count("unknown outcomes"), 2);
    }

    #[test]
    fn a_task_that_was_removed_as_it_may_be_is_not_missed() {
        let mut run = samples::sound();
        run.client.push(call(9, Op::Submit, "acme", None));
        run.client
            .push(answer(9, Outcome::Ok, Some("t7"), 1, "queued"));
        run.relay
            .push(samples::line("relay", Saw::Removed { task: "t7".into() }));
        assert!(run.judged().holds(), "{}", run.judged());
    }

    #[test]
    fn an_acknowledged_cancel_that_did_not_hold_is_found() {
        let mut run = samples::sound();
        run.client.push(call(9, Op::Cancel, "acme", Some("t1")));
        run.client
            .push(answer(9, Outcome::Ok, Some("t1"), 5, "running"));
        expect(&run, "S4", "t1", "client.jsonl");
    }

    #[test]
    fn an_operators_verb_that_is_not_on_record_is_found() {
        let mut run = samples::sound();
        run.client.push(call(9, Op::Force, "acme", Some("t9")));
        run.client
            .push(answer(9, Outcome::Ok, Some("t9"), 2, "failed"));
        run.relay.push(samples::record(
            "acme",
            "t9",
            "failed",
            &[("d1", 1, "failed")],
        ));
        let event =
            |revision, kind| samples::timeline("t9", revision, kind, "d1", "failed", "failed");
        run.relay.push(event(1, "submitted"));
        run.relay.push(event(2, "ended"));
        expect(&run, "S4", "t9", "client.jsonl");
        let mut run = samples::sound();
        run.client.push(call(9, Op::Force, "acme", Some("t9")));
        run.client
            .push(answer(9, Outcome::Ok, Some("t9"), 2, "failed"));
        run.relay.push(samples::record(
            "acme",
            "t9",
            "failed",
            &[("d1", 1, "failed")],
        ));
        run.relay.push(event(1, "forced"));
        run.relay.push(event(2, "ended"));
        assert!(run.judged().holds(), "{}", run.judged());
    }

    #[test]
    fn an_acknowledged_end_that_is_gone_is_found() {
        let mut run = samples::sound();
        run.daemon.push(samples::offered("acme", "t2", "a2"));
        run.daemon.push(samples::sent("t2", "a2"));
        run.daemon.push(samples::acked("a2"));
        run.relay.push(samples::record(
            "acme",
            "t2",
            "needs_attention",
            &[("a2", 1, "parked")],
        ));
        expect(&run, "S4", "t2", "daemon.jsonl");
    }

    #[test]
    fn an_answer_older_than_an_earlier_one_is_found() {
        let mut run = samples::sound();
        for (number, revision, state) in [(9, 5, "completed"), (10, 2, "queued")] {
            run.client.push(call(number, Op::Get, "acme", Some("t1")));
            run.client
                .push(answer(number, Outcome::Ok, Some("t1"), revision, state));
        }
        expect(&run, "S4", "t1", "client.jsonl");
    }

    #[test]
    fn a_task_that_never_ends_is_found() {
        let mut run = samples::sound();
        run.relay
            .push(samples::record("acme", "t5", "running", &[]));
        expect(&run, "L2", "t5", "relay.jsonl");
    }
}
