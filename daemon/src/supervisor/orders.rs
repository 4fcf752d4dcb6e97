//! What the relay says and what the daemon says back at link level: Hello and Welcome, acks, dispatches, orders about one attempt. The attempts' own reactions are in `held`.

use std::time::Duration;

use baton_daemon_core::heartbeats::Heartbeats;
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

use super::{Course, Live, Supervisor};
use crate::DaemonError;
use crate::agents::Refusal;
use crate::attempt::{AttemptPlan, Word, Words};
use crate::attempt_dir::{AttemptId, AttemptMeta};
use crate::clock::Moment;
use crate::conversations::{ConversationKey, Conversing};
use crate::disk::DiskState;
use crate::held::{Held, Offer, Place};
use crate::outbox::Acked;
use crate::session::Session;

/// When the relay names no interval.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// When the relay names no limit for its confirmation.
const ACCEPT: Duration = Duration::from_secs(10);

impl Supervisor {
    pub(super) fn hello(&self) -> Hello {
        let now = self.clock.now();
        Hello {
            daemon_id: self.identity.daemon_id().to_owned(),
            instance_id: self.identity.instance_id.clone(),
            boot_id: self.identity.boot_id.clone(),
            name: self.profile.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: PROTOCOL_VERSION,
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            slots: self.profile.slots,
            labels: self.profile.labels.clone(),
            capabilities: self.profile.capabilities.clone(),
            agents: self.agents.infos(),
            active: self.held.values().map(|held| held.active(now)).collect(),
            features: features::ALL.map(str::to_owned).to_vec(),
            draining: !self.course.takes_work(),
            seen_relay_epoch: self.epochs.epoch(),
            seen_incarnation: self.epochs.incarnation().to_owned(),
            workspaces: self.agents.roots().names(),
        }
    }

    /// A new stream stands. Everything unacknowledged goes out again on it. False for a relay that was replaced.
    pub(super) fn on_up(
        &mut self,
        session: Session,
        hello_sent_at: Moment,
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
        self.identity.keep(&welcome.daemon_id)?;
        info!(daemon_id = %welcome.daemon_id, relay_id = %welcome.relay_id, "connected");
        let interval = positive(welcome.heartbeat_ms).unwrap_or(HEARTBEAT);
        let now = self.clock.now();
        self.live = Some(Live {
            session,
            heartbeats: Heartbeats::new(interval, now),
            heard_at: now,
            grants_holds: welcome.features.iter().any(|word| word == features::HOLD),
        });
        self.settle_all(&welcome, hello_sent_at);
        Ok(true)
    }

    fn settle_all(&mut self, welcome: &Welcome, hello_sent_at: Moment) {
        for held in self.held.values_mut() {
            held.outbox.rewind();
        }
        for settlement in &welcome.settlements {
            self.settle(settlement, hello_sent_at);
        }
        self.change_all(|held, _| {
            held.stop_waiting();
            held.balance(true);
        });
    }

    fn settle(&mut self, settlement: &Settlement, hello_sent_at: Moment) {
        let id = settlement.attempt_id.as_str();
        let Some(held) = self.held.get_mut(id) else {
            return;
        };
        match settlement.decision {
            Some(settlement::Decision::Keep(keep)) => {
                held.replay(Acked {
                    control_seq: keep.acked_control_seq,
                    output_offset: keep.acked_offset,
                });
                let granted = keep.granted_ms.map(Duration::from_millis);
                let clock = &self.clock;
                if let Some(start) =
                    granted.and_then(|granted| held.confirm(Some(hello_sent_at), granted, clock))
                {
                    self.start(start);
                }
            }
            Some(settlement::Decision::Adopt(adopt)) => held.replay(Acked {
                control_seq: adopt.acked_control_seq,
                output_offset: adopt.acked_offset,
            }),
            Some(settlement::Decision::Kill(kill)) => {
                warn!(attempt_id = id, code = ?kill.code(), "the relay took the attempt away");
                held.fence(&self.clock);
            }
            // A decision of a later version: neither renewed nor ended.
            None => self.unknown += 1,
        }
        self.forget_if_settled(id);
    }

