//! An attempt's lease in the supervisor's hands: what renews it, what its shim is told of it, and what its end does.

use std::time::Duration;

use baton_daemon_core::lease_clock::LeaseClock;
use baton_daemon_core::reconnect_urgency::AttemptUrgency;
use baton_proto::v1::RenewEntry;

use super::{LeaseDelivery, ShimReach, StopReason, SupervisedAttempt, SupervisedStage};
use crate::agents::DispatchRefusal;
use crate::clock::{BootTime, Clock};

impl SupervisedAttempt {
    /// Of what may still run.
    pub(crate) fn lease(&self) -> Option<LeaseClock> {
        self.lease.filter(|_| self.uses_slot())
    }

    /// What is lost if no stream comes back in time.
    pub(crate) fn reconnect_urgency(&self) -> AttemptUrgency {
        match self.lease() {
            Some(lease) => AttemptUrgency::Lease(lease.limit()),
            None if self.uses_slot() => AttemptUrgency::Nothing,
            None => AttemptUrgency::UnreportedResult(self.lease.map(|lease| lease.ttl())),
        }
    }

    /// Counted from the send of what the relay answered. The shim learns of it at once.
    pub(crate) fn renew(&mut self, sent_at: BootTime, granted: Duration) {
        if let Some(lease) = &mut self.lease {
            lease.renew(sent_at, granted);
            if let SupervisedStage::Running(reins) = &mut self.stage {
                reins.renew(*lease);
            }
        }
    }

    /// Whether the daemon may go and leave it to its shim: the shim has the lease as it stands now. What is being ended is
    /// not left while there is time; a shim that does not answer cannot be told.
    pub(crate) fn can_outlive_daemon(&self) -> bool {
        match &self.stage {
            SupervisedStage::Running(reins) if reins.reach == ShimReach::Linked => {
                self.stop_reason.is_none() && self.pending_lease_delivery().is_none()
            }
            SupervisedStage::Accepted { .. }
            | SupervisedStage::Running(_)
            | SupervisedStage::Finished { .. } => true,
        }
    }

    /// To wait until its shim has the lease as it stands now, while it has not.
    pub(crate) fn pending_lease_delivery(&self) -> Option<LeaseDelivery> {
        match &self.stage {
            SupervisedStage::Running(reins) if reins.reach == ShimReach::Linked => {
                reins.pending_lease_delivery(self.lease?)
            }
            SupervisedStage::Accepted { .. }
            | SupervisedStage::Running(_)
            | SupervisedStage::Finished { .. } => None,
        }
    }

    fn has_lost_lease(&self) -> bool {
        self.stop_reason.is_some_and(StopReason::ends_lease)
    }

    /// When time alone changes something here.
    pub(crate) fn next_wake(&self) -> Option<BootTime> {
        match &self.stage {
            SupervisedStage::Accepted { confirm_by, .. } => Some(*confirm_by),
            SupervisedStage::Running(reins)
                if reins.reach != ShimReach::Ended && !self.has_lost_lease() =>
            {
                self.lease.map(|lease| lease.term_at(self.cleanup_term))
            }
            SupervisedStage::Running(_) | SupervisedStage::Finished { .. } => None,
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
            (SupervisedStage::Accepted { .. }, _) => {
                self.return_unstarted(&DispatchRefusal::not_confirmed(), clock);
            }
            (SupervisedStage::Running(_), Some(lease)) => {
                self.order_stop(StopReason::LeaseEnded, lease.kill_at());
            }
            (SupervisedStage::Running(_) | SupervisedStage::Finished { .. }, _) => {}
        }
    }

    /// Its lease is over and something of it may still run, as when the machine was asleep: until that has ended, it has no
    /// right to be heard.
    pub(crate) fn must_not_send(&self, now: BootTime) -> bool {
        let over = self.lease.is_some_and(|lease| lease.is_expired(now));
        over && matches!(self.stage, SupervisedStage::Running(_))
    }

    /// Its shim does not take renewals, so asking for one would say that it goes on while it is about to be ended.
    pub(super) fn is_shim_unresponsive(&self, now: BootTime) -> bool {
        match (&self.stage, self.lease) {
            (SupervisedStage::Running(reins), Some(lease)) if reins.reach == ShimReach::Linked => {
                reins.is_unresponsive(lease, now)
            }
            (
                SupervisedStage::Accepted { .. }
                | SupervisedStage::Running(_)
                | SupervisedStage::Finished { .. },
                _,
            ) => false,
        }
    }

    /// For a heartbeat: everything that the relay may still count as leased and that can be proved.
    pub(crate) fn renew_entry(&self, now: BootTime) -> Option<RenewEntry> {
        let leased = match &self.stage {
            SupervisedStage::Accepted { .. } => true,
            // A finished one too: its terminal frame may still be queued behind its output.
            SupervisedStage::Running(_) | SupervisedStage::Finished { .. } => {
                let unexpired = self.lease.is_some_and(|lease| !lease.is_expired(now));
                unexpired && !self.is_shim_unresponsive(now)
            }
        };
        let token = self.token.clone()?;
        (leased && !self.has_lost_lease()).then(|| RenewEntry {
            attempt_id: self.attempt.attempt_id.clone(),
            token: Some(token),
            phase: self.phase.into(),
        })
    }
}
