//! What the dispatcher wants said, and what became durable: encoded here, off the dispatcher's loop.

use std::collections::HashMap;
use std::sync::Arc;

use baton_core::effects::{Dispatch, Downstream, Renewal, Settlement, Verdict};
use baton_core::id::AttemptId;
use baton_core::input::FrameRef;
use baton_core::record::CheckpointRecord;
use uuid::Uuid;

use super::held::Acked;
use super::{Ended, Session, WIRE_QUEUE, encode};
use crate::dispatcher::ToSession;
use crate::output::OutputEnd;

impl Session {
    /// Takes one message and all that wait behind it, so that acknowledgements share a frame.
    pub(super) fn tell(&mut self, first: ToSession) -> Result<(), Ended> {
        let mut acked: Vec<Acked> = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                ToSession::Close(reason) => return Err(close(reason)),
                ToSession::Message(Downstream::Ack {
                    attempt,
                    control_seq,
                }) => {
                    self.note_ack(&mut acked, attempt, control_seq);
                }
                ToSession::Message(message) => {
                    // Who is told that his attempt is over hears no acknowledgement of it afterwards.
                    if matches!(message, Downstream::Abandon { .. }) {
                        self.acknowledge(&mut acked);
                    }
                    self.encode(message);
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

    fn acknowledge(&mut self, acked: &mut Vec<Acked>) {
        if !acked.is_empty() {
            let acked = std::mem::take(acked);
            self.pending.push_back(self.shell.stamp.ack(acked));
        }
    }

    fn note_ack(&mut self, acked: &mut Vec<Acked>, attempt: AttemptId, control_seq: u64) {
        let Some(newest) = self.held.acked_control(attempt, control_seq) else {
            return;
        };
        if !self.held.speaks_for(attempt) {
            self.acks.unwatch(attempt.0);
        }
        match acked.iter_mut().find(|earlier| earlier.attempt == attempt) {
            Some(earlier) => *earlier = newest,
            None => acked.push(newest),
        }
    }

    fn encode(&mut self, message: Downstream) {
        // A message waits for the writes of its own task, Welcome for all of them; yet Welcome is the first word.
        let first = matches!(message, Downstream::Welcome { .. });
        if let Some(early) = self.early.as_mut().filter(|_| !first) {
            return early.push(message);
        }
        match message {
            Downstream::Welcome {
                heartbeat_ms,
                settlements,
            } => {
                self.welcome(heartbeat_ms, &settlements);
                let early = self.early.take().unwrap_or_default();
                early.into_iter().for_each(|message| self.encode(message));
            }
            Downstream::Dispatch(dispatch) => {
                let to = &dispatch.to;
                let re = FrameRef {
                    task: to.task,
                    attempt: to.attempt,
                    number: to.number,
                    incarnation: self.shell.stamp.incarnation,
                };
                self.held
                    .insert(re, dispatch.spec.effective_profile.stream_idle_ms, (0, 0));
                let newest = self.newest_checkpoint(&dispatch);
                let frame = self.shell.stamp.dispatch(&dispatch, newest.as_deref());
                self.pending.push_back(frame);
            }
            Downstream::Abandon { attempt, code } => {
                // Its receipt may still come and lift a fence, so its place stays until then.
                self.held.give_up(attempt);
                self.push(Downstream::Abandon { attempt, code });
            }
            Downstream::HeartbeatAck {
                seq,
                heartbeat_ms,
                results,
            } => {
                for (attempt, renewal) in &results {
                    if matches!(renewal, Renewal::Revoked { .. }) {
                        self.held.give_up(*attempt);
                    }
                }
                self.push(Downstream::HeartbeatAck {
                    seq,
                    heartbeat_ms,
                    results,
                });
            }
            rejected @ Downstream::FrameRejected {
                attempt,
                control_seq,
                ..
            } => {
                self.held.refused(attempt, control_seq);
                self.push(rejected);
            }
            other @ (Downstream::HoldAck { .. }
            | Downstream::Ack { .. }
            | Downstream::LeaseConfirmed { .. }
            | Downstream::Cancel { .. }
            | Downstream::Answer { .. }
            | Downstream::Drain { .. }) => self.push(other),
        }
    }

    /// Read here and not by the core: it may be long, and it is stored already.
    fn newest_checkpoint(&self, dispatch: &Dispatch) -> Option<Arc<CheckpointRecord>> {
        let (tenant, task) = (&dispatch.spec.tenant, dispatch.to.task);
        let reader = &self.shell.reader;
        reader.checkpoint(tenant, task, dispatch.checkpoint?)
    }

    fn push(&mut self, message: Downstream) {
        self.pending.extend(self.shell.stamp.message(message));
    }

    /// Welcome decides which of the listed attempts this session may speak for.
    fn welcome(&mut self, heartbeat_ms: u64, settlements: &[Settlement]) {
        let verdicts: HashMap<AttemptId, &Verdict> = settlements
            .iter()
            .map(|one| (one.attempt, &one.verdict))
            .collect();
        for re in std::mem::take(&mut self.listed) {
            let verdict = verdicts.get(&re.attempt).copied();
            if let Some(acked) = verdict.and_then(speaks_after) {
                let offset = self.durable_offset(re.attempt);
                self.held.insert(re, None, (acked, offset));
                self.acks.watch(re.attempt.0);
            }
            match verdict {
                Some(Verdict::Keep { .. } | Verdict::Adopt { .. }) => self.held.replays(re.attempt),
                Some(Verdict::Kill { .. }) => self.held.give_up(re.attempt),
                None => {}
            }
        }
        let frame = self
            .shell
            .stamp
            .welcome(self.daemon, heartbeat_ms, settlements, |attempt| {
                self.durable_offset(attempt)
            });
        self.pending.push_back(frame);
    }

    pub(super) fn output_durable(&mut self, ends: Vec<(Uuid, OutputEnd)>) {
        let acked = |(attempt, end): (Uuid, OutputEnd)| {
            self.held.acked_offset(AttemptId(attempt), end.durable)
        };
        let acked: Vec<Acked> = ends.into_iter().filter_map(acked).collect();
        if !acked.is_empty() {
            self.pending.push_back(self.shell.stamp.ack(acked));
        }
    }
}

/// The acknowledged number from which the daemon replays. A killed attempt may only send its receipt, under its next
/// number, so it is held as well.
fn speaks_after(verdict: &Verdict) -> Option<u64> {
    match verdict {
        Verdict::Keep { acked, .. } | Verdict::Adopt { acked } => Some(*acked),
        Verdict::Kill { acked, .. } => *acked,
    }
}

fn close(reason: baton_core::effects::CloseReason) -> Ended {
    match encode::close_words(reason) {
        Some((code, words)) => Ended::Goodbye(code, words),
        None => Ended::Dropped,
    }
}
