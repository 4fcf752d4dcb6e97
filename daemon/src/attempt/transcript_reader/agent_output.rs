//! The output of a coding agent, line by line. All events of a line are reported before the
//! next line, and the position moves with the last of them: the next daemon reports an
//! interrupted line again and never loses a part of it. A snapshot is taken only where
//! everything before it is reported, so that the session and the position agree.

use std::path::Path;
use std::time::Duration;

use baton_proto::worker::FoldSnapshot;
use baton_validation::UnmetRequirement;
use bytes::Bytes;

use super::super::AttemptEvent;
use super::super::agent_session::{
    AgentNotice, AgentSession, AgentSessionEvent, AgentSummary, InputResponse,
};
use super::deferred_stderr::DeferredStderr;
use super::output_coalescer::CoalescedChunk;
use super::{ChildPipe, SNAPSHOT_EVERY, TranscriptReader};
use crate::agents::{AgentExit, TurnOutcome};
use crate::clock::BootTime;
use crate::deadlines::TimerEvent;
use crate::deadlines::phase_order::OneTimePhase;
use crate::outbox::{OutputCutReason, OutputLabel};
use crate::process::ChildExit;

/// How long a process may take to exit after its result.
const SELF_EXIT_TIME: Duration = Duration::from_secs(5);

/// A chunk is sent as one frame.
const MAX_CHUNK_BYTES: usize = 64 * 1024;

/// The position of the agent's session in the transcript.
#[derive(Debug, Default)]
pub(super) struct AgentOutputState {
    /// The end of the last complete line, or of stderr that came after it.
    line_end: u64,
    /// Where an incomplete line began.
    partial_line_start: Option<u64>,
    /// Stderr that arrived inside that line.
    deferred_stderr: DeferredStderr,
    /// The position of the last snapshot.
    pub(super) snapshot_position: u64,
    /// The child's process id, once it is started.
    pid: Option<i32>,
    /// The number of the last message that was written to the child's stdin.
    stdin_done: u64,
    /// Until when the process may exit by itself.
    pub(super) self_exit_until: Option<BootTime>,
}

impl TranscriptReader {
    pub(super) fn restore_agent_session(&mut self, snapshot: &FoldSnapshot) {
        self.agent_session = serde_json::from_slice(&snapshot.talk).ok();
        self.agent_output.line_end = self.delivered_end;
        self.agent_output.snapshot_position = snapshot.position;
    }

    pub(super) fn stored_agent_session(&self) -> Bytes {
        let stored = self.agent_session.as_ref().map(serde_json::to_vec);
        stored.and_then(Result::ok).unwrap_or_default().into()
    }

    /// Output that was already reported only restores the session's state.
    pub(super) fn replay_stdout(&mut self, bytes: &[u8]) {
        if let Some(session) = &mut self.agent_session {
            session.push_stdout(bytes);
            while session.next_events().is_some() {}
        }
    }

    /// The state is restored: open tools and inputs are watched from here on.
    pub(crate) fn finish_replay(&mut self, now: BootTime) {
        let Some(mut session) = self.agent_session.take() else {
            return;
        };
        session.mark_answers_stored();
        for tool in session.open_tools() {
            self.timers
                .apply(TimerEvent::ToolStarted(tool.clone()), now);
        }
        for _ in 0..session.open_inputs() {
            self.timers.apply(TimerEvent::InputOpened, now);
        }
        self.agent_session = Some(session);
        self.check_turn_ended(now);
    }

    pub(super) fn push_agent_output(&mut self, kind: ChildPipe, bytes: &[u8], now: BootTime) {
        match kind {
            ChildPipe::Stdout => self.push_agent_stdout(bytes, now),
            ChildPipe::Stderr => self.push_agent_stderr(bytes, now),
        }
        if self.agent_output.line_end - self.agent_output.snapshot_position >= SNAPSHOT_EVERY {
            self.flush_output();
            self.store_position();
        }
    }

    /// The position alone is no event, but the reader waits until the supervisor has it. Pieces
    /// of a long tool call, or a line that is too long, cause no event that could carry it.
    fn store_position(&mut self) {
        if self.ready.is_empty() {
            let progress = self.progress(true);
            self.ready
                .push_back(AttemptEvent::TranscriptRead { progress });
        } else {
            self.attach_snapshot();
        }
    }

