//! S9: no tenant sees data of another one. Ids shown to clients and offered to daemons are of
//! their own tenant, and a request for a foreign id gets the same answer as for an id that does
//! not exist.

use std::collections::BTreeMap;

use super::IndexedHistory;
use crate::history::LocatedLine;
use crate::history_line::{CallOutcome, ClientOperation, Observation};
use crate::verdict::RuleViolation;

/// The tenant of daemons that serve all.
const ALL_TENANTS: &str = "*";

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = foreign_answers(indexed);
    let mut watches = BTreeMap::new();
    for located in &indexed.history.located_lines {
        let (tenant, task) = match &located.line.observation {
            Observation::Offered { tenant, task, .. }
            | Observation::Granted { tenant, task, .. }
            | Observation::Read { tenant, task, .. } => (tenant, task),
            Observation::WatchOpened {
                watch,
                tenant,
                task,
                ..
            } => {
                watches.insert((&located.line.who, *watch), (tenant, task));
                continue;
            }
            Observation::Watched { watch, .. } => match watches.get(&(&located.line.who, *watch)) {
                Some(opened) => *opened,
                None => continue,
            },
            _ => continue,
        };
        found.extend(foreign_task_shown(indexed, tenant, task, &[located]));
    }
    found
}

fn foreign_answers(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for client_call in &indexed.calls {
        let Some(answer) = client_call.answer else {
            continue;
        };
        let Observation::Answer {
            outcome,
            task,
            code,
            ..
        } = &answer.line.observation
        else {
            continue;
        };
        let lines = [client_call.call, answer];
        match (client_call.operation, outcome) {
            (ClientOperation::Probe, CallOutcome::Fail)
                if code.as_deref() != Some("unknown_task") =>
            {
                let what = format!(
                    "a foreign client got {}",
                    code.as_deref().unwrap_or("nothing")
                );
                found.push(RuleViolation::new(
                    "S9",
                    called_task(client_call.call),
                    what,
                    &lines,
                ));
            }
            (ClientOperation::Probe, CallOutcome::Ok) => {
                found.push(RuleViolation::new(
                    "S9",
                    called_task(client_call.call),
                    "a foreign client was shown it",
                    &lines,
                ));
            }
            (_, CallOutcome::Ok) => {
                let task = task.as_deref().unwrap_or_default();
                found.extend(foreign_task_shown(
                    indexed,
                    client_call.tenant,
                    task,
                    &lines,
                ));
            }
            (_, CallOutcome::Fail | CallOutcome::Info) => {}
        }
    }
    found
}

fn called_task(call: &LocatedLine) -> &str {
    match &call.line.observation {
        Observation::Call {
            task: Some(task), ..
        } => task,
        _ => "",
    }
}

fn foreign_task_shown(
    indexed: &IndexedHistory<'_>,
    tenant: &str,
    task: &str,
    lines: &[&LocatedLine],
) -> Option<RuleViolation> {
    let owner = indexed.final_tasks.get(task)?.tenant;
    if owner == tenant || tenant == ALL_TENANTS {
        return None;
    }
    let what = format!("it belongs to {owner}, but {tenant} was shown it");
    Some(RuleViolation::new("S9", task, what, lines))
}

#[cfg(test)]
mod tests {
    use crate::history_line::{CallOutcome, ClientOperation, Observation};
    use crate::sample_run;
    use crate::sample_run::{answer, call, expect_violation};

    #[test]
    fn an_answer_with_a_foreign_task_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Get, "bolt", Some("t1")));
        run.client
            .push(answer(9, CallOutcome::Ok, Some("t1"), 2, "queued"));
        expect_violation(&run, "S9", "t1", "client.jsonl");
    }

    #[test]
    fn an_answer_to_a_foreign_client_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Probe, "bolt", Some("t1")));
        run.client.push(answer(9, CallOutcome::Ok, None, 0, ""));
        expect_violation(&run, "S9", "t1", "client.jsonl");
    }

    #[test]
    fn a_permission_error_for_a_foreign_task_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(call(9, ClientOperation::Probe, "bolt", Some("t1")));
        let mut refused = answer(9, CallOutcome::Fail, None, 0, "");
        if let Observation::Answer { code, .. } = &mut refused.observation {
            *code = Some("forbidden".into());
        }
        run.client.push(refused);
        expect_violation(&run, "S9", "t1", "client.jsonl");
    }

    #[test]
    fn a_foreign_offer_is_found_except_to_a_shared_daemon() {
        let mut run = sample_run::sound_run();
        run.other.push(sample_run::offered("*", "t1", "a1"));
        assert!(run.verdict().is_clean(), "{}", run.verdict());
        run.other.push(sample_run::offered("bolt", "t1", "a1"));
        expect_violation(&run, "S9", "t1", "other.jsonl:2");
    }

    #[test]
    fn a_foreign_watch_is_found() {
        let mut run = sample_run::sound_run();
        run.client
            .push(sample_run::watch_opened(3, "bolt", "t1", 0));
        run.client
            .push(sample_run::watched(3, 1, "submitted", "", "", "queued"));
        expect_violation(&run, "S9", "t1", "client.jsonl");
    }
}
