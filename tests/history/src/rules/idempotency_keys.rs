//! S7: one idempotency key of one tenant is one task with one body.

use std::collections::BTreeMap;

use super::IndexedHistory;
use crate::history::LocatedLine;
use crate::history_line::{CallOutcome, ClientOperation, Observation};
use crate::verdict::RuleViolation;

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut keys: BTreeMap<(&str, &str), (&str, &Option<String>, &LocatedLine)> = BTreeMap::new();
    for client_call in indexed
        .calls
        .iter()
        .filter(|client_call| client_call.operation == ClientOperation::Submit)
    {
        let Observation::Call {
            key: Some(key),
            body,
            ..
        } = &client_call.call.line.observation
        else {
            continue;
        };
        let Some(answer) = client_call.answer else {
            continue;
        };
        let Observation::Answer {
            outcome: CallOutcome::Ok,
            task: Some(task),
            ..
        } = &answer.line.observation
        else {
            continue;
        };
        // A key is stored as long as its task.
        if indexed.removed.contains(task.as_str()) {
            continue;
        }
        let (known, meaning, first) = *keys
            .entry((client_call.tenant, key))
            .or_insert((task, body, answer));
        if known != task {
            let what = format!("key {key} was accepted for it and for {known}");
            found.push(RuleViolation::new("S7", task, what, &[first, answer]));
        } else if meaning != body {
            let what = format!("key {key} was accepted for two bodies");
            found.push(RuleViolation::new(
                "S7",
                task,
                what,
                &[first, client_call.call, answer],
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::history_line::CallOutcome;
    use crate::sample_run;
    use crate::sample_run::{answer, expect_violation, submit_with_key};

    #[test]
    fn one_key_for_two_tasks_is_found() {
        let mut run = sample_run::sound_run();
        run.relay
            .push(sample_run::record("acme", "t3", "completed", &[]));
        for (number, task) in [(9, "t1"), (10, "t3")] {
            run.client
                .push(submit_with_key(number, "acme", "k", "body"));
            run.client
                .push(answer(number, CallOutcome::Ok, Some(task), 1, "queued"));
        }
        expect_violation(&run, "S7", "t3", "client.jsonl");
    }

    #[test]
    fn one_key_for_two_bodies_is_found() {
        let mut run = sample_run::sound_run();
        for (number, body) in [(9, "this"), (10, "that")] {
            run.client.push(submit_with_key(number, "acme", "k", body));
            run.client
                .push(answer(number, CallOutcome::Ok, Some("t1"), 1, "queued"));
        }
        expect_violation(&run, "S7", "t1", "client.jsonl");
    }

    #[test]
    fn tenants_have_separate_keys() {
        let mut run = sample_run::sound_run();
        run.relay
            .push(sample_run::record("bolt", "t3", "completed", &[]));
        run.client.push(submit_with_key(9, "acme", "k", "body"));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t1"), 1, "queued"));
        run.client.push(submit_with_key(10, "bolt", "k", "body"));
        run.client
            .push(answer(10, CallOutcome::Ok, Some("t3"), 1, "queued"));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
    }
}
