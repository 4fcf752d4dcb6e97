//! The relay's output log, and the check of S10: the output of a child is stored without a gap,
//! each byte once and at its offset, or a record reports the missing bytes.

use std::collections::BTreeMap;

use baton_core::ids::AttemptId;
use baton_core::io::session_input::SessionInput;
use baton_core::io::session_input::{
    AttemptFrame, FrameBody, FrameRef, OutputActivity, OutputSignal,
};
use baton_daemon_core::outbox::QueuedRecord;

use crate::daemon::sim_attempt::NumberedFrame;
use crate::random::SeededRng;
use crate::simulation::Simulation;
use crate::stream::{DownstreamItem, UpstreamItem};

/// Output sent to the relay: bytes, or the number of bytes that will never be sent.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamOutput {
    pub(crate) re: FrameRef,
    pub(crate) record: QueuedRecord<NumberedFrame, bool, baton_core::time::WallTime>,
}

/// The end of one attempt's stored output, and of its durable part.
#[derive(Clone, Copy, Debug, Default)]
struct LoggedExtent {
    end: u64,
    durable: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SimOutputLog(BTreeMap<AttemptId, LoggedExtent>);

impl SimOutputLog {
    /// The offset that may be acknowledged.
    pub(crate) fn durable_end(&self, attempt: AttemptId) -> u64 {
        self.0.get(&attempt).map_or(0, |extent| extent.durable)
    }

    fn stored_end(&self, attempt: AttemptId) -> u64 {
        self.0.get(&attempt).map_or(0, |extent| extent.end)
    }

    fn sync(&mut self, attempt: AttemptId) {
        if let Some(extent) = self.0.get_mut(&attempt) {
            extent.durable = extent.end;
        }
    }

    /// Unsynced output is lost, except for a random part that had just reached the disk.
    pub(crate) fn lose_unsynced(&mut self, rng: &mut SeededRng) {
        for extent in self.0.values_mut() {
            extent.end = rng.between(extent.durable, extent.end);
            extent.durable = extent.end;
        }
    }
}

fn final_offset(body: &FrameBody) -> Option<u64> {
    match body {
        FrameBody::Completed(done) => Some(done.final_offset),
        FrameBody::Errored(failed) => Some(failed.final_offset),
        FrameBody::Canceled(canceled) => Some(canceled.final_offset),
        _ => None,
    }
}

/// The output of every child: each byte is determined by its offset.
pub(crate) fn expected_output(from: u64, length: u64) -> impl Iterator<Item = u8> {
    (from..from + length).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
}

impl Simulation {
    /// A session accepts output of attempts that its daemon has a lease for, if it continues at
    /// the stored end.
    pub(crate) fn store_output(&mut self, conn: usize, chunk: &UpstreamOutput) {
        let session = self.streams[conn].session;
        if !self.may_send_output(session, chunk.re) {
            return;
        }
        let attempt = chunk.re.attempt;
        let end = self.relay.output_log.stored_end(attempt);
        let (offset, length) = match &chunk.record {
            QueuedRecord::Output { offset, bytes, .. } => {
                let right = expected_output(*offset, bytes.len() as u64).eq(bytes.iter().copied());
                assert!(
                    right,
                    "S10: other bytes at {offset} of {attempt} than were printed"
                );
                (*offset, bytes.len() as u64)
            }
            QueuedRecord::Cut { offset, length, .. } => {
                self.counts.output_cuts += 1;
                (*offset, *length)
            }
            QueuedRecord::Control { .. } => return,
        };
        assert!(
            offset <= end,
            "S10: output of {attempt} goes on at {offset} after {end}"
        );
        let visible = matches!(chunk.record, QueuedRecord::Output { label: true, .. });
        let end = end.max(offset + length);
        let extent = self.relay.output_log.0.entry(attempt).or_default();
        extent.end = end;
        self.counts.output_bytes += length;
        let activity = OutputActivity {
            session,
            frame_ref: chunk.re,
            signal: if visible {
                OutputSignal::VisibleEvent
            } else {
                OutputSignal::Event
            },
            tools: Vec::new(),
            output_end: end,
        };
        let daemon = self.streams[conn].daemon;
        self.daemons[daemon]
            .sent_history
            .record_output(activity.clone());
        self.deliver_to_relay(conn, UpstreamItem::Input(SessionInput::Activity(activity)));
        if self.rng.chance(50) {
            self.relay.output_log.sync(attempt);
            self.send_to_daemon(
                conn,
                DownstreamItem::OutputAck {
                    attempt,
                    offset: end,
                },
            );
        }
    }

    /// A terminal frame of an attempt whose output is not completely stored.
    pub(crate) fn is_before_its_output(&self, frame: &AttemptFrame) -> bool {
        let end = self.relay.output_log.stored_end(frame.frame_ref.attempt);
        final_offset(&frame.body).is_some_and(|told| told > end)
    }

    /// The same frame as its session passes it on, if it is a result.
    pub(crate) fn mark_output_missing(
        &self,
        mut frame: Box<AttemptFrame>,
    ) -> Option<Box<AttemptFrame>> {
        let end = self.relay.output_log.stored_end(frame.frame_ref.attempt);
        let FrameBody::Completed(body) = &mut frame.body else {
            return None;
        };
        body.output_missing = body.final_offset - end;
        Some(frame)
    }

    /// At the terminal frame of an attempt, all of its output is stored or reported as missing.
    pub(crate) fn check_final_output(&mut self, attempt: AttemptId, body: &FrameBody) {
        let Some(told) = final_offset(body) else {
            return;
        };
        let end = self.relay.output_log.stored_end(attempt);
        assert!(
            end == told,
            "S10: {attempt} ends after {told} bytes, and the relay has {end}"
        );
        self.relay.output_log.sync(attempt);
        let held = self.daemons.iter().find_map(|d| d.attempts.get(&attempt));
        if let Some(held) = held {
            assert!(
                told == held.printed_bytes,
                "S10: {attempt} printed {} bytes and tells of {told}",
                held.printed_bytes
            );
        }
    }
}