    pub(super) fn on_frame(&mut self, frame: RelayFrame) {
        if !self.epochs.admit(&frame.incarnation, frame.relay_epoch) {
            warn!(
                relay_epoch = frame.relay_epoch,
                "a frame from a relay of the past; dialing again"
            );
            self.drop_stream();
            return;
        }
        match frame.frame {
            Some(Frame::HeartbeatAck(ack)) => self.on_heartbeat_ack(ack),
            Some(Frame::Ack(ack)) => ack.entries.iter().for_each(|entry| self.on_ack(entry)),
            Some(Frame::Attempt(command)) => self.on_command(command),
            Some(Frame::Drain(drain)) => self.on_drain(!drain.withdrawn),
            Some(Frame::Rejected(rejected)) => self.on_rejected(&rejected),
            Some(Frame::HoldGranted(granted)) => self.on_hold_granted(granted),
            // These are the link's.
            Some(Frame::Welcome(_) | Frame::Goodbye(_)) => {}
            None => self.unknown += 1,
        }
    }

    fn on_command(&mut self, command: AttemptCommand) {
        let Some(attempt) = command.r#ref else { return };
        let id = attempt.attempt_id.clone();
        if command.body.is_none() {
            self.unknown += 1;
            return;
        }
        if let Some(Body::Dispatch(dispatch)) = command.body {
            self.on_dispatch(attempt, &dispatch);
            self.enqueue(&id);
            return;
        }
        let Some(held) = self.held.get_mut(&id) else {
            return;
        };
        match command.body {
            Some(Body::LeaseConfirmed(confirmed)) => {
                let granted = Duration::from_millis(confirmed.granted_ms);
                if let Some(start) = held.confirm(None, granted, &self.clock) {
                    self.start(start);
                }
            }
            Some(Body::Cancel(cancel)) => {
                self.unknown += u64::from(CancelReason::try_from(cancel.reason).is_err());
                let reason = match cancel.reason() {
                    CancelReason::Unspecified => CancelReason::Operator,
                    reason => reason,
                };
                info!(attempt_id = id, ?reason, "ordered to stop");
                held.cancel(reason, positive(cancel.grace_ms), &self.clock);
            }
            Some(Body::Abandon(abandon)) => {
                warn!(attempt_id = id, code = ?abandon.code(), "the relay took the attempt away");
                held.fence(&self.clock);
            }
            Some(Body::Result(result)) => on_result(held, &result, &self.clock),
            Some(Body::PermissionDecision(decision)) => held.hear_word(Word::Decision(decision)),
            Some(Body::Answer(answer)) => held.hear_word(Word::Answer(answer)),
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
        if let Some(held) = self.held.get_mut(&id) {
            held.answer_again(&self.clock);
            return;
        }
        let token = dispatch.token.clone().unwrap_or_default();
        let conversing = ConversationKey::of(&dispatch.conversation_key).map(|key| Conversing {
            key,
            agent: dispatch.agent.clone(),
        });
        let held = match self.judge_dispatch(&attempt, dispatch, conversing.as_ref()) {
            Ok(plan) => {
                info!(attempt_id = id, task_id = %attempt.task_id, "accepted");
                let accept = positive(dispatch.accept_ms).unwrap_or(ACCEPT);
                let place = self.place(&attempt, dispatch, &plan);
                let offer = Offer {
                    attempt,
                    token,
                    place,
                    plan,
                    accept,
                    conversing,
                };
                Held::accept(offer, &self.clock)
            }
            Err(refusal) => {
                info!(attempt_id = id, reason = %refusal.message, "refused");
                Held::refuse(attempt, token, &refusal, &self.clock)
            }
        };
        self.held.insert(id, held);
    }

    fn judge_dispatch(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
        conversing: Option<&Conversing>,
    ) -> Result<AttemptPlan, Refusal> {
        let refuse = |code, message: &str| {
            Err(Refusal {
                code,
                message: message.to_owned(),
            })
        };
        if let Err(error) = attempt.attempt_id.parse::<AttemptId>() {
            return refuse(RejectCode::Invalid, &error.to_string());
        }
        if self.forgotten.contains(&attempt.attempt_id) {
            return refuse(RejectCode::Duplicate, "this attempt already ran here");
        }
        if dispatch.token.is_none() {
            return refuse(RejectCode::Invalid, "the dispatch carries no lease token");
        }
        if !self.course.takes_work() {
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
        let known = conversing.and_then(|conversing| self.conversations.known(conversing));
        let handed = dispatch
            .mcp
            .then(|| self.tooling.hand_to(&attempt.attempt_id));
        let plan = self
            .agents
            .plan(attempt, dispatch, daemon_id, known, handed.as_ref())?;
        self.check_place(&plan)?;
        Ok(plan)
    }

    /// A root that has to be one attempt's alone: the others wait at the relay, where it costs them neither a slot nor
    /// time of their own.
    fn check_place(&self, plan: &AttemptPlan) -> Result<(), Refusal> {
        let Some(root) = plan.workspace.exclusive() else {
            return Ok(());
        };
        let Some(other) = self.held.values().find(|held| held.occupies(root)) else {
            return Ok(());
        };
        let message = format!(
            "the workspace {:?} is in use by attempt {} of task {}",
            plan.workspace.name, other.attempt.attempt_id, other.attempt.task_id
        );
        Err(Refusal {
            code: RejectCode::WorkspaceBusy,
            message,
        })
    }

    /// Where a new attempt's frames are kept, with what the attempt is.
    pub(super) fn place(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
        plan: &AttemptPlan,
    ) -> Place {
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
            files: plan.files.clone(),
            talks: matches!(plan.words, Words::Talk(_)),
        };
        // Checked before it was taken.
        let id = attempt.attempt_id.parse();
        id.map_or(Place::Memory, |id| Place::New {
            id,
            meta: Box::new(meta),
        })
    }

    fn on_ack(&mut self, entry: &AckEntry) {
        if let Some(held) = self.held.get_mut(&entry.attempt_id) {
            held.outbox.ack(Acked {
                control_seq: entry.control_seq,
                output_offset: entry.output_offset,
            });
            held.on_told();
            held.balance(true);
            self.forget_if_settled(&entry.attempt_id);
        }
    }

    /// A gap is replayed. Any other refused frame is used up; when it was the last word of an attempt, there is nothing left to say.
    fn on_rejected(&mut self, rejected: &FrameRejected) {
        let error = rejected.error.clone().unwrap_or_default();
        let id = rejected.attempt_id.as_str();
        warn!(attempt_id = id, code = %error.code, message = %error.message, "a frame was refused");
        let Some(held) = self.held.get_mut(id) else {
            return;
        };
        if error.code == refusals::GAP || error.code == refusals::OUTPUT_GAP {
            held.on_gap(rejected.expected_control_seq, &self.clock);
            self.enqueue(id);
            return;
        }
        held.on_untold(rejected.control_seq, &error);
        if error.code == refusals::CONTRACT_UNMET {
            held.on_refused_completion(rejected.control_seq, &error.message, &self.clock);
            self.enqueue(id);
        } else if held.ends_with(rejected.control_seq)
            || (error.code == refusals::UNKNOWN_ATTEMPT && held.is_finished())
        {
            self.forget(id);
        }
    }

    fn on_drain(&mut self, wanted: bool) {
        if !self.course.is_stopping() {
            self.course = if wanted {
                Course::Resting
            } else {
                Course::Working
            };
            self.send_heartbeat();
        }
    }

    pub(super) fn drop_stream(&mut self) {
        if let Some(live) = &self.live {
            live.session.close();
        }
        self.on_down();
    }

    pub(super) fn forget_if_settled(&mut self, id: &str) {
        if self.held.get(id).is_some_and(Held::is_settled) {
            self.forget(id);
        }
    }
}

fn on_result(held: &mut Held, result: &CommandResult, clock: &crate::clock::Clock) {
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

pub(super) fn frame(frame: daemon_frame::Frame) -> DaemonFrame {
    DaemonFrame { frame: Some(frame) }
}

/// 0 on the wire means "not said".
pub(super) fn positive(millis: u64) -> Option<Duration> {
    (millis > 0).then(|| Duration::from_millis(millis))
}
