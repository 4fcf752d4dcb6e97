//! Stopping on purpose: no new work, time to finish, and what still runs is handed over to its
//! shims under an extended lease.

use std::time::Duration;

use baton_proto::v1::{Goodbye, GoodbyeCode, HoldGranted, HoldRequest, RejectCode, daemon_frame};
use tracing::{info, warn};

use super::Supervisor;
use crate::agents::DispatchRefusal;
use crate::attempt::LeaseDelivery;
use crate::clock::BootTime;

mod shutdown_plan;

use shutdown_plan::{LeaseExtensionState, ShutdownInputs, ShutdownPlan, ShutdownSettings};

/// The current step of the shutdown, and the settings that decide the next one.
pub(super) struct ShutdownSequence {
    plan: ShutdownPlan,
    settings: ShutdownSettings,
}

impl ShutdownSequence {
    pub(super) fn new(drain: Duration, lease_extension: Duration) -> Self {
        Self {
            plan: ShutdownPlan::Working,
            settings: ShutdownSettings {
                drain,
                lease_extension,
            },
        }
    }

    pub(super) fn accepts_work(&self) -> bool {
        self.plan.accepts_work()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.plan.is_stopping()
    }

    pub(super) fn wake_at(&self) -> Option<BootTime> {
        self.plan.wake_at()
    }

    pub(super) fn write_time_left(&self, now: BootTime) -> Duration {
        self.plan.write_time_left(now)
    }

    fn begin_drain(&mut self, now: BootTime) {
        self.plan = self.settings.begin_drain(now);
    }

    /// The relay orders a drain or withdraws it. False when the daemon is stopping anyway.
    pub(super) fn set_drained_by_relay(&mut self, drained: bool) -> bool {
        if self.is_stopping() {
            return false;
        }
        self.plan = if drained {
            ShutdownPlan::DrainedByRelay
        } else {
            ShutdownPlan::Working
        };
        true
    }

    /// Moves on to the next step; returns it when there is one.
    fn advance(&mut self, now: BootTime, is_idle: bool, may_exit: bool) -> Option<ShutdownPlan> {
        let next = self.plan.next(ShutdownInputs {
            now,
            is_idle,
            may_exit,
            settings: self.settings,
        });
        (std::mem::replace(&mut self.plan, next) != next).then_some(next)
    }

    /// The extension to request now; `None` unless one is due.
    fn due_extension(&self) -> Option<Duration> {
        match self.plan {
            ShutdownPlan::HandingOver {
                extension: LeaseExtensionState::NotRequested,
                ..
            } => Some(self.settings.lease_extension),
            ShutdownPlan::HandingOver { .. }
            | ShutdownPlan::Working
            | ShutdownPlan::DrainedByRelay
            | ShutdownPlan::Draining { .. }
            | ShutdownPlan::Killing { .. }
            | ShutdownPlan::Exiting { .. } => None,
        }
    }

    fn on_extension_requested(&mut self, stream: u64, at: BootTime) {
        self.set_extension(LeaseExtensionState::Requested { stream, at });
    }

    /// When the granted extension was requested; `None` for a grant that was not requested.
    fn on_extension_granted(&mut self, number: u64) -> Option<BootTime> {
        match self.plan {
            ShutdownPlan::HandingOver {
                extension: LeaseExtensionState::Requested { stream, at },
                ..
            } if stream == number => {
                self.set_extension(LeaseExtensionState::Granted);
                Some(at)
            }
            ShutdownPlan::HandingOver { .. }
            | ShutdownPlan::Working
            | ShutdownPlan::DrainedByRelay
            | ShutdownPlan::Draining { .. }
            | ShutdownPlan::Killing { .. }
            | ShutdownPlan::Exiting { .. } => None,
        }
    }

    /// A request without an answer is lost with its stream and is sent again on the next one.
    pub(super) fn on_stream_lost(&mut self) {
        if let ShutdownPlan::HandingOver {
            extension: LeaseExtensionState::Requested { .. },
            ..
        } = self.plan
        {
            self.set_extension(LeaseExtensionState::NotRequested);
        }
    }

    fn set_extension(&mut self, new: LeaseExtensionState) {
        if let ShutdownPlan::HandingOver { extension, .. } = &mut self.plan {
            *extension = new;
        }
    }

    /// The shims are getting extended leases.
    fn delivers_leases(&self) -> bool {
        matches!(
            self.plan,
            ShutdownPlan::HandingOver {
                extension: LeaseExtensionState::Granted,
                ..
            }
        )
    }

