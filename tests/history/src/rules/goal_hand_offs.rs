//! Goals: an acknowledged block, resume, pick-up, checkpoint or progress item is still stored
//! at the end. A parked task has no lease and is resumed once, and only the newest attempt of a
//! task is parked.

use std::collections::BTreeMap;

use super::IndexedHistory;
use crate::history::{ClientCall, LocatedLine};
use crate::history_line::{CallOutcome, ClientOperation, Observation};
use crate::verdict::RuleViolation;

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let made = created_by_call(indexed);
    let mut found = calls_without_event(indexed);
    found.extend(lost_items_and_checkpoints(indexed, &made));
    found.extend(duplicate_hand_offs(indexed, &made));
    found.extend(leased_while_parked(indexed));
    found.extend(stale_parked_attempts(indexed));
    found
}

/// The event kind that records such a call.
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

/// Acknowledged calls, each with its task and the revision of its answer.
fn acknowledged_calls<'a>(
    indexed: &'a IndexedHistory<'a>,
) -> impl Iterator<Item = (&'a ClientCall<'a>, &'a LocatedLine, &'a str, u64)> {
    indexed.calls.iter().filter_map(|client_call| {
        let answer = client_call.answer?;
        let Observation::Answer {
            outcome: CallOutcome::Ok,
            task: Some(task),
            revision,
            ..
        } = &answer.line.observation
        else {
            return None;
        };
        let removed = indexed.removed.contains(task.as_str());
        (!removed).then_some((
            client_call,
            answer,
            task.as_str(),
            revision.unwrap_or(u64::MAX),
        ))
    })
}

/// Calls of one kind for one task: the revision of each answer, the call and its answer.
type CallsByTask<'a> =
    BTreeMap<(&'a str, &'static str), Vec<(u64, &'a LocatedLine, &'a LocatedLine)>>;

/// Each call has its own event in the task's timeline, as far as that is stored.
fn calls_without_event(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut told: CallsByTask<'_> = BTreeMap::new();
    for (client_call, answer, task, revision) in acknowledged_calls(indexed) {
        if let Some(kind) = event_kind_of(client_call.operation) {
            let calls = told.entry((task, kind)).or_default();
            calls.push((revision, client_call.call, answer));
        }
    }
    let mut found = Vec::new();
    for ((task, kind), mut calls) in told {
        let Some(timeline) = indexed.timelines.get(task).filter(|t| t.contains_key(&1)) else {
            continue;
        };
        calls.sort_by_key(|(revision, ..)| *revision);
        for (nth, (revision, call, answer)) in calls.iter().enumerate() {
            let events = timeline.range(..=revision).map(|(_, (_, event))| event);
            if events.filter(|event| event.kind == kind).count() <= nth {
                let what =
                    format!("{kind} was acknowledged at {revision}, but no event records it");
                found.push(RuleViolation::new("goals", task, what, &[call, answer]));
            }
        }
    }
    found
}

fn created_by_call<'a>(indexed: &IndexedHistory<'a>) -> BTreeMap<(&'a str, u64), &'a str> {
    let lines = indexed.history.located_lines.iter().filter_map(|located| {
        match &located.line.observation {
            Observation::Made { call, made } => {
                Some(((located.line.who.as_str(), *call), made.as_str()))
            }
            _ => None,
        }
    });
    lines.collect()
}

fn created_by<'a>(
    made: &BTreeMap<(&'a str, u64), &'a str>,
    client_call: &ClientCall<'a>,
) -> Option<&'a str> {
    let Observation::Call { call, .. } = &client_call.call.line.observation else {
        return None;
    };
    made.get(&(client_call.call.line.who.as_str(), *call))
        .copied()
}

/// The items and checkpoints themselves, if the relay reported them at the end.
fn lost_items_and_checkpoints(
    indexed: &IndexedHistory<'_>,
    made: &BTreeMap<(&str, u64), &str>,
) -> Vec<RuleViolation> {
    let mut goals: BTreeMap<&str, (&Vec<String>, u64, &Vec<u64>)> = BTreeMap::new();
    for located in &indexed.history.located_lines {
        if let Observation::Goal {
            task,
            completed,
            dropped,
            checkpoints,
        } = &located.line.observation
        {
            goals.insert(task, (completed, *dropped, checkpoints));
        }
    }
    let mut found = Vec::new();
    for (client_call, answer, task, _) in acknowledged_calls(indexed) {
        let Some((completed, dropped, checkpoints)) = goals.get(task) else {
            continue;
        };
        let lost = match (
            client_call.operation,
            call_body(client_call),
            created_by(made, client_call),
        ) {
            (ClientOperation::Progress, Some(item), _) if *dropped == 0 => {
                (!completed.iter().any(|kept| kept == item)).then(|| format!("item {item}"))
            }
            (ClientOperation::Checkpoint, _, Some(number)) => {
                let number: u64 = number.parse().unwrap_or(0);
                // Only the oldest may have been removed.
                let oldest = checkpoints.first().copied().unwrap_or(u64::MAX);
                let is_stored =
                    checkpoints.contains(&number) || number < oldest && oldest != u64::MAX;
                (!is_stored).then(|| format!("checkpoint {number}"))
            }
            _ => None,
        };
        if let Some(lost) = lost {
            let what = format!("{lost} was acknowledged but is missing");
            found.push(RuleViolation::new(
                "goals",
                task,
                what,
                &[client_call.call, answer],
            ));
        }
    }
    found
}

