//! Each row of the table: it fires at its limit plus what the relay adds, not before, and not after its disarm.

use super::set_tests::*;
use super::*;
use crate::record::{Phase, TimerKind};
use crate::time::Moment;

/// One row of the table: what arms it, when it then fires, and every fact that disarms it.
#[derive(Clone)]
struct Row {
    key: TimerKey,
    arms: Fact,
    fires_at: u64,
    disarms: Vec<Fact>,
}

fn row(key: TimerKey, arms: Fact, fires_at: u64, disarms: Vec<Fact>) -> Row {
    Row {
        key,
        arms,
        fires_at,
        disarms,
    }
}

fn table() -> Vec<Row> {
    let mut rows = [relay_rows(), start_rows(), work_rows()].concat();
    for row in &mut rows {
        row.disarms.push(Fact::Ended);
    }
    rows
}

/// This phase, a later one, or anything that only a running agent does.
fn acts(phase: Phase) -> Vec<Fact> {
    [from(phase), agent_acts()].concat()
}

fn relay_rows() -> Vec<Row> {
    let placed = vec![Fact::Offered, Fact::LeaseConfirmed];
    let taken = [acts(Phase::Accepted), vec![Fact::LeaseConfirmed]].concat();
    vec![
        row(TimerKey::Queue, Fact::Queued, 86_400_000, placed),
        row(TimerKey::Accept, Fact::Offered, 10_000, taken),
        row(TimerKey::Lease, Fact::Offered, 30_000 + GRACE, vec![]),
        row(TimerKey::Total, Fact::LeaseConfirmed, 7_200_000, vec![]),
    ]
}

fn start_rows() -> Vec<Row> {
    let shown = vec![Fact::ToolStarted(tool("x"))];
    let shown = [from(Phase::FirstVisibleEventSeen), shown].concat();
    let started = Fact::Phase(Phase::Started);
    let agent = Fact::Phase(Phase::AgentStarted);
    let written = || Fact::Phase(Phase::PromptWritten);
    vec![
        row(
            TimerKey::ProcessStart,
            started,
            17_000,
            acts(Phase::AgentStarted),
        ),
        row(
            TimerKey::PromptWrite,
            agent,
            7_000,
            acts(Phase::PromptWritten),
        ),
        row(
            TimerKey::FirstEvent,
            written(),
            92_000,
            acts(Phase::FirstEventSeen),
        ),
        row(TimerKey::FirstVisibleEvent, written(), 112_000, shown),
    ]
}

fn work_rows() -> Vec<Row> {
    let cleanup = vec![Fact::Phase(Phase::CleanupStarted), Fact::CancelSent];
    let finished = [vec![Fact::ToolFinished(tool("a"))], cleanup.clone()].concat();
    let closed = vec![Fact::InputAnswered(input(1)), Fact::InputClosed(input(1))];
    let closed = [closed, cleanup.clone()].concat();
    let idle = Fact::Phase(Phase::FirstEventSeen);
    let (a, one) = (TimerKey::ToolIdle(tool("a")), TimerKey::UserInput(input(1)));
    let clean = vec![Fact::Phase(Phase::CleanupFinished)];
    vec![
        row(TimerKey::StreamIdle, idle, 122_000, cleanup.clone()),
        row(a, Fact::ToolStarted(tool("a")), 302_000, finished),
        row(one, Fact::InputAsked(input(1)), 602_000, closed),
        row(
            TimerKey::CleanupTerm,
            cleanup[0].clone(),
            5_000,
            clean.clone(),
        ),
        row(TimerKey::CleanupTerm, cleanup[1].clone(), 5_000, clean),
    ]
}

fn armed(row: &Row) -> Bench {
    let mut bench = Bench::new();
    bench.tell(0, row.arms.clone());
    bench
}

#[test]
fn every_timer_fires_at_its_limit_plus_allowance_and_only_once() {
    let rows = table();
    for kind in TimerKind::ALL {
        assert!(rows.iter().any(|row| row.key.kind() == kind), "{kind:?}");
    }
    for row in rows {
        let mut bench = armed(&row);
        assert_eq!(bench.fires(&row.key), Some(row.fires_at), "{:?}", row.key);
        let mut fired = Vec::new();
        while let Some(key) = bench.set.take_due(Moment(row.fires_at - 1)) {
            fired.push(key);
        }
        assert!(!fired.contains(&row.key), "{:?} fired early", row.key);
        while let Some(key) = bench.set.take_due(Moment(row.fires_at)) {
            fired.push(key);
        }
        assert_eq!(fired.iter().filter(|key| **key == row.key).count(), 1);
        assert_eq!(bench.set.due(Moment(row.fires_at)), None);
    }
}

#[test]
fn every_disarming_fact_disarms_and_arming_again_does_not_prolong() {
    for row in table() {
        let mut bench = armed(&row);
        bench.tell(1_000, row.arms.clone());
        let same = bench.fires(&row.key);
        assert_eq!(same, Some(row.fires_at), "{:?} moved by a repeat", row.key);
        for fact in &row.disarms {
            let mut bench = armed(&row);
            bench.tell(1_000, fact.clone());
            assert!(
                !bench.set.is_armed(&row.key),
                "{:?} after {fact:?}",
                row.key
            );
        }
    }
}

#[test]
fn other_facts_leave_a_timer_alone() {
    let all: Vec<Fact> = table().into_iter().flat_map(|row| row.disarms).collect();
    for row in table() {
        for fact in all.iter().filter(|fact| !row.disarms.contains(fact)) {
            let mut bench = armed(&row);
            bench.tell(0, fact.clone());
            let about_itself = *fact == row.arms;
            assert!(
                about_itself || bench.set.is_armed(&row.key),
                "{:?}: {fact:?}",
                row.key
            );
        }
    }
}
