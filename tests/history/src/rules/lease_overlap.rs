//! S1: at most one attempt of a task has a lease at any time, and processes of two attempts
//! never run at once. The first is checked by the relay's records, in their order; the second
//! by the processes themselves, independent of the relay. S2: an attempt belongs to one task,
//! has one number, and is run once.

use std::collections::{BTreeMap, BTreeSet};

use super::{IndexedHistory, LEASED_STATES};
use crate::history::LocatedLine;
use crate::history_line::Observation;
use crate::verdict::RuleViolation;

pub(super) fn check(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = overlapping_leases(indexed);
    found.extend(overlapping_processes(indexed));
    found.extend(wrong_attempt_numbers(indexed));
    found.extend(attempts_run_twice(indexed));
    found
}

fn overlapping_leases(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (task, timeline) in &indexed.timelines {
        let mut holder: Option<(&str, &LocatedLine)> = None;
        for (located, event) in timeline.values() {
            if event.attempt.is_empty() {
                continue;
            }
            let leased = LEASED_STATES.contains(&event.state.as_str());
            match holder {
                Some((other, since)) if leased && other != event.attempt => {
                    let what = format!("{} is leased while {other} still is", event.attempt);
                    found.push(RuleViolation::new("S1", task, what, &[since, located]));
                }
                Some((other, _)) if !leased && other == event.attempt => holder = None,
                None if leased => holder = Some((&event.attempt, located)),
                Some(_) | None => {}
            }
        }
    }
    found
}

/// Deaths are recorded before the next start, so the order of the lines is the real order.
fn overlapping_processes(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut alive: BTreeMap<&str, BTreeMap<(&str, u32, u64), &LocatedLine>> = BTreeMap::new();
    for located in &indexed.history.located_lines {
        match &located.line.observation {
            Observation::Began {
                attempt,
                pid,
                started,
            } => {
                let task = indexed.task_of(attempt);
                let living = alive.entry(task).or_default();
                for ((other, ..), since) in living.iter() {
                    if other != attempt && !task.is_empty() {
                        let what = format!("{attempt} runs while {other} still does");
                        found.push(RuleViolation::new("S1", task, what, &[since, located]));
                    }
                }
                living.insert((attempt, *pid, *started), located);
            }
            Observation::Ended {
                attempt,
                pid,
                started,
            } => {
                if let Some(living) = alive.get_mut(indexed.task_of(attempt)) {
                    living.remove(&(attempt.as_str(), *pid, *started));
                }
            }
            _ => {}
        }
    }
    found
}

fn wrong_attempt_numbers(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut owners: BTreeMap<&str, (&str, &LocatedLine)> = BTreeMap::new();
    for (task, record) in &indexed.final_tasks {
        let mut last = 0;
        for one in record.attempts {
            if one.number <= last {
                let what = format!(
                    "attempt {} has number {} after {last}",
                    one.attempt, one.number
                );
                found.push(RuleViolation::new("S2", task, what, &[record.located_line]));
            }
            last = one.number;
            if let Some((other, located)) = owners.insert(&one.attempt, (task, record.located_line))
                && other != *task
            {
                let what = format!("attempt {} is also one of {other}", one.attempt);
                found.push(RuleViolation::new(
                    "S2",
                    task,
                    what,
                    &[located, record.located_line],
                ));
            }
        }
    }
    found
}

/// A pid and its start time.
type ProcessIdentity = (u32, u64);

fn attempts_run_twice(indexed: &IndexedHistory<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut started_processes: BTreeMap<&str, (BTreeSet<ProcessIdentity>, &LocatedLine)> =
        BTreeMap::new();
    for located in &indexed.history.located_lines {
        let Observation::Began {
            attempt,
            pid,
            started,
        } = &located.line.observation
        else {
            continue;
        };
        let (processes, first) = started_processes
            .entry(attempt)
            .or_insert((BTreeSet::new(), located));
        processes.insert((*pid, *started));
        if processes.len() > 1 {
            let what = format!("{attempt} was run twice");
            found.push(RuleViolation::new(
                "S2",
                indexed.task_of(attempt),
                what,
                &[first, located],
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::sample_run;
    use crate::sample_run::{began, ended, expect_violation};

    #[test]
    fn two_leases_at_once_are_found() {
        let mut run = sample_run::sound_run();
        run.relay.push(sample_run::timeline(
            "t1", 20, "offered", "a1", "offered", "queued",
        ));
        run.relay.push(sample_run::timeline(
            "t1", 21, "offered", "a9", "offered", "queued",
        ));
        expect_violation(&run, "S1", "t1", "relay.jsonl");
    }

    #[test]
    fn two_running_attempts_are_found() {
        let mut run = sample_run::sound_run();
        run.daemon.push(sample_run::offered("acme", "t1", "a9"));
        run.children = vec![
            began("a1", 7),
            began("a9", 8),
            ended("a1", 7),
            ended("a9", 8),
        ];
        expect_violation(&run, "S1", "t1", "children.jsonl:1, children.jsonl:2");
    }

    #[test]
    fn sequential_attempts_are_valid() {
        let mut run = sample_run::sound_run();
        run.daemon.push(sample_run::offered("acme", "t1", "a9"));
        run.relay.push(sample_run::timeline(
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
        assert!(run.verdict().is_clean(), "{}", run.verdict());
    }

    #[test]
    fn an_attempt_that_ran_twice_is_found() {
        let mut run = sample_run::sound_run();
        run.children.push(began("a1", 99));
        expect_violation(&run, "S2", "t1", "children.jsonl");
    }

    #[test]
    fn an_attempt_of_two_tasks_is_found() {
        let mut run = sample_run::sound_run();
        run.relay.push(sample_run::record(
            "acme",
            "t8",
            "completed",
            &[("a1", 1, "completed")],
        ));
        expect_violation(&run, "S2", "t8", "relay.jsonl");
    }

    #[test]
    fn a_repeated_attempt_number_is_found() {
        let mut run = sample_run::sound_run();
        let attempts = [("b1", 1, "lost"), ("b2", 1, "completed")];
        run.relay
            .push(sample_run::record("acme", "t8", "completed", &attempts));
        expect_violation(&run, "S2", "t8", "relay.jsonl");
    }
}
