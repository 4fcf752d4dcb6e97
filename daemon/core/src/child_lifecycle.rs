//! The course of a child's life as the shim decides it: runs, settles, is cleared away, drains, is over. Pure:
//! moments and facts go in, the stage and the next moment to look come out.

use std::time::Duration;

use crate::termination_sequence::{
    SCAN_INTERVAL, ScanResult, TerminationOutcome, TerminationSequence, TerminationSignal,
};
use crate::time::BootTime;

/// After an exit, what the child left running may still be writing its last lines.
const SETTLE_TIME: Duration = Duration::from_millis(250);
/// How long output is waited for when nobody is left to write it.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// The longest lease that a relay can be told to grant.
const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// When the shim acts by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDeadlines {
    pub term_at: BootTime,
    pub kill_at: BootTime,
    pub limit: BootTime,
    /// Of the grant with this limit; only passed on.
    pub granted_ms: u64,
}

impl LeaseDeadlines {
    /// No relay grants more, so whoever says so is mistaken.
    fn capped_at_longest(self, now: BootTime) -> Self {
        let last = now.after(MAX_LEASE);
        Self {
            term_at: self.term_at.min(last),
            kill_at: self.kill_at.min(last),
            limit: self.limit.min(last),
            granted_ms: self.granted_ms,
        }
    }

    /// Each moment moves forward only.
    fn extend(&mut self, newer: Self) {
        if newer.limit >= self.limit {
            self.granted_ms = newer.granted_ms;
        }
        self.term_at = self.term_at.max(newer.term_at);
        self.kill_at = self.kill_at.max(newer.kill_at);
        self.limit = self.limit.max(newer.limit);
    }
}

/// What ended the child.
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
    /// KILL of an order to stop.
    stop_kill_at: Option<BootTime>,
    exited_at: Option<BootTime>,
    stage: LifecycleStage,
}

