//! One attempt on its machine. Its outbox, its lease clock and the lifecycle of its shim are
//! the daemon's own code; the disk, the transcript and the processes are models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton_core::ids::InputId;
use baton_core::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, FrameBody, FrameRef, LeaseToken,
};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use baton_daemon_core::child_lifecycle::ChildLifecycle;
use baton_daemon_core::lease_clock::LeaseClock;
use baton_daemon_core::outbox::{
    AckedPosition, ControlBody, Outbox, OutputCutReason, RequiredDurability, TranscriptProgress,
};
use baton_daemon_core::reconnect_urgency::AttemptUrgency;
use baton_daemon_core::time::BootTime;
use bytes::Bytes;

use crate::daemon::agent_process::AgentPlan;
use crate::daemon::outbox_disk::OutboxDisk;
use crate::random::SeededRng;
use crate::relay::output_log::expected_output;

pub(crate) type SimOutbox = Outbox<NumberedFrame, bool, WallTime>;

/// A control frame with its position in the attempt's sequence. Control numbers may change on
/// the way, the position does not.
#[derive(Clone, Debug)]
pub(crate) struct NumberedFrame {
    pub(crate) number: u64,
    pub(crate) body: FrameBody,
}

/// All frames count as small: backpressure is not simulated here.
impl ControlBody for NumberedFrame {
    fn size(&self) -> usize {
        0
    }
}

/// The transcript of an attempt, in order. The current daemon reads it into the outbox.
#[derive(Clone, Debug)]
pub(crate) enum TranscriptItem {
    Control(NumberedFrame),
    Output {
        from: u64,
        length: u64,
        visible: bool,
    },
    /// Printed, and lost with the machine.
    Lost {
        length: u64,
    },
}

#[derive(Debug)]
pub(crate) struct SimAttempt {
    pub(crate) re: FrameRef,
    pub(crate) token: LeaseToken,
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) plan: AgentPlan,
    pub(crate) stage: u32,
    /// Its processes run.
    pub(crate) processes_alive: bool,
    pub(crate) confirmed: bool,
    pub(crate) accepted_at: u64,
    pub(crate) lease: Option<LeaseClock>,
    pub(crate) cleanup_term: Duration,
    /// Ends its processes, with or without a daemon.
    pub(crate) shim: Option<SimShim>,
    pub(crate) granted_time: GrantedTime,
    /// Why it is being killed, if it is.
    pub(crate) kill_reason: Option<KillReason>,
    /// A terminal frame was created.
    pub(crate) ended: bool,
    pub(crate) reachable: bool,
    /// Its frames were restored from disk: they have no token.
    pub(crate) restored: bool,
    /// Not even its receipt is needed.
    pub(crate) receipt_unwanted: bool,
    /// The relay revoked it: only a receipt is sent, regardless of dropped frames.
    pub(crate) fenced: bool,
    pub(crate) open_tool: Option<Arc<str>>,
    pub(crate) open_input: Option<InputId>,
    pub(crate) transcript: Vec<TranscriptItem>,
    frame_count: u64,
    /// Bytes that the child has printed.
    pub(crate) printed_bytes: u64,
    pub(crate) outbox: SimOutbox,
    pub(crate) disk: OutboxDisk,
    /// Frames that the relay has not acknowledged and must not miss.
    pub(crate) unacked_frames: BTreeSet<u64>,
    /// The position of the frame that was sent with each control number.
    pub(crate) sent_frames: BTreeMap<u64, u64>,
}

/// The termination of its processes, and how they react.
#[derive(Debug)]
pub(crate) struct SimShim {
    pub(crate) shutdown_plan: ChildLifecycle,
    /// When it is polled next.
    pub(crate) next_poll_at: Option<u64>,
    /// How long after TERM they exit by themselves; `None`: never.
    pub(crate) exit_delay_ms: Option<u64>,
    pub(crate) term_at: Option<u64>,
    pub(crate) is_killed: bool,
    /// The time by which it must have ended, by an order.
    pub(crate) must_end_by: Option<u64>,
}

/// The check's own count of granted time, from the send of the acknowledged message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantedTime {
    /// When its processes must be dead.
    pub(crate) until: u64,
    pub(crate) shortest_grant_ms: u64,
}

