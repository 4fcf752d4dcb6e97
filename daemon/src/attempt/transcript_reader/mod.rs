//! Turns the transcript of a child into phases, chunks of output, the tail of stderr, and the
//! deadlines that they feed. Pure: bytes and time come in, events come out, each with the
//! position up to which the transcript is consumed.
//!
//! A snapshot holds the state that a position alone does not give, so that the next daemon goes
//! on exactly where the stored events end. The output of a command is passed on as it is; the
//! output of a coding agent is read line by line (`agent_output`).

use std::collections::VecDeque;

use baton_proto::v1::TimerKind;
use baton_proto::worker::{FoldSnapshot, PhaseMark};

use super::AttemptEvent;
use super::PROMPT_MESSAGE_ID;
use super::agent_session::AgentSession;
use crate::clock::BootTime;
use crate::deadlines::phase_order::{OneTimePhase, PhaseOrder};
use crate::deadlines::{DeadlineKind, DeadlineLimits, DeadlineTimers, TimerEvent};
use crate::frames;
use crate::outbox::OutputCutReason;
use crate::spool::ChildPipe;

/// How much of the transcript may have to be read again for the tail of stderr after a restart.
const SNAPSHOT_EVERY: u64 = 256 * 1024;

mod agent_output;
mod deferred_stderr;
mod output_coalescer;
mod stderr_tail;

pub(crate) use output_coalescer::CoalescedChunk;
use output_coalescer::OutputCoalescer;
use stderr_tail::StderrTail;

/// How far the transcript is consumed once an event is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EventProgress {
    /// The reader goes on here after a restart.
    pub(crate) position: u64,
    /// The shim may drop the transcript before this position.
    pub(crate) retain_from: u64,
    /// The reader's state at `position`, when it is due.
    pub(crate) snapshot: Option<FoldSnapshot>,
    /// Answers in the snapshot: once it is stored, they may be sent to the agent.
    pub(crate) answer_count: u64,
}

/// Output that is lost after everything that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingOutput {
    Bytes(u64),
    /// The worker's disk refused to store it.
    Refused(u64),
    /// The shim died, so its amount is unknown and may be zero.
    Unknown,
}

impl Default for MissingOutput {
    fn default() -> Self {
        Self::Bytes(0)
    }
}

#[derive(Debug)]
pub(crate) struct TranscriptReader {
    timers: DeadlineTimers,
    phase_order: PhaseOrder,
    entered_phases: Vec<(OneTimePhase, BootTime)>,
    coalescer: OutputCoalescer,
    stderr_tail: StderrTail,
    /// The end of what was reported as output; what was read after it is in the coalescer.
    delivered_end: u64,
    /// The first byte of stderr that no snapshot covers.
    unsaved_from: Option<u64>,
    /// The deadline that ended the attempt.
    passed_deadline: Option<DeadlineKind>,
    ready: VecDeque<AttemptEvent>,
    /// No more bytes come, so output is not delayed any more.
    is_closed: bool,
    /// Output that is missing at the end.
    missing: MissingOutput,
    /// The end of what was read.
    read_end: u64,
    /// Only for a coding agent.
    agent_session: Option<Box<AgentSession>>,
    agent_output: agent_output::AgentOutputState,
}

impl TranscriptReader {
    pub(crate) fn new(deadlines: DeadlineLimits) -> Self {
        Self {
            timers: DeadlineTimers::new(deadlines),
            phase_order: PhaseOrder::default(),
            entered_phases: Vec::new(),
            coalescer: OutputCoalescer::default(),
            stderr_tail: StderrTail::default(),
            delivered_end: 0,
            unsaved_from: None,
            passed_deadline: None,
            ready: VecDeque::new(),
            is_closed: false,
            missing: MissingOutput::default(),
            read_end: 0,
            agent_session: None,
            agent_output: agent_output::AgentOutputState::default(),
        }
    }

    pub(crate) fn with_agent_session(self, session: Box<AgentSession>) -> Self {
        Self {
            agent_session: Some(session),
            ..self
        }
    }

    pub(crate) fn has_agent_session(&self) -> bool {
        self.agent_session.is_some()
    }

