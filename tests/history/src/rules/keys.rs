//! S7: one idempotency key of one tenant is one task with one body.

use std::collections::BTreeMap;

use super::Case;
use crate::history::Seen;
use crate::line::{Op, Outcome, Saw};
use crate::verdict::Violation;

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut keys: BTreeMap<(&str, &str), (&str, &Option<String>, &Seen)> = BTreeMap::new();
    for asked in case.calls.iter().filter(|asked| asked.op == Op::Submit) {
        let Saw::Call {
            key: Some(key),
            body,
            ..
        } = &asked.call.line.saw
        else {
            continue;
        };
        let Some(answer) = asked.answer else { continue };
        let Saw::Answer {
            outcome: Outcome::Ok,
            task: Some(task),
            ..
        } = &answer.line.saw
        else {
            continue;
        };
        // A key lives as long as its task.
        if case.removed.contains(task.as_str()) {
            continue;
        }
        let (known, meaning, first) = *keys
            .entry((asked.tenant, key))
            .or_insert((task, body, answer));
        if known != task {
            let what = format!("key {key} was taken for it and for {known}");
            found.push(Violation::new("S7", task, what, &[first, answer]));
        } else if meaning != body {
            let what = format!("key {key} was taken for two bodies");
            found.push(Violation::new(
                "S7",
                task,
                what,
                &[first, asked.call, answer],
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::line::Outcome;
    use crate::samples::{self, answer, expect, keyed};

    #[test]
    fn one_key_for_two_tasks_is_found() {
        let mut run = samples::sound();
        run.relay
            .push(samples::record("acme", "t3", "completed", &[]));
        for (number, task) in [(9, "t1"), (10, "t3")] {
            run.client.push(keyed(number, "acme", "k", "body"));
            run.client
                .push(answer(number, Outcome::Ok, Some(task), 1, "queued"));
        }
        expect(&run, "S7", "t3", "client.jsonl");
    }

    #[test]
    fn one_key_for_two_bodies_is_found() {
        let mut run = samples::sound();
        for (number, body) in [(9, "this"), (10, "that")] {
            run.client.push(keyed(number, "acme", "k", body));
            run.client
                .push(answer(number, Outcome::Ok, Some("t1"), 1, "queued"));
        }
        expect(&run, "S7", "t1", "client.jsonl");
    }

    #[test]
    fn a_key_of_another_tenant_is_another_key() {
        let mut run = samples::sound();
        run.relay
            .push(samples::record("bolt", "t3", "completed", &[]));
        run.client.push(keyed(9, "acme", "k", "body"));
        run.client
            .push(answer(9, Outcome::Ok, Some("t1"), 1, "queued"));
        run.client.push(keyed(10, "bolt", "k", "body"));
        run.client
            .push(answer(10, Outcome::Ok, Some("t3"), 1, "queued"));
        assert!(run.judged().holds(), "{}", run.judged());
    }
}
