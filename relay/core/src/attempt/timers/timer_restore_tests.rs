//! A restart of the relay: what was used stays used where it must, and nobody is punished for the outage.

use super::timer_set_tests::*;
use super::*;
use crate::record::{LifecyclePhase, TimerBudget, TimerKind};
use crate::time::MonotonicTime;

/// Restarts at a moment that has nothing to do with the old clock.
const BOOT: u64 = 1_000_000;
const FLOOR: u64 = 20_000;

fn restart(bench: &TimerSetFixture, at: u64, stored: StoredTimers<'_>) -> TimerSetFixture {
    let budgets = bench.set.budgets(MonotonicTime(at));
    let stored = StoredTimers {
        budgets: &budgets,
        lease_ms: 30_000,
        floor_ms: FLOOR,
        ..stored
    };
    let set = TimerSet::restore(&stored, MonotonicTime(BOOT), &limits(&bench.profile));
    let profile = bench.profile.clone();
    TimerSetFixture { set, profile }
}

#[test]
fn hard_deadlines_go_on_where_they_were() {
    let mut bench = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    bench.apply_fact(1_000, TimerFact::InputAsked(input(1)));
    let inputs = vec![input(1)];
    let reached = Some(LifecyclePhase::FirstVisibleEventSeen);
    let stored = StoredTimers {
        inputs,
        furthest_phase: reached,
        ..StoredTimers::default()
    };
    let after = restart(&bench, 601_000, stored);
    let left = |key| after.fires_at_ms(&key).map(|at| at - BOOT);
    assert_eq!(left(TimerKey::Total), Some(7_200_000 - 601_000));
    assert_eq!(left(TimerKey::UserInput(input(1))), Some(2_000));
    assert_eq!(left(TimerKey::StreamIdle), None);
    let mut queued = TimerSetFixture::new();
    queued.apply_fact(0, TimerFact::Queued);
    let after = restart(&queued, 1_000, StoredTimers::default());
    assert_eq!(
        after.fires_at_ms(&TimerKey::Queue),
        Some(BOOT + 86_400_000 - 1_000)
    );
}

#[test]
fn restarting_again_and_again_cannot_postpone_total() {
    let mut bench = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    let mut at = 30_000;
    for _ in 0..239 {
        let reached = Some(LifecyclePhase::FirstVisibleEventSeen);
        let stored = StoredTimers {
            furthest_phase: reached,
            ..StoredTimers::default()
        };
        bench = restart(&bench, at, stored);
        at = BOOT + 30_000;
    }
    assert_eq!(
        bench.fires_at_ms(&TimerKey::Total),
        Some(BOOT + 7_200_000 - 239 * 30_000)
    );
}

#[test]
fn leases_get_the_largest_grant_and_idle_timers_their_full_time() {
    let mut bench = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    bench.apply_fact(0, TimerFact::ToolStarted(tool("a")));
    let tools = vec![tool("a")];
    let reached = Some(LifecyclePhase::FirstVisibleEventSeen);
    let stored = StoredTimers {
        tools,
        furthest_phase: reached,
        ..StoredTimers::default()
    };
    let mut after = restart(&bench, 34_000, stored);
    assert_eq!(
        after.fires_at_ms(&TimerKey::Lease),
        Some(BOOT + 30_000 + GRACE)
    );
    assert_eq!(
        after.fires_at_ms(&TimerKey::ToolIdle(tool("a"))),
        Some(BOOT + 302_000)
    );
    assert_eq!(after.fires_at_ms(&TimerKey::StreamIdle), None);
    after.apply_fact(BOOT + 5, TimerFact::ToolFinished(tool("a")));
    assert_eq!(
        after.fires_at_ms(&TimerKey::StreamIdle),
        Some(BOOT + 5 + 122_000)
    );
}

#[test]
fn phase_timers_keep_what_was_left_but_wait_for_the_daemon_to_come_back() {
    let bench = TimerSetFixture::at_phase(LifecyclePhase::PromptWritten);
    let reached = Some(LifecyclePhase::PromptWritten);
    let stored = || StoredTimers {
        furthest_phase: reached,
        ..StoredTimers::default()
    };
    let after = restart(&bench, 50_000, stored());
    assert_eq!(
        after.fires_at_ms(&TimerKey::FirstEvent),
        Some(BOOT + 42_000)
    );
    let after = restart(&bench, 91_000, stored());
    assert_eq!(after.fires_at_ms(&TimerKey::FirstEvent), Some(BOOT + FLOOR));
    assert_eq!(
        after.fires_at_ms(&TimerKey::FirstVisibleEvent),
        Some(BOOT + 21_000)
    );
}

#[test]
fn a_pause_and_a_cleanup_survive() {
    let mut queued = TimerSetFixture::new();
    queued
        .apply_fact(0, TimerFact::Queued)
        .apply_fact(400, TimerFact::Paused);
    let paused = StoredTimers {
        paused: true,
        ..StoredTimers::default()
    };
    let mut after = restart(&queued, 9_000, paused);
    assert_eq!(after.set.next_due_at(), None);
    after.apply_fact(BOOT + 1, TimerFact::Unpaused);
    assert_eq!(
        after.fires_at_ms(&TimerKey::Queue),
        Some(BOOT + 1 + 86_400_000 - 400)
    );

    let mut killed = TimerSetFixture::at_phase(LifecyclePhase::Started);
    killed.apply_fact(0, TimerFact::CancelSent);
    let cleaning = StoredTimers {
        cleaning: true,
        ..StoredTimers::default()
    };
    let mut after = restart(&killed, 1_000, cleaning);
    after.apply_fact(BOOT, TimerFact::Phase(LifecyclePhase::FirstEventSeen));
    assert!(!after.set.is_armed(&TimerKey::StreamIdle));
    assert_eq!(
        after.fires_at_ms(&TimerKey::CleanupTerm),
        Some(BOOT + FLOOR)
    );
}

#[test]
fn a_budget_that_lacks_its_tool_or_input_arms_nothing() {
    let broken = |timer| TimerBudget {
        timer,
        tool: None,
        input: None,
        limit_ms: 5,
        consumed_ms: 0,
        paused: false,
    };
    let budgets = [broken(TimerKind::ToolIdle), broken(TimerKind::UserInput)];
    let stored = StoredTimers {
        budgets: &budgets,
        ..StoredTimers::default()
    };
    let profile = profile();
    let set = TimerSet::restore(&stored, MonotonicTime(BOOT), &limits(&profile));
    assert_eq!(set, TimerSet::default());
}
