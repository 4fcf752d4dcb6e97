//! Counters of events that are not visible in any record, in memory since the start of this
//! process. A lock is enough, because only unusual events are counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use baton_core::io::effects::CoreMetric;

/// Name of a counter. Counters only increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterKey {
    pub name: &'static str,
    /// Empty for a counter without reasons.
    pub reason: &'static str,
}

#[derive(Debug, Default)]
pub(super) struct CounterTable {
    values: Mutex<BTreeMap<CounterKey, u64>>,
}

impl CounterTable {
    pub(super) fn add(&self, name: &'static str, reason: &'static str, amount: u64) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        *values.entry(CounterKey { name, reason }).or_default() += amount;
    }

    pub(super) fn value(&self, name: &'static str) -> u64 {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let same = values.iter().filter(|(counter, _)| counter.name == name);
        same.map(|(_, value)| value).sum()
    }

    pub(super) fn snapshot(&self) -> BTreeMap<CounterKey, u64> {
        self.values
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn add_count(&self, count: &CoreMetric) {
        match count {
            CoreMetric::FrameRejected(rejection) => {
                self.add("frames_rejected", rejection.as_str(), 1)
            }
            CoreMetric::ForeignAttempt { .. } => self.add("foreign_attempts", "", 1),
            CoreMetric::PhaseRegression => self.add("phase_regressions", "", 1),
            CoreMetric::UnknownFrame => self.add("unknown_frames", "", 1),
            CoreMetric::StallCredit { away_ms } => {
                self.add("stall_credits", "", 1);
                self.add("stall_credit_ms", "", *away_ms);
            }
            CoreMetric::LateTerminal => self.add("late_terminals", "", 1),
            CoreMetric::AdoptedLate => self.add("adopted_late", "", 1),
        }
    }
}