impl Default for GrantedTime {
    fn default() -> Self {
        Self {
            until: 0,
            shortest_grant_ms: u64::MAX,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// The relay requested it with a Cancel.
    Canceled,
    /// The relay has ended it, and nothing of it counts.
    Abandoned,
    /// The lease expired.
    LeaseExpired,
    /// It reported its end before its processes had ended.
    EndReported,
    /// The daemon detected an expired deadline.
    Deadline,
}

/// Content of a dispatch.
pub(crate) struct AttemptOffer {
    pub(crate) re: FrameRef,
    pub(crate) token: LeaseToken,
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) plan: AgentPlan,
    pub(crate) at: u64,
    pub(crate) cleanup_term: Duration,
    pub(crate) outbox: SimOutbox,
}

pub(crate) fn monotonic_time(now: u64) -> BootTime {
    BootTime::from_millis(now)
}

impl SimAttempt {
    pub(crate) fn new(offer: AttemptOffer) -> Self {
        Self {
            re: offer.re,
            token: offer.token,
            spec: offer.spec,
            plan: offer.plan,
            stage: 0,
            processes_alive: false,
            confirmed: false,
            accepted_at: offer.at,
            lease: None,
            cleanup_term: offer.cleanup_term,
            shim: None,
            granted_time: GrantedTime::default(),
            kill_reason: None,
            ended: false,
            reachable: true,
            restored: false,
            receipt_unwanted: false,
            fenced: false,
            open_tool: None,
            open_input: None,
            transcript: Vec::new(),
            frame_count: 0,
            printed_bytes: 0,
            outbox: offer.outbox,
            disk: OutboxDisk::default(),
            unacked_frames: BTreeSet::new(),
            sent_frames: BTreeMap::new(),
        }
    }

    pub(crate) fn append_frame(&mut self, body: FrameBody) {
        self.frame_count += 1;
        let nth = self.frame_count;
        self.unacked_frames.insert(nth);
        self.transcript
            .push(TranscriptItem::Control(NumberedFrame { number: nth, body }));
    }

    pub(crate) fn append_output(&mut self, length: u64, visible: bool) {
        let from = self.printed_bytes;
        self.printed_bytes += length;
        self.transcript.push(TranscriptItem::Output {
            from,
            length,
            visible,
        });
    }

    /// Reads new transcript items into the outbox, each with its position.
    pub(crate) fn read_transcript(&mut self, wall: WallTime) {
        let from = usize::try_from(self.outbox.progress().consumed).unwrap_or(usize::MAX);
        for (index, item) in self.transcript.iter().enumerate().skip(from) {
            self.outbox.set_progress(TranscriptProgress {
                consumed: index as u64 + 1,
                snapshot: Bytes::new(),
            });
            match item {
                TranscriptItem::Control(word) => {
                    let body = with_final_offset(word.body.clone(), self.outbox.end_offset());
                    let leaves = required_durability(&body);
                    self.outbox.push_control(
                        NumberedFrame {
                            number: word.number,
                            body,
                        },
                        wall,
                        leaves,
                    );
                }
                TranscriptItem::Output {
                    from,
                    length,
                    visible,
                } => {
                    let bytes: Bytes = expected_output(*from, *length).collect();
                    self.outbox.push_output(*visible, bytes, wall);
                }
                TranscriptItem::Lost { length } => {
                    self.outbox
                        .push_cut(*length, OutputCutReason::WorkerCrash, wall);
                }
            }
        }
    }

    /// Applies an ack of the relay.
    pub(crate) fn record_ack(&mut self, acked: AckedPosition) {
        self.outbox.ack(acked);
        self.mark_acked_upto(acked.control_seq);
    }

    /// Applies the relay's positions on a new stream.
    pub(crate) fn apply_settlement(&mut self, acked: AckedPosition) {
        self.outbox.apply_settlement(acked);
        self.mark_acked_upto(acked.control_seq);
    }

    fn mark_acked_upto(&mut self, upto: u64) {
        let later = self.sent_frames.split_off(&(upto + 1));
        for nth in std::mem::replace(&mut self.sent_frames, later).values() {
            self.unacked_frames.remove(nth);
        }
    }

    /// Drops everything that was not acknowledged.
    pub(crate) fn discard_unacked(&mut self) {
        let folded = usize::try_from(self.outbox.progress().consumed).unwrap_or(usize::MAX);
        self.transcript.truncate(folded);
        self.outbox.discard_unacked();
        self.unacked_frames.clear();
    }

    /// Only its last frame is still needed.
    pub(crate) fn retain_last_frame(&mut self) {
        self.outbox.drop_all_but_last_control();
        if let Some(last) = self.unacked_frames.pop_last() {
            self.unacked_frames = BTreeSet::from([last]);
        }
    }