    /// The state when the event at `position` was stored. Hard deadlines go on with the time
    /// that is left. Idle deadlines start again, because activity during the restart was not
    /// seen.
    pub(crate) fn restore(
        deadlines: DeadlineLimits,
        snapshot: &FoldSnapshot,
        position: u64,
        now: BootTime,
    ) -> Self {
        let mut reader = Self::new(deadlines);
        for mark in &snapshot.phases {
            let Some(phase) = frames::one_time_phase(mark.phase()) else {
                continue;
            };
            let at = BootTime::from_millis(mark.at_ms);
            reader.phase_order.enter(phase);
            reader.entered_phases.push((phase, at));
            reader.timers.apply(TimerEvent::Entered(phase), at);
        }
        let activity = TimerEvent::Activity { tool_call_id: None };
        reader.timers.apply(activity, now);
        reader.stderr_tail.push(&snapshot.stderr_tail);
        reader.passed_deadline = frames::deadline_kind(snapshot.deadline());
        reader.delivered_end = position;
        reader.read_end = position;
        reader.restore_agent_session(snapshot);
        reader
    }

    /// Bytes before the restored position that came after its snapshot: they restore the state
    /// and are not reported again.
    pub(crate) fn replay(&mut self, kind: ChildPipe, position: u64, bytes: &[u8]) {
        if kind == ChildPipe::Stdout {
            self.replay_stdout(bytes);
        }
        if kind == ChildPipe::Stderr {
            self.stderr_tail.push(bytes);
            self.unsaved_from.get_or_insert(position);
        }
    }

    /// The next bytes of the transcript.
    pub(crate) fn push(&mut self, kind: ChildPipe, bytes: &[u8], now: BootTime) {
        let from = self.read_end;
        self.read_end += bytes.len() as u64;
        if self.agent_session.is_some() {
            self.push_agent_output(kind, bytes, now);
            return;
        }
        self.enter_output_phases(now);
        let activity = TimerEvent::Activity { tool_call_id: None };
        self.timers.apply(activity, now);
        self.coalescer
            .push(kind.into(), bytes, from..self.read_end, now);
    }

    /// All output of a command is visible, so its first byte enters both phases.
    fn enter_output_phases(&mut self, now: BootTime) {
        if self
            .phase_order
            .has_reached(OneTimePhase::FirstVisibleEventSeen)
        {
            self.enter_phase(OneTimePhase::Streaming, None, now);
            return;
        }
        self.enter_phase(OneTimePhase::FirstEventSeen, None, now);
        self.enter_phase(OneTimePhase::FirstVisibleEventSeen, None, now);
    }

    pub(crate) fn enter_phase(&mut self, phase: OneTimePhase, pid: Option<i32>, now: BootTime) {
        if !self.phase_order.enter(phase) {
            return;
        }
        self.entered_phases.push((phase, now));
        self.timers.apply(TimerEvent::Entered(phase), now);
        self.flush_output();
        let entered = AttemptEvent::PhaseEntered {
            phase,
            pid,
            next_deadline: self.timers.next_deadline(),
            passed_deadline: self
                .passed_deadline
                .filter(|_| phase == OneTimePhase::CleanupStarted),
            progress: self.progress(true),
        };
        self.ready.push_back(entered);
    }

    /// No more bytes come: the waiting output is reported, and then what is missing.
    pub(crate) fn close(&mut self, missing: MissingOutput) {
        self.is_closed = true;
        self.missing = missing;
    }

