//! One attempt on its machine. Its outbox, its lease clock and the course of its shim are the daemon's own code; only what they
//! stand on, the disk, the transcript and the processes, is a model.

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

/// A control frame, and which of all words of its attempt it is: numbers may change on the way, this does not.
#[derive(Clone, Debug)]
pub(crate) struct NumberedFrame {
    pub(crate) number: u64,
    pub(crate) body: FrameBody,
}

/// Small, all of them: who is held back for what the relay does not take is the daemon's affair.
impl ControlBody for NumberedFrame {
    fn size(&self) -> usize {
        0
    }
}

/// What an attempt came to, in order, as its transcript has it. Folded into the outbox by whichever daemon is there.
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
    /// A terminal frame was made.
    pub(crate) ended: bool,
    pub(crate) reachable: bool,
    /// Its frames were read back from the disk: they carry no token.
    pub(crate) restored: bool,
    /// Not even its receipt is wanted.
    pub(crate) receipt_unwanted: bool,
    /// The relay took it away: only a receipt is said, whatever was dropped before it.
    pub(crate) fenced: bool,
    pub(crate) open_tool: Option<Arc<str>>,
    pub(crate) open_input: Option<InputId>,
    pub(crate) transcript: Vec<TranscriptItem>,
    frame_count: u64,
    /// Bytes that the child has printed.
    pub(crate) printed_bytes: u64,
    pub(crate) outbox: SimOutbox,
    pub(crate) disk: OutboxDisk,
    /// Words that the relay has not acknowledged and must not miss.
    pub(crate) unacked_frames: BTreeSet<u64>,
    /// Which word went out under which number.
    pub(crate) sent_frames: BTreeMap<u64, u64>,
}

/// The course of its processes' end, and how they take it.
#[derive(Debug)]
pub(crate) struct SimShim {
    pub(crate) shutdown_plan: ChildLifecycle,
    /// When it is looked after next.
    pub(crate) next_poll_at: Option<u64>,
    /// How long after TERM they end by themselves; `None`: never.
    pub(crate) exit_delay_ms: Option<u64>,
    pub(crate) term_at: Option<u64>,
    pub(crate) is_killed: bool,
    /// An order wants it over by then.
    pub(crate) must_end_by: Option<u64>,
}

/// The judge's own count of what the relay granted, from the send of what it answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantedTime {
    /// By then its processes are dead.
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
    /// The relay asked for it in a Cancel.
    Canceled,
    /// It is over for the relay, and nothing of it will count.
    Abandoned,
    /// The lease ran out.
    LeaseExpired,
    /// It told its end before its processes were gone.
    EndReported,
    /// The daemon has seen a deadline pass.
    Deadline,
}

/// What a dispatch makes.
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

    /// Takes what is new in the transcript into the outbox, each item with how far it comes.
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

    /// What the relay acknowledged is told.
    pub(crate) fn record_ack(&mut self, acked: AckedPosition) {
        self.outbox.ack(acked);
        self.mark_acked_upto(acked.control_seq);
    }

    /// A new stream, and what the relay has.
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

    /// Nobody wants what it had to say.
    pub(crate) fn discard_unacked(&mut self) {
        let folded = usize::try_from(self.outbox.progress().consumed).unwrap_or(usize::MAX);
        self.transcript.truncate(folded);
        self.outbox.discard_unacked();
        self.unacked_frames.clear();
    }

    /// Only its last word is still wanted.
    pub(crate) fn retain_last_frame(&mut self) {
        self.outbox.drop_all_but_last_control();
        if let Some(last) = self.unacked_frames.pop_last() {
            self.unacked_frames = BTreeSet::from([last]);
        }
    }

    /// All that it has written down is in its outbox.
    pub(crate) fn is_transcript_read(&self) -> bool {
        self.outbox.progress().consumed == self.transcript.len() as u64
    }

    /// The relay has everything that it says.
    pub(crate) fn is_fully_acked(&self) -> bool {
        self.is_transcript_read()
            && self.outbox.acked().control_seq >= self.outbox.last_control_seq()
    }

    /// Nothing is left to run or to say.
    pub(crate) fn is_finished(&self) -> bool {
        self.ended && !self.processes_alive && self.is_fully_acked()
    }

    /// The daemon that held it is gone, and another reads what is on the disk.
    pub(crate) fn restore_from_disk(&mut self, limit: usize) {
        self.disk.drop_in_flight();
        self.outbox = self.disk.restore_outbox(limit);
    }

    /// The power went. Of the transcript any of what was not folded and synced may be gone, too.
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

    /// Its shim starts nothing that it would have to end at once.
    pub(crate) fn may_start(&self, now: u64) -> bool {
        let term_at = self.lease.map(|lease| lease.term_at(self.cleanup_term));
        self.is_within_lease(now) && term_at.is_some_and(|at| monotonic_time(now) < at)
    }

    pub(crate) fn is_within_lease(&self, now: u64) -> bool {
        self.lease
            .is_some_and(|lease| !lease.is_expired(monotonic_time(now)))
    }

    /// Its lease is over and something of it may still run: it has no right to be heard.
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

/// What nobody could say again must be on the disk for good before it leaves.
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

/// The last word of an attempt says how much output there is.
fn with_final_offset(mut body: FrameBody, end: u64) -> FrameBody {
    match &mut body {
        FrameBody::Completed(CompletedBody { final_offset, .. })
        | FrameBody::Errored(ErroredBody { final_offset, .. })
        | FrameBody::Canceled(CanceledBody { final_offset, .. }) => *final_offset = end,
        _ => {}
    }
    body
}
