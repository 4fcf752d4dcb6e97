//! An attempt's lease in the supervisor's hands: what renews it, what its shim is told of it, and what its end does.

use std::time::Duration;

use baton_daemon_core::lease::LeaseClock;
use baton_daemon_core::stake::Share;
use baton_proto::v1::RenewEntry;

use super::{Held, Reach, Stage, StopWhy, Telling};
use crate::agents::Refusal;
use crate::clock::{Clock, Moment};

impl Held {
    /// Of what may still run.
    pub(crate) fn lease(&self) -> Option<LeaseClock> {
        self.lease.filter(|_| self.holds_slot())
    }

    /// What is lost if no stream comes back in time.
    pub(crate) fn at_stake(&self) -> Share {
        match self.lease() {
            Some(lease) => Share::Lease(lease.limit()),
            None if self.holds_slot() => Share::Nothing,
            None => Share::LastWords(self.lease.map(|lease| lease.ttl())),
        }
    }

    /// Counted from the send of what the relay answered. The shim learns of it at once.
    pub(crate) fn renew(&mut self, sent_at: Moment, granted: Duration) {
        if let Some(lease) = &mut self.lease {
            lease.renew(sent_at, granted);
            if let Stage::Running(reins) = &mut self.stage {
                reins.renew(*lease);
            }
        }
    }

    /// Whether the daemon may go and leave it to its shim: the shim has the lease as it stands now. What is being ended is
    /// not left while there is time; a shim that does not answer cannot be told.
    pub(crate) fn may_be_left(&self) -> bool {
        match &self.stage {
            Stage::Running(reins) if reins.reach == Reach::Linked => {
                self.stopping.is_none() && self.telling().is_none()
            }
            Stage::Accepted { .. } | Stage::Running(_) | Stage::Finished { .. } => true,
        }
    }

    /// To wait until its shim has the lease as it stands now, while it has not.
    pub(crate) fn telling(&self) -> Option<Telling> {
        match &self.stage {
            Stage::Running(reins) if reins.reach == Reach::Linked => reins.telling(self.lease?),
            Stage::Accepted { .. } | Stage::Running(_) | Stage::Finished { .. } => None,
        }
    }

    fn has_lost_its_lease(&self) -> bool {
        self.stopping.is_some_and(StopWhy::ends_the_lease)
    }

    /// When time alone changes something here.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        match &self.stage {
            Stage::Accepted { confirm_by, .. } => Some(*confirm_by),
            Stage::Running(reins) if reins.reach != Reach::Over && !self.has_lost_its_lease() => {
                self.lease.map(|lease| lease.term_at(self.cleanup_term))
            }
            Stage::Running(_) | Stage::Finished { .. } => None,
        }
    }

    /// Lets time do its part: an offer that nobody confirmed, a lease that nobody renewed. The shim counts the same
    /// lease and may be quicker.
    pub(crate) fn on_time(&mut self, clock: &Clock) {
        let now = clock.now();
        if self.next_wake().is_none_or(|at| at > now) {
            return;
        }
        match (&self.stage, self.lease) {
            (Stage::Accepted { .. }, _) => {
                self.give_back(&Refusal::not_confirmed(), clock);
            }
            (Stage::Running(_), Some(lease)) => {
                self.order_stop(StopWhy::LeaseEnded, lease.kill_at());
            }
            (Stage::Running(_) | Stage::Finished { .. }, _) => {}
        }
    }

    /// Its lease is over and something of it may still run, as when the machine was asleep: until that has ended, it has no
    /// right to be heard.
    pub(crate) fn is_muted(&self, now: Moment) -> bool {
        let over = self.lease.is_some_and(|lease| lease.is_over(now));
        over && matches!(self.stage, Stage::Running(_))
    }

    /// Its shim does not take renewals, so asking for one would say that it goes on while it is about to be ended.
    pub(super) fn is_deaf(&self, now: Moment) -> bool {
        match (&self.stage, self.lease) {
            (Stage::Running(reins), Some(lease)) if reins.reach == Reach::Linked => {
                reins.is_deaf(lease, now)
            }
            (Stage::Accepted { .. } | Stage::Running(_) | Stage::Finished { .. }, _) => false,
        }
    }

    /// For a heartbeat: everything that the relay may still count as leased and that can be proved.
    pub(crate) fn renew_entry(&self, now: Moment) -> Option<RenewEntry> {
        let leased = match &self.stage {
            Stage::Accepted { .. } => true,
            // A finished one too: its terminal frame may still be queued behind its output.
            Stage::Running(_) | Stage::Finished { .. } => {
                let unexpired = self.lease.is_some_and(|lease| !lease.is_over(now));
                unexpired && !self.is_deaf(now)
            }
        };
        let token = self.token.clone()?;
        (leased && !self.has_lost_its_lease()).then(|| RenewEntry {
            attempt_id: self.attempt.attempt_id.clone(),
            token: Some(token),
            phase: self.phase.into(),
        })
    }
}
