//! How every process of an attempt is ended: TERM to all that can be seen, a grace, KILL, and again until the
//! kernel says that nobody is left. Pure: it is told what a look has seen and answers with the signal to send.
//!
//! "Nobody" is a proof and no guess. The shim is the subreaper of everything that its child ever started, so
//! when it has no child left, it has no descendant left.

use std::time::Duration;

use crate::time::Moment;

/// Between two looks for processes that are to end.
pub const POLL: Duration = Duration::from_millis(10);
/// How long KILL is repeated. What is left then cannot be killed, and the receipt says so.
pub const SWEEP_LIMIT: Duration = Duration::from_secs(5);

/// What was found of an attempt's processes at its end, and done to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// It is proved that no living process is left.
    pub empty: bool,
    /// TERM was sent to a living process.
    pub terminated: bool,
    /// KILL was needed.
    pub killed: bool,
    /// Processes that had to be signalled one by one.
    pub swept: u32,
}

/// What a look has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// No process is left.
    Nobody,
    /// Those that were signalled last are still there; nobody looked for others.
    Known,
    /// All that could be seen, and the child as long as nobody waited for it. None of them while somebody is left
    /// means: look again.
    Members {
        living: usize,
        /// Of these, how many are not in the child's own process group.
        outside: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    Term,
    Kill,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Ladder {
    cleared: Cleared,
    /// The first look: whoever it saw was told to end.
    told_at: Option<Moment>,
    give_up: Option<Moment>,
    over: bool,
}

impl Ladder {
    /// KILL is never the first word to a process, however late this came to look, unless `last` has come as well: from
    /// then on there is no time left to ask.
    pub fn kill_from(&self, kill_at: Moment, last: Moment) -> Moment {
        let asked = self.told_at.map_or(last, |told| told.after(POLL).min(last));
        kill_at.max(asked)
    }

    /// Whether a cheap look at those who are known is enough: they were told, and have time left.
    pub fn can_wait(&self, now: Moment, kill_at: Moment) -> bool {
        self.cleared.terminated && now < kill_at
    }

    /// KILL has been reached.
    pub fn is_killing(&self) -> bool {
        self.give_up.is_some()
    }

    /// Takes in a look and says what everybody in it must be sent.
    pub fn on_sight(&mut self, sight: Sight, now: Moment, kill_at: Moment) -> Option<Rung> {
        match sight {
            Sight::Nobody => {
                self.cleared.empty = true;
                self.over = true;
                None
            }
            Sight::Known => None,
            Sight::Members { living, outside } => {
                let rung = self.rung(now, kill_at);
                if living == 0 {
                    return None;
                }
                match rung {
                    Rung::Term => self.cleared.terminated = true,
                    Rung::Kill => self.cleared.killed = true,
                }
                let outside = u32::try_from(outside).unwrap_or(u32::MAX);
                self.cleared.swept = self.cleared.swept.max(outside);
                Some(rung)
            }
        }
    }

    /// What it did, once it is over.
    pub fn cleared(&self) -> Option<Cleared> {
        self.over.then_some(self.cleared)
    }

    fn rung(&mut self, now: Moment, kill_at: Moment) -> Rung {
        if now < kill_at || mutant!(TermIsEnough) {
            self.told_at.get_or_insert(now);
            return Rung::Term;
        }
        let give_up = *self.give_up.get_or_insert(now.after(SWEEP_LIMIT));
        self.over |= now >= give_up;
        Rung::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL_AT: Moment = Moment::from_millis(1_000);

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn members(living: usize, outside: usize) -> Sight {
        Sight::Members { living, outside }
    }

    #[test]
    fn nobody_left_needs_no_signal() {
        let mut ladder = Ladder::default();
        assert_eq!(ladder.on_sight(Sight::Nobody, at(0), KILL_AT), None);
        let cleared = ladder.cleared().unwrap();
        assert!(cleared.empty && !cleared.terminated && !cleared.killed);
    }

    #[test]
    fn term_first_then_patience_then_kill_until_nobody_is_left() {
        let mut ladder = Ladder::default();
        assert!(!ladder.can_wait(at(0), KILL_AT));
        assert_eq!(
            ladder.on_sight(members(3, 1), at(0), KILL_AT),
            Some(Rung::Term)
        );
        assert!(ladder.can_wait(at(10), KILL_AT));
        assert_eq!(ladder.on_sight(Sight::Known, at(10), KILL_AT), None);
        // Somebody forked while the others died: it has not been told yet.
        assert_eq!(
            ladder.on_sight(members(1, 0), at(20), KILL_AT),
            Some(Rung::Term)
        );
        assert!(!ladder.can_wait(KILL_AT, KILL_AT));
        assert_eq!(
            ladder.on_sight(members(2, 2), KILL_AT, KILL_AT),
            Some(Rung::Kill)
        );
        assert_eq!(ladder.on_sight(members(0, 0), at(1_010), KILL_AT), None);
        assert_eq!(ladder.cleared(), None);
        ladder.on_sight(Sight::Nobody, at(1_020), KILL_AT);
        let cleared = ladder.cleared().unwrap();
        assert!(cleared.empty && cleared.terminated && cleared.killed);
        assert_eq!(cleared.swept, 2);
    }

    #[test]
    fn a_grace_that_is_over_at_once_goes_straight_to_kill() {
        let mut ladder = Ladder::default();
        let rung = ladder.on_sight(members(1, 0), at(2_000), KILL_AT);
        assert_eq!(rung, Some(Rung::Kill));
    }

    #[test]
    fn who_is_seen_for_the_first_time_is_asked_before_it_is_killed_unless_it_is_too_late() {
        let (mut ladder, last) = (Ladder::default(), at(5_000));
        assert_eq!(ladder.kill_from(KILL_AT, last), last);
        assert_eq!(ladder.kill_from(KILL_AT, at(900)), KILL_AT);
        let kill_at = ladder.kill_from(KILL_AT, last);
        // Nobody was seen, and somebody is there: time runs from this look on all the same.
        ladder.on_sight(members(0, 0), at(2_000), kill_at);
        assert_eq!(ladder.kill_from(KILL_AT, last), at(2_010));
        assert_eq!(ladder.kill_from(at(3_000), last), at(3_000));
        assert_eq!(ladder.kill_from(KILL_AT, at(2_004)), at(2_004));
    }

    #[test]
    fn what_cannot_be_killed_is_given_up_and_said() {
        let mut ladder = Ladder::default();
        let first = at(2_000);
        let last = first.after(SWEEP_LIMIT);
        assert_eq!(
            ladder.on_sight(members(1, 0), first, KILL_AT),
            Some(Rung::Kill)
        );
        assert_eq!(ladder.cleared(), None);
        assert_eq!(
            ladder.on_sight(members(1, 0), last, KILL_AT),
            Some(Rung::Kill)
        );
        assert!(!ladder.cleared().unwrap().empty);
    }

    #[test]
    fn nobody_seen_for_ever_while_somebody_is_left_ends_too() {
        let mut ladder = Ladder::default();
        ladder.on_sight(members(0, 0), at(2_000), KILL_AT);
        let last = at(2_000).after(SWEEP_LIMIT);
        assert_eq!(ladder.on_sight(members(0, 0), last, KILL_AT), None);
        assert!(!ladder.cleared().unwrap().empty);
    }
}
