//! What the transcript of a command comes to: phases, chunks of output, the tail of standard error, and the
//! deadlines that they feed. Pure: bytes and time come in, events come out, each with the position of the
//! transcript that it has consumed. A snapshot holds what a position alone does not say, so that a daemon that
//! was killed goes on exactly where the stored events end.

use std::collections::VecDeque;

use baton_proto::v1::TimerKind;
use baton_proto::worker::{FoldSnapshot, PhaseMark};

use super::AttemptEvent;
use super::coalesce::{Chunk, Coalescer};
use super::tail::Tail;
use crate::clock::Moment;
use crate::frames;
use crate::outbox::OutputKind;
use crate::phases::{OncePhase, PhaseOrder};
use crate::timers::{DeadlineKind, Deadlines, Fact, Timers};

/// Transcript that may have to be read again for the tail of stderr after a restart.
const SNAPSHOT_EVERY: u64 = 256 * 1024;

/// How far the transcript is used up once an event is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// The fold goes on here after a restart.
    pub(crate) position: u64,
    /// The shim may forget what lies before this.
    pub(crate) keep_from: u64,
    /// State of the fold at `position`, when it is due.
    pub(crate) snapshot: Option<FoldSnapshot>,
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
    /// Bytes at the end that cannot be read.
    missing: u64,
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
            missing: 0,
        }
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
        fold
    }

    /// Bytes before the restored position that came after its snapshot: they are remembered, not told again.
    pub(crate) fn recall(&mut self, kind: OutputKind, position: u64, bytes: &[u8]) {
        if kind == OutputKind::Stderr {
            self.tail.push(bytes);
            self.unsaved_from.get_or_insert(position);
        }
    }

    /// The next bytes of the transcript.
    pub(crate) fn take_in(&mut self, kind: OutputKind, bytes: &[u8], now: Moment) {
        self.enter_output_phases(now);
        let heard = Fact::Activity { tool_call_id: None };
        self.timers.apply(heard, now);
        self.coalescer.push(kind, bytes, now);
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
        let entered = AttemptEvent::Entered {
            phase,
            pid,
            next_deadline: self.timers.next_deadline(),
            progress: self.progress(true),
        };
        self.ready.push_back(entered);
    }

    /// No more bytes come: what waits goes out, and then the word that `missing` bytes will never come.
    pub(crate) fn close(&mut self, missing: u64) {
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
        let length = std::mem::take(&mut self.missing);
        self.told += length;
        (length > 0).then(|| AttemptEvent::Missed {
            length,
            progress: self.progress(false),
        })
    }

    fn told(&mut self, chunk: Chunk) -> AttemptEvent {
        if chunk.kind == OutputKind::Stderr {
            self.tail.push(&chunk.bytes);
            self.unsaved_from.get_or_insert(self.told);
        }
        self.told += chunk.bytes.len() as u64;
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
        }
        Progress {
            position: self.told,
            keep_from: self.unsaved_from.unwrap_or(self.told),
            snapshot,
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

    /// When the attempt has been silent for too long.
    pub(crate) fn deadline_at(&self) -> Option<Moment> {
        self.timers.next_deadline()
    }

    /// When output that waits for company goes out without it.
    pub(crate) fn due_at(&self) -> Option<Moment> {
        self.coalescer.due_at()
    }

    /// While the reader is held back, silence is not the child's.
    pub(crate) fn hold_back(&mut self, held: bool, now: Moment) {
        self.timers.hold_back(held, now);
    }

    pub(crate) fn expired(&self, now: Moment) -> Option<DeadlineKind> {
        self.timers.expired(now)
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
