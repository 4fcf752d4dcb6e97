//! For any order of facts, no timer fires before its limit and a pause keeps the remaining
//! time.

use proptest::prelude::*;

use super::timer_set_tests::{GRACE, SLACK, TimerSetFixture, input, limits, profile, tool};
use super::*;
use crate::record::{LifecyclePhase, TimerKind};
use crate::time::MonotonicTime;

fn any_fact() -> impl Strategy<Value = TimerFact> {
    let phases = prop::sample::select(vec![
        LifecyclePhase::Accepted,
        LifecyclePhase::Queued,
        LifecyclePhase::Started,
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstEventSeen,
        LifecyclePhase::FirstVisibleEventSeen,
        LifecyclePhase::Streaming,
        LifecyclePhase::Heartbeat,
        LifecyclePhase::InputReceived,
    ]);
    let name = prop::sample::select(vec!["a", "b"]);
    prop_oneof![
        4 => phases.prop_map(TimerFact::Phase),
        2 => name.clone().prop_map(|n| TimerFact::ToolStarted(tool(n))),
        2 => name.clone().prop_map(|n| TimerFact::ToolFinished(tool(n))),
        2 => prop::option::of(name).prop_map(|n| TimerFact::Output { tool: n.map(tool) }),
        2 => (1u128..3).prop_map(|n| TimerFact::InputAsked(input(n))),
        1 => (1u128..3).prop_map(|n| TimerFact::InputAnswered(input(n))),
        2 => (1u128..3).prop_map(|n| TimerFact::InputClosed(input(n))),
        1 => Just(TimerFact::Paused),
        1 => Just(TimerFact::Unpaused),
        1 => Just(TimerFact::Offered),
        1 => Just(TimerFact::LeaseConfirmed),
        1 => Just(TimerFact::Queued),
        1 => Just(TimerFact::CancelSent),
    ]
}

fn allowance(kind: TimerKind) -> u64 {
    match kind {
        TimerKind::Queue | TimerKind::Accept | TimerKind::Total => 0,
        TimerKind::Lease => GRACE,
        TimerKind::ProcessStart
        | TimerKind::PromptWrite
        | TimerKind::FirstEvent
        | TimerKind::FirstVisibleEvent
        | TimerKind::StreamIdle
        | TimerKind::ToolIdle
        | TimerKind::UserInput
        | TimerKind::CleanupTerm => SLACK,
    }
}

/// How long each armed timer has run since it was armed, tracked outside the timer set.
#[derive(Debug, Default)]
struct TimerAges {
    ran_ms: Vec<(TimerKey, u64)>,
}

impl TimerAges {
    /// Adds `ms` to the age of every armed timer that is not paused.
    fn advance(&mut self, set: &TimerSet, ms: u64) {
        let keys: Vec<TimerKey> = set
            .armed_timers()
            .map(|armed| match armed {
                ArmedTimerView::Running { key, .. } | ArmedTimerView::Paused { key, .. } => key,
            })
            .collect();
        self.ran_ms.retain(|(key, _)| keys.contains(key));
        for key in keys {
            if !self.ran_ms.iter().any(|(known, _)| *known == key) {
                self.ran_ms.push((key, 0));
            }
        }
        for (key, ran) in &mut self.ran_ms {
            if set.fires_at(key).is_some() {
                *ran += ms;
            }
        }
    }

    fn ran(&self, key: &TimerKey) -> u64 {
        self.ran_ms
            .iter()
            .find(|(known, _)| known == key)
            .map_or(0, |(_, ran)| *ran)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A restart only postpones a timer, so the unpaused time since it was armed is at least
    /// its limit when it fires.
    #[test]
    fn no_timer_fires_before_it_has_run_its_limit(
        steps in prop::collection::vec((any_fact(), 0u64..200_000), 1..60)
    ) {
        let mut fixture = TimerSetFixture::new();
        let mut ages = TimerAges::default();
        let mut now = 0;
        for (fact, wait) in steps {
            fixture.apply_fact(now, fact);
            let limits: Vec<(TimerKey, u64)> = fixture.set.armed_timers().map(|armed| match armed {
                ArmedTimerView::Running { key, limit_ms, .. } | ArmedTimerView::Paused { key, limit_ms, .. } => (key, limit_ms),
            }).collect();
            ages.advance(&fixture.set, wait);
            now += wait;
            while let Some(key) = fixture.set.take_due(MonotonicTime(now)) {
                let (_, limit) = limits.iter().find(|(known, _)| *known == key).unwrap();
                prop_assert!(ages.ran(&key) >= limit + allowance(key.kind()), "{key:?} fired early");
                ages.ran_ms.retain(|(known, _)| *known != key);
            }
        }
    }

    /// A pause shifts the deadline by exactly its length.
    #[test]
    fn a_pause_shifts_a_deadline_by_its_own_length(
        before in 0u64..100_000, length in 0u64..10_000_000
    ) {
        let (ask, close) = (TimerFact::InputAsked(input(1)), TimerFact::InputClosed(input(1)));
        for key in [TimerKey::FirstVisibleEvent, TimerKey::StreamIdle] {
            let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
            let first = fixture.fires_at_ms(&key).unwrap();
            fixture.apply_fact(before, ask.clone()).apply_fact(before + length, close.clone());
            prop_assert_eq!(fixture.fires_at_ms(&key), Some(first + length));
        }
    }

    /// Storing and restoring at once changes no hard deadline.
    #[test]
    fn a_restart_keeps_hard_deadlines(ran in 0u64..600_000) {
        let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
        fixture.apply_fact(0, TimerFact::InputAsked(input(1)));
        let budgets = fixture.set.budgets(MonotonicTime(ran));
        let inputs = vec![input(1)];
        let stored = StoredTimers { budgets: &budgets, inputs, ..StoredTimers::default() };
        let profile = profile();
        let set = TimerSet::restore(&stored, MonotonicTime(ran), &limits(&profile));
        for key in [TimerKey::Total, TimerKey::UserInput(input(1))] {
            prop_assert_eq!(set.fires_at(&key), fixture.set.fires_at(&key));
        }
    }
}