    /// When the daemon exits at the latest, once nothing is left to do.
    fn exits_at(&self) -> Option<BootTime> {
        match self.plan {
            ShutdownPlan::Exiting { until, .. } => Some(until),
            ShutdownPlan::Working
            | ShutdownPlan::DrainedByRelay
            | ShutdownPlan::Draining { .. }
            | ShutdownPlan::HandingOver { .. }
            | ShutdownPlan::Killing { .. } => None,
        }
    }

    /// Whether a next daemon takes over what still runs.
    fn restarts(&self) -> bool {
        matches!(self.plan, ShutdownPlan::Exiting { restarts: true, .. })
    }
}

impl Supervisor {
    pub(super) fn begin_drain(&mut self) {
        self.shutdown.begin_drain(self.clock.now());
        let refusal = DispatchRefusal {
            code: RejectCode::Draining,
            message: "the daemon is stopping".to_owned(),
        };
        self.attempts
            .update_all(|attempt, clock| attempt.return_unstarted(&refusal, clock));
        self.send_heartbeat();
        info!(held = self.attempts.len(), "draining");
    }

    pub(super) fn advance_shutdown(&mut self, now: BootTime) {
        let running = self.attempts.used_slots();
        let may_exit = self.attempts.can_all_outlive_daemon();
        match self.shutdown.advance(now, running == 0, may_exit) {
            Some(ShutdownPlan::HandingOver { .. }) => {
                info!(running, "handing over the attempts that still run");
            }
            Some(ShutdownPlan::Killing { kill_by, .. }) => {
                info!(running, "killing the attempts that still run");
                self.attempts
                    .update_all(|attempt, clock| attempt.stop_for_drain(kill_by, clock));
            }
            Some(ShutdownPlan::Exiting { restarts: true, .. }) => {
                info!(running, "handed over; the next daemon adopts the attempts");
            }
            Some(ShutdownPlan::Exiting { .. }) if running > 0 => {
                warn!(
                    running,
                    "the drain time is over; the shims end the remaining attempts with their leases"
                );
            }
            Some(
                ShutdownPlan::Exiting { .. }
                | ShutdownPlan::Working
                | ShutdownPlan::DrainedByRelay
                | ShutdownPlan::Draining { .. },
            )
            | None => {}
        }
        self.request_lease_extension(now);
    }

    /// Once on every stream, until it is granted.
    fn request_lease_extension(&mut self, now: BootTime) {
        let extension = self.shutdown.due_extension();
        let Some((extension, stream)) = extension.zip(self.relay.extension_stream()) else {
            return;
        };
        let request = HoldRequest {
            seq: stream,
            hold_ms: u64::try_from(extension.as_millis()).unwrap_or(u64::MAX),
            attempts: self.attempts.extension_entries(now),
            reason: "the daemon restarts".to_owned(),
        };
        self.relay.send_urgent(daemon_frame::Frame::Hold(request));
        self.shutdown.on_extension_requested(stream, now);
    }

    pub(super) fn on_lease_extension_granted(&mut self, granted: HoldGranted) {
        if let Some(requested_at) = self.shutdown.on_extension_granted(granted.seq) {
            self.apply_renewals(granted.results, requested_at);
        }
    }

    /// Extended leases that their shims do not have yet.
    pub(super) fn undelivered_leases(&self) -> Vec<LeaseDelivery> {
        if self.shutdown.delivers_leases() {
            self.attempts.pending_lease_deliveries()
        } else {
            Vec::new()
        }
    }

    /// Frames that the relay has not acknowledged delay the exit until its time is over; attempts
    /// that go on without the daemon do not.
    pub(super) fn is_shutdown_complete(&self) -> bool {
        let exits_at = self.shutdown.exits_at();
        exits_at.is_some_and(|at| self.attempts.all_use_slots() || at <= self.clock.now())
    }

    pub(super) fn send_goodbye(&mut self) {
        let (code, message) = if self.shutdown.restarts() {
            (GoodbyeCode::Restarting, "the daemon restarts")
        } else {
            (GoodbyeCode::Draining, "the daemon stops")
        };
        let goodbye = Goodbye {
            code: code.into(),
            message: message.to_owned(),
            retry_after_ms: None,
        };
        self.relay.finish(daemon_frame::Frame::Goodbye(goodbye));
    }
}

/// Completes when all shims have their leases; never when there are none. Cancel safe.
pub(super) async fn wait_for_delivery(deliveries: Vec<LeaseDelivery>) {
    if deliveries.is_empty() {
        std::future::pending::<()>().await;
    }
    for delivery in deliveries {
        delivery.completed().await;
    }
}
