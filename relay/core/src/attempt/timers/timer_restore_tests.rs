//! A restart of the relay: hard deadlines keep the time used before it, and the outage counts
//! for no timer.

use super::timer_set_tests::*;
use super::*;
use crate::record::{LifecyclePhase, TimerBudget, TimerKind};
use crate::time::MonotonicTime;

/// Time of the restart, on a clock unrelated to the old one.
const BOOT: u64 = 1_000_000;
const FLOOR: u64 = 20_000;

fn restart(fixture: &TimerSetFixture, at: u64, stored: StoredTimers<'_>) -> TimerSetFixture {
    let budgets = fixture.set.budgets(MonotonicTime(at));
    let stored = StoredTimers {
        budgets: &budgets,
        lease_ms: 30_000,
        floor_ms: FLOOR,
        ..stored
    };
    let set = TimerSet::restore(&stored, MonotonicTime(BOOT), &limits(&fixture.profile));
    let profile = fixture.profile.clone();
    TimerSetFixture { set, profile }
}

#[test]
fn hard_deadlines_continue_after_a_restart() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    fixture.apply_fact(1_000, TimerFact::InputAsked(input(1)));
    let inputs = vec![input(1)];
    let reached = Some(LifecyclePhase::FirstVisibleEventSeen);
    let stored = StoredTimers {
        inputs,
        furthest_phase: reached,
        ..StoredTimers::default()
    };
    let after = restart(&fixture, 601_000, stored);
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
fn repeated_restarts_cannot_postpone_total() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    let mut at = 30_000;
    for _ in 0..239 {
        let reached = Some(LifecyclePhase::FirstVisibleEventSeen);
        let stored = StoredTimers {
            furthest_phase: reached,
            ..StoredTimers::default()
        };
        fixture = restart(&fixture, at, stored);
        at = BOOT + 30_000;
    }
    assert_eq!(
        fixture.fires_at_ms(&TimerKey::Total),
        Some(BOOT + 7_200_000 - 239 * 30_000)
    );
}

#[test]
fn a_restart_gives_leases_the_grant_and_idle_timers_full_time() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    fixture.apply_fact(0, TimerFact::ToolStarted(tool("a")));
    let tools = vec![tool("a")];
    let reached = Some(LifecyclePhase::FirstVisibleEventSeen);
    let stored = StoredTimers {
        tools,
        furthest_phase: reached,
        ..StoredTimers::default()
    };
    let mut after = restart(&fixture, 34_000, stored);
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
fn phase_timers_get_time_for_the_daemon_to_reconnect() {
    let fixture = TimerSetFixture::at_phase(LifecyclePhase::PromptWritten);
    let reached = Some(LifecyclePhase::PromptWritten);
    let stored = || StoredTimers {
        furthest_phase: reached,
        ..StoredTimers::default()
    };
    let after = restart(&fixture, 50_000, stored());
    assert_eq!(
        after.fires_at_ms(&TimerKey::FirstEvent),
        Some(BOOT + 42_000)
    );
    let after = restart(&fixture, 91_000, stored());
    assert_eq!(after.fires_at_ms(&TimerKey::FirstEvent), Some(BOOT + FLOOR));
    assert_eq!(
        after.fires_at_ms(&TimerKey::FirstVisibleEvent),
        Some(BOOT + 21_000)
    );
}

#[test]
fn a_pause_and_a_cleanup_survive_a_restart() {
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