    fn push_agent_stdout(&mut self, bytes: &[u8], now: BootTime) {
        let Some(mut session) = self.agent_session.take() else {
            return;
        };
        session.push_stdout(bytes);
        let mut any = false;
        loop {
            let emitted = session.next_events();
            let partial = session.partial_line_bytes();
            self.agent_session = Some(session);
            let Some(emitted) = emitted else {
                self.note_partial_line(partial, any, now);
                return;
            };
            any = true;
            // Before the line's own events: the line moves the position past this stderr.
            self.flush_deferred_stderr(self.agent_output.line_end, now);
            self.apply_line_events(emitted, self.read_end - partial, now);
            session = match self.agent_session.take() {
                Some(session) => session,
                None => return,
            };
        }
    }

    fn note_partial_line(&mut self, partial: u64, any: bool, now: BootTime) {
        if any || partial == 0 {
            self.agent_output.partial_line_start = None;
            self.flush_deferred_stderr(self.read_end - partial, now);
        }
        if partial > 0 {
            self.agent_output
                .partial_line_start
                .get_or_insert(self.read_end - partial);
        }
    }

    fn push_agent_stderr(&mut self, bytes: &[u8], now: BootTime) {
        if self.agent_output.partial_line_start.is_none() {
            self.coalesce_stderr(bytes, self.read_end, now);
            return;
        }
        self.agent_output.deferred_stderr.push(bytes);
    }

    /// Reports stderr that arrived inside a line, and how much of it was cut.
    fn flush_deferred_stderr(&mut self, end: u64, now: BootTime) {
        let deferred = std::mem::take(&mut self.agent_output.deferred_stderr);
        self.coalesce_stderr(&deferred.bytes, end, now);
        if deferred.overflow_bytes > 0 {
            self.flush_output();
            self.stderr_tail.push(&deferred.overflow_tail.bytes());
            self.report_cut(deferred.overflow_bytes, OutputCutReason::Overflow);
        }
    }

    fn report_cut(&mut self, length: u64, why: OutputCutReason) {
        let progress = self.progress(false);
        self.ready.push_back(AttemptEvent::OutputMissing {
            length,
            why,
            progress,
        });
    }

    /// Stderr of an agent is for operators and not shown as the agent's text.
    fn coalesce_stderr(&mut self, bytes: &[u8], end: u64, now: BootTime) {
        let start = std::mem::replace(&mut self.agent_output.line_end, end);
        let label = OutputLabel {
            visible: false,
            before_prompt: self.awaits_prompt(),
            ..OutputLabel::from(ChildPipe::Stderr)
        };
        if !bytes.is_empty() {
            self.coalescer.push(label, bytes, start..end, now);
        }
    }

    /// Reports the events of one line. A line with nothing but output may wait to be joined
    /// with more.
    fn apply_line_events(&mut self, emitted: Vec<AgentSessionEvent>, end: u64, now: BootTime) {
        let activity = TimerEvent::Activity { tool_call_id: None };
        self.timers.apply(activity, now);
        let start = self.agent_output.line_end;
        let only_output = emitted.iter().all(|emitted| match emitted {
            AgentSessionEvent::Output(label, _) => !label.visible || !self.begins_to_stream(),
            AgentSessionEvent::Phase(_)
            | AgentSessionEvent::Notice(_)
            | AgentSessionEvent::LineCut(_) => false,
        });
        if !only_output {
            self.flush_output();
        }
        let before = self.ready.len();
        for emitted in emitted {
            match emitted {
                AgentSessionEvent::Output(label, text) => {
                    self.push_labeled_output(label, text, only_output.then_some(start..end), now);
                }
                AgentSessionEvent::Phase(phase) => {
                    // That the prompt was written is reported by the shim, and may arrive later
                    // than the agent's answer to it.
                    self.enter_within_line(OneTimePhase::PromptWritten, now);
                    self.enter_within_line(phase, now);
                }
                AgentSessionEvent::Notice(notice) => self.push_notice(notice, now),
                AgentSessionEvent::LineCut(length) => {
                    self.report_cut(length, OutputCutReason::LineTooLong)
                }
            }
        }
        self.agent_output.line_end = end;
        if self.ready.len() > before {
            self.delivered_end = end;
            self.attach_snapshot();
        }
        self.check_agent_started(now);
        self.check_prompt_written(now);
        self.check_turn_ended(now);
    }

    /// Whether output of now came before the prompt.
    fn awaits_prompt(&self) -> bool {
        !self.phase_order.has_reached(OneTimePhase::PromptWritten)
    }

    /// Whether visible output of now is the first after the first visible event.
    fn begins_to_stream(&self) -> bool {
        self.phase_order
            .has_reached(OneTimePhase::FirstVisibleEventSeen)
            && !self.phase_order.has_reached(OneTimePhase::Streaming)
    }

