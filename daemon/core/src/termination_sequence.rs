//! Ends every process of an attempt: TERM to all visible processes, a grace period, then KILL,
//! repeated until the kernel reports that no process is left. Pure: it takes the result of a
//! scan and returns the signal to send.
//!
//! An empty scan is a proof. The shim is the subreaper of every process that its child started,
//! so when it has no child left, it has no descendant left.

use std::time::Duration;

use crate::time::BootTime;

/// Time between two scans for processes that have to end.
pub const SCAN_INTERVAL: Duration = Duration::from_millis(10);
/// How long KILL is repeated. A process that is left then cannot be killed, and the receipt
/// records that.
pub const KILL_RETRY_LIMIT: Duration = Duration::from_secs(5);

/// What was done to end an attempt's processes, and whether all of them are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminationOutcome {
    /// It is proved that no living process is left.
    pub proved_empty: bool,
    /// TERM was sent to a living process.
    pub terminated: bool,
    /// KILL was sent to a living process.
    pub killed: bool,
    /// Processes outside the child's group, which had to be signalled one by one.
    pub signaled_singly: u32,
}

/// What a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanResult {
    /// No process is left.
    NoProcess,
    /// The processes signalled last are still alive. The scan did not look for others.
    KnownRemain,
    /// All visible processes, including the child until it has been reaped. Zero living members
    /// while a process is left means that the scan must be repeated.
    Members {
        living: usize,
        /// How many of them are not in the child's own process group.
        outside_group: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminationSignal {
    Term,
    Kill,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct TerminationSequence {
    outcome: TerminationOutcome,
    /// The first scan. Every process in it got TERM.
    first_scan_at: Option<BootTime>,
    give_up_at: Option<BootTime>,
    is_over: bool,
}

impl TerminationSequence {
    /// KILL is never the first signal to a process, however late the first scan is, unless
    /// `last` has passed too: then there is no time left for TERM.
    pub fn earliest_kill_at(&self, kill_at: BootTime, last: BootTime) -> BootTime {
        let after_term = self
            .first_scan_at
            .map_or(last, |scanned_at| scanned_at.after(SCAN_INTERVAL).min(last));
        kill_at.max(after_term)
    }

    /// Whether a cheap scan of the known processes is enough: they got TERM and have time left.
    pub fn can_scan_known_only(&self, now: BootTime, kill_at: BootTime) -> bool {
        self.outcome.terminated && now < kill_at
    }

    /// KILL is due or was sent.
    pub fn is_killing(&self) -> bool {
        self.give_up_at.is_some()
    }

    /// Records a scan and returns the signal for every process in it.
    pub fn on_scan(
        &mut self,
        scan: ScanResult,
        now: BootTime,
        kill_at: BootTime,
    ) -> Option<TerminationSignal> {
        match scan {
            ScanResult::NoProcess => {
                self.outcome.proved_empty = true;
                self.is_over = true;
                None
            }
            ScanResult::KnownRemain => None,
            ScanResult::Members {
                living,
                outside_group,
            } => {
                let signal = self.next_signal(now, kill_at);
                if living == 0 {
                    return None;
                }
                match signal {
                    TerminationSignal::Term => self.outcome.terminated = true,
                    TerminationSignal::Kill => self.outcome.killed = true,
                }
                let outside = u32::try_from(outside_group).unwrap_or(u32::MAX);
                self.outcome.signaled_singly = self.outcome.signaled_singly.max(outside);
                Some(signal)
            }
        }
    }

    /// What was done, once the sequence is over.
    pub fn outcome(&self) -> Option<TerminationOutcome> {
        self.is_over.then_some(self.outcome)
    }

    fn next_signal(&mut self, now: BootTime, kill_at: BootTime) -> TerminationSignal {
        if now < kill_at || mutant!(TermIsEnough) {
            self.first_scan_at.get_or_insert(now);
            return TerminationSignal::Term;
        }
        let give_up = *self.give_up_at.get_or_insert(now.after(KILL_RETRY_LIMIT));
        self.is_over |= now >= give_up;
        TerminationSignal::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL_AT: BootTime = BootTime::from_millis(1_000);

    fn at(millis: u64) -> BootTime {
        BootTime::from_millis(millis)
    }

    fn members(living: usize, outside: usize) -> ScanResult {
        ScanResult::Members {
            living,
            outside_group: outside,
        }
    }

    #[test]
    fn an_empty_scan_needs_no_signal() {
        let mut sequence = TerminationSequence::default();
        assert_eq!(
            sequence.on_scan(ScanResult::NoProcess, at(0), KILL_AT),
            None
        );
        let outcome = sequence.outcome().unwrap();
        assert!(outcome.proved_empty && !outcome.terminated && !outcome.killed);
    }

    #[test]
    fn term_then_grace_then_kill_until_no_process_is_left() {
        let mut sequence = TerminationSequence::default();
        assert!(!sequence.can_scan_known_only(at(0), KILL_AT));
        assert_eq!(
            sequence.on_scan(members(3, 1), at(0), KILL_AT),
            Some(TerminationSignal::Term)
        );
        assert!(sequence.can_scan_known_only(at(10), KILL_AT));
        assert_eq!(
            sequence.on_scan(ScanResult::KnownRemain, at(10), KILL_AT),
            None
        );
        // A process forked while the others died, and has not got TERM yet.
        assert_eq!(
            sequence.on_scan(members(1, 0), at(20), KILL_AT),
            Some(TerminationSignal::Term)
        );
        assert!(!sequence.can_scan_known_only(KILL_AT, KILL_AT));
        assert_eq!(
            sequence.on_scan(members(2, 2), KILL_AT, KILL_AT),
            Some(TerminationSignal::Kill)
        );
        assert_eq!(sequence.on_scan(members(0, 0), at(1_010), KILL_AT), None);
        assert_eq!(sequence.outcome(), None);
        sequence.on_scan(ScanResult::NoProcess, at(1_020), KILL_AT);
        let outcome = sequence.outcome().unwrap();
        assert!(outcome.proved_empty && outcome.terminated && outcome.killed);
        assert_eq!(outcome.signaled_singly, 2);
    }

    #[test]
    fn a_grace_period_that_is_already_over_goes_straight_to_kill() {
        let mut sequence = TerminationSequence::default();
        let signal = sequence.on_scan(members(1, 0), at(2_000), KILL_AT);
        assert_eq!(signal, Some(TerminationSignal::Kill));
    }

    #[test]
    fn term_comes_before_kill_unless_it_is_too_late() {
        let (mut sequence, last) = (TerminationSequence::default(), at(5_000));
        assert_eq!(sequence.earliest_kill_at(KILL_AT, last), last);
        assert_eq!(sequence.earliest_kill_at(KILL_AT, at(900)), KILL_AT);
        let kill_at = sequence.earliest_kill_at(KILL_AT, last);
        // The scan saw no process although one is left. The time for TERM runs from this scan
        // on.
        sequence.on_scan(members(0, 0), at(2_000), kill_at);
        assert_eq!(sequence.earliest_kill_at(KILL_AT, last), at(2_010));
        assert_eq!(sequence.earliest_kill_at(at(3_000), last), at(3_000));
        assert_eq!(sequence.earliest_kill_at(KILL_AT, at(2_004)), at(2_004));
    }

    #[test]
    fn an_unkillable_process_is_given_up_and_reported() {
        let mut sequence = TerminationSequence::default();
        let first = at(2_000);
        let last = first.after(KILL_RETRY_LIMIT);
        assert_eq!(
            sequence.on_scan(members(1, 0), first, KILL_AT),
            Some(TerminationSignal::Kill)
        );
        assert_eq!(sequence.outcome(), None);
        assert_eq!(
            sequence.on_scan(members(1, 0), last, KILL_AT),
            Some(TerminationSignal::Kill)
        );
        assert!(!sequence.outcome().unwrap().proved_empty);
    }

    #[test]
    fn empty_scans_with_a_process_left_are_given_up_too() {
        let mut sequence = TerminationSequence::default();
        sequence.on_scan(members(0, 0), at(2_000), KILL_AT);
        let last = at(2_000).after(KILL_RETRY_LIMIT);
        assert_eq!(sequence.on_scan(members(0, 0), last, KILL_AT), None);
        assert!(!sequence.outcome().unwrap().proved_empty);
    }
}