#[derive(Clone, Copy, Debug)]
enum LifecycleStage {
    Running,
    /// The child ended by itself: its output comes first, then its leftovers go.
    Settling {
        until: BootTime,
    },
    Clearing {
        by: ChildEndCause,
        ladder: TerminationSequence,
        /// KILL at the latest, as it was when this began.
        grace_until: BootTime,
        next_scan_at: BootTime,
    },
    Draining {
        by: ChildEndCause,
        cleared: TerminationOutcome,
        until: BootTime,
    },
    Over {
        by: ChildEndCause,
        cleared: TerminationOutcome,
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

    /// When the child itself was seen dead.
    pub fn exited_at(&self) -> Option<BootTime> {
        self.exited_at
    }

    pub fn on_lease(&mut self, newer: LeaseDeadlines, now: BootTime) {
        self.lease.extend(newer.capped_at_longest(now));
    }

    /// A later order can only bring KILL forward.
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

    /// Moves on as far as time and facts allow. An exit that has happened wins over an order or a lease end of
    /// the same moment. `drained` says that no output is to come.
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
            LifecycleStage::Draining { by, cleared, until } if drained || now >= until => {
                LifecycleStage::Over { by, cleared }
            }
            LifecycleStage::Running
            | LifecycleStage::Settling { .. }
            | LifecycleStage::Clearing { .. }
            | LifecycleStage::Draining { .. }
            | LifecycleStage::Over { .. } => return,
        };
        self.stage = next;
        self.advance(now, drained);
    }

    /// Whether the ladder wants a look now, and whether a cheap one is enough.
    pub fn due_scan(&self, now: BootTime) -> Option<ProcessScan> {
        let LifecycleStage::Clearing {
            ladder,
            next_scan_at: look_at,
            ..
        } = &self.stage
        else {
            return None;
        };
        let look = if ladder.can_scan_known_only(now, self.kill_at()) {
            ProcessScan::KnownOnly
        } else {
            ProcessScan::Full
        };
        // The moment of KILL does not wait for the next look.
        let is_due = now >= *look_at || (now >= self.kill_at() && !ladder.is_killing());
        is_due.then_some(look)
    }

    /// Takes in the look that was wanted and says what to send to all who were seen.
    pub fn on_scan(&mut self, sight: ScanResult, now: BootTime) -> Option<TerminationSignal> {
        let kill_at = self.kill_at();
        let LifecycleStage::Clearing {
            by,
            ladder,
            next_scan_at: look_at,
            ..
        } = &mut self.stage
        else {
            return None;
        };
        let rung = ladder.on_scan(sight, now, kill_at);
        *look_at = now.after(SCAN_INTERVAL);
        if let Some(cleared) = ladder.outcome() {
            // Whoever cannot be killed may hold the pipes open for ever.
            let wait = if cleared.proved_empty {
                DRAIN_TIME
            } else {
                Duration::ZERO
            };
            self.stage = LifecycleStage::Draining {
                by: *by,
                cleared,
                until: now.after(wait),
            };
        }
        rung
    }

    /// When to look again if nothing else happens.
    pub fn next_wakeup_at(&self, now: BootTime) -> Option<BootTime> {
        match &self.stage {
            LifecycleStage::Running if self.exited_at.is_some() || self.stop_kill_at.is_some() => {
                Some(now)
            }
            LifecycleStage::Running => Some(self.lease.term_at),
            LifecycleStage::Settling { until } => Some((*until).min(self.lease.term_at)),
            LifecycleStage::Clearing {
                ladder,
                next_scan_at: look_at,
                ..
            } if ladder.is_killing() => Some(*look_at),
            LifecycleStage::Clearing {
                next_scan_at: look_at,
                ..
            } => Some((*look_at).min(self.kill_at())),
            LifecycleStage::Draining { until, .. } => Some(*until),
            LifecycleStage::Over { .. } => Some(now),
        }
    }

    /// The child is being ended, or has ended.
    pub fn is_ending(&self) -> bool {
        !matches!(self.stage, LifecycleStage::Running)
    }

    /// Nobody is left who could write more.
    pub fn is_draining(&self) -> bool {
        matches!(
            self.stage,
            LifecycleStage::Draining { .. } | LifecycleStage::Over { .. }
        )
    }

    pub fn outcome(&self) -> Option<(ChildEndCause, TerminationOutcome)> {
        match self.stage {
            LifecycleStage::Over { by, cleared } => Some((by, cleared)),
            LifecycleStage::Running
            | LifecycleStage::Settling { .. }
            | LifecycleStage::Clearing { .. }
            | LifecycleStage::Draining { .. } => None,
        }
    }

    fn begin_clearing(&self, by: ChildEndCause, now: BootTime) -> LifecycleStage {
        let grace = match by {
            ChildEndCause::Child => now.after(self.cleanup_term),
            // A lease that is extended after its TERM went out changes nothing any more.
            ChildEndCause::Lease | ChildEndCause::Order => self.lease.kill_at,
        };
        LifecycleStage::Clearing {
            by,
            ladder: TerminationSequence::default(),
            grace_until: grace,
            next_scan_at: now,
        }
    }

    /// Somebody wants it over, or the lease does.
    fn must_end_now(&self, now: BootTime) -> bool {
        self.stop_kill_at.is_some() || now >= self.lease.term_at
    }

    /// When KILL goes out: as early as anybody wants it, and TERM before it.
    fn kill_at(&self) -> BootTime {
        let wanted = self.earliest_kill_at();
        match &self.stage {
            LifecycleStage::Clearing { ladder, .. } => {
                ladder.earliest_kill_at(wanted, self.kill_only_from())
            }
            LifecycleStage::Running
            | LifecycleStage::Settling { .. }
            | LifecycleStage::Draining { .. }
            | LifecycleStage::Over { .. } => wanted,
        }
    }

    /// From here on what is left of the lease is for KILL alone.
    fn kill_only_from(&self) -> BootTime {
        let lead = self.lease.kill_at.until(self.lease.limit);
        self.lease.kill_at.after(lead / 2)
    }

    /// The earliest of all that speak about KILL.
    fn earliest_kill_at(&self) -> BootTime {
        let mut at = self.lease.kill_at;
        if let Some(ordered) = self.stop_kill_at {
            at = at.min(ordered);
        }
        if let LifecycleStage::Clearing {
            grace_until: grace, ..
        } = self.stage
        {
            at = at.min(grace);
        }
        at
    }
}

