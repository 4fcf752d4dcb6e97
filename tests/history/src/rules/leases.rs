//! S1: at most one attempt of a task holds a lease at any instant, and never do processes of two attempts live at once. The first by the
//! relay's record, in its own order; the second by the processes themselves, whatever the relay believed.
//! S2: an attempt is of one task, has one number, and is run once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, LEASED};
use crate::history::Seen;
use crate::line::Saw;
use crate::verdict::Violation;

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = leases(case);
    found.extend(lives(case));
    found.extend(numbers(case));
    found.extend(runs(case));
    found
}

fn leases(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (task, timeline) in &case.timelines {
        let mut holder: Option<(&str, &Seen)> = None;
        for (seen, event) in timeline.values() {
            if event.attempt.is_empty() {
                continue;
            }
            let leased = LEASED.contains(&event.state.as_str());
            match holder {
                Some((other, since)) if leased && other != event.attempt => {
                    let what = format!("{} is leased while {other} still is", event.attempt);
                    found.push(Violation::new("S1", task, what, &[since, seen]));
                }
                Some((other, _)) if !leased && other == event.attempt => holder = None,
                None if leased => holder = Some((&event.attempt, seen)),
                Some(_) | None => {}
            }
        }
    }
    found
}

/// Deaths are written down before the next birth, so the order of the lines is the order of things.
fn lives(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut alive: BTreeMap<&str, BTreeMap<(&str, u32, u64), &Seen>> = BTreeMap::new();
    for seen in &case.history.seen {
        match &seen.line.saw {
            Saw::Began {
                attempt,
                pid,
                started,
            } => {
                let task = case.task(attempt);
                let living = alive.entry(task).or_default();
                for ((other, ..), since) in living.iter() {
                    if other != attempt && !task.is_empty() {
                        let what = format!("{attempt} runs while {other} still does");
                        found.push(Violation::new("S1", task, what, &[since, seen]));
                    }
                }
                living.insert((attempt, *pid, *started), seen);
            }
            Saw::Ended {
                attempt,
                pid,
                started,
            } => {
                if let Some(living) = alive.get_mut(case.task(attempt)) {
                    living.remove(&(attempt.as_str(), *pid, *started));
                }
            }
            _ => {}
        }
    }
    found
}

fn numbers(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut owners: BTreeMap<&str, (&str, &Seen)> = BTreeMap::new();
    for (task, record) in &case.records {
        let mut last = 0;
        for one in record.attempts {
            if one.number <= last {
                let what = format!(
                    "attempt {} has number {} after {last}",
                    one.attempt, one.number
                );
                found.push(Violation::new("S2", task, what, &[record.seen]));
            }
            last = one.number;
            if let Some((other, seen)) = owners.insert(&one.attempt, (task, record.seen))
                && other != *task
            {
                let what = format!("attempt {} is also one of {other}", one.attempt);
                found.push(Violation::new("S2", task, what, &[seen, record.seen]));
            }
        }
    }
    found
}

/// A pid and when it was started.
type Process = (u32, u64);

fn runs(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut begun: BTreeMap<&str, (BTreeSet<Process>, &Seen)> = BTreeMap::new();
    for seen in &case.history.seen {
        let Saw::Began {
            attempt,
            pid,
            started,
        } = &seen.line.saw
        else {
            continue;
        };
        let (processes, first) = begun.entry(attempt).or_insert((BTreeSet::new(), seen));
        processes.insert((*pid, *started));
        if processes.len() > 1 {
            let what = format!("{attempt} was run twice");
            found.push(Violation::new(
                "S2",
                case.task(attempt),
                what,
                &[first, seen],
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::samples::{self, began, ended, expect};

    #[test]
    fn two_leases_at_once_are_found() {
        let mut run = samples::sound();
        run.relay.push(samples::timeline(
            "t1", 20, "offered", "a1", "offered", "queued",
        ));
        run.relay.push(samples::timeline(
            "t1", 21, "offered", "a9", "offered", "queued",
        ));
        expect(&run, "S1", "t1", "relay.jsonl");
    }

    #[test]
    fn two_living_attempts_are_found() {
        let mut run = samples::sound();
        run.daemon.push(samples::offered("acme", "t1", "a9"));
        run.children = vec![
            began("a1", 7),
            began("a9", 8),
            ended("a1", 7),
            ended("a9", 8),
        ];
        expect(&run, "S1", "t1", "children.jsonl:1, children.jsonl:2");
    }

    #[test]
    fn attempts_one_after_the_other_are_sound() {
        let mut run = samples::sound();
        run.daemon.push(samples::offered("acme", "t1", "a9"));
        run.relay.push(samples::timeline(
            "t1",
            20,
            "offered",
            "a9",
            "offered",
            "completed",
        ));
        run.children = vec![
            began("a1", 7),
            ended("a1", 7),
            began("a9", 8),
            ended("a9", 8),
        ];
        assert!(run.judged().holds(), "{}", run.judged());
    }

    #[test]
    fn an_attempt_that_ran_twice_is_found() {
        let mut run = samples::sound();
        run.children.push(began("a1", 99));
        expect(&run, "S2", "t1", "children.jsonl");
    }

    #[test]
    fn an_attempt_of_two_tasks_is_found() {
        let mut run = samples::sound();
        run.relay.push(samples::record(
            "acme",
            "t8",
            "completed",
            &[("a1", 1, "completed")],
        ));
        expect(&run, "S2", "t8", "relay.jsonl");
    }

    #[test]
    fn a_number_that_comes_twice_is_found() {
        let mut run = samples::sound();
        let attempts = [("b1", 1, "lost"), ("b2", 1, "completed")];
        run.relay
            .push(samples::record("acme", "t8", "completed", &attempts));
        expect(&run, "S2", "t8", "relay.jsonl");
    }
}
