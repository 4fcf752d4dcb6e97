//! Shims: the daemon's own course and ladder end the processes, and the judge of S14 looks whether they are gone in time.
//!
//! The world decides how processes take a signal: some end at once, some after a while, some only by KILL.

use baton_core::id::AttemptId;
use baton_daemon_core::course::{Course, Look};
use baton_daemon_core::ladder::{Rung, Sight};

use crate::held::{Kill, Shim, moment};
use crate::world::{Event, World};

/// Between KILL and the end of what was killed.
const DYING_MS: u64 = 60;

impl World {
    /// The processes start under a shim of their own.
    pub(crate) fn start_shim(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        let Some(lease) = held.lease else { return };
        let course = Course::new(lease.for_shim(held.cleanup_term), held.cleanup_term);
        let heeds = self.rng.chance(60);
        let takes = heeds.then(|| self.rng.below(1_500));
        held.shim = Some(Shim {
            course,
            tend_at: None,
            takes,
            term_at: None,
            is_killed: false,
            over_by: None,
        });
        self.tend_again(index, attempt);
    }

    fn tend_again(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        let Some(shim) = &mut held.shim else { return };
        let Some(next) = shim.course.next(moment(now)) else {
            return;
        };
        let at = next.as_millis().max(now);
        if shim.tend_at.is_none_or(|planned| at < planned) {
            shim.tend_at = Some(at);
            self.at(
                at,
                Event::Tend {
                    daemon: index,
                    attempt,
                },
            );
        }
    }

    pub(crate) fn tend(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        let Some(shim) = held
            .shim
            .as_mut()
            .filter(|s| s.tend_at.is_some_and(|at| at <= now))
        else {
            return;
        };
        shim.tend_at = None;
        shim.course.advance(moment(now), true);
        let sight = shim.course.wants_look(moment(now)).map(|look| match look {
            Look::AtKnown => Sight::Known,
            Look::AtAll => Sight::Members {
                living: 1,
                outside: 0,
            },
        });
        let rung = sight.and_then(|sight| shim.course.on_sight(sight, moment(now)));
        if shim.course.is_ending() {
            held.killing.get_or_insert(Kill::Limit);
        }
        match rung {
            Some(Rung::Term) => self.terminated(index, attempt),
            Some(Rung::Kill) => self.struck(index, attempt),
            None => {}
        }
        self.tend_again(index, attempt);
    }

    fn terminated(&mut self, index: usize, attempt: AttemptId) {
        let now = self.now;
        let held = self.daemons[index].held.get_mut(&attempt);
        let Some(shim) = held.and_then(|held| held.shim.as_mut()) else {
            return;
        };
        if shim.term_at.is_some() {
            return;
        }
        shim.term_at = Some(now);
        if let Some(takes) = shim.takes {
            self.at(
                now + takes,
                Event::Dead {
                    daemon: index,
                    attempt,
                },
            );
        }
    }

    fn struck(&mut self, index: usize, attempt: AttemptId) {
        self.judge_term(index, attempt);
        let held = self.daemons[index].held.get_mut(&attempt);
        let Some(shim) = held.and_then(|held| held.shim.as_mut()) else {
            return;
        };
        if !std::mem::replace(&mut shim.is_killed, true) {
            self.counts.kills += 1;
            let at = self.now + self.rng.between(1, DYING_MS);
            self.at(
                at,
                Event::Dead {
                    daemon: index,
                    attempt,
                },
            );
        }
    }

    /// Who is ended because the lease is had time to end by itself: TERM came when it should.
    fn judge_term(&self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].held.get(&attempt) else {
            return;
        };
        let slept = self.has_slept(index);
        let Some(shim) = held
            .shim
            .as_ref()
            .filter(|_| held.killing == Some(Kill::Limit) && !slept)
        else {
            return;
        };
        let lead = u64::try_from(held.cleanup_term.as_millis()).unwrap_or(u64::MAX);
        let lead = lead.min(held.rights.least_granted / 4);
        let due = self.awake_at(index, held.rights.until.saturating_sub(lead));
        assert!(
            shim.term_at.is_some_and(|at| at <= due),
            "S14: {attempt} is killed, and TERM was due at {due} and came at {:?}",
            shim.term_at
        );
    }

    /// What the relay granted is over: nothing of it runs any more.
    pub(crate) fn limit_reached(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].held.get(&attempt) else {
            return;
        };
        if !held.alive || self.has_slept(index) {
            return;
        }
        let until = held.rights.until;
        assert!(
            self.now < until,
            "S14: {attempt} runs, and its lease was over at {until}"
        );
        let over_by = held.shim.as_ref().and_then(|shim| shim.over_by);
        assert!(
            over_by.is_none_or(|by| self.now < by),
            "S14: {attempt} runs, and was to be ended by {over_by:?}"
        );
    }

    /// It is to end: by an order, or because its child did.
    pub(crate) fn kill(
        &mut self,
        index: usize,
        attempt: AttemptId,
        why: Kill,
        takes: u64,
        grace: u64,
    ) {
        let now = self.now;
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        held.killing = Some(why);
        // A shim that does not answer cannot be told; it ends by its lease.
        let Some(shim) = held.shim.as_mut().filter(|_| held.reachable) else {
            return;
        };
        shim.takes = Some(takes);
        match why {
            Kill::Lingering => shim.course.on_exit(moment(now)),
            Kill::Canceled | Kill::GivenUp | Kill::Limit | Kill::Deadline => {
                shim.course.on_stop(moment(now + grace));
                let over_by = now + grace + 2 * DYING_MS;
                shim.over_by = Some(shim.over_by.map_or(over_by, |by| by.min(over_by)));
                self.at(
                    over_by,
                    Event::Limit {
                        daemon: index,
                        attempt,
                    },
                );
            }
        }
        self.tend_again(index, attempt);
    }

    pub(crate) fn bury(&mut self, index: usize, attempt: AttemptId) {
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        // A shim that is gone can no longer be silent: the daemon finds its report.
        held.reachable = true;
        held.shim = None;
        if std::mem::take(&mut held.alive) {
            let (task, spec) = (held.re.task, std::sync::Arc::clone(&held.spec));
            self.died(task, attempt, &spec);
        }
    }
}
