//! Encodes the core's messages to a daemon. Each frame carries the relay's incarnation and
//! epoch.

use baton_core::goal::completion_contract::UnmetRequirement;
use baton_core::ids::{AttemptId, DaemonId, Incarnation, RelayEpoch};
use baton_core::io::effects::{
    AttemptDispatch, AttemptRef, AttemptSettlement, CancelKind, CloseReason, DaemonMessage,
    LeaseRenewal, SettlementVerdict,
};
use baton_core::io::rejection::Rejection;
use baton_core::record::{CheckpointRecord, InputDecision, InputKind};
use baton_proto::codes::features;
use baton_proto::v1;
use baton_proto::v1::attempt_command::Body;
use baton_proto::v1::relay_frame::Frame;
use bytes::Bytes;
use prost::Message;

use super::fault::FrameFault;
use super::fence_code::fence_code;
use super::session_attempts::AttemptAck;
use crate::api::error::fault::ApiFault;
use crate::api::error::status;
use crate::api::wire;
use crate::api::wire::{enums, timestamp};

/// Encodes frames with the incarnation and epoch of this run of the relay.
#[derive(Clone, Debug)]
pub(crate) struct FrameEncoder {
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: RelayEpoch,
}

/// Size limits that Welcome announces and the session enforces.
pub(super) const SESSION_LIMITS: v1::Limits = v1::Limits {
    max_frame_bytes: 2 << 20,
    max_chunk_bytes: crate::output::CHUNK_BYTES_MAX as u64,
    max_unacked_bytes: 16 << 20,
    max_output_bytes: 64 << 20,
    max_tool_bytes: 256 << 10,
    max_result_bytes: 64 << 10,
};

impl FrameEncoder {
    pub(super) fn frame(&self, frame: Frame) -> v1::RelayFrame {
        v1::RelayFrame {
            relay_epoch: self.epoch.0,
            incarnation: self.incarnation.to_string(),
            frame: Some(frame),
        }
    }

    fn command(&self, to: &AttemptRef, body: Body) -> v1::RelayFrame {
        let command = v1::AttemptCommand {
            r#ref: Some(self.reference(to)),
            body: Some(body),
        };
        self.frame(Frame::Attempt(command))
    }

    fn reference(&self, to: &AttemptRef) -> v1::AttemptRef {
        wire::attempt_ref(to, self.incarnation)
    }

    /// The answer to Hello. `offset` returns the durable output offset of an attempt.
    pub(super) fn welcome(
        &self,
        daemon: DaemonId,
        heartbeat_ms: u64,
        settlements: &[AttemptSettlement],
        offset: impl Fn(AttemptId) -> u64,
    ) -> v1::RelayFrame {
        self.frame(Frame::Welcome(v1::Welcome {
            relay_id: self.incarnation.to_string(),
            daemon_id: daemon.to_string(),
            protocol_version: 1,
            heartbeat_ms,
            limits: Some(SESSION_LIMITS),
            settlements: settlements
                .iter()
                .map(|one| settlement(one, offset(one.attempt)))
                .collect(),
            deadline_slack_ms: 2_000,
            latest_daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            features: features::ALL.map(str::to_owned).to_vec(),
            relay_time: None,
        }))
    }

    pub(super) fn ack(&self, entries: Vec<AttemptAck>) -> v1::RelayFrame {
        let entry = |acked: AttemptAck| v1::AckEntry {
            attempt_id: acked.attempt.to_string(),
            control_seq: acked.control_seq,
            output_offset: acked.offset,
        };
        self.frame(Frame::Ack(v1::Ack {
            entries: entries.into_iter().map(entry).collect(),
        }))
    }

    pub(super) fn goodbye(
        &self,
        code: v1::GoodbyeCode,
        message: &str,
        retry_after_ms: Option<u64>,
    ) -> v1::RelayFrame {
        self.frame(Frame::Goodbye(v1::Goodbye {
            code: code.into(),
            message: message.to_owned(),
            retry_after_ms,
        }))
    }

    pub(super) fn fault(
        &self,
        attempt: &str,
        control_seq: u64,
        offset: Option<u64>,
        fault: &FrameFault,
    ) -> v1::RelayFrame {
        let error = status::detail(&fault.clone().into());
        self.frame(Frame::Rejected(v1::FrameRejected {
            attempt_id: attempt.to_owned(),
            control_seq,
            output_offset: offset,
            error: Some(error),
            expected_control_seq: None,
        }))
    }

