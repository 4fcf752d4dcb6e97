//! Each row of the table: the timer fires exactly at its limit plus slack or grace, and not
//! after it was disarmed.

use super::timer_set_tests::*;
use super::*;
use crate::record::{LifecyclePhase, TimerKind};
use crate::time::MonotonicTime;

/// One row of the table: the fact that arms the timer, when it fires, and the facts that disarm
/// it.
#[derive(Clone)]
struct TimerTableRow {
    key: TimerKey,
    arms: TimerFact,
    fires_at: u64,
    disarms: Vec<TimerFact>,
}

fn row(key: TimerKey, arms: TimerFact, fires_at: u64, disarms: Vec<TimerFact>) -> TimerTableRow {
    TimerTableRow {
        key,
        arms,
        fires_at,
        disarms,
    }
}

fn table() -> Vec<TimerTableRow> {
    let mut rows = [relay_rows(), start_rows(), work_rows()].concat();
    for row in &mut rows {
        row.disarms.push(TimerFact::Ended);
    }
    rows
}

/// This phase, every later one, and all facts that only a running agent causes.
fn activity_from(phase: LifecyclePhase) -> Vec<TimerFact> {
    [phases_from(phase), agent_activity()].concat()
}

fn relay_rows() -> Vec<TimerTableRow> {
    let placed = vec![TimerFact::Offered, TimerFact::LeaseConfirmed];
    let taken = [
        activity_from(LifecyclePhase::Accepted),
        vec![TimerFact::LeaseConfirmed],
    ]
    .concat();
    vec![
        row(TimerKey::Queue, TimerFact::Queued, 86_400_000, placed),
        row(TimerKey::Accept, TimerFact::Offered, 10_000, taken),
        row(TimerKey::Lease, TimerFact::Offered, 30_000 + GRACE, vec![]),
        row(
            TimerKey::Total,
            TimerFact::LeaseConfirmed,
            7_200_000,
            vec![],
        ),
    ]
}

fn start_rows() -> Vec<TimerTableRow> {
    let shown = vec![TimerFact::ToolStarted(tool("x"))];
    let shown = [phases_from(LifecyclePhase::FirstVisibleEventSeen), shown].concat();
    let started = TimerFact::Phase(LifecyclePhase::Started);
    let agent = TimerFact::Phase(LifecyclePhase::AgentStarted);
    let written = || TimerFact::Phase(LifecyclePhase::PromptWritten);
    vec![
        row(
            TimerKey::ProcessStart,
            started,
            17_000,
            activity_from(LifecyclePhase::AgentStarted),
        ),
        row(
            TimerKey::PromptWrite,
            agent,
            7_000,
            activity_from(LifecyclePhase::PromptWritten),
        ),
        row(
            TimerKey::FirstEvent,
            written(),
            92_000,
            activity_from(LifecyclePhase::FirstEventSeen),
        ),
        row(TimerKey::FirstVisibleEvent, written(), 112_000, shown),
    ]
}

fn work_rows() -> Vec<TimerTableRow> {
    let cleanup = vec![
        TimerFact::Phase(LifecyclePhase::CleanupStarted),
        TimerFact::CancelSent,
    ];
    let finished = [vec![TimerFact::ToolFinished(tool("a"))], cleanup.clone()].concat();
    let closed = vec![
        TimerFact::InputAnswered(input(1)),
        TimerFact::InputClosed(input(1)),
    ];
    let closed = [closed, cleanup.clone()].concat();
    let idle = TimerFact::Phase(LifecyclePhase::FirstEventSeen);
    let (a, one) = (TimerKey::ToolIdle(tool("a")), TimerKey::UserInput(input(1)));
    let clean = vec![TimerFact::Phase(LifecyclePhase::CleanupFinished)];
    vec![
        row(TimerKey::StreamIdle, idle, 122_000, cleanup.clone()),
        row(a, TimerFact::ToolStarted(tool("a")), 302_000, finished),
        row(one, TimerFact::InputAsked(input(1)), 602_000, closed),
        row(
            TimerKey::CleanupTerm,
            cleanup[0].clone(),
            5_000,
            clean.clone(),
        ),
        row(TimerKey::CleanupTerm, cleanup[1].clone(), 5_000, clean),
    ]
}

fn armed(row: &TimerTableRow) -> TimerSetFixture {
    let mut fixture = TimerSetFixture::new();
    fixture.apply_fact(0, row.arms.clone());
    fixture
}

#[test]
fn every_timer_fires_at_its_limit_plus_allowance_and_only_once() {
    let rows = table();
    for kind in TimerKind::ALL {
        assert!(rows.iter().any(|row| row.key.kind() == kind), "{kind:?}");
    }
    for row in rows {
        let mut fixture = armed(&row);
        assert_eq!(
            fixture.fires_at_ms(&row.key),
            Some(row.fires_at),
            "{:?}",
            row.key
        );
        let mut fired = Vec::new();
        while let Some(key) = fixture.set.take_due(MonotonicTime(row.fires_at - 1)) {
            fired.push(key);
        }
        assert!(!fired.contains(&row.key), "{:?} fired early", row.key);
        while let Some(key) = fixture.set.take_due(MonotonicTime(row.fires_at)) {
            fired.push(key);
        }
        assert_eq!(fired.iter().filter(|key| **key == row.key).count(), 1);
        assert_eq!(fixture.set.due(MonotonicTime(row.fires_at)), None);
    }
}

#[test]
fn every_disarming_fact_disarms_and_rearming_extends_nothing() {
    for row in table() {
        let mut fixture = armed(&row);
        fixture.apply_fact(1_000, row.arms.clone());
        let same = fixture.fires_at_ms(&row.key);
        assert_eq!(
            same,
            Some(row.fires_at),
            "{:?} changed by a repeated fact",
            row.key
        );
        for fact in &row.disarms {
            let mut fixture = armed(&row);
            fixture.apply_fact(1_000, fact.clone());
            assert!(
                !fixture.set.is_armed(&row.key),
                "{:?} after {fact:?}",
                row.key
            );
        }
    }
}

#[test]
fn other_facts_do_not_disarm_a_timer() {
    let all: Vec<TimerFact> = table().into_iter().flat_map(|row| row.disarms).collect();
    for row in table() {
        for fact in all.iter().filter(|fact| !row.disarms.contains(fact)) {
            let mut fixture = armed(&row);
            fixture.apply_fact(0, fact.clone());
            let about_itself = *fact == row.arms;
            assert!(
                about_itself || fixture.set.is_armed(&row.key),
                "{:?}: {fact:?}",
                row.key
            );
        }
    }
}