    fn push_labeled_output(
        &mut self,
        mut label: OutputLabel,
        text: String,
        waits: Option<std::ops::Range<u64>>,
        now: BootTime,
    ) {
        label.before_prompt = self.awaits_prompt();
        if !label.tool_call_id.is_empty() {
            let tool_call_id = Some(label.tool_call_id.clone());
            self.timers
                .apply(TimerEvent::Activity { tool_call_id }, now);
        }
        if label.visible && self.begins_to_stream() {
            self.enter_within_line(OneTimePhase::Streaming, now);
        }
        if let Some(span) = waits {
            self.coalescer.push(label, text.as_bytes(), span, now);
            return;
        }
        let mut bytes = Bytes::from(text);
        while !bytes.is_empty() {
            let chunk = CoalescedChunk {
                label: label.clone(),
                bytes: bytes.split_to(bytes.len().min(MAX_CHUNK_BYTES)),
                end_position: self.delivered_end,
            };
            let progress = self.progress(false);
            self.ready
                .push_back(AttemptEvent::Output { chunk, progress });
        }
    }

    fn enter_within_line(&mut self, phase: OneTimePhase, now: BootTime) {
        if !self.phase_order.enter(phase) {
            return;
        }
        self.entered_phases.push((phase, now));
        self.timers.apply(TimerEvent::Entered(phase), now);
        let entered = AttemptEvent::PhaseEntered {
            phase,
            pid: None,
            next_deadline: self.timers.next_deadline(),
            passed_deadline: None,
            progress: self.progress(false),
        };
        self.ready.push_back(entered);
    }

    fn push_notice(&mut self, notice: AgentNotice, now: BootTime) {
        let fact = match &notice {
            AgentNotice::ToolStarted { id, .. } => TimerEvent::ToolStarted(id.clone()),
            AgentNotice::ToolFinished { id, .. } => TimerEvent::ToolFinished(id.clone()),
            AgentNotice::Permission(_) | AgentNotice::Question(_) => TimerEvent::InputOpened,
            AgentNotice::InputReceived { .. } | AgentNotice::InputWithdrawn { .. } => {
                TimerEvent::InputClosed
            }
        };
        self.timers.apply(fact, now);
        let progress = self.progress(false);
        self.ready
            .push_back(AttemptEvent::AgentNotice { notice, progress });
    }

    /// Reports all waiting output, so that the next event comes after it.
    pub(super) fn flush_output(&mut self) {
        if self.agent_session.is_none() {
            return;
        }
        while let Some(chunk) = self.coalescer.take_rest() {
            let event = self.output_event(chunk);
            self.ready.push_back(event);
        }
        self.delivered_end = self.agent_output.line_end;
    }

    /// Moves the position and the snapshot to the last event that is ready.
    fn attach_snapshot(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        let progress = self.progress(true);
        let last = self.ready.back_mut().and_then(AttemptEvent::progress_mut);
        if let Some(last) = last {
            *last = progress;
        }
    }

    /// A person's answer to a request of the agent. It is stored before it is sent to the
    /// agent.
    pub(crate) fn answer_input(&mut self, response: InputResponse, now: BootTime) {
        let emitted = self
            .agent_session
            .as_mut()
            .and_then(|session| session.answer_input(response));
        if let Some(emitted) = emitted {
            self.flush_output();
            self.apply_line_events(emitted, self.agent_output.line_end, now);
        }
    }

    /// A turn has ended with a result, and the required files have to be checked.
    pub(crate) fn awaits_file_check(&self) -> bool {
        self.agent_session
            .as_ref()
            .is_some_and(|session| session.awaits_file_check())
    }

    /// The required files were checked. When none is missing, the turn was the last one. The
    /// result is stored before it is sent to the agent.
    pub(crate) fn on_files_checked(
        &mut self,
        unmet: &[UnmetRequirement],
        root: &Path,
        now: BootTime,
    ) {
        let session = self.agent_session.as_mut();
        if let Some(emitted) = session.and_then(|session| session.on_files_checked(unmet, root)) {
            self.flush_output();
            self.apply_line_events(emitted, self.agent_output.line_end, now);
            self.store_position();
        }
    }