    /// Encodes every message except Welcome, Dispatch and Ack, which need the state of the
    /// session.
    pub(super) fn message(&self, message: DaemonMessage) -> Option<v1::RelayFrame> {
        Some(match message {
            DaemonMessage::Welcome { .. }
            | DaemonMessage::Ack { .. }
            | DaemonMessage::Dispatch(_) => {
                return None;
            }
            DaemonMessage::HeartbeatAck {
                seq,
                heartbeat_ms,
                results,
            } => self.heartbeat_ack(seq, heartbeat_ms, results),
            DaemonMessage::ExtensionAck { request, results } => {
                self.frame(Frame::HoldGranted(v1::HoldGranted {
                    seq: request,
                    results: results.into_iter().map(renewal).collect(),
                }))
            }
            DaemonMessage::LeaseConfirmed {
                to,
                granted_ms,
                expires_at,
            } => {
                let confirmed = v1::LeaseConfirmed {
                    granted_ms,
                    expires_at: Some(timestamp(expires_at)),
                };
                self.command(&to, Body::LeaseConfirmed(confirmed))
            }
            DaemonMessage::Cancel {
                to,
                kind,
                reason,
                grace_ms,
            } => self.command(&to, Body::Cancel(cancel(kind, reason.as_deref(), grace_ms))),
            DaemonMessage::Answer {
                to,
                input,
                kind,
                decision,
                payload,
                by,
                digest,
            } => {
                let answer = AnsweredInput {
                    input_id: input.to_string(),
                    decision,
                    payload: &payload,
                    by: &by,
                    digest: &digest,
                };
                self.command(&to, answer.body(kind))
            }
            DaemonMessage::Abandon { attempt, code } => self.abandon(attempt, code),
            DaemonMessage::FrameRejected {
                attempt,
                control_seq,
                code,
                expected,
                unmet,
            } => self.rejected(
                attempt,
                control_seq,
                &rejection_fault(code, unmet),
                expected,
            ),
            DaemonMessage::Drain { withdrawn } => self.frame(Frame::Drain(v1::Drain {
                withdrawn,
                ..v1::Drain::default()
            })),
        })
    }

    fn heartbeat_ack(
        &self,
        seq: u64,
        heartbeat_ms: u64,
        results: Vec<(AttemptId, LeaseRenewal)>,
    ) -> v1::RelayFrame {
        self.frame(Frame::HeartbeatAck(v1::HeartbeatAck {
            seq,
            heartbeat_ms,
            results: results.into_iter().map(renewal).collect(),
            relay_time: None,
        }))
    }

    /// The ref contains only the attempt id, because the task of an abandoned attempt may be
    /// unknown.
    fn abandon(&self, attempt: AttemptId, code: Rejection) -> v1::RelayFrame {
        let reference = v1::AttemptRef {
            attempt_id: attempt.to_string(),
            incarnation: self.incarnation.to_string(),
            ..v1::AttemptRef::default()
        };
        let body = Body::Abandon(v1::Abandon {
            code: fence_code(code).into(),
        });
        self.frame(Frame::Attempt(v1::AttemptCommand {
            r#ref: Some(reference),
            body: Some(body),
        }))
    }

    fn rejected(
        &self,
        attempt: AttemptId,
        control_seq: u64,
        fault: &ApiFault,
        expected: Option<u64>,
    ) -> v1::RelayFrame {
        let error = status::detail(fault);
        self.frame(Frame::Rejected(v1::FrameRejected {
            attempt_id: attempt.to_string(),
            control_seq,
            output_offset: None,
            error: Some(error),
            expected_control_seq: expected,
        }))
    }

    /// Encodes a dispatch. `newest` is the task's newest checkpoint.
    pub(super) fn dispatch(
        &self,
        dispatch: &AttemptDispatch,
        newest: Option<&CheckpointRecord>,
    ) -> v1::RelayFrame {
        let AttemptDispatch {
            to,
            token,
            spec,
            granted_ms,
            expires_at,
            accept_ms,
            total_ms,
            previous,
            checkpoint: _,
            resume,
            agent_session_id,
            fresh_conversation: fresh,
            conversation_key,
        } = dispatch;
        let resume = previous
            .map(|previous| wire::goal::resume_context(previous, resume.as_deref(), newest));
        let command = (!spec.argv.is_empty()).then(|| v1::CommandSpec {
            argv: spec.argv.clone(),
        });
        self.command(
            to,
            Body::Dispatch(v1::Dispatch {
                token: Some(v1::LeaseToken {
                    value: Bytes::copy_from_slice(&token.0),
                }),
                granted_ms: *granted_ms,
                expires_at: Some(timestamp(*expires_at)),
                accept_ms: *accept_ms,
                profile: Some(wire::deadlines(&spec.effective_profile)),
                total_ms: *total_ms,
                prompt: spec.prompt.clone(),
                agent: spec.agent.clone(),
                options: Some(wire::options(&spec.options)),
                command,
                cwd: spec.cwd.clone().unwrap_or_default(),
                workspace: spec.workspace.as_ref().map(wire::workspace),
                agent_session_id: agent_session_id.as_deref().unwrap_or_default().to_owned(),
                env: spec.env.clone(),
                contract: spec.contract.as_ref().map(wire::contract),
                resume,
                on_input_timeout: enums::on_input_timeout(spec.on_input_timeout).into(),
                // The relay applies these rules itself.
                permission_rules: Vec::new(),
                labels: spec.labels.clone(),
                goal: spec.goal.clone(),
                success_criteria: spec.success_criteria.clone(),
                mcp: spec.mcp,
                max_output_bytes: SESSION_LIMITS.max_output_bytes,
                default_cleanup_term_ms: 2_000,
                conversation_key: conversation_key
                    .map(|key| Bytes::copy_from_slice(&key))
                    .unwrap_or_default(),
                fresh_conversation: *fresh,
            }),
        )
    }
}

