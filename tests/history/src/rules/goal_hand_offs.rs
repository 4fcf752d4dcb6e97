//! Goals: an acknowledged block, resume, pick-up, checkpoint or item of progress is still there in the end. What waits for a person is
//! leased to nobody, is sent on once, and only the newest attempt of a task waits.

use std::collections::BTreeMap;

use super::IndexedHistory;
use crate::history::{ClientCall, LocatedLine};
use crate::history_line::{CallOutcome, ClientOperation, Observation};
use crate::verdict::RuleViolation;

pub(super) fn check(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let made = created_by_call(case);
    let mut found = calls_without_event(case);
    found.extend(lost_items_and_checkpoints(case, &made));
    found.extend(duplicate_hand_offs(case, &made));
    found.extend(leased_while_parked(case));
    found.extend(stale_parked_attempts(case));
    found
}

/// The event that tells of such a call.
fn event_kind_of(op: ClientOperation) -> Option<&'static str> {
    match op {
        ClientOperation::Block => Some("attention"),
        ClientOperation::Resume => Some("resumed"),
        ClientOperation::PickUp => Some("picked_up"),
        ClientOperation::Progress => Some("progress"),
        ClientOperation::Checkpoint => Some("checkpoint"),
        ClientOperation::Submit
        | ClientOperation::Cancel
        | ClientOperation::Force
        | ClientOperation::Get
        | ClientOperation::Probe => None,
    }
}

/// Acknowledged calls, each with its task and the revision that it was told.
fn acknowledged_calls<'a>(
    case: &'a IndexedHistory<'a>,
) -> impl Iterator<Item = (&'a ClientCall<'a>, &'a LocatedLine, &'a str, u64)> {
    case.calls.iter().filter_map(|asked| {
        let answer = asked.answer?;
        let Observation::Answer {
            outcome: CallOutcome::Ok,
            task: Some(task),
            revision,
            ..
        } = &answer.line.observation
        else {
            return None;
        };
        let removed = case.removed.contains(task.as_str());
        (!removed).then_some((asked, answer, task.as_str(), revision.unwrap_or(u64::MAX)))
    })
}

/// Calls of one kind about one task: the revision that each was told, the call and its answer.
type CallsByTask<'a> =
    BTreeMap<(&'a str, &'static str), Vec<(u64, &'a LocatedLine, &'a LocatedLine)>>;

/// Each of them has an event of its own in the task's story, as far as that goes back.
fn calls_without_event(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut told: CallsByTask<'_> = BTreeMap::new();
    for (asked, answer, task, revision) in acknowledged_calls(case) {
        if let Some(kind) = event_kind_of(asked.operation) {
            let calls = told.entry((task, kind)).or_default();
            calls.push((revision, asked.call, answer));
        }
    }
    let mut found = Vec::new();
    for ((task, kind), mut calls) in told {
        let Some(timeline) = case.timelines.get(task).filter(|t| t.contains_key(&1)) else {
            continue;
        };
        calls.sort_by_key(|(revision, ..)| *revision);
        for (nth, (revision, call, answer)) in calls.iter().enumerate() {
            let events = timeline.range(..=revision).map(|(_, (_, event))| event);
            if events.filter(|event| event.kind == kind).count() <= nth {
                let what =
                    format!("{kind} was acknowledged at {revision}, and no event tells of it");
                found.push(RuleViolation::new("goals", task, what, &[call, answer]));
            }
        }
    }
    found
}

fn created_by_call<'a>(case: &IndexedHistory<'a>) -> BTreeMap<(&'a str, u64), &'a str> {
    let lines = case
        .history
        .located_lines
        .iter()
        .filter_map(|seen| match &seen.line.observation {
            Observation::Made { call, made } => {
                Some(((seen.line.who.as_str(), *call), made.as_str()))
            }
            _ => None,
        });
    lines.collect()
}

fn created_by<'a>(
    made: &BTreeMap<(&'a str, u64), &'a str>,
    asked: &ClientCall<'a>,
) -> Option<&'a str> {
    let Observation::Call { call, .. } = &asked.call.line.observation else {
        return None;
    };
    made.get(&(asked.call.line.who.as_str(), *call)).copied()
}

