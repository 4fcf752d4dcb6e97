//! S9: nobody sees anything of another tenant. Ids that clients are shown and daemons are offered are of their own tenant, and who asks for
//! another's is told what he would be told of an id that does not exist.

use std::collections::BTreeMap;

use super::Case;
use crate::history::Seen;
use crate::line::{Op, Outcome, Saw};
use crate::verdict::Violation;

/// The tenant of daemons that serve all.
const EVERYBODY: &str = "*";

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = answers(case);
    let mut watches = BTreeMap::new();
    for seen in &case.history.seen {
        let (tenant, task) = match &seen.line.saw {
            Saw::Offered { tenant, task, .. }
            | Saw::Granted { tenant, task, .. }
            | Saw::Read { tenant, task, .. } => (tenant, task),
            Saw::WatchOpened {
                watch,
                tenant,
                task,
                ..
            } => {
                watches.insert((&seen.line.who, *watch), (tenant, task));
                continue;
            }
            Saw::Watched { watch, .. } => match watches.get(&(&seen.line.who, *watch)) {
                Some(opened) => *opened,
                None => continue,
            },
            _ => continue,
        };
        found.extend(foreign(case, tenant, task, &[seen]));
    }
    found
}

fn answers(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for asked in &case.calls {
        let Some(answer) = asked.answer else { continue };
        let Saw::Answer {
            outcome,
            task,
            code,
            ..
        } = &answer.line.saw
        else {
            continue;
        };
        let lines = [asked.call, answer];
        match (asked.op, outcome) {
            (Op::Probe, Outcome::Fail) if code.as_deref() != Some("unknown_task") => {
                let what = format!(
                    "a stranger was told {}",
                    code.as_deref().unwrap_or("nothing")
                );
                found.push(Violation::new("S9", of(asked.call), what, &lines));
            }
            (Op::Probe, Outcome::Ok) => {
                found.push(Violation::new(
                    "S9",
                    of(asked.call),
                    "a stranger was shown it",
                    &lines,
                ));
            }
            (_, Outcome::Ok) => {
                let task = task.as_deref().unwrap_or_default();
                found.extend(foreign(case, asked.tenant, task, &lines));
            }
            (_, Outcome::Fail | Outcome::Info) => {}
        }
    }
    found
}

fn of(call: &Seen) -> &str {
    match &call.line.saw {
        Saw::Call {
            task: Some(task), ..
        } => task,
        _ => "",
    }
}

fn foreign(case: &Case<'_>, tenant: &str, task: &str, lines: &[&Seen]) -> Option<Violation> {
    let owner = case.records.get(task)?.tenant;
    if owner == tenant || tenant == EVERYBODY {
        return None;
    }
    let what = format!("it is of {owner}, and {tenant} was shown it");
    Some(Violation::new("S9", task, what, lines))
}

#[cfg(test)]
mod tests {
    use crate::line::{Op, Outcome, Saw};
    use crate::samples::{self, answer, call, expect};

    #[test]
    fn an_answer_with_a_foreign_task_is_found() {
        let mut run = samples::sound();
        run.client.push(call(9, Op::Get, "bolt", Some("t1")));
        run.client
            .push(answer(9, Outcome::Ok, Some("t1"), 2, "queued"));
        expect(&run, "S9", "t1", "client.jsonl");
    }

    #[test]
    fn a_stranger_who_is_answered_is_found() {
        let mut run = samples::sound();
        run.client.push(call(9, Op::Probe, "bolt", Some("t1")));
        run.client.push(answer(9, Outcome::Ok, None, 0, ""));
        expect(&run, "S9", "t1", "client.jsonl");
    }

    #[test]
    fn a_stranger_who_is_told_that_it_is_forbidden_is_found() {
        let mut run = samples::sound();
        run.client.push(call(9, Op::Probe, "bolt", Some("t1")));
        let mut refused = answer(9, Outcome::Fail, None, 0, "");
        if let Saw::Answer { code, .. } = &mut refused.saw {
            *code = Some("forbidden".into());
        }
        run.client.push(refused);
        expect(&run, "S9", "t1", "client.jsonl");
    }

    #[test]
    fn a_foreign_offer_is_found_and_one_to_a_shared_daemon_is_not() {
        let mut run = samples::sound();
        run.other.push(samples::offered("*", "t1", "a1"));
        assert!(run.judged().holds(), "{}", run.judged());
        run.other.push(samples::offered("bolt", "t1", "a1"));
        expect(&run, "S9", "t1", "other.jsonl:2");
    }

    #[test]
    fn a_foreign_watch_is_found() {
        let mut run = samples::sound();
        run.client.push(samples::watch_opened(3, "bolt", "t1", 0));
        run.client
            .push(samples::watched(3, 1, "submitted", "", "", "queued"));
        expect(&run, "S9", "t1", "client.jsonl");
    }
}
