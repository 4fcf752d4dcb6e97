//! What the transcript of a child comes to: phases, chunks of output, the tail of standard error, and the
//! deadlines that they feed. Pure: bytes and time come in, events come out, each with the position of the
//! transcript that it has consumed. A snapshot holds what a position alone does not say, so that a daemon that
//! was killed goes on exactly where the stored events end. What a command prints is output as it is; what a coding
//! agent prints is understood line by line (`hearing`).

use std::collections::VecDeque;

use baton_proto::v1::TimerKind;
use baton_proto::worker::{FoldSnapshot, PhaseMark};

use super::AttemptEvent;
use super::PROMPT;
use super::coalesce::{Chunk, Coalescer};
use super::tail::Tail;
use super::talk::Talk;
use crate::clock::Moment;
use crate::frames;
use crate::outbox::CutWhy;
use crate::phases::{OncePhase, PhaseOrder};
use crate::spool::OutputKind;
use crate::timers::{DeadlineKind, Deadlines, Fact, Timers};

/// Transcript that may have to be read again for the tail of stderr after a restart.
const SNAPSHOT_EVERY: u64 = 256 * 1024;

mod behind;
mod hearing;

/// How far the transcript is used up once an event is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// The fold goes on here after a restart.
    pub(crate) position: u64,
    /// The shim may forget what lies before this.
    pub(crate) keep_from: u64,
    /// State of the fold at `position`, when it is due.
    pub(crate) snapshot: Option<FoldSnapshot>,
    /// Answers that are in the snapshot: once that is stored, they may go to the agent.
    pub(crate) answers: u64,
}

/// Output that will never come, behind all that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Bytes(u64),
    /// The worker's disk did not take them.
    Refused(u64),
    /// Perhaps nothing: whoever could say is dead.
    Unknown,
}

impl Default for Missing {
    fn default() -> Self {
        Self::Bytes(0)
    }
}

#[derive(Debug)]
pub(crate) struct Fold {
    timers: Timers,
    order: PhaseOrder,
    entered: Vec<(OncePhase, Moment)>,
    coalescer: Coalescer,
    tail: Tail,
    /// End of what went out as output; what was read beyond it waits in the coalescer.
    told: u64,
    /// First byte of stderr that no snapshot covers.
    unsaved_from: Option<u64>,
    /// The deadline that ended the attempt.
    deadline: Option<DeadlineKind>,
    ready: VecDeque<AttemptEvent>,
    /// No more comes: nothing waits for company.
    closed: bool,
    /// What is not there at the end.
    missing: Missing,
    /// End of what was taken in.
    read: u64,
    /// With a coding agent.
    talk: Option<Box<Talk>>,
    heard: hearing::Heard,
}

impl Fold {
    pub(crate) fn new(deadlines: Deadlines) -> Self {
        Self {
            timers: Timers::new(deadlines),
            order: PhaseOrder::default(),
            entered: Vec::new(),
            coalescer: Coalescer::default(),
            tail: Tail::default(),
            told: 0,
            unsaved_from: None,
            deadline: None,
            ready: VecDeque::new(),
            closed: false,
            missing: Missing::default(),
            read: 0,
            talk: None,
            heard: hearing::Heard::default(),
        }
    }

    /// Of a coding agent.
    pub(crate) fn with_talk(self, talk: Box<Talk>) -> Self {
        Self {
            talk: Some(talk),
            ..self
        }
    }

    pub(crate) fn is_talk(&self) -> bool {
        self.talk.is_some()
    }

    /// As it was when the event at `position` was stored. Hard deadlines go on with what is left; idle time
    /// counts anew, because nobody knows what was said meanwhile.
    pub(crate) fn restore(
        deadlines: Deadlines,
        snapshot: &FoldSnapshot,
        position: u64,
        now: Moment,
    ) -> Self {
        let mut fold = Self::new(deadlines);
        for mark in &snapshot.phases {
            let Some(phase) = frames::once_phase(mark.phase()) else {
                continue;
            };
            let at = Moment::from_millis(mark.at_ms);
            fold.order.enter(phase);
            fold.entered.push((phase, at));
            fold.timers.apply(Fact::Entered(phase), at);
        }
        let heard = Fact::Activity { tool_call_id: None };
        fold.timers.apply(heard, now);
        fold.tail.push(&snapshot.stderr_tail);
        fold.deadline = frames::deadline_kind(snapshot.deadline());
        fold.told = position;
        fold.read = position;
        fold.restore_talk(snapshot);
        fold
    }

    /// Bytes before the restored position that came after its snapshot: they are remembered, not told again.
    pub(crate) fn recall(&mut self, kind: OutputKind, position: u64, bytes: &[u8]) {
        if kind == OutputKind::Stdout {
            self.hear_again(bytes);
        }
        if kind == OutputKind::Stderr {
            self.tail.push(bytes);
            self.unsaved_from.get_or_insert(position);
        }
    }

    /// The next bytes of the transcript.
    pub(crate) fn take_in(&mut self, kind: OutputKind, bytes: &[u8], now: Moment) {
        let from = self.read;
        self.read += bytes.len() as u64;
        if self.talk.is_some() {
            self.hear(kind, bytes, now);
            return;
        }
        self.enter_output_phases(now);
        let heard = Fact::Activity { tool_call_id: None };
        self.timers.apply(heard, now);
        self.coalescer
            .push(kind.into(), bytes, from..self.read, now);
    }

