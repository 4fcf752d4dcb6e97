//! A restart of the relay: what was used stays used where it must, and nobody is punished for the outage.

use super::set_tests::*;
use super::*;
use crate::record::{Budget, Phase, TimerKind};
use crate::time::Moment;

/// Restarts at a moment that has nothing to do with the old clock.
const BOOT: u64 = 1_000_000;
const FLOOR: u64 = 20_000;

fn restart(bench: &Bench, at: u64, stored: Stored<'_>) -> Bench {
    let budgets = bench.set.budgets(Moment(at));
    let stored = Stored {
        budgets: &budgets,
        lease_ms: 30_000,
        floor_ms: FLOOR,
        ..stored
    };
    let set = TimerSet::restore(&stored, Moment(BOOT), &limits(&bench.profile));
    let profile = bench.profile.clone();
    Bench { set, profile }
}

#[test]
fn hard_deadlines_go_on_where_they_were() {
    let mut bench = Bench::at_phase(Phase::FirstVisibleEventSeen);
    bench.tell(1_000, Fact::InputAsked(input(1)));
    let inputs = vec![input(1)];
    let reached = Some(Phase::FirstVisibleEventSeen);
    let stored = Stored {
        inputs,
        reached,
        ..Stored::default()
    };
    let after = restart(&bench, 601_000, stored);
    let left = |key| after.fires(&key).map(|at| at - BOOT);
    assert_eq!(left(TimerKey::Total), Some(7_200_000 - 601_000));
    assert_eq!(left(TimerKey::UserInput(input(1))), Some(2_000));
    assert_eq!(left(TimerKey::StreamIdle), None);
    let mut queued = Bench::new();
    queued.tell(0, Fact::Queued);
    let after = restart(&queued, 1_000, Stored::default());
    assert_eq!(
        after.fires(&TimerKey::Queue),
        Some(BOOT + 86_400_000 - 1_000)
    );
}

#[test]
fn restarting_again_and_again_cannot_postpone_total() {
    let mut bench = Bench::at_phase(Phase::FirstVisibleEventSeen);
    let mut at = 30_000;
    for _ in 0..239 {
        let reached = Some(Phase::FirstVisibleEventSeen);
        let stored = Stored {
            reached,
            ..Stored::default()
        };
        bench = restart(&bench, at, stored);
        at = BOOT + 30_000;
    }
    assert_eq!(
        bench.fires(&TimerKey::Total),
        Some(BOOT + 7_200_000 - 239 * 30_000)
    );
}

#[test]
fn leases_get_the_largest_grant_and_idle_timers_their_full_time() {
    let mut bench = Bench::at_phase(Phase::FirstVisibleEventSeen);
    bench.tell(0, Fact::ToolStarted(tool("a")));
    let tools = vec![tool("a")];
    let reached = Some(Phase::FirstVisibleEventSeen);
    let stored = Stored {
        tools,
        reached,
        ..Stored::default()
    };
    let mut after = restart(&bench, 34_000, stored);
    assert_eq!(after.fires(&TimerKey::Lease), Some(BOOT + 30_000 + GRACE));
    assert_eq!(
        after.fires(&TimerKey::ToolIdle(tool("a"))),
        Some(BOOT + 302_000)
    );
    assert_eq!(after.fires(&TimerKey::StreamIdle), None);
    after.tell(BOOT + 5, Fact::ToolFinished(tool("a")));
    assert_eq!(after.fires(&TimerKey::StreamIdle), Some(BOOT + 5 + 122_000));
}

#[test]
fn phase_timers_keep_what_was_left_but_wait_for_the_daemon_to_come_back() {
    let bench = Bench::at_phase(Phase::PromptWritten);
    let reached = Some(Phase::PromptWritten);
    let stored = || Stored {
        reached,
        ..Stored::default()
    };
    let after = restart(&bench, 50_000, stored());
    assert_eq!(after.fires(&TimerKey::FirstEvent), Some(BOOT + 42_000));
    let after = restart(&bench, 91_000, stored());
    assert_eq!(after.fires(&TimerKey::FirstEvent), Some(BOOT + FLOOR));
    assert_eq!(
        after.fires(&TimerKey::FirstVisibleEvent),
        Some(BOOT + 21_000)
    );
}

#[test]
fn a_pause_and_a_cleanup_survive() {
    let mut queued = Bench::new();
    queued.tell(0, Fact::Queued).tell(400, Fact::Paused);
    let paused = Stored {
        paused: true,
        ..Stored::default()
    };
    let mut after = restart(&queued, 9_000, paused);
    assert_eq!(after.set.next(), None);
    after.tell(BOOT + 1, Fact::Unpaused);
    assert_eq!(
        after.fires(&TimerKey::Queue),
        Some(BOOT + 1 + 86_400_000 - 400)
    );

    let mut killed = Bench::at_phase(Phase::Started);
    killed.tell(0, Fact::CancelSent);
    let cleaning = Stored {
        cleaning: true,
        ..Stored::default()
    };
    let mut after = restart(&killed, 1_000, cleaning);
    after.tell(BOOT, Fact::Phase(Phase::FirstEventSeen));
    assert!(!after.set.is_armed(&TimerKey::StreamIdle));
    assert_eq!(after.fires(&TimerKey::CleanupTerm), Some(BOOT + FLOOR));
}

#[test]
fn a_budget_that_lacks_its_tool_or_input_arms_nothing() {
    let broken = |timer| Budget {
        timer,
        tool: None,
        input: None,
        limit_ms: 5,
        consumed_ms: 0,
        paused: false,
    };
    let budgets = [broken(TimerKind::ToolIdle), broken(TimerKind::UserInput)];
    let stored = Stored {
        budgets: &budgets,
        ..Stored::default()
    };
    let profile = profile();
    let set = TimerSet::restore(&stored, Moment(BOOT), &limits(&profile));
    assert_eq!(set, TimerSet::default());
}
