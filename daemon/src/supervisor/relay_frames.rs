//! Frames of the relay: Welcome with its settlements, acks, and orders about single attempts. What
//! an order does to an attempt is in `supervised_attempt`.

use std::time::Duration;

use baton_proto::PROTOCOL_VERSION;
use baton_proto::codes::{features, refusals};
use baton_proto::v1::attempt_command::Body;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{
    AckEntry, AttemptCommand, CancelReason, CommandResult, FrameRejected, Hello, RelayFrame,
    Settlement, command_result, settlement,
};
use tracing::{info, warn};

use super::{Supervisor, positive_millis};
use crate::DaemonError;
use crate::attempt::InputResponse;
use crate::clock::{BootTime, Clock};
use crate::link::link_session::LinkSession;
use crate::outbox::AckedPosition;
use crate::supervised_attempt::SupervisedAttempt;

/// Used when the relay sets no interval.
const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

impl Supervisor {
    pub(super) fn hello(&self) -> Hello {
        let registry = self.programs.registry();
        Hello {
            daemon_id: self.identity.daemon_id().to_owned(),
            instance_id: self.identity.instance_id.clone(),
            boot_id: self.identity.boot_id.clone(),
            name: self.description.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: PROTOCOL_VERSION,
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            slots: self.attempts.slots(),
            labels: self.description.labels.clone(),
            capabilities: self.description.capabilities.clone(),
            agents: registry.agent_infos(),
            active: self.attempts.active_attempts(self.clock.now()),
            features: features::ALL.map(str::to_owned).to_vec(),
            draining: !self.shutdown.accepts_work(),
            seen_relay_epoch: self.epochs.epoch(),
            seen_incarnation: self.epochs.incarnation().to_owned(),
            workspaces: registry.roots().names(),
        }
    }

    /// A new stream is open, and everything unacknowledged is sent again on it. False for a relay
    /// that was replaced by another one.
    pub(super) fn on_connected(
        &mut self,
        session: LinkSession,
        hello_sent_at: BootTime,
        welcome: RelayFrame,
    ) -> Result<bool, DaemonError> {
        if !self.epochs.admit(&welcome.incarnation, welcome.relay_epoch) {
            warn!(
                relay_epoch = welcome.relay_epoch,
                "a replaced relay answered; dialing again"
            );
            session.close();
            return Ok(false);
        }
        let Some(Frame::Welcome(welcome)) = welcome.frame else {
            return Ok(false);
        };
        self.identity.store_daemon_id(&welcome.daemon_id)?;
        info!(daemon_id = %welcome.daemon_id, relay_id = %welcome.relay_id, "connected");
        let interval = positive_millis(welcome.heartbeat_ms).unwrap_or(DEFAULT_HEARTBEAT_INTERVAL);
        let mut offered = welcome.features.iter();
        let grants_lease_extensions = offered.any(|feature| feature == features::LEASE_EXTENSION);
        let now = self.clock.now();
        self.relay
            .open(session, interval, grants_lease_extensions, now);
        for attempt in self.attempts.values_mut() {
            attempt.resend_unacked();
        }
        for settlement in &welcome.settlements {
            self.apply_settlement(settlement, hello_sent_at);
        }
        self.attempts.update_all(|attempt, _| {
            attempt.answer_waiting_calls();
            attempt.update_backpressure(true);
        });
        Ok(true)
    }

    fn apply_settlement(&mut self, settlement: &Settlement, hello_sent_at: BootTime) {
        let id = settlement.attempt_id.as_str();
        let Some(attempt) = self.attempts.get_mut(id) else {
            return;
        };
        match settlement.decision {
            Some(settlement::Decision::Keep(keep)) => {
                attempt.replay_after(AckedPosition {
                    control_seq: keep.acked_control_seq,
                    output_offset: keep.acked_offset,
                });
                let granted = keep.granted_ms.map(Duration::from_millis);
                let start = granted.and_then(|granted| {
                    attempt.confirm_lease(Some(hello_sent_at), granted, &self.clock)
                });
                if let Some(start) = start {
                    self.start_attempt(start);
                }
            }
            Some(settlement::Decision::Adopt(adopt)) => attempt.replay_after(AckedPosition {
                control_seq: adopt.acked_control_seq,
                output_offset: adopt.acked_offset,
            }),
            Some(settlement::Decision::Kill(kill)) => {
                warn!(attempt_id = id, code = ?kill.code(), "the relay took the attempt away");
                attempt.fence(&self.clock);
            }
            // A decision of a later version: neither renewed nor ended.
            None => self.relay.count_unknown(),
        }
        self.disk.remove_dirs(self.attempts.remove_if_settled(id));
    }