    /// Asks the agent to end its turn. False when no turn runs, or when its protocol cannot do
    /// that.
    pub(crate) fn interrupt_turn(&mut self, now: BootTime) -> bool {
        let works = self.phase_order.has_reached(OneTimePhase::PromptWritten)
            && !self.phase_order.has_reached(OneTimePhase::CleanupStarted);
        let session = self.agent_session.as_mut().filter(|_| works);
        let Some(emitted) = session.and_then(|session| session.interrupt_turn()) else {
            return false;
        };
        self.flush_output();
        self.apply_line_events(emitted, self.agent_output.line_end, now);
        true
    }

    /// The turn has ended, and not because it was interrupted.
    pub(crate) fn turn_ended_unprompted(&self) -> bool {
        let end = self.agent_summary().and_then(|spoken| spoken.end);
        end.is_some_and(|end| end.outcome != TurnOutcome::Interrupted)
    }

    /// Messages for the child's stdin after `sent`, as far as the answers in them are stored.
    pub(crate) fn stdin_after(
        &self,
        sent: u64,
        stored_answers: u64,
    ) -> impl Iterator<Item = baton_proto::worker::Stdin> {
        let session = self.agent_session.iter();
        session.flat_map(move |session| session.stdin_after(sent, stored_answers))
    }

    /// Messages up to this number are written to the child's stdin.
    pub(crate) fn on_stdin_done(&mut self, id: u64, now: BootTime) {
        self.agent_output.stdin_done = self.agent_output.stdin_done.max(id);
        if let Some(session) = &mut self.agent_session {
            session.on_stdin_done(id);
        }
        self.check_prompt_written(now);
    }

    /// The child process was started.
    pub(crate) fn on_spawned(&mut self, pid: i32, now: BootTime) {
        self.agent_output.pid = Some(pid);
        self.check_agent_started(now);
    }

    /// An agent counts as started when its prompt can be written. Two protocols begin with a
    /// handshake, and a program that takes seconds to load answers it late: that time belongs
    /// to its start.
    fn check_agent_started(&mut self, now: BootTime) {
        if self.agent_output.pid.is_some() && self.may_have_prompt() {
            self.enter_phase(OneTimePhase::AgentStarted, self.agent_output.pid, now);
        }
    }

    /// The shim may report the prompt as written before the line is read again that the prompt
    /// answers.
    fn check_prompt_written(&mut self, now: BootTime) {
        let prompt = match &self.agent_session {
            Some(session) => session.prompt_message_id(),
            None => Some(super::PROMPT_MESSAGE_ID),
        };
        if prompt.is_some_and(|prompt| prompt <= self.agent_output.stdin_done) {
            self.enter_phase(OneTimePhase::PromptWritten, None, now);
        }
    }

    /// False only for a coding agent that was never sent a prompt. A command acts without one.
    pub(crate) fn may_have_prompt(&self) -> bool {
        self.agent_session
            .as_ref()
            .is_none_or(|session| session.prompt_message_id().is_some())
    }

    fn check_turn_ended(&mut self, now: BootTime) {
        let end = self
            .agent_session
            .as_ref()
            .and_then(|session| session.may_exit_by_itself());
        if let Some(may_exit) = end {
            let span = if may_exit {
                SELF_EXIT_TIME
            } else {
                Duration::ZERO
            };
            self.agent_output
                .self_exit_until
                .get_or_insert(now.after(span));
        }
    }

    /// The turn has ended, and the process should have exited by now.
    pub(crate) fn is_past_self_exit(&self, now: BootTime) -> bool {
        self.agent_output
            .self_exit_until
            .is_some_and(|until| until <= now)
    }

    /// The process is gone, and all its output was read.
    pub(crate) fn on_exit(&mut self, exit: Option<ChildExit>, now: BootTime) {
        // The line in which it arrived will not be completed.
        self.flush_deferred_stderr(self.read_end, now);
        let exit = match exit {
            Some(ChildExit::Code(code)) => AgentExit::Code(code),
            Some(ChildExit::Signal(signal)) => AgentExit::Signal(signal),
            // The exit is unknown, so it cannot be reported.
            Some(ChildExit::Unknown) | None => return,
        };
        self.flush_output();
        let stderr = self.stderr_tail();
        let emitted = self
            .agent_session
            .as_mut()
            .map(|session| session.on_exit(exit, &stderr));
        if let Some(emitted) = emitted {
            self.apply_line_events(emitted, self.read_end, now);
        }
    }

    pub(crate) fn agent_summary(&self) -> Option<AgentSummary> {
        self.agent_session.as_deref().map(AgentSession::summary)
    }
}

#[cfg(test)]
#[path = "agent_output_tests.rs"]
mod tests;
