//! Encodes messages of the dispatcher and acknowledgements of durable output, outside the
//! dispatch loop.

use std::collections::HashMap;
use std::sync::Arc;

use baton_core::ids::AttemptId;
use baton_core::io::effects::{
    AttemptDispatch, AttemptSettlement, DaemonMessage, LeaseRenewal, SettlementVerdict,
};
use baton_core::io::session_input::FrameRef;
use baton_core::record::CheckpointRecord;
use uuid::Uuid;

use super::session_attempts::AttemptAck;
use super::{DaemonSession, SessionEnd, WIRE_QUEUE, frame_encode};
use crate::dispatcher::SessionDelivery;
use crate::output::OutputEnd;

impl DaemonSession {
    /// Encodes one message and all that wait behind it, so that acknowledgements share a frame.
    pub(super) fn send_messages(&mut self, first: SessionDelivery) -> Result<(), SessionEnd> {
        let mut acked: Vec<AttemptAck> = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                SessionDelivery::Close(reason) => return Err(session_end(reason)),
                SessionDelivery::Message(DaemonMessage::Ack {
                    attempt,
                    control_seq,
                }) => {
                    self.note_ack(&mut acked, attempt, control_seq);
                }
                SessionDelivery::Message(message) => {
                    // Acknowledgements of an attempt must be sent before its Abandon.
                    if matches!(message, DaemonMessage::Abandon { .. }) {
                        self.acknowledge(&mut acked);
                    }
                    self.encode_message(message);
                }
            }
            let room = self.pending.len() < WIRE_QUEUE;
            next = if room {
                self.messages.try_recv().ok()
            } else {
                None
            };
        }
        self.acknowledge(&mut acked);
        Ok(())
    }

    fn acknowledge(&mut self, acked: &mut Vec<AttemptAck>) {
        if !acked.is_empty() {
            let acked = std::mem::take(acked);
            self.pending.push_back(self.context.encoder.ack(acked));
        }
    }

    fn note_ack(&mut self, acked: &mut Vec<AttemptAck>, attempt: AttemptId, control_seq: u64) {
        let Some(newest) = self.attempts.ack_control(attempt, control_seq) else {
            return;
        };
        if !self.attempts.contains(attempt) {
            self.acks.unwatch(attempt.0);
        }
        match acked.iter_mut().find(|earlier| earlier.attempt == attempt) {
            Some(earlier) => *earlier = newest,
            None => acked.push(newest),
        }
    }

    fn encode_message(&mut self, message: DaemonMessage) {
        // A message waits only for the writes of its own task, but Welcome waits for all writes
        // of Hello. Welcome must still be the first frame.
        let first = matches!(message, DaemonMessage::Welcome { .. });
        if let Some(early) = self.before_welcome.as_mut().filter(|_| !first) {
            return early.push(message);
        }
        match message {
            DaemonMessage::Welcome {
                heartbeat_ms,
                settlements,
            } => {
                self.welcome(heartbeat_ms, &settlements);
                let early = self.before_welcome.take().unwrap_or_default();
                early
                    .into_iter()
                    .for_each(|message| self.encode_message(message));
            }
            DaemonMessage::Dispatch(dispatch) => {
                let to = &dispatch.to;
                let re = FrameRef {
                    task: to.task,
                    attempt: to.attempt,
                    number: to.number,
                    incarnation: self.context.encoder.incarnation,
                };
                self.attempts
                    .insert(re, dispatch.spec.effective_profile.stream_idle_ms, (0, 0));
                let newest = self.newest_checkpoint(&dispatch);
                let frame = self.context.encoder.dispatch(&dispatch, newest.as_deref());
                self.pending.push_back(frame);
            }
            DaemonMessage::Abandon { attempt, code } => {
                // Its receipt may still arrive and lift a fence, so the attempt stays in the
                // session until then.
                self.attempts.abandon(attempt);
                self.push_message(DaemonMessage::Abandon { attempt, code });
            }
            DaemonMessage::HeartbeatAck {
                seq,
                heartbeat_ms,
                results,
            } => {
                for (attempt, renewal) in &results {
                    if matches!(renewal, LeaseRenewal::Revoked { .. }) {
                        self.attempts.abandon(*attempt);
                    }
                }
                self.push_message(DaemonMessage::HeartbeatAck {
                    seq,
                    heartbeat_ms,
                    results,
                });
            }
            rejected @ DaemonMessage::FrameRejected {
                attempt,
                control_seq,
                ..
            } => {
                self.attempts.note_refused_frame(attempt, control_seq);
                self.push_message(rejected);
            }
            other @ (DaemonMessage::ExtensionAck { .. }
            | DaemonMessage::Ack { .. }
            | DaemonMessage::LeaseConfirmed { .. }
            | DaemonMessage::Cancel { .. }
            | DaemonMessage::Answer { .. }
            | DaemonMessage::Drain { .. }) => self.push_message(other),
        }
    }

    /// Reads the newest checkpoint. The core does not carry it, because it may be long and is
    /// already stored.
    fn newest_checkpoint(&self, dispatch: &AttemptDispatch) -> Option<Arc<CheckpointRecord>> {
        let (tenant, task) = (&dispatch.spec.tenant, dispatch.to.task);
        let reader = &self.context.reader;
        reader.checkpoint(tenant, task, dispatch.checkpoint?)
    }

    fn push_message(&mut self, message: DaemonMessage) {
        self.pending.extend(self.context.encoder.message(message));
    }

    /// Sends Welcome, which decides for which of the listed attempts this session may send
    /// frames.
    fn welcome(&mut self, heartbeat_ms: u64, settlements: &[AttemptSettlement]) {
        let verdicts: HashMap<AttemptId, &SettlementVerdict> = settlements
            .iter()
            .map(|one| (one.attempt, &one.verdict))
            .collect();
        for re in std::mem::take(&mut self.listed_refs) {
            let verdict = verdicts.get(&re.attempt).copied();
            if let Some(acked) = verdict.and_then(replay_from) {
                let offset = self.durable_offset(re.attempt);
                self.attempts.insert(re, None, (acked, offset));
                self.acks.watch(re.attempt.0);
            }
            match verdict {
                Some(SettlementVerdict::Keep { .. } | SettlementVerdict::Adopt { .. }) => {
                    self.attempts.mark_full_replay(re.attempt)
                }
                Some(SettlementVerdict::Kill { .. }) => self.attempts.abandon(re.attempt),
                None => {}
            }
        }
        let frame =
            self.context
                .encoder
                .welcome(self.daemon, heartbeat_ms, settlements, |attempt| {
                    self.durable_offset(attempt)
                });
        self.pending.push_back(frame);
    }

    pub(super) fn output_durable(&mut self, ends: Vec<(Uuid, OutputEnd)>) {
        let acked = |(attempt, end): (Uuid, OutputEnd)| {
            self.attempts.ack_offset(AttemptId(attempt), end.durable)
        };
        let acked: Vec<AttemptAck> = ends.into_iter().filter_map(acked).collect();
        if !acked.is_empty() {
            self.pending.push_back(self.context.encoder.ack(acked));
        }
    }
}

/// The acknowledged control_seq from which the daemon replays. A killed attempt may still send
/// its receipt under its next number, so the session also accepts frames of it.
fn replay_from(verdict: &SettlementVerdict) -> Option<u64> {
    match verdict {
        SettlementVerdict::Keep { acked, .. } | SettlementVerdict::Adopt { acked } => Some(*acked),
        SettlementVerdict::Kill { acked, .. } => *acked,
    }
}

fn session_end(reason: baton_core::io::effects::CloseReason) -> SessionEnd {
    match frame_encode::close_goodbye(reason) {
        Some((code, message)) => SessionEnd::Goodbye(code, message),
        None => SessionEnd::Dropped,
    }
}