/// What the ladder needs to see.
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

    fn course() -> ChildLifecycle {
        ChildLifecycle::new(lease(10_000, 12_000), Duration::from_millis(500))
    }

    /// What is sent at this moment when somebody is there to be seen.
    fn sent(course: &mut ChildLifecycle, now: u64) -> Option<TerminationSignal> {
        course.advance(at(now), false);
        course.due_scan(at(now))?;
        course.on_scan(ONE_PROCESS, at(now))
    }

    fn ended_by(course: &mut ChildLifecycle, now: u64) -> ChildEndCause {
        course.on_scan(ScanResult::NoProcess, at(now));
        course.advance(at(now), true);
        let (by, cleared) = course.outcome().unwrap();
        assert!(cleared.proved_empty);
        by
    }

    #[test]
    fn a_lease_ends_by_term_and_kill_at_their_moments() {
        let mut course = course();
        assert_eq!(course.next_wakeup_at(at(0)), Some(at(10_000)));
        assert_eq!(sent(&mut course, 9_999), None);
        assert_eq!(sent(&mut course, 10_000), Some(TerminationSignal::Term));
        assert_eq!(course.next_wakeup_at(at(10_000)), Some(at(10_010)));
        // Too late: TERM is out.
        course.on_lease(lease(90_000, 99_000), at(10_000));
        assert_eq!(sent(&mut course, 12_000), Some(TerminationSignal::Kill));
        assert_eq!(ended_by(&mut course, 12_010), ChildEndCause::Lease);
    }

    #[test]
    fn a_renewal_moves_the_end_and_an_older_one_does_not_move_it_back() {
        let mut course = course();
        course.on_lease(lease(20_000, 22_000), at(0));
        course.on_lease(lease(15_000, 17_000), at(0));
        assert_eq!(course.lease(), lease(20_000, 22_000));
        assert_eq!(sent(&mut course, 19_999), None);
        assert_eq!(sent(&mut course, 20_000), Some(TerminationSignal::Term));
    }

    #[test]
    fn no_renewal_lasts_longer_than_a_relay_can_grant() {
        let mut course = course();
        course.on_lease(lease(u64::MAX, u64::MAX - 100), at(5_000));
        let last = at(5_000).after(MAX_LEASE);
        let lease = course.lease();
        assert_eq!([lease.term_at, lease.kill_at, lease.limit], [last; 3]);
    }

    #[test]
    fn an_order_has_its_own_moment_that_only_comes_closer_and_the_lease_is_above_it() {
        let mut course = course();
        course.on_stop(at(5_000));
        assert_eq!(course.next_wakeup_at(at(1_000)), Some(at(1_000)));
        assert_eq!(sent(&mut course, 1_000), Some(TerminationSignal::Term));
        course.on_stop(at(4_000));
        course.on_stop(at(9_000));
        assert_eq!(sent(&mut course, 3_999), Some(TerminationSignal::Term));
        assert_eq!(course.next_wakeup_at(at(3_999)), Some(at(4_000)));
        assert_eq!(sent(&mut course, 4_000), Some(TerminationSignal::Kill));
        assert_eq!(ended_by(&mut course, 4_010), ChildEndCause::Order);
        let mut late = self::course();
        late.on_stop(at(99_000));
        sent(&mut late, 1_000);
        assert_eq!(sent(&mut late, 12_000), Some(TerminationSignal::Kill));
    }

    #[test]
    fn a_child_that_ended_is_given_time_to_settle_and_its_leftovers_a_grace() {
        let mut course = course();
        course.on_exit(at(100));
        assert_eq!(sent(&mut course, 100), None);
        assert_eq!(course.next_wakeup_at(at(100)), Some(at(350)));
        assert_eq!(sent(&mut course, 350), Some(TerminationSignal::Term));
        assert_eq!(sent(&mut course, 850), Some(TerminationSignal::Kill));
        assert_eq!(ended_by(&mut course, 860), ChildEndCause::Child);
        assert_eq!(course.exited_at(), Some(at(100)));
    }

    #[test]
    fn an_exit_of_the_same_moment_wins_and_an_order_cuts_the_settling_short() {
        let mut course = course();
        course.on_stop(at(5_000));
        course.on_exit(at(100));
        assert_eq!(sent(&mut course, 100), Some(TerminationSignal::Term));
        assert_eq!(ended_by(&mut course, 110), ChildEndCause::Child);
    }

    #[test]
    fn a_suspend_beyond_the_whole_lease_kills_at_the_first_look() {
        let mut course = course();
        assert_eq!(sent(&mut course, 3_600_000), Some(TerminationSignal::Kill));
        assert_eq!(ended_by(&mut course, 3_600_010), ChildEndCause::Lease);
    }

    #[test]
    fn output_is_waited_for_when_all_are_gone_but_not_for_ever() {
        let mut course = course();
        course.on_exit(at(0));
        course.advance(at(0), false);
        course.advance(at(250), false);
        course.on_scan(ScanResult::NoProcess, at(250));
        course.advance(at(2_249), false);
        assert!(course.outcome().is_none() && course.is_draining());
        course.advance(at(2_250), false);
        assert!(course.outcome().is_some());
    }

    #[test]
    fn a_shim_that_comes_too_late_for_the_grace_still_asks_first() {
        let mut course = course();
        course.on_stop(at(1_000));
        assert_eq!(sent(&mut course, 1_200), Some(TerminationSignal::Term));
        assert_eq!(course.next_wakeup_at(at(1_200)), Some(at(1_210)));
        assert_eq!(sent(&mut course, 1_209), None);
        assert_eq!(sent(&mut course, 1_210), Some(TerminationSignal::Kill));
        // Also a lease, while there is time: KILL is to be done by its limit.
        let mut late = self::course();
        assert_eq!(sent(&mut late, 12_040), Some(TerminationSignal::Term));
        assert_eq!(sent(&mut late, 12_050), Some(TerminationSignal::Kill));
        let mut too_late = self::course();
        assert_eq!(sent(&mut too_late, 12_050), Some(TerminationSignal::Kill));
    }

    #[test]
    fn what_cannot_be_killed_ends_the_course_without_a_drain() {
        let mut course = course();
        course.on_stop(at(0));
        sent(&mut course, 0);
        sent(&mut course, 10);
        sent(&mut course, 60_000);
        course.advance(at(60_000), false);
        let (_, cleared) = course.outcome().unwrap();
        assert!(!cleared.proved_empty && cleared.killed);
    }
}