    /// The next event that is due.
    pub(crate) fn next_event(&mut self, now: BootTime) -> Option<AttemptEvent> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        let chunk = if self.is_closed {
            self.coalescer.take_rest()
        } else {
            self.coalescer.take_due(now)
        };
        match chunk {
            Some(chunk) => Some(self.output_event(chunk)),
            None => self.missing_event(),
        }
    }

    fn missing_event(&mut self) -> Option<AttemptEvent> {
        let (length, why) = match std::mem::take(&mut self.missing) {
            MissingOutput::Bytes(0) => return None,
            MissingOutput::Bytes(length) => (length, OutputCutReason::WorkerCrash),
            MissingOutput::Refused(length) => (length, OutputCutReason::DiskFull),
            MissingOutput::Unknown => (1, OutputCutReason::RecorderLost),
        };
        if why != OutputCutReason::RecorderLost {
            self.delivered_end += length;
        }
        Some(AttemptEvent::OutputMissing {
            length,
            why,
            progress: self.progress(false),
        })
    }

    fn output_event(&mut self, chunk: CoalescedChunk) -> AttemptEvent {
        if chunk.label.is_stderr() {
            self.stderr_tail.push(&chunk.bytes);
            self.unsaved_from.get_or_insert(self.delivered_end);
        }
        self.delivered_end = match self.agent_session {
            None => self.delivered_end + chunk.bytes.len() as u64,
            Some(_) => self.delivered_end.max(chunk.end_position),
        };
        if self.agent_session.is_some() {
            return AttemptEvent::Output {
                chunk,
                progress: self.progress(false),
            };
        }
        let unsaved = self
            .unsaved_from
            .map_or(0, |from| self.delivered_end - from);
        AttemptEvent::Output {
            chunk,
            progress: self.progress(unsaved >= SNAPSHOT_EVERY),
        }
    }

    fn progress(&mut self, with_snapshot: bool) -> EventProgress {
        let snapshot = with_snapshot.then(|| self.snapshot());
        if with_snapshot {
            self.unsaved_from = None;
            self.agent_output.snapshot_position = self.delivered_end;
        }
        EventProgress {
            position: self.delivered_end,
            retain_from: match self.agent_session {
                None => self.unsaved_from.unwrap_or(self.delivered_end),
                // The state is only stored by snapshots: after a restart the transcript is read
                // from there.
                Some(_) => self.agent_output.snapshot_position,
            },
            snapshot,
            answer_count: match &self.agent_session {
                Some(session) if with_snapshot => session.answer_count(),
                Some(_) | None => 0,
            },
        }
    }

    fn snapshot(&self) -> FoldSnapshot {
        let mark = |(phase, at): &(OneTimePhase, BootTime)| PhaseMark {
            phase: frames::wire_phase(*phase).into(),
            at_ms: at.as_millis(),
        };
        FoldSnapshot {
            position: self.delivered_end,
            phases: self.entered_phases.iter().map(mark).collect(),
            stderr_tail: self.stderr_tail.bytes(),
            deadline: self
                .passed_deadline
                .map_or(TimerKind::Unspecified, frames::wire_timer)
                .into(),
            talk: self.stored_agent_session(),
            ..FoldSnapshot::default()
        }
    }

    /// When time alone causes an event or ends the attempt.
    pub(crate) fn wake_at(&self) -> Option<BootTime> {
        [self.deadline_at(), self.output_due_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the attempt has been idle for too long, or its process should have exited.
    pub(crate) fn deadline_at(&self) -> Option<BootTime> {
        match self.agent_output.self_exit_until {
            Some(_) if self.has_reached(OneTimePhase::CleanupStarted) => None,
            Some(until) => Some(until),
            None => self
                .timers
                .next_deadline()
                .filter(|_| !self.awaits_file_check()),
        }
    }

    /// When output that waits to be joined with more is reported without it.
    pub(crate) fn output_due_at(&self) -> Option<BootTime> {
        self.coalescer.due_at()
    }

    /// While reading is paused, missing output is no idleness of the child.
    pub(crate) fn set_output_paused(&mut self, paused: bool, now: BootTime) {
        self.timers.set_backpressure(paused, now);
    }

    /// Deadlines are not watched between turns and after the last one.
    pub(crate) fn expired_deadline(&self, now: BootTime) -> Option<DeadlineKind> {
        let is_between_turns =
            self.agent_output.self_exit_until.is_some() || self.awaits_file_check();
        self.timers.expired(now).filter(|_| !is_between_turns)
    }

    /// Stored with every snapshot from now on.
    pub(crate) fn set_passed_deadline(&mut self, deadline: DeadlineKind) {
        self.passed_deadline = Some(deadline);
    }

    pub(crate) fn passed_deadline(&self) -> Option<DeadlineKind> {
        self.passed_deadline
    }

    pub(crate) fn has_reached(&self, phase: OneTimePhase) -> bool {
        self.phase_order.has_reached(phase)
    }

    /// The end of what was reported.
    pub(crate) fn delivered_end(&self) -> u64 {
        self.delivered_end
    }

    pub(crate) fn stderr_tail(&self) -> String {
        String::from_utf8_lossy(&self.stderr_tail.bytes()).into_owned()
    }
}

#[cfg(test)]
mod tests;
