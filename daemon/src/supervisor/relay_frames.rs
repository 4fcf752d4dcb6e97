//! What the relay says and what the daemon says back at link level: Hello and Welcome, acks, dispatches, orders about one attempt. The attempts' own reactions are in `held`.

use std::time::Duration;

use baton_daemon_core::heartbeat_tracker::HeartbeatTracker;
use baton_proto::PROTOCOL_VERSION;
use baton_proto::codes::{features, refusals};
use baton_proto::v1::attempt_command::Body;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{
    AckEntry, AttemptCommand, AttemptRef, CancelReason, CommandResult, DaemonFrame, Dispatch,
    FrameRejected, Hello, RejectCode, RelayFrame, Settlement, Welcome, command_result,
    daemon_frame, settlement,
};
use tracing::{info, warn};

use super::{LiveSession, ShutdownPlan, Supervisor};
use crate::DaemonError;
use crate::agents::DispatchRefusal;
use crate::attempt::{AttemptPlan, ChildStdin, InputResponse};
use crate::clock::BootTime;
use crate::link::link_session::LinkSession;
use crate::machine::disk_monitor::DiskState;
use crate::outbox::AckedPosition;
use crate::storage::attempt_dir::{AttemptId, AttemptMeta};
use crate::storage::conversation_store::{ConversationFileKey, ConversationTurn};
use crate::supervised_attempt::{AcceptedDispatch, OutboxLocation, SupervisedAttempt};

/// When the relay names no interval.
const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// When the relay names no limit for its confirmation.
const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

impl Supervisor {
    pub(super) fn hello(&self) -> Hello {
        let now = self.clock.now();
        Hello {
            daemon_id: self.identity.daemon_id().to_owned(),
            instance_id: self.identity.instance_id.clone(),
            boot_id: self.identity.boot_id.clone(),
            name: self.description.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: PROTOCOL_VERSION,
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            slots: self.description.slots,
            labels: self.description.labels.clone(),
            capabilities: self.description.capabilities.clone(),
            agents: self.agents.agent_infos(),
            active: self
                .supervised
                .values()
                .map(|held| held.to_active_attempt(now))
                .collect(),
            features: features::ALL.map(str::to_owned).to_vec(),
            draining: !self.shutdown_plan.accepts_work(),
            seen_relay_epoch: self.epochs.epoch(),
            seen_incarnation: self.epochs.incarnation().to_owned(),
            workspaces: self.agents.roots().names(),
        }
    }

