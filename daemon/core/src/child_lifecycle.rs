//! State machine of one child process as the shim drives it: running, settling after an exit,
//! clearing its processes, draining its output, ended. Pure: times and observations are
//! arguments, and the result is the stage and the time of the next wake-up.

use std::time::Duration;

use crate::termination_sequence::{
    SCAN_INTERVAL, ScanResult, TerminationOutcome, TerminationSequence, TerminationSignal,
};
use crate::time::BootTime;

/// After an exit, processes that the child started may still be writing their last lines.
const SETTLE_TIME: Duration = Duration::from_millis(250);
/// How long to wait for remaining output once no process is left to write it.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// The longest lease that a relay can be configured to grant.
const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// When the shim ends the child on its own, without an order from the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDeadlines {
    pub term_at: BootTime,
    pub kill_at: BootTime,
    pub limit: BootTime,
    /// Length of the grant with this limit. The shim only passes it on.
    pub granted_ms: u64,
}

impl LeaseDeadlines {
    /// Caps the deadlines. No relay grants a longer lease, so a longer one is an error.
    fn capped_at_longest(self, now: BootTime) -> Self {
        let last = now.after(MAX_LEASE);
        Self {
            term_at: self.term_at.min(last),
            kill_at: self.kill_at.min(last),
            limit: self.limit.min(last),
            granted_ms: self.granted_ms,
        }
    }

    /// Each deadline can only move forward.
    fn extend(&mut self, newer: Self) {
        if newer.limit >= self.limit {
            self.granted_ms = newer.granted_ms;
        }
        self.term_at = self.term_at.max(newer.term_at);
        self.kill_at = self.kill_at.max(newer.kill_at);
        self.limit = self.limit.max(newer.limit);
    }
}

/// Why the child was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEndCause {
    Child,
    Lease,
    Order,
}

#[derive(Debug)]
pub struct ChildLifecycle {
    lease: LeaseDeadlines,
    cleanup_term: Duration,
    /// When an order to stop demands KILL.
    stop_kill_at: Option<BootTime>,
    exited_at: Option<BootTime>,
    stage: LifecycleStage,
}

#[derive(Clone, Copy, Debug)]
enum LifecycleStage {
    Running,
    /// The child exited by itself. Its output is read first, then its remaining processes are
    /// ended.
    Settling {
        until: BootTime,
    },
    Clearing {
        cause: ChildEndCause,
        sequence: TerminationSequence,
        /// Latest time of KILL, fixed when clearing began.
        grace_until: BootTime,
        next_scan_at: BootTime,
    },
    Draining {
        cause: ChildEndCause,
        outcome: TerminationOutcome,
        until: BootTime,
    },
    Over {
        cause: ChildEndCause,
        outcome: TerminationOutcome,
    },
}

impl ChildLifecycle {
    pub fn new(lease: LeaseDeadlines, cleanup_term: Duration) -> Self {
        Self {
            lease,
            cleanup_term,
            stop_kill_at: None,
            exited_at: None,
            stage: LifecycleStage::Running,
        }
    }

    pub fn lease(&self) -> LeaseDeadlines {
        self.lease
    }

    /// When the child's own exit was observed.
    pub fn exited_at(&self) -> Option<BootTime> {
        self.exited_at
    }

    pub fn on_lease(&mut self, newer: LeaseDeadlines, now: BootTime) {
        self.lease.extend(newer.capped_at_longest(now));
    }

    /// A later order can only move KILL to an earlier time.
    pub fn on_stop(&mut self, kill_at: BootTime) {
        if mutant!(StopForgotten) {
            return;
        }
        self.stop_kill_at = Some(
            self.stop_kill_at
                .map_or(kill_at, |earlier| earlier.min(kill_at)),
        );
    }

    pub fn on_exit(&mut self, now: BootTime) {
        self.exited_at.get_or_insert(now);
    }

    /// Moves to the next stages that time and observations allow. An exit takes precedence over
    /// an order or an expired lease at the same time. `drained` means that no more output will
    /// come.
    pub fn advance(&mut self, now: BootTime, drained: bool) {
        let next = match self.stage {
            LifecycleStage::Running if self.exited_at.is_some() => LifecycleStage::Settling {
                until: now.after(SETTLE_TIME),
            },
            LifecycleStage::Running if self.stop_kill_at.is_some() => {
                self.begin_clearing(ChildEndCause::Order, now)
            }
            LifecycleStage::Running if now >= self.lease.term_at => {
                self.begin_clearing(ChildEndCause::Lease, now)
            }
            LifecycleStage::Settling { until }
                if drained || self.must_end_now(now) || now >= until =>
            {
                self.begin_clearing(ChildEndCause::Child, now)
            }
            LifecycleStage::Draining {
                cause,
                outcome,
                until,
            } if drained || now >= until => LifecycleStage::Over { cause, outcome },
            LifecycleStage::Running
            | LifecycleStage::Settling { .. }
            | LifecycleStage::Clearing { .. }
            | LifecycleStage::Draining { .. }
            | LifecycleStage::Over { .. } => return,
        };
        self.stage = next;
        self.advance(now, drained);
    }