    /// Everything that a command prints is visible, so its first byte is both first events.
    fn enter_output_phases(&mut self, now: Moment) {
        if self.order.reached(OncePhase::FirstVisibleEventSeen) {
            self.enter(OncePhase::Streaming, None, now);
            return;
        }
        self.enter(OncePhase::FirstEventSeen, None, now);
        self.enter(OncePhase::FirstVisibleEventSeen, None, now);
    }

    pub(crate) fn enter(&mut self, phase: OncePhase, pid: Option<i32>, now: Moment) {
        if !self.order.enter(phase) {
            return;
        }
        self.entered.push((phase, now));
        self.timers.apply(Fact::Entered(phase), now);
        self.catch_up();
        let entered = AttemptEvent::Entered {
            phase,
            pid,
            next_deadline: self.timers.next_deadline(),
            passed: self.deadline.filter(|_| phase == OncePhase::CleanupStarted),
            progress: self.progress(true),
        };
        self.ready.push_back(entered);
    }

    /// No more bytes come: what waits goes out, and then the word on what will never come.
    pub(crate) fn close(&mut self, missing: Missing) {
        self.closed = true;
        self.missing = missing;
    }

    /// The next event that is due.
    pub(crate) fn next(&mut self, now: Moment) -> Option<AttemptEvent> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        let chunk = if self.closed {
            self.coalescer.take_rest()
        } else {
            self.coalescer.take_due(now)
        };
        match chunk {
            Some(chunk) => Some(self.told(chunk)),
            None => self.missed(),
        }
    }

    fn missed(&mut self) -> Option<AttemptEvent> {
        let (length, why) = match std::mem::take(&mut self.missing) {
            Missing::Bytes(0) => return None,
            Missing::Bytes(length) => (length, CutWhy::WorkerCrash),
            Missing::Refused(length) => (length, CutWhy::DiskFull),
            Missing::Unknown => (1, CutWhy::RecorderLost),
        };
        if why != CutWhy::RecorderLost {
            self.told += length;
        }
        Some(AttemptEvent::Missed {
            length,
            why,
            progress: self.progress(false),
        })
    }

    fn told(&mut self, chunk: Chunk) -> AttemptEvent {
        if chunk.label.is_stderr() {
            self.tail.push(&chunk.bytes);
            self.unsaved_from.get_or_insert(self.told);
        }
        self.told = match self.talk {
            None => self.told + chunk.bytes.len() as u64,
            Some(_) => self.told.max(chunk.upto),
        };
        if self.talk.is_some() {
            return AttemptEvent::Output {
                chunk,
                progress: self.progress(false),
            };
        }
        let unsaved = self.unsaved_from.map_or(0, |from| self.told - from);
        AttemptEvent::Output {
            chunk,
            progress: self.progress(unsaved >= SNAPSHOT_EVERY),
        }
    }

    fn progress(&mut self, with_snapshot: bool) -> Progress {
        let snapshot = with_snapshot.then(|| self.snapshot());
        if with_snapshot {
            self.unsaved_from = None;
            self.heard.saved_at = self.told;
        }
        Progress {
            position: self.told,
            keep_from: match self.talk {
                None => self.unsaved_from.unwrap_or(self.told),
                // What it has come to is known from a snapshot on, and from there only by reading on.
                Some(_) => self.heard.saved_at,
            },
            snapshot,
            answers: match &self.talk {
                Some(talk) if with_snapshot => talk.answers(),
                Some(_) | None => 0,
            },
        }
    }

    fn snapshot(&self) -> FoldSnapshot {
        let mark = |(phase, at): &(OncePhase, Moment)| PhaseMark {
            phase: frames::wire_phase(*phase).into(),
            at_ms: at.as_millis(),
        };
        FoldSnapshot {
            position: self.told,
            phases: self.entered.iter().map(mark).collect(),
            stderr_tail: self.tail.bytes(),
            deadline: self
                .deadline
                .map_or(TimerKind::Unspecified, frames::wire_timer)
                .into(),
            talk: self.stored_talk(),
            ..FoldSnapshot::default()
        }
    }

    /// When time alone makes an event or ends the attempt.
    pub(crate) fn wake_at(&self) -> Option<Moment> {
        [self.deadline_at(), self.due_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the attempt has been silent for too long, or its process should be gone.
    pub(crate) fn deadline_at(&self) -> Option<Moment> {
        match self.heard.linger_until {
            Some(_) if self.reached(OncePhase::CleanupStarted) => None,
            Some(until) => Some(until),
            None => self.timers.next_deadline().filter(|_| !self.rests()),
        }
    }

    /// When output that waits for company goes out without it.
    pub(crate) fn due_at(&self) -> Option<Moment> {
        self.coalescer.due_at()
    }

    /// While the reader is held back, silence is not the child's.
    pub(crate) fn hold_back(&mut self, held: bool, now: Moment) {
        self.timers.hold_back(held, now);
    }

    /// Of a turn that is over none is watched, whether it was the last or not.
    pub(crate) fn expired(&self, now: Moment) -> Option<DeadlineKind> {
        let over = self.heard.linger_until.is_some() || self.rests();
        self.timers.expired(now).filter(|_| !over)
    }

    /// Remembered with every snapshot from now on.
    pub(crate) fn ended_by(&mut self, deadline: DeadlineKind) {
        self.deadline = Some(deadline);
    }

    pub(crate) fn deadline(&self) -> Option<DeadlineKind> {
        self.deadline
    }

    pub(crate) fn reached(&self, phase: OncePhase) -> bool {
        self.order.reached(phase)
    }

    /// End of what was told.
    pub(crate) fn position(&self) -> u64 {
        self.told
    }

    pub(crate) fn stderr_tail(&self) -> String {
        String::from_utf8_lossy(&self.tail.bytes()).into_owned()
    }
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;
