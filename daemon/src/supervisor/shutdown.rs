//! Stopping on purpose: no new work, time to finish, and what still runs is handed over to its shims under a hold.

use baton_proto::v1::{Goodbye, GoodbyeCode, HoldGranted, HoldRequest, RejectCode, daemon_frame};
use tracing::{info, warn};

use super::Supervisor;
use super::relay_frames::to_daemon_frame;
use super::shutdown_plan::{LeaseExtensionState, ShutdownInputs, ShutdownPlan};
use crate::agents::DispatchRefusal;
use crate::clock::BootTime;
use crate::supervised_attempt::{LeaseDelivery, SupervisedAttempt};

impl Supervisor {
    pub(super) fn begin_drain(&mut self) {
        self.shutdown_plan = self.shutdown_settings.begin_drain(self.clock.now());
        let refusal = DispatchRefusal {
            code: RejectCode::Draining,
            message: "the daemon is stopping".to_owned(),
        };
        self.update_all(|held, clock| held.return_unstarted(&refusal, clock));
        self.send_heartbeat();
        info!(held = self.supervised.len(), "draining");
    }

    pub(super) fn advance_shutdown(&mut self, now: BootTime) {
        let next = self.shutdown_plan.next(ShutdownInputs {
            now,
            is_idle: !self.supervised.values().any(SupervisedAttempt::uses_slot),
            may_exit: self
                .supervised
                .values()
                .all(SupervisedAttempt::can_outlive_daemon),
            settings: self.shutdown_settings,
        });
        if next != self.shutdown_plan {
            self.shutdown_plan = next;
            self.on_shutdown_state(next);
        }
        self.request_lease_extension(now);
    }

    /// What a new part of the course begins with.
    fn on_shutdown_state(&mut self, course: ShutdownPlan) {
        let running = self
            .supervised
            .values()
            .filter(|held| held.uses_slot())
            .count();
        match course {
            ShutdownPlan::HandingOver { .. } => info!(running, "handing over what still runs"),
            ShutdownPlan::Killing { kill_by, .. } => {
                info!(running, "killing what still runs");
                self.update_all(|held, clock| held.stop_for_drain(kill_by, clock));
            }
            ShutdownPlan::Exiting { restarts: true, .. } => {
                info!(running, "handed over; the next daemon finds it here");
            }
            ShutdownPlan::Exiting { .. } if running > 0 => {
                warn!(
                    running,
                    "the time is up; the shims end what is left with their leases"
                );
            }
            ShutdownPlan::Exiting { .. }
            | ShutdownPlan::Working
            | ShutdownPlan::DrainedByRelay
            | ShutdownPlan::Draining { .. } => {}
        }
    }

    /// Once on every stream, until it is granted.
    fn request_lease_extension(&mut self, now: BootTime) {
        let ShutdownPlan::HandingOver {
            extension: LeaseExtensionState::NotRequested,
            leave_by,
        } = self.shutdown_plan
        else {
            return;
        };
        let Some(live) = self
            .live_session
            .as_ref()
            .filter(|live| live.grants_lease_extensions)
        else {
            return;
        };
        let stream = live.session.number;
        let running = self.supervised.values().filter(|held| held.uses_slot());
        let attempts = running.filter_map(|held| held.renew_entry(now)).collect();
        let request = HoldRequest {
            seq: stream,
            hold_ms: u64::try_from(self.shutdown_settings.lease_extension.as_millis())
                .unwrap_or(u64::MAX),
            attempts,
            reason: "the daemon restarts".to_owned(),
        };
        live.session
            .send_urgent(to_daemon_frame(daemon_frame::Frame::Hold(request)));
        let hold = LeaseExtensionState::Requested { stream, at: now };
        self.shutdown_plan = ShutdownPlan::HandingOver {
            extension: hold,
            leave_by,
        };
    }

    pub(super) fn on_lease_extension_granted(&mut self, granted: HoldGranted) {
        let ShutdownPlan::HandingOver {
            extension: LeaseExtensionState::Requested { stream, at },
            leave_by,
        } = self.shutdown_plan
        else {
            return;
        };
        if granted.seq != stream {
            return;
        }
        self.apply_renewals(granted.results, at);
        let hold = LeaseExtensionState::Granted;
        self.shutdown_plan = ShutdownPlan::HandingOver {
            extension: hold,
            leave_by,
        };
    }

    /// Leases that are granted and not with their shims yet.
    pub(super) fn undelivered_leases(&self) -> Vec<LeaseDelivery> {
        match self.shutdown_plan {
            ShutdownPlan::HandingOver {
                extension: LeaseExtensionState::Granted,
                ..
            } => self
                .supervised
                .values()
                .filter_map(SupervisedAttempt::pending_lease_delivery)
                .collect(),
            ShutdownPlan::HandingOver { .. }
            | ShutdownPlan::Working
            | ShutdownPlan::DrainedByRelay
            | ShutdownPlan::Draining { .. }
            | ShutdownPlan::Killing { .. }
            | ShutdownPlan::Exiting { .. } => Vec::new(),
        }
    }

    /// The stream on which it was asked is gone, and with it the answer.
    pub(super) fn on_lease_extension_lost(&mut self) {
        if let ShutdownPlan::HandingOver {
            extension: LeaseExtensionState::Requested { .. },
            leave_by,
        } = self.shutdown_plan
        {
            let hold = LeaseExtensionState::NotRequested;
            self.shutdown_plan = ShutdownPlan::HandingOver {
                extension: hold,
                leave_by,
            };
        }
    }

    /// What is still to be told keeps it until its time is over; what runs on without it does not.
    pub(super) fn is_shutdown_complete(&self) -> bool {
        match self.shutdown_plan {
            ShutdownPlan::Exiting { until, .. } => {
                self.supervised.values().all(SupervisedAttempt::uses_slot)
                    || until <= self.clock.now()
            }
            ShutdownPlan::Working
            | ShutdownPlan::DrainedByRelay
            | ShutdownPlan::Draining { .. }
            | ShutdownPlan::HandingOver { .. }
            | ShutdownPlan::Killing { .. } => false,
        }
    }

    pub(super) fn send_goodbye(&mut self) {
        let (code, message) = match self.shutdown_plan {
            ShutdownPlan::Exiting { restarts: true, .. } => {
                (GoodbyeCode::Restarting, "the daemon restarts")
            }
            ShutdownPlan::Exiting { .. }
            | ShutdownPlan::Working
            | ShutdownPlan::DrainedByRelay
            | ShutdownPlan::Draining { .. }
            | ShutdownPlan::HandingOver { .. }
            | ShutdownPlan::Killing { .. } => (GoodbyeCode::Draining, "the daemon stops"),
        };
        if let Some(live) = self.live_session.take() {
            let goodbye = Goodbye {
                code: code.into(),
                message: message.to_owned(),
                retry_after_ms: None,
            };
            // After everything else that is queued; without room the relay notices the closed stream.
            let _ = live
                .session
                .frames
                .try_send(to_daemon_frame(daemon_frame::Frame::Goodbye(goodbye)));
        }
    }
}

/// Completes when all of them are told; never when there are none. Cancel safe.
pub(super) async fn wait_for_delivery(untold: Vec<LeaseDelivery>) {
    if untold.is_empty() {
        std::future::pending::<()>().await;
    }
    for telling in untold {
        telling.completed().await;
    }
}