/// The answer to a permission request or a question, for the agent.
struct AnsweredInput<'a> {
    input_id: String,
    decision: InputDecision,
    payload: &'a [u8],
    by: &'a str,
    digest: &'a [u8],
}

impl AnsweredInput<'_> {
    fn body(self, kind: InputKind) -> Body {
        match kind {
            InputKind::Permission => Body::PermissionDecision(self.decision()),
            InputKind::Question => Body::Answer(self.answer()),
        }
    }

    fn decision(self) -> v1::PermissionDecision {
        // The stored payload has the scope and the message. The relay sets who decided and on
        // which input.
        let stored = v1::PermissionDecision::decode(self.payload).unwrap_or_default();
        v1::PermissionDecision {
            input_id: self.input_id,
            outcome: enums::outcome(self.decision).into(),
            decided_by: self.by.to_owned(),
            tool_input_sha256: Bytes::copy_from_slice(self.digest),
            ..stored
        }
    }

    fn answer(self) -> v1::QuestionAnswer {
        let stored = v1::QuestionAnswer::decode(self.payload).unwrap_or_default();
        v1::QuestionAnswer {
            input_id: self.input_id,
            outcome: enums::outcome(self.decision).into(),
            answered_by: self.by.to_owned(),
            ..stored
        }
    }
}

pub(super) fn close_goodbye(reason: CloseReason) -> Option<(v1::GoodbyeCode, &'static str)> {
    match reason {
        CloseReason::Replaced => None,
        CloseReason::Superseded => Some((
            v1::GoodbyeCode::Superseded,
            "another instance of this daemon connected; check that no two machines use the same data directory",
        )),
        CloseReason::NotReceiving => Some((
            v1::GoodbyeCode::IdleTimeout,
            "the daemon did not confirm the answers to two heartbeats; connect again",
        )),
        CloseReason::TooManyDaemons => Some((
            v1::GoodbyeCode::TooManyDaemons,
            "this credential has reached its limit of daemons; start the daemon in the data directory of an earlier one, \
             forget daemons that are gone (`baton forget DAEMON --reason …`), or give it its own credential",
        )),
        CloseReason::Disconnected => Some((
            v1::GoodbyeCode::Disconnected,
            "an operator closed this stream; connect again",
        )),
        CloseReason::Silent => Some((
            v1::GoodbyeCode::IdleTimeout,
            "two heartbeats are missing; connect again",
        )),
    }
}

fn settlement(one: &AttemptSettlement, acked_offset: u64) -> v1::Settlement {
    use v1::settlement::Decision;
    let decision = match &one.verdict {
        SettlementVerdict::Keep { acked, granted_ms } => Decision::Keep(v1::Keep {
            acked_control_seq: *acked,
            acked_offset,
            granted_ms: *granted_ms,
        }),
        SettlementVerdict::Adopt { acked } => Decision::Adopt(v1::Adopt {
            acked_control_seq: *acked,
            acked_offset,
        }),
        SettlementVerdict::Kill { code, acked: _ } => Decision::Kill(v1::Kill {
            code: fence_code(*code).into(),
        }),
    };
    v1::Settlement {
        attempt_id: one.attempt.to_string(),
        decision: Some(decision),
    }
}

fn renewal((attempt, renewal): (AttemptId, LeaseRenewal)) -> v1::RenewResult {
    use v1::renew_result::Result as Outcome;
    let result = match renewal {
        LeaseRenewal::Renewed {
            granted_ms,
            expires_at,
        } => Outcome::Renewed(v1::Renewed {
            granted_ms,
            expires_at: Some(timestamp(expires_at)),
        }),
        LeaseRenewal::Revoked { code } => Outcome::Revoked(v1::Revoked {
            code: fence_code(code).into(),
        }),
    };
    v1::RenewResult {
        attempt_id: attempt.to_string(),
        result: Some(result),
    }
}

/// The fault of a rejection. A completion with missing files lists them.
fn rejection_fault(code: Rejection, unmet: Vec<UnmetRequirement>) -> ApiFault {
    if unmet.is_empty() {
        code.into()
    } else {
        ApiFault::MissingFiles(unmet)
    }
}

fn cancel(kind: CancelKind, reason: Option<&str>, grace_ms: u64) -> v1::Cancel {
    let (why, timer) = match kind {
        CancelKind::User => (v1::CancelReason::User, v1::TimerKind::Unspecified),
        CancelKind::Operator => (v1::CancelReason::Operator, v1::TimerKind::Unspecified),
        CancelKind::Deadline(timer) => (v1::CancelReason::Deadline, enums::timer(timer)),
    };
    v1::Cancel {
        reason: why.into(),
        timer: timer.into(),
        grace_ms,
        message: reason.unwrap_or_default().to_owned(),
    }
}