    /// A new stream stands. Everything unacknowledged goes out again on it. False for a relay that was replaced.
    pub(super) fn on_connected(
        &mut self,
        session: LinkSession,
        hello_sent_at: BootTime,
        welcome: RelayFrame,
    ) -> Result<bool, DaemonError> {
        if !self.epochs.admit(&welcome.incarnation, welcome.relay_epoch) {
            warn!(
                relay_epoch = welcome.relay_epoch,
                "a relay of the past answered; dialing again"
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
        let now = self.clock.now();
        self.live_session = Some(LiveSession {
            session,
            heartbeats: HeartbeatTracker::new(interval, now),
            last_answer_at: now,
            grants_lease_extensions: welcome
                .features
                .iter()
                .any(|word| word == features::LEASE_EXTENSION),
        });
        self.apply_settlements(&welcome, hello_sent_at);
        Ok(true)
    }

    fn apply_settlements(&mut self, welcome: &Welcome, hello_sent_at: BootTime) {
        for held in self.supervised.values_mut() {
            held.outbox.resend_unacked();
        }
        for settlement in &welcome.settlements {
            self.apply_settlement(settlement, hello_sent_at);
        }
        self.update_all(|held, _| {
            held.answer_waiting_calls();
            held.update_backpressure(true);
        });
    }

    fn apply_settlement(&mut self, settlement: &Settlement, hello_sent_at: BootTime) {
        let id = settlement.attempt_id.as_str();
        let Some(held) = self.supervised.get_mut(id) else {
            return;
        };
        match settlement.decision {
            Some(settlement::Decision::Keep(keep)) => {
                held.replay_after(AckedPosition {
                    control_seq: keep.acked_control_seq,
                    output_offset: keep.acked_offset,
                });
                let granted = keep.granted_ms.map(Duration::from_millis);
                let clock = &self.clock;
                if let Some(start) = granted
                    .and_then(|granted| held.confirm_lease(Some(hello_sent_at), granted, clock))
                {
                    self.start_attempt(start);
                }
            }
            Some(settlement::Decision::Adopt(adopt)) => held.replay_after(AckedPosition {
                control_seq: adopt.acked_control_seq,
                output_offset: adopt.acked_offset,
            }),
            Some(settlement::Decision::Kill(kill)) => {
                warn!(attempt_id = id, code = ?kill.code(), "the relay took the attempt away");
                held.fence(&self.clock);
            }
            // A decision of a later version: neither renewed nor ended.
            None => self.unknown_messages += 1,
        }
        self.remove_if_settled(id);
    }

    pub(super) fn on_frame(&mut self, frame: RelayFrame) {
        if !self.epochs.admit(&frame.incarnation, frame.relay_epoch) {
            warn!(
                relay_epoch = frame.relay_epoch,
                "a frame from a relay of the past; dialing again"
            );
            self.close_session();
            return;
        }
        match frame.frame {
            Some(Frame::HeartbeatAck(ack)) => self.on_heartbeat_ack(ack),
            Some(Frame::Ack(ack)) => ack.entries.iter().for_each(|entry| self.on_ack(entry)),
            Some(Frame::Attempt(command)) => self.on_command(command),
            Some(Frame::Drain(drain)) => self.on_relay_drain(!drain.withdrawn),
            Some(Frame::Rejected(rejected)) => self.on_rejected(&rejected),
            Some(Frame::HoldGranted(granted)) => self.on_lease_extension_granted(granted),
            // These are the link's.
            Some(Frame::Welcome(_) | Frame::Goodbye(_)) => {}
            None => self.unknown_messages += 1,
        }
    }

    fn on_command(&mut self, command: AttemptCommand) {
        let Some(attempt) = command.r#ref else { return };
        let id = attempt.attempt_id.clone();
        if command.body.is_none() {
            self.unknown_messages += 1;
            return;
        }
        if let Some(Body::Dispatch(dispatch)) = command.body {
            self.on_dispatch(attempt, &dispatch);
            self.enqueue(&id);
            return;
        }
        let Some(held) = self.supervised.get_mut(&id) else {
            return;
        };
        match command.body {
            Some(Body::LeaseConfirmed(confirmed)) => {
                let granted = Duration::from_millis(confirmed.granted_ms);
                if let Some(start) = held.confirm_lease(None, granted, &self.clock) {
                    self.start_attempt(start);
                }
            }
            Some(Body::Cancel(cancel)) => {
                self.unknown_messages += u64::from(CancelReason::try_from(cancel.reason).is_err());
                let reason = match cancel.reason() {
                    CancelReason::Unspecified => CancelReason::Operator,
                    reason => reason,
                };
                info!(attempt_id = id, ?reason, "ordered to stop");
                held.cancel(reason, positive_millis(cancel.grace_ms), &self.clock);
            }
            Some(Body::Abandon(abandon)) => {
                warn!(attempt_id = id, code = ?abandon.code(), "the relay took the attempt away");
                held.fence(&self.clock);
            }
            Some(Body::Result(result)) => on_result(held, &result, &self.clock),
            Some(Body::PermissionDecision(decision)) => {
                held.deliver_answer(InputResponse::Decision(decision))
            }
            Some(Body::Answer(answer)) => held.deliver_answer(InputResponse::Answer(answer)),
            // What this version does not know changes nothing.
            Some(Body::Dispatch(_)) | None => {}
        }
        self.enqueue(&id);
    }

    /// The same attempt again is answered again; nothing is started twice.
    fn on_dispatch(&mut self, attempt: AttemptRef, dispatch: &Dispatch) {
        let id = attempt.attempt_id.clone();
        if id.is_empty() {
            warn!("a dispatch without an attempt; ignored");
            return;
        }
        if let Some(held) = self.supervised.get_mut(&id) {
            held.resend_acceptance(&self.clock);
            return;
        }
        let token = dispatch.token.clone().unwrap_or_default();
        let conversing = ConversationFileKey::from_bytes(&dispatch.conversation_key).map(|key| {
            ConversationTurn {
                key,
                agent: dispatch.agent.clone(),
            }
        });
        let held = match self.plan_dispatch(&attempt, dispatch, conversing.as_ref()) {
            Ok(plan) => {
                info!(attempt_id = id, task_id = %attempt.task_id, "accepted");
                let accept = positive_millis(dispatch.accept_ms).unwrap_or(DEFAULT_CONFIRM_TIMEOUT);
                let place = self.new_outbox_location(&attempt, dispatch, &plan);
                let offer = AcceptedDispatch {
                    attempt,
                    token,
                    outbox_location: place,
                    plan,
                    confirm_within: accept,
                    conversation: conversing,
                };
                SupervisedAttempt::accept(offer, &self.clock)
            }
            Err(refusal) => {
                info!(attempt_id = id, reason = %refusal.message, "refused");
                SupervisedAttempt::refuse(attempt, token, &refusal, &self.clock)
            }
        };
        self.supervised.insert(id, held);
    }

    fn plan_dispatch(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
        conversing: Option<&ConversationTurn>,
    ) -> Result<AttemptPlan, DispatchRefusal> {
        let refuse = |code, message: &str| {
            Err(DispatchRefusal {
                code,
                message: message.to_owned(),
            })
        };
        if let Err(error) = attempt.attempt_id.parse::<AttemptId>() {
            return refuse(RejectCode::Invalid, &error.to_string());
        }
        if self.finished_ids.contains(&attempt.attempt_id) {
            return refuse(RejectCode::Duplicate, "this attempt already ran here");
        }
        if dispatch.token.is_none() {
            return refuse(RejectCode::Invalid, "the dispatch carries no lease token");
        }
        if !self.shutdown_plan.accepts_work() {
            return refuse(RejectCode::Draining, "the daemon takes no new work");
        }
        if self.free_slots() == 0 {
            return refuse(RejectCode::AtCapacity, "no free slot");
        }
        if self.disk.state() != DiskState::Fine {
            return refuse(RejectCode::DiskFull, &self.disk.to_string());
        }
        if self.memory.is_low() {
            return refuse(RejectCode::LowMemory, &self.memory.to_string());
        }
        let daemon_id = self.identity.daemon_id();
        let known = conversing.and_then(|conversing| self.conversations.find(conversing));
        let handed = dispatch
            .mcp
            .then(|| self.tooling.grant_access(&attempt.attempt_id));
        let plan =
            self.agents
                .plan_attempt(attempt, dispatch, daemon_id, known, handed.as_ref())?;
        self.check_workspace_free(&plan)?;
        Ok(plan)
    }

    /// A root that has to be one attempt's alone: the others wait at the relay, where it costs them neither a slot nor
    /// time of their own.
    fn check_workspace_free(&self, plan: &AttemptPlan) -> Result<(), DispatchRefusal> {
        let Some(root) = plan.workspace.exclusive_root() else {
            return Ok(());
        };
        let Some(other) = self
            .supervised
            .values()
            .find(|held| held.occupies_root(root))
        else {
            return Ok(());
        };
        let message = format!(
            "the workspace {:?} is in use by attempt {} of task {}",
            plan.workspace.name, other.attempt.attempt_id, other.attempt.task_id
        );
        Err(DispatchRefusal {
            code: RejectCode::WorkspaceBusy,
            message,
        })
    }

    /// Where a new attempt's frames are kept, with what the attempt is.
    pub(super) fn new_outbox_location(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
        plan: &AttemptPlan,
    ) -> OutboxLocation {
        let meta = AttemptMeta {
            attempt: attempt.clone(),
            agent: dispatch.agent.clone(),
            daemon_id: self.identity.daemon_id().to_owned(),
            boot_id: self.identity.boot_id.clone(),
            deadlines: plan.deadlines,
            cleanup_term: plan.cleanup_term,
            conversation_key: dispatch.conversation_key.clone(),
            workspace: Some(plan.workspace.clone()),
            tools: plan.tools.clone(),
            required_files: plan.required_files.clone(),
            is_coding_agent: matches!(plan.stdin, ChildStdin::AgentSession(_)),
        };
        // Checked before it was taken.
        let id = attempt.attempt_id.parse();
        id.map_or(OutboxLocation::Memory, |id| OutboxLocation::New {
            id,
            meta: Box::new(meta),
        })
    }

    fn on_ack(&mut self, entry: &AckEntry) {
        if let Some(held) = self.supervised.get_mut(&entry.attempt_id) {
            held.outbox.ack(AckedPosition {
                control_seq: entry.control_seq,
                output_offset: entry.output_offset,
            });
            held.on_acked();
            held.update_backpressure(true);
            self.remove_if_settled(&entry.attempt_id);
        }
    }

    /// A gap is replayed. Any other refused frame is used up; when it was the last word of an attempt, there is nothing left to say.
    fn on_rejected(&mut self, rejected: &FrameRejected) {
        let error = rejected.error.clone().unwrap_or_default();
        let id = rejected.attempt_id.as_str();
        warn!(attempt_id = id, code = %error.code, message = %error.message, "a frame was refused");
        let Some(held) = self.supervised.get_mut(id) else {
            return;
        };
        if error.code == refusals::GAP || error.code == refusals::OUTPUT_GAP {
            held.on_gap(rejected.expected_control_seq, &self.clock);
            self.enqueue(id);
            return;
        }
        held.on_frame_rejected(rejected.control_seq, &error);
        if error.code == refusals::CONTRACT_UNMET {
            held.on_refused_completion(rejected.control_seq, &error.message, &self.clock);
            self.enqueue(id);
        } else if held.is_terminal_seq(rejected.control_seq)
            || (error.code == refusals::UNKNOWN_ATTEMPT && held.is_finished())
        {
            self.remove_attempt(id);
        }
    }

    fn on_relay_drain(&mut self, wanted: bool) {
        if !self.shutdown_plan.is_stopping() {
            self.shutdown_plan = if wanted {
                ShutdownPlan::DrainedByRelay
            } else {
                ShutdownPlan::Working
            };
            self.send_heartbeat();
        }
    }

    pub(super) fn close_session(&mut self) {
        if let Some(live) = &self.live_session {
            live.session.close();
        }
        self.on_disconnected();
    }

    pub(super) fn remove_if_settled(&mut self, id: &str) {
        if self
            .supervised
            .get(id)
            .is_some_and(SupervisedAttempt::is_settled)
        {
            self.remove_attempt(id);
        }
    }
}

fn on_result(held: &mut SupervisedAttempt, result: &CommandResult, clock: &crate::clock::Clock) {
    match &result.result {
        Some(command_result::Result::Error(error)) if error.code == refusals::CONTRACT_UNMET => {
            held.on_refused_completion(result.control_seq, &error.message, clock);
        }
        Some(command_result::Result::Error(error)) => {
            warn!(attempt_id = %held.attempt.attempt_id, code = %error.code, "refused by the relay");
        }
        Some(command_result::Result::Ok(_)) | None => {}
    }
}

pub(super) fn to_daemon_frame(frame: daemon_frame::Frame) -> DaemonFrame {
    DaemonFrame { frame: Some(frame) }
}

/// 0 on the wire means "not said".
pub(super) fn positive_millis(millis: u64) -> Option<Duration> {
    (millis > 0).then(|| Duration::from_millis(millis))
}