    /// The whole transcript is in the outbox.
    pub(crate) fn is_transcript_read(&self) -> bool {
        self.outbox.progress().consumed == self.transcript.len() as u64
    }

    /// The relay has acknowledged everything.
    pub(crate) fn is_fully_acked(&self) -> bool {
        self.is_transcript_read()
            && self.outbox.acked().control_seq >= self.outbox.last_control_seq()
    }

    /// Nothing is left to run or to send.
    pub(crate) fn is_finished(&self) -> bool {
        self.ended && !self.processes_alive && self.is_fully_acked()
    }

    /// The daemon has ended, and its successor restores the outbox from disk.
    pub(crate) fn restore_from_disk(&mut self, limit: usize) {
        self.disk.drop_in_flight();
        self.outbox = self.disk.restore_outbox(limit);
    }

    /// A power loss. Transcript items that were not synced may be lost, too.
    pub(crate) fn lose_power(&mut self, limit: usize, rng: &mut SeededRng) {
        self.disk.lose_unsynced(rng);
        self.restore_from_disk(limit);
        let folded = usize::try_from(self.outbox.progress().consumed).unwrap_or(usize::MAX);
        let kept = folded + rng.random_index(self.transcript.len().saturating_sub(folded) + 1);
        let mut lost = 0;
        for item in self.transcript.drain(kept.min(self.transcript.len())..) {
            match item {
                TranscriptItem::Control(word) => {
                    self.unacked_frames.remove(&word.number);
                    self.ended &= !is_terminal_frame(&word.body);
                }
                TranscriptItem::Output { length, .. } | TranscriptItem::Lost { length } => {
                    lost += length
                }
            }
        }
        if lost > 0 {
            self.transcript.push(TranscriptItem::Lost { length: lost });
        }
    }

    /// Its shim starts no process that it would have to end at once.
    pub(crate) fn may_start(&self, now: u64) -> bool {
        let term_at = self.lease.map(|lease| lease.term_at(self.cleanup_term));
        self.is_within_lease(now) && term_at.is_some_and(|at| monotonic_time(now) < at)
    }

    pub(crate) fn is_within_lease(&self, now: u64) -> bool {
        self.lease
            .is_some_and(|lease| !lease.is_expired(monotonic_time(now)))
    }

    /// Its lease has expired and something of it may still run: it must not send frames.
    pub(crate) fn is_silenced(&self, now: u64) -> bool {
        self.processes_alive
            && self
                .lease
                .is_some_and(|lease| lease.is_expired(monotonic_time(now)))
    }

    pub(crate) fn reconnect_stake(&self) -> AttemptUrgency {
        match self.lease.filter(|_| self.processes_alive) {
            Some(lease) => AttemptUrgency::Lease(lease.limit()),
            None if !self.ended => AttemptUrgency::Nothing,
            None => AttemptUrgency::UnreportedResult(self.lease.map(|lease| lease.ttl())),
        }
    }
}

/// A frame that could not be created again must be durable before it is sent.
pub(crate) fn required_durability(body: &FrameBody) -> RequiredDurability {
    match body {
        FrameBody::PermissionRequest { .. }
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::Completed(_)
        | FrameBody::Errored(_)
        | FrameBody::Canceled(_)
        | FrameBody::Released { .. }
        | FrameBody::Goal(_)
        | FrameBody::Receipt { .. } => RequiredDurability::Synced,
        FrameBody::Accepted
        | FrameBody::Rejected { .. }
        | FrameBody::Started
        | FrameBody::Phase { .. }
        | FrameBody::ToolStarted { .. }
        | FrameBody::ToolFinished { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Unknown => RequiredDurability::Written,
    }
}

fn is_terminal_frame(body: &FrameBody) -> bool {
    matches!(
        body,
        FrameBody::Completed(_)
            | FrameBody::Errored(_)
            | FrameBody::Canceled(_)
            | FrameBody::Released { .. }
            | FrameBody::Rejected { .. }
            | FrameBody::Receipt { .. }
    )
}

/// The terminal frame contains the length of the output.
fn with_final_offset(mut body: FrameBody, end: u64) -> FrameBody {
    match &mut body {
        FrameBody::Completed(CompletedBody { final_offset, .. })
        | FrameBody::Errored(ErroredBody { final_offset, .. })
        | FrameBody::Canceled(CanceledBody { final_offset, .. }) => *final_offset = end,
        _ => {}
    }
    body
}