fn call_body<'a>(client_call: &ClientCall<'a>) -> Option<&'a str> {
    match &client_call.call.line.observation {
        Observation::Call { body, .. } => body.as_deref(),
        _ => None,
    }
}

/// Of several concurrent hand-offs one succeeds, with an attempt that exists.
fn duplicate_hand_offs(
    indexed: &IndexedHistory<'_>,
    made: &BTreeMap<(&str, u64), &str>,
) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut first: BTreeMap<&str, &LocatedLine> = BTreeMap::new();
    for (client_call, answer, task, _) in acknowledged_calls(indexed) {
        let Some(attempt) =
            created_by(made, client_call).filter(|_| is_hand_off(client_call.operation))
        else {
            continue;
        };
        if let Some(other) = first.insert(attempt, answer) {
            let what = format!("two calls were answered with attempt {attempt}");
            found.push(RuleViolation::new(
                "goals",
                task,
                what,
                &[other, client_call.call, answer],
            ));
        }
        let story = indexed.timelines.get(task);
        let known = story.is_none_or(|story| {
            !story.contains_key(&1) || story.values().any(|(_, event)| event.attempt == attempt)
        });
        if !known {
            let what = format!("the answer names attempt {attempt}, which does not exist");
            found.push(RuleViolation::new(
                "goals",
                task,
                what,
                &[client_call.call, answer],
            ));
        }
    }
    found
}

fn is_hand_off(op: ClientOperation) -> bool {
    matches!(op, ClientOperation::Resume | ClientOperation::PickUp)
}

/// A parked task is not offered or leased until it is resumed, and that happens once.
fn leased_while_parked(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (task, timeline) in &indexed.timelines {
        // If the beginning of the timeline is missing, it is unknown whether the task is
        // parked.
        let mut waits = (!timeline.contains_key(&1)).then_some(None);
        for (located, event) in timeline.values() {
            let parked = waits.flatten();
            match event.kind.as_str() {
                "attention" => waits = Some(Some(*located)),
                "resumed" | "picked_up" if waits.is_none() => {
                    let what = format!(
                        "{} at {}, but it was not parked",
                        event.kind, event.revision
                    );
                    found.push(RuleViolation::new("goals", task, what, &[located]));
                }
                "offered" | "confirmed" => {
                    found.extend(parked.map(|since| leased_violation(task, since, located)));
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

fn leased_violation(task: &str, since: &LocatedLine, located: &LocatedLine) -> RuleViolation {
    let what = "it is parked and leased";
    RuleViolation::new("goals", task, what, &[since, located])
}

/// After a task was resumed, its parked attempt is handed off.
fn stale_parked_attempts(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (task, record) in &indexed.final_tasks {
        let Some((last, earlier)) = record.attempts.split_last() else {
            continue;
        };
        if let Some(one) = earlier.iter().find(|one| one.state == "parked") {
            let what = format!(
                "{} is parked, but {} followed it",
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
                "{} is parked, but its task is {}",
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

    /// A task that a person blocked and resumed, and that then completed.
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
    fn a_task_parked_and_resumed_once_is_valid() {
        let run = handed_off_run();
        assert!(run.verdict().is_clean(), "{}", run.verdict());
        assert_eq!(run.verdict().count("resumes acknowledged"), 1);
    }

    #[test]
    fn an_acknowledged_block_without_an_event_is_found() {
        let mut run = handed_off_run();
        push_call(&mut run, 30, ClientOperation::Block, 9, "canceled");
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn an_acknowledged_resume_without_an_event_is_found() {
        let mut run = handed_off_run();
        push_call(&mut run, 30, ClientOperation::Resume, 9, "canceled");
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn a_missing_acknowledged_item_is_found() {
        let mut run = handed_off_run();
        run.relay.push(goal_line(&["two"], &[1]));
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn a_missing_acknowledged_checkpoint_is_found() {
        let mut run = handed_off_run();
        push_call(&mut run, 30, ClientOperation::Checkpoint, 9, "canceled");
        run.client.push(made_line(30, "1"));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
        run.relay.push(goal_line(&["one"], &[]));
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn two_acknowledged_resumes_of_one_attempt_are_found() {
        let mut run = handed_off_run();
        run.relay
            .push(timeline("t4", 10, "picked_up", "b2", "queued", "queued"));
        push_call(&mut run, 30, ClientOperation::PickUp, 10, "queued");
        run.client.push(made_line(30, "b2"));
        expect_violation(&run, "goals", "t4", "client.jsonl");
    }

    #[test]
    fn a_task_resumed_twice_is_found() {
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
    fn a_parked_attempt_of_a_resumed_task_is_found() {
        let mut run = handed_off_run();
        let attempts = [("b1", 1, "parked"), ("b2", 2, "canceled")];
        run.relay.push(record("acme", "t4", "canceled", &attempts));
        expect_violation(&run, "goals", "t4", "relay.jsonl");
    }

    #[test]
    fn an_agent_lease_that_is_not_stored_is_found() {
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