    pub(super) fn on_frame(&mut self, frame: RelayFrame) {
        if !self.epochs.admit(&frame.incarnation, frame.relay_epoch) {
            warn!(
                relay_epoch = frame.relay_epoch,
                "a frame of a replaced relay; dialing again"
            );
            self.close_session();
            return;
        }
        match frame.frame {
            Some(Frame::HeartbeatAck(ack)) => self.on_heartbeat_ack(ack),
            Some(Frame::Ack(ack)) => ack.entries.iter().for_each(|entry| self.on_ack(entry)),
            Some(Frame::Attempt(command)) => self.on_command(command),
            Some(Frame::Drain(drain)) => {
                if self.shutdown.set_drained_by_relay(!drain.withdrawn) {
                    self.send_heartbeat();
                }
            }
            Some(Frame::Rejected(rejected)) => self.on_rejected(&rejected),
            Some(Frame::HoldGranted(granted)) => self.on_lease_extension_granted(granted),
            // The link handles these.
            Some(Frame::Welcome(_) | Frame::Goodbye(_)) => {}
            None => self.relay.count_unknown(),
        }
    }

    fn on_command(&mut self, command: AttemptCommand) {
        let Some(attempt_ref) = command.r#ref else {
            return;
        };
        let id = attempt_ref.attempt_id.clone();
        let Some(attempt) = self.attempts.get_mut(&id) else {
            match command.body {
                Some(Body::Dispatch(dispatch)) => self.on_dispatch(attempt_ref, &dispatch),
                Some(_) => {}
                None => self.relay.count_unknown(),
            }
            return;
        };
        match command.body {
            Some(Body::Dispatch(dispatch)) => self.on_dispatch(attempt_ref, &dispatch),
            Some(Body::LeaseConfirmed(confirmed)) => {
                let granted = Duration::from_millis(confirmed.granted_ms);
                if let Some(start) = attempt.confirm_lease(None, granted, &self.clock) {
                    self.start_attempt(start);
                }
            }
            Some(Body::Cancel(cancel)) => {
                if CancelReason::try_from(cancel.reason).is_err() {
                    self.relay.count_unknown();
                }
                let reason = match cancel.reason() {
                    CancelReason::Unspecified => CancelReason::Operator,
                    reason => reason,
                };
                info!(attempt_id = id, ?reason, "ordered to stop");
                attempt.cancel(reason, positive_millis(cancel.grace_ms), &self.clock);
            }
            Some(Body::Abandon(abandon)) => {
                warn!(attempt_id = id, code = ?abandon.code(), "the relay took the attempt away");
                attempt.fence(&self.clock);
            }
            Some(Body::Result(result)) => on_result(attempt, &result, &self.clock),
            Some(Body::PermissionDecision(decision)) => {
                attempt.deliver_answer(InputResponse::Decision(decision));
            }
            Some(Body::Answer(answer)) => attempt.deliver_answer(InputResponse::Answer(answer)),
            // A command of a later version changes nothing.
            None => {
                self.relay.count_unknown();
                return;
            }
        }
        self.attempts.enqueue(&id);
    }

    fn on_ack(&mut self, entry: &AckEntry) {
        let id = entry.attempt_id.as_str();
        if let Some(attempt) = self.attempts.get_mut(id) {
            attempt.ack(AckedPosition {
                control_seq: entry.control_seq,
                output_offset: entry.output_offset,
            });
            attempt.update_backpressure(true);
            self.disk.remove_dirs(self.attempts.remove_if_settled(id));
        }
    }

    /// A gap is replayed. Any other refused frame is not sent again; an attempt whose terminal
    /// frame was refused has nothing left to send and is removed.
    fn on_rejected(&mut self, rejected: &FrameRejected) {
        let error = rejected.error.clone().unwrap_or_default();
        let id = rejected.attempt_id.as_str();
        warn!(attempt_id = id, code = %error.code, message = %error.message, "a frame was refused");
        let Some(attempt) = self.attempts.get_mut(id) else {
            return;
        };
        if error.code == refusals::GAP || error.code == refusals::OUTPUT_GAP {
            attempt.on_gap(rejected.expected_control_seq, &self.clock);
            self.attempts.enqueue(id);
            return;
        }
        attempt.on_frame_rejected(rejected.control_seq, &error);
        if error.code == refusals::CONTRACT_UNMET {
            attempt.on_refused_completion(rejected.control_seq, &error.message, &self.clock);
            self.attempts.enqueue(id);
        } else if attempt.is_terminal_seq(rejected.control_seq)
            || (error.code == refusals::UNKNOWN_ATTEMPT && attempt.is_finished())
        {
            self.disk.remove_dirs(self.attempts.remove(id));
        }
    }

    /// Makes the link dial again.
    pub(super) fn close_session(&mut self) {
        self.relay.close();
        self.on_disconnected();
    }
}

fn on_result(attempt: &mut SupervisedAttempt, result: &CommandResult, clock: &Clock) {
    match &result.result {
        Some(command_result::Result::Error(error)) if error.code == refusals::CONTRACT_UNMET => {
            attempt.on_refused_completion(result.control_seq, &error.message, clock);
        }
        Some(command_result::Result::Error(error)) => {
            let attempt_id = &attempt.attempt().attempt_id;
            warn!(%attempt_id, code = %error.code, "refused by the relay");
        }
        Some(command_result::Result::Ok(_)) | None => {}
    }
}
