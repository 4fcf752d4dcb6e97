//! How every process of an attempt is ended: TERM to all that can be seen, a grace, KILL, and again until the
//! kernel says that nobody is left. Pure: it is told what a look has seen and answers with the signal to send.
//!
//! "Nobody" is a proof and no guess. The shim is the subreaper of everything that its child ever started, so
//! when it has no child left, it has no descendant left.

use std::time::Duration;

use crate::time::BootTime;

/// Between two looks for processes that are to end.
pub const SCAN_INTERVAL: Duration = Duration::from_millis(10);
/// How long KILL is repeated. What is left then cannot be killed, and the receipt says so.
pub const KILL_RETRY_LIMIT: Duration = Duration::from_secs(5);

/// What was found of an attempt's processes at its end, and done to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminationOutcome {
    /// It is proved that no living process is left.
    pub proved_empty: bool,
    /// TERM was sent to a living process.
    pub terminated: bool,
    /// KILL was needed.
    pub killed: bool,
    /// Processes that had to be signalled one by one.
    pub signaled_singly: u32,
}

/// What a look has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanResult {
    /// No process is left.
    NoProcess,
    /// Those that were signalled last are still there; nobody looked for others.
    KnownRemain,
    /// All that could be seen, and the child as long as nobody waited for it. None of them while somebody is left
    /// means: look again.
    Members {
        living: usize,
        /// Of these, how many are not in the child's own process group.
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
    /// The first look: whoever it saw was told to end.
    first_scan_at: Option<BootTime>,
    give_up_at: Option<BootTime>,
    is_over: bool,
}

impl TerminationSequence {
    /// KILL is never the first word to a process, however late this came to look, unless `last` has come as well: from
    /// then on there is no time left to ask.
    pub fn earliest_kill_at(&self, kill_at: BootTime, last: BootTime) -> BootTime {
        let asked = self
            .first_scan_at
            .map_or(last, |told| told.after(SCAN_INTERVAL).min(last));
        kill_at.max(asked)
    }

    /// Whether a cheap look at those who are known is enough: they were told, and have time left.
    pub fn can_scan_known_only(&self, now: BootTime, kill_at: BootTime) -> bool {
        self.outcome.terminated && now < kill_at
    }

    /// KILL has been reached.
    pub fn is_killing(&self) -> bool {
        self.give_up_at.is_some()
    }

    /// Takes in a look and says what everybody in it must be sent.
    pub fn on_scan(
        &mut self,
        sight: ScanResult,
        now: BootTime,
        kill_at: BootTime,
    ) -> Option<TerminationSignal> {
        match sight {
            ScanResult::NoProcess => {
                self.outcome.proved_empty = true;
                self.is_over = true;
                None
            }
            ScanResult::KnownRemain => None,
            ScanResult::Members {
                living,
                outside_group: outside,
            } => {
                let rung = self.next_signal(now, kill_at);
                if living == 0 {
                    return None;
                }
                match rung {
                    TerminationSignal::Term => self.outcome.terminated = true,
                    TerminationSignal::Kill => self.outcome.killed = true,
                }
                let outside = u32::try_from(outside).unwrap_or(u32::MAX);
                self.outcome.signaled_singly = self.outcome.signaled_singly.max(outside);
                Some(rung)
            }
        }
    }

    /// What it did, once it is over.
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
    fn nobody_left_needs_no_signal() {
        let mut ladder = TerminationSequence::default();
        assert_eq!(ladder.on_scan(ScanResult::NoProcess, at(0), KILL_AT), None);
        let cleared = ladder.outcome().unwrap();
        assert!(cleared.proved_empty && !cleared.terminated && !cleared.killed);
    }

    #[test]
    fn term_first_then_patience_then_kill_until_nobody_is_left() {
        let mut ladder = TerminationSequence::default();
        assert!(!ladder.can_scan_known_only(at(0), KILL_AT));
        assert_eq!(
            ladder.on_scan(members(3, 1), at(0), KILL_AT),
            Some(TerminationSignal::Term)
        );
        assert!(ladder.can_scan_known_only(at(10), KILL_AT));
        assert_eq!(
            ladder.on_scan(ScanResult::KnownRemain, at(10), KILL_AT),
            None
        );
        // Somebody forked while the others died: it has not been told yet.
        assert_eq!(
            ladder.on_scan(members(1, 0), at(20), KILL_AT),
            Some(TerminationSignal::Term)
        );
        assert!(!ladder.can_scan_known_only(KILL_AT, KILL_AT));
        assert_eq!(
            ladder.on_scan(members(2, 2), KILL_AT, KILL_AT),
            Some(TerminationSignal::Kill)
        );
        assert_eq!(ladder.on_scan(members(0, 0), at(1_010), KILL_AT), None);
        assert_eq!(ladder.outcome(), None);
        ladder.on_scan(ScanResult::NoProcess, at(1_020), KILL_AT);
        let cleared = ladder.outcome().unwrap();
        assert!(cleared.proved_empty && cleared.terminated && cleared.killed);
        assert_eq!(cleared.signaled_singly, 2);
    }

    #[test]
    fn a_grace_that_is_over_at_once_goes_straight_to_kill() {
        let mut ladder = TerminationSequence::default();
        let rung = ladder.on_scan(members(1, 0), at(2_000), KILL_AT);
        assert_eq!(rung, Some(TerminationSignal::Kill));
    }

    #[test]
    fn who_is_seen_for_the_first_time_is_asked_before_it_is_killed_unless_it_is_too_late() {
        let (mut ladder, last) = (TerminationSequence::default(), at(5_000));
        assert_eq!(ladder.earliest_kill_at(KILL_AT, last), last);
        assert_eq!(ladder.earliest_kill_at(KILL_AT, at(900)), KILL_AT);
        let kill_at = ladder.earliest_kill_at(KILL_AT, last);
        // Nobody was seen, and somebody is there: time runs from this look on all the same.
        ladder.on_scan(members(0, 0), at(2_000), kill_at);
        assert_eq!(ladder.earliest_kill_at(KILL_AT, last), at(2_010));
        assert_eq!(ladder.earliest_kill_at(at(3_000), last), at(3_000));
        assert_eq!(ladder.earliest_kill_at(KILL_AT, at(2_004)), at(2_004));
    }

    #[test]
    fn what_cannot_be_killed_is_given_up_and_said() {
        let mut ladder = TerminationSequence::default();
        let first = at(2_000);
        let last = first.after(KILL_RETRY_LIMIT);
        assert_eq!(
            ladder.on_scan(members(1, 0), first, KILL_AT),
            Some(TerminationSignal::Kill)
        );
        assert_eq!(ladder.outcome(), None);
        assert_eq!(
            ladder.on_scan(members(1, 0), last, KILL_AT),
            Some(TerminationSignal::Kill)
        );
        assert!(!ladder.outcome().unwrap().proved_empty);
    }

    #[test]
    fn nobody_seen_for_ever_while_somebody_is_left_ends_too() {
        let mut ladder = TerminationSequence::default();
        ladder.on_scan(members(0, 0), at(2_000), KILL_AT);
        let last = at(2_000).after(KILL_RETRY_LIMIT);
        assert_eq!(ladder.on_scan(members(0, 0), last, KILL_AT), None);
        assert!(!ladder.outcome().unwrap().proved_empty);
    }
}