    /// The scan that is due now, if any. A scan of the known processes is cheaper than a full
    /// one.
    pub fn due_scan(&self, now: BootTime) -> Option<ProcessScan> {
        let LifecycleStage::Clearing {
            sequence,
            next_scan_at,
            ..
        } = &self.stage
        else {
            return None;
        };
        let scan = if sequence.can_scan_known_only(now, self.kill_at()) {
            ProcessScan::KnownOnly
        } else {
            ProcessScan::Full
        };
        // KILL does not wait for the next regular scan.
        let is_due = now >= *next_scan_at || (now >= self.kill_at() && !sequence.is_killing());
        is_due.then_some(scan)
    }

    /// Records the result of a scan and returns the signal for every process in it.
    pub fn on_scan(&mut self, scan: ScanResult, now: BootTime) -> Option<TerminationSignal> {
        let kill_at = self.kill_at();
        let LifecycleStage::Clearing {
            cause,
            sequence,
            next_scan_at,
            ..
        } = &mut self.stage
        else {
            return None;
        };
        let signal = sequence.on_scan(scan, now, kill_at);
        *next_scan_at = now.after(SCAN_INTERVAL);
        if let Some(outcome) = sequence.outcome() {
            // A process that cannot be killed may keep the pipes open indefinitely.
            let wait = if outcome.proved_empty {
                DRAIN_TIME
            } else {
                Duration::ZERO
            };
            self.stage = LifecycleStage::Draining {
                cause: *cause,
                outcome,
                until: now.after(wait),
            };
        }
        signal
    }

    /// When to wake up if nothing else happens.
    pub fn next_wakeup_at(&self, now: BootTime) -> Option<BootTime> {
        match &self.stage {
            LifecycleStage::Running if self.exited_at.is_some() || self.stop_kill_at.is_some() => {
                Some(now)
            }
            LifecycleStage::Running => Some(self.lease.term_at),
            LifecycleStage::Settling { until } => Some((*until).min(self.lease.term_at)),
            LifecycleStage::Clearing {
                sequence,
                next_scan_at,
                ..
            } if sequence.is_killing() => Some(*next_scan_at),
            LifecycleStage::Clearing { next_scan_at, .. } => {
                Some((*next_scan_at).min(self.kill_at()))
            }
            LifecycleStage::Draining { until, .. } => Some(*until),
            LifecycleStage::Over { .. } => Some(now),
        }
    }

    /// The child is being ended, or has ended.
    pub fn is_ending(&self) -> bool {
        !matches!(self.stage, LifecycleStage::Running)
    }

    /// No process is left that could write more output.
    pub fn is_draining(&self) -> bool {
        matches!(
            self.stage,
            LifecycleStage::Draining { .. } | LifecycleStage::Over { .. }
        )
    }

    pub fn outcome(&self) -> Option<(ChildEndCause, TerminationOutcome)> {
        match self.stage {
            LifecycleStage::Over { cause, outcome } => Some((cause, outcome)),
            LifecycleStage::Running
            | LifecycleStage::Settling { .. }
            | LifecycleStage::Clearing { .. }
            | LifecycleStage::Draining { .. } => None,
        }
    }

    fn begin_clearing(&self, cause: ChildEndCause, now: BootTime) -> LifecycleStage {
        let grace_until = match cause {
            ChildEndCause::Child => now.after(self.cleanup_term),
            // Extending the lease after TERM was sent does not move KILL.
            ChildEndCause::Lease | ChildEndCause::Order => self.lease.kill_at,
        };
        LifecycleStage::Clearing {
            cause,
            sequence: TerminationSequence::default(),
            grace_until,
            next_scan_at: now,
        }
    }

    /// An order to stop or the end of the lease leaves no more time to settle.
    fn must_end_now(&self, now: BootTime) -> bool {
        self.stop_kill_at.is_some() || now >= self.lease.term_at
    }