/// Items and checkpoints themselves, where the relay was asked for them in the end.
fn lost_items_and_checkpoints(
    case: &IndexedHistory<'_>,
    made: &BTreeMap<(&str, u64), &str>,
) -> Vec<RuleViolation> {
    let mut goals: BTreeMap<&str, (&Vec<String>, u64, &Vec<u64>)> = BTreeMap::new();
    for seen in &case.history.located_lines {
        if let Observation::Goal {
            task,
            completed,
            dropped,
            checkpoints,
        } = &seen.line.observation
        {
            goals.insert(task, (completed, *dropped, checkpoints));
        }
    }
    let mut found = Vec::new();
    for (asked, answer, task, _) in acknowledged_calls(case) {
        let Some((completed, dropped, checkpoints)) = goals.get(task) else {
            continue;
        };
        let lost = match (asked.operation, call_body(asked), created_by(made, asked)) {
            (ClientOperation::Progress, Some(item), _) if *dropped == 0 => {
                (!completed.iter().any(|kept| kept == item)).then(|| format!("item {item}"))
            }
            (ClientOperation::Checkpoint, _, Some(number)) => {
                let number: u64 = number.parse().unwrap_or(0);
                // Only the oldest may have made room.
                let oldest = checkpoints.first().copied().unwrap_or(u64::MAX);
                let there = checkpoints.contains(&number) || number < oldest && oldest != u64::MAX;
                (!there).then(|| format!("checkpoint {number}"))
            }
            _ => None,
        };
        if let Some(lost) = lost {
            let what = format!("{lost} was acknowledged and is gone");
            found.push(RuleViolation::new(
                "goals",
                task,
                what,
                &[asked.call, answer],
            ));
        }
    }
    found
}

fn call_body<'a>(asked: &ClientCall<'a>) -> Option<&'a str> {
    match &asked.call.line.observation {
        Observation::Call { body, .. } => body.as_deref(),
        _ => None,
    }
}

/// Of several who want it to go on one is told that it does, by an attempt that is there.
fn duplicate_hand_offs(
    case: &IndexedHistory<'_>,
    made: &BTreeMap<(&str, u64), &str>,
) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut first: BTreeMap<&str, &LocatedLine> = BTreeMap::new();
    for (asked, answer, task, _) in acknowledged_calls(case) {
        let Some(attempt) = created_by(made, asked).filter(|_| is_hand_off(asked.operation)) else {
            continue;
        };
        if let Some(other) = first.insert(attempt, answer) {
            let what = format!("two were told that it goes on by {attempt}");
            found.push(RuleViolation::new(
                "goals",
                task,
                what,
                &[other, asked.call, answer],
            ));
        }
        let story = case.timelines.get(task);
        let known = story.is_none_or(|story| {
            !story.contains_key(&1) || story.values().any(|(_, event)| event.attempt == attempt)
        });
        if !known {
            let what = format!("it was said to go on by {attempt}, which nobody knows");
            found.push(RuleViolation::new(
                "goals",
                task,
                what,
                &[asked.call, answer],
            ));
        }
    }
    found
}

fn is_hand_off(op: ClientOperation) -> bool {
    matches!(op, ClientOperation::Resume | ClientOperation::PickUp)
}

/// A parked task is offered and leased to nobody until somebody sends it on, and that happens once.
fn leased_while_parked(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (task, timeline) in &case.timelines {
        // Where the story begins in the middle nobody knows whether it waits.
        let mut waits = (!timeline.contains_key(&1)).then_some(None);
        for (seen, event) in timeline.values() {
            let parked = waits.flatten();
            match event.kind.as_str() {
                "attention" => waits = Some(Some(*seen)),
                "resumed" | "picked_up" if waits.is_none() => {
                    let what = format!(
                        "{} at {}, and it was not parked",
                        event.kind, event.revision
                    );
                    found.push(RuleViolation::new("goals", task, what, &[seen]));
                }
                "offered" | "confirmed" => {
                    found.extend(parked.map(|since| leased_violation(task, since, seen)));
                }
                "resumed" | "picked_up" | "retry_asked" | "cancel_requested" | "adopted_late" => {
                    waits = None;
                }
                _ => {}
            }
        }
    }
    found
}

fn leased_violation(task: &str, since: &LocatedLine, seen: &LocatedLine) -> RuleViolation {
    let what = "it waits for a person and is leased";
    RuleViolation::new("goals", task, what, &[since, seen])
}

