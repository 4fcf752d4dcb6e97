//! An attempt's lease as the supervisor sees it: what renews it, what the shim has of it, and what
//! happens when it ends.

use std::time::Duration;

use baton_daemon_core::lease_clock::LeaseClock;
use baton_daemon_core::reconnect_urgency::AttemptUrgency;
use baton_proto::v1::{LeaseToken, RenewEntry};

use super::{StopReason, SupervisedAttempt, SupervisedStage};
use crate::agents::DispatchRefusal;
use crate::attempt::LeaseDelivery;
use crate::clock::{BootTime, Clock};

/// The lease of one attempt, with the token that proves it.
#[derive(Debug)]
pub(super) struct AttemptLease {
    /// `None` when it was lost with the daemon that had it.
    token: Option<LeaseToken>,
    /// `None` until the relay has confirmed the lease.
    clock: Option<LeaseClock>,
    /// From SIGTERM to SIGKILL.
    cleanup_term: Duration,
}

impl AttemptLease {
    pub(super) fn new(
        token: Option<LeaseToken>,
        clock: Option<LeaseClock>,
        cleanup_term: Duration,
    ) -> Self {
        Self {
            token,
            clock,
            cleanup_term,
        }
    }

    pub(super) fn token(&self) -> Option<&LeaseToken> {
        self.token.as_ref()
    }

    pub(super) fn clock(&self) -> Option<LeaseClock> {
        self.clock
    }

    pub(super) fn cleanup_term(&self) -> Duration {
        self.cleanup_term
    }

    pub(super) fn start(&mut self, clock: LeaseClock) {
        self.clock = Some(clock);
    }

    /// What a shim that could not be reached before knows of its lease.
    pub(super) fn adopt(&mut self, token: Option<LeaseToken>, clock: Option<LeaseClock>) {
        self.token = token;
        self.clock = clock.or(self.clock);
    }

    fn renew(&mut self, sent_at: BootTime, granted: Duration) -> Option<LeaseClock> {
        if let Some(clock) = &mut self.clock {
            clock.renew(sent_at, granted);
        }
        self.clock
    }

    pub(super) fn is_valid(&self, now: BootTime) -> bool {
        self.clock.is_some_and(|clock| !clock.is_expired(now))
    }

    fn has_expired(&self, now: BootTime) -> bool {
        self.clock.is_some_and(|clock| clock.is_expired(now))
    }

    /// When the attempt has to be stopped because the lease was not renewed.
    fn term_at(&self) -> Option<BootTime> {
        self.clock.map(|clock| clock.term_at(self.cleanup_term))
    }
}

impl SupervisedAttempt {
    /// The lease of an attempt that may still run.
    pub(crate) fn lease(&self) -> Option<LeaseClock> {
        self.lease.clock().filter(|_| self.uses_slot())
    }

    /// What is lost when no stream comes back in time.
    pub(crate) fn reconnect_urgency(&self) -> AttemptUrgency {
        match self.lease() {
            Some(lease) => AttemptUrgency::Lease(lease.limit()),
            None if self.uses_slot() => AttemptUrgency::Nothing,
            None => AttemptUrgency::UnreportedResult(self.lease.clock().map(|lease| lease.ttl())),
        }
    }

    /// The grant counts from when the renewed request was sent. The shim gets it at once.
    pub(crate) fn renew(&mut self, sent_at: BootTime, granted: Duration) {
        if let Some(lease) = self.lease.renew(sent_at, granted)
            && let SupervisedStage::Running(running) = &mut self.stage
        {
            running.renew(lease);
        }
    }

    /// Whether the daemon may exit and leave the attempt to its shim, which then has the current
    /// lease. An attempt that is being stopped is not left while there is time. A shim that does
    /// not answer cannot get the lease, so the daemon does not wait for it.
    pub(crate) fn can_outlive_daemon(&self) -> bool {
        match &self.stage {
            SupervisedStage::Running(running) if running.is_linked() => {
                self.stop_reason.is_none() && self.pending_lease_delivery().is_none()
            }
            SupervisedStage::Accepted { .. }
            | SupervisedStage::Running(_)
            | SupervisedStage::Finished { .. } => true,
        }
    }

    /// A way to wait until the shim has the current lease; `None` when it has it already.
    pub(crate) fn pending_lease_delivery(&self) -> Option<LeaseDelivery> {
        match &self.stage {
            SupervisedStage::Running(running) if running.is_linked() => {
                running.pending_lease_delivery(self.lease.clock()?)
            }
            SupervisedStage::Accepted { .. }
            | SupervisedStage::Running(_)
            | SupervisedStage::Finished { .. } => None,
        }
    }

    fn has_lost_lease(&self) -> bool {
        self.stop_reason.is_some_and(StopReason::ends_lease)
    }

    /// When time alone changes something for this attempt.
    pub(crate) fn next_wake(&self) -> Option<BootTime> {
        match &self.stage {
            SupervisedStage::Accepted { confirm_by, .. } => Some(*confirm_by),
            SupervisedStage::Running(running) if !running.has_ended() && !self.has_lost_lease() => {
                self.lease.term_at()
            }
            SupervisedStage::Running(_) | SupervisedStage::Finished { .. } => None,
        }
    }

    /// Returns an acceptance that was not confirmed in time, and stops an attempt whose lease was
    /// not renewed. The shim counts the same lease and may be quicker.
    pub(crate) fn on_time(&mut self, clock: &Clock) {
        let now = clock.now();
        if self.next_wake().is_none_or(|at| at > now) {
            return;
        }
        match (&self.stage, self.lease.clock()) {
            (SupervisedStage::Accepted { .. }, _) => {
                self.return_unstarted(&DispatchRefusal::not_confirmed(), clock);
            }
            (SupervisedStage::Running(_), Some(lease)) => {
                self.order_stop(StopReason::LeaseEnded, lease.kill_at());
            }
            (SupervisedStage::Running(_) | SupervisedStage::Finished { .. }, _) => {}
        }
    }

    /// The lease has ended and a process may still run, as after a suspend of the machine: until
    /// that process has ended, the attempt has no right to send frames.
    pub(super) fn must_not_send(&self, now: BootTime) -> bool {
        self.lease.has_expired(now) && matches!(self.stage, SupervisedStage::Running(_))
    }

    /// The shim does not take renewals. Asking the relay for one would claim that the attempt goes
    /// on while the shim is about to end it.
    pub(super) fn is_shim_unresponsive(&self, now: BootTime) -> bool {
        match (&self.stage, self.lease.clock()) {
            (SupervisedStage::Running(running), Some(lease)) if running.is_linked() => {
                running.is_unresponsive(lease, now)
            }
            (
                SupervisedStage::Accepted { .. }
                | SupervisedStage::Running(_)
                | SupervisedStage::Finished { .. },
                _,
            ) => false,
        }
    }

    /// The attempt's entry in a heartbeat, when the relay may still count it as leased and the
    /// daemon has the token.
    pub(crate) fn renew_entry(&self, now: BootTime) -> Option<RenewEntry> {
        let leased = match &self.stage {
            SupervisedStage::Accepted { .. } => true,
            // Also a finished attempt: its terminal frame may still be queued behind its output.
            SupervisedStage::Running(_) | SupervisedStage::Finished { .. } => {
                self.lease.is_valid(now) && !self.is_shim_unresponsive(now)
            }
        };
        let token = self.lease.token().cloned()?;
        (leased && !self.has_lost_lease()).then(|| RenewEntry {
            attempt_id: self.attempt.attempt_id.clone(),
            token: Some(token),
            phase: self.phase.into(),
        })
    }
}