    /// When KILL is sent: the earliest time demanded, but after TERM.
    fn kill_at(&self) -> BootTime {
        let demanded = self.earliest_kill_at();
        match &self.stage {
            LifecycleStage::Clearing { sequence, .. } => {
                sequence.earliest_kill_at(demanded, self.kill_only_from())
            }
            LifecycleStage::Running
            | LifecycleStage::Settling { .. }
            | LifecycleStage::Draining { .. }
            | LifecycleStage::Over { .. } => demanded,
        }
    }

    /// From this time on, the rest of the lease is reserved for KILL.
    fn kill_only_from(&self) -> BootTime {
        let lead = self.lease.kill_at.until(self.lease.limit);
        self.lease.kill_at.after(lead / 2)
    }

    /// The earliest KILL time of the lease, an order and the grace period.
    fn earliest_kill_at(&self) -> BootTime {
        let mut at = self.lease.kill_at;
        if let Some(ordered) = self.stop_kill_at {
            at = at.min(ordered);
        }
        if let LifecycleStage::Clearing { grace_until, .. } = self.stage {
            at = at.min(grace_until);
        }
        at
    }
}

/// How much of the process table a scan has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessScan {
    KnownOnly,
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_PROCESS: ScanResult = ScanResult::Members {
        living: 1,
        outside_group: 0,
    };

    fn at(millis: u64) -> BootTime {
        BootTime::from_millis(millis)
    }

    fn lease(term_at: u64, kill_at: u64) -> LeaseDeadlines {
        LeaseDeadlines {
            term_at: at(term_at),
            kill_at: at(kill_at),
            limit: at(kill_at + 100),
            granted_ms: kill_at,
        }
    }

    fn lifecycle() -> ChildLifecycle {
        ChildLifecycle::new(lease(10_000, 12_000), Duration::from_millis(500))
    }

    /// The signal that is sent at this time when one process is alive.
    fn sent(lifecycle: &mut ChildLifecycle, now: u64) -> Option<TerminationSignal> {
        lifecycle.advance(at(now), false);
        lifecycle.due_scan(at(now))?;
        lifecycle.on_scan(ONE_PROCESS, at(now))
    }

    fn ended_by(lifecycle: &mut ChildLifecycle, now: u64) -> ChildEndCause {
        lifecycle.on_scan(ScanResult::NoProcess, at(now));
        lifecycle.advance(at(now), true);
        let (cause, outcome) = lifecycle.outcome().unwrap();
        assert!(outcome.proved_empty);
        cause
    }

    #[test]
    fn an_expiring_lease_sends_term_and_then_kill_on_time() {
        let mut lifecycle = lifecycle();
        assert_eq!(lifecycle.next_wakeup_at(at(0)), Some(at(10_000)));
        assert_eq!(sent(&mut lifecycle, 9_999), None);
        assert_eq!(sent(&mut lifecycle, 10_000), Some(TerminationSignal::Term));
        assert_eq!(lifecycle.next_wakeup_at(at(10_000)), Some(at(10_010)));
        // Too late: TERM was already sent.
        lifecycle.on_lease(lease(90_000, 99_000), at(10_000));
        assert_eq!(sent(&mut lifecycle, 12_000), Some(TerminationSignal::Kill));
        assert_eq!(ended_by(&mut lifecycle, 12_010), ChildEndCause::Lease);
    }

    #[test]
    fn a_renewal_extends_the_lease_and_an_older_one_does_not_shorten_it() {
        let mut lifecycle = lifecycle();
        lifecycle.on_lease(lease(20_000, 22_000), at(0));
        lifecycle.on_lease(lease(15_000, 17_000), at(0));
        assert_eq!(lifecycle.lease(), lease(20_000, 22_000));
        assert_eq!(sent(&mut lifecycle, 19_999), None);
        assert_eq!(sent(&mut lifecycle, 20_000), Some(TerminationSignal::Term));
    }

    #[test]
    fn a_renewal_is_capped_at_the_longest_grant() {
        let mut lifecycle = lifecycle();
        lifecycle.on_lease(lease(u64::MAX, u64::MAX - 100), at(5_000));
        let last = at(5_000).after(MAX_LEASE);
        let lease = lifecycle.lease();
        assert_eq!([lease.term_at, lease.kill_at, lease.limit], [last; 3]);
    }

    #[test]
    fn a_stop_order_can_only_move_kill_forward_and_never_past_the_lease() {
        let mut lifecycle = lifecycle();
        lifecycle.on_stop(at(5_000));
        assert_eq!(lifecycle.next_wakeup_at(at(1_000)), Some(at(1_000)));
        assert_eq!(sent(&mut lifecycle, 1_000), Some(TerminationSignal::Term));
        lifecycle.on_stop(at(4_000));
        lifecycle.on_stop(at(9_000));
        assert_eq!(sent(&mut lifecycle, 3_999), Some(TerminationSignal::Term));
        assert_eq!(lifecycle.next_wakeup_at(at(3_999)), Some(at(4_000)));
        assert_eq!(sent(&mut lifecycle, 4_000), Some(TerminationSignal::Kill));
        assert_eq!(ended_by(&mut lifecycle, 4_010), ChildEndCause::Order);
        let mut late = self::lifecycle();
        late.on_stop(at(99_000));
        sent(&mut late, 1_000);
        assert_eq!(sent(&mut late, 12_000), Some(TerminationSignal::Kill));
    }

    #[test]
    fn an_exit_leaves_time_to_settle_and_a_grace_period_for_leftovers() {
        let mut lifecycle = lifecycle();
        lifecycle.on_exit(at(100));
        assert_eq!(sent(&mut lifecycle, 100), None);
        assert_eq!(lifecycle.next_wakeup_at(at(100)), Some(at(350)));
        assert_eq!(sent(&mut lifecycle, 350), Some(TerminationSignal::Term));
        assert_eq!(sent(&mut lifecycle, 850), Some(TerminationSignal::Kill));
        assert_eq!(ended_by(&mut lifecycle, 860), ChildEndCause::Child);
        assert_eq!(lifecycle.exited_at(), Some(at(100)));
    }

    #[test]
    fn an_exit_precedes_an_order_and_an_order_shortens_settling() {
        let mut lifecycle = lifecycle();
        lifecycle.on_stop(at(5_000));
        lifecycle.on_exit(at(100));
        assert_eq!(sent(&mut lifecycle, 100), Some(TerminationSignal::Term));
        assert_eq!(ended_by(&mut lifecycle, 110), ChildEndCause::Child);
    }

    #[test]
    fn a_suspend_longer_than_the_lease_kills_at_the_first_scan() {
        let mut lifecycle = lifecycle();
        assert_eq!(
            sent(&mut lifecycle, 3_600_000),
            Some(TerminationSignal::Kill)
        );
        assert_eq!(ended_by(&mut lifecycle, 3_600_010), ChildEndCause::Lease);
    }

    #[test]
    fn draining_waits_for_output_for_a_limited_time() {
        let mut lifecycle = lifecycle();
        lifecycle.on_exit(at(0));
        lifecycle.advance(at(0), false);
        lifecycle.advance(at(250), false);
        lifecycle.on_scan(ScanResult::NoProcess, at(250));
        lifecycle.advance(at(2_249), false);
        assert!(lifecycle.outcome().is_none() && lifecycle.is_draining());
        lifecycle.advance(at(2_250), false);
        assert!(lifecycle.outcome().is_some());
    }

    #[test]
    fn a_late_shim_still_sends_term_before_kill() {
        let mut lifecycle = lifecycle();
        lifecycle.on_stop(at(1_000));
        assert_eq!(sent(&mut lifecycle, 1_200), Some(TerminationSignal::Term));
        assert_eq!(lifecycle.next_wakeup_at(at(1_200)), Some(at(1_210)));
        assert_eq!(sent(&mut lifecycle, 1_209), None);
        assert_eq!(sent(&mut lifecycle, 1_210), Some(TerminationSignal::Kill));
        // The same holds for a lease: TERM is sent first while KILL can still finish by the
        // limit.
        let mut late = self::lifecycle();
        assert_eq!(sent(&mut late, 12_040), Some(TerminationSignal::Term));
        assert_eq!(sent(&mut late, 12_050), Some(TerminationSignal::Kill));
        let mut too_late = self::lifecycle();
        assert_eq!(sent(&mut too_late, 12_050), Some(TerminationSignal::Kill));
    }

    #[test]
    fn an_unkillable_process_ends_the_lifecycle_without_draining() {
        let mut lifecycle = lifecycle();
        lifecycle.on_stop(at(0));
        sent(&mut lifecycle, 0);
        sent(&mut lifecycle, 10);
        sent(&mut lifecycle, 60_000);
        lifecycle.advance(at(60_000), false);
        let (_, outcome) = lifecycle.outcome().unwrap();
        assert!(!outcome.proved_empty && outcome.killed);
    }
}