/// Once a task went on, what it waited with is handed off.
fn stale_parked_attempts(case: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (task, record) in &case.final_tasks {
        let Some((last, earlier)) = record.attempts.split_last() else {
            continue;
        };
        if let Some(one) = earlier.iter().find(|one| one.state == "parked") {
            let what = format!(
                "{} is parked, and {} came after it",
                one.attempt, last.attempt
            );
            found.push(RuleViolation::new(
                "goals",
                task,
                what,
                &[record.located_line],
            ));
        }
        if last.state == "parked" && record.state != "needs_attention" {
            let what = format!(
                "{} is parked, and its task is {}",
                last.attempt, record.state
            );
            found.push(RuleViolation::new(
                "goals",
                task,
                what,
                &[record.located_line],
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::history_line::{CallOutcome, ClientOperation, Observation};
    use crate::sample_run;
    use crate::sample_run::{SampleRun, answer, call, expect_violation, line, record, timeline};

    /// A task that a person blocked and sent on, and that then completed.
    fn handed_off_run() -> SampleRun {
        let mut run = sample_run::sound_run();
        let told = [
            (1, "submitted", "", "", "queued"),
            (2, "progress", "b1", "queued", "queued"),
            (3, "checkpoint", "b1", "queued", "queued"),
            (4, "attention", "b1", "parked", "needs_attention"),
            (5, "resumed", "b1", "parked", "queued"),
            (6, "ended", "b1", "handed_off", "queued"),
            (7, "queued", "b2", "queued", "queued"),
            (8, "confirmed", "b2", "accepted", "running"),
            (9, "ended", "b2", "canceled", "canceled"),
        ];
        for (revision, kind, attempt, state, task_state) in told {
            let event = timeline("t4", revision, kind, attempt, state, task_state);
            run.relay.push(event);
        }
        let attempts = [("b1", 1, "handed_off"), ("b2", 2, "canceled")];
        run.relay.push(record("acme", "t4", "canceled", &attempts));
        run.relay.push(goal_line(&["one"], &[1]));
        push_call(&mut run, 20, ClientOperation::Progress, 2, "queued");
        if let Some(Observation::Call { body, .. }) = run
            .client
            .iter_mut()
            .rev()
            .nth(1)
            .map(|line| &mut line.observation)
        {
            *body = Some("one".into());
        }
        push_call(&mut run, 21, ClientOperation::Block, 4, "needs_attention");
        push_call(&mut run, 22, ClientOperation::Resume, 7, "queued");
        run.client.push(made_line(22, "b2"));
        run
    }

    fn push_call(
        run: &mut SampleRun,
        number: u64,
        op: ClientOperation,
        revision: u64,
        state: &str,
    ) {
        run.client.push(call(number, op, "acme", Some("t4")));
        run.client
            .push(answer(number, CallOutcome::Ok, Some("t4"), revision, state));
    }

    fn made_line(call: u64, made: &str) -> crate::history_line::HistoryLine {
        let made = made.into();
        line("client", Observation::Made { call, made })
    }

    fn goal_line(completed: &[&str], checkpoints: &[u64]) -> crate::history_line::HistoryLine {
        let saw = Observation::Goal {
            task: "t4".into(),
            completed: completed.iter().map(|item| (*item).into()).collect(),
            dropped: 0,
            checkpoints: checkpoints.to_vec(),
        };
        line("relay", saw)
    }

    #[test]
    fn what_was_parked_and_sent_on_once_is_sound() {
        let run = handed_off_run();
        assert!(run.verdict().is_clean(), "{}", run.verdict());
        assert_eq!(run.verdict().count("resumes acknowledged"), 1);
    }

    #[test]
    fn an_acknowledged_block_that_no_event_tells_of_is_found() {
        let mut run = handed_off_run();
        push_call(&mut run, 30, ClientOperation::Block, 9, "canceled");
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn an_acknowledged_resume_that_no_event_tells_of_is_found() {
        let mut run = handed_off_run();
        push_call(&mut run, 30, ClientOperation::Resume, 9, "canceled");
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn an_acknowledged_item_that_is_gone_is_found() {
        let mut run = handed_off_run();
        run.relay.push(goal_line(&["two"], &[1]));
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn an_acknowledged_checkpoint_that_is_gone_is_found() {
        let mut run = handed_off_run();
        push_call(&mut run, 30, ClientOperation::Checkpoint, 9, "canceled");
        run.client.push(made_line(30, "1"));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
        run.relay.push(goal_line(&["one"], &[]));
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn two_who_were_told_that_they_sent_it_on_are_found() {
        let mut run = handed_off_run();
        run.relay
            .push(timeline("t4", 10, "picked_up", "b2", "queued", "queued"));
        push_call(&mut run, 30, ClientOperation::PickUp, 10, "queued");
        run.client.push(made_line(30, "b2"));
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn a_task_that_was_sent_on_twice_is_found() {
        let mut run = handed_off_run();
        run.relay
            .push(timeline("t4", 10, "resumed", "b2", "queued", "queued"));
        expect_violation(&run, "goals", "t4", "relay.jsonl");
    }

    #[test]
    fn a_parked_task_that_is_leased_is_found() {
        let mut run = handed_off_run();
        run.relay.push(timeline(
            "t4",
            10,
            "attention",
            "b2",
            "canceled",
            "needs_attention",
        ));
        run.relay
            .push(timeline("t4", 11, "offered", "b2", "offered", "running"));
        expect_violation(&run, "goals", "t4", "relay.jsonl");
    }

    #[test]
    fn an_attempt_that_stays_parked_when_its_task_went_on_is_found() {
        let mut run = handed_off_run();
        let attempts = [("b1", 1, "parked"), ("b2", 2, "canceled")];
        run.relay.push(record("acme", "t4", "canceled", &attempts));
        expect_violation(&run, "goals", "t4", "relay.jsonl");
    }

    #[test]
    fn a_lease_that_an_agent_was_told_of_and_nobody_stored_is_found() {
        let mut run = handed_off_run();
        let granted = Observation::Granted {
            tenant: "acme".into(),
            task: "t4".into(),
            attempt: "b9".into(),
        };
        run.other.push(line("agent", granted));
        expect_violation(&run, "S5", "t4", "other.jsonl");
    }
}
