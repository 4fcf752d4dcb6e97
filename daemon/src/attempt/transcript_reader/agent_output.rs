//! What a coding agent prints, line by line. All that one line comes to is told before the next one, and the position
//! moves with the last of it: a daemon that was killed in between tells the line again, and never loses a part of it.
//! A snapshot is taken only where everything before it is told, so that the talk and the position agree.

use std::path::Path;
use std::time::Duration;

use baton_contract::UnmetRequirement;
use baton_proto::worker::FoldSnapshot;
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

/// What a process may take to end by itself after its result.
const SELF_EXIT_TIME: Duration = Duration::from_secs(5);

/// A chunk is one frame.
const MAX_CHUNK_BYTES: usize = 64 * 1024;

/// Where the talk stands in the transcript.
#[derive(Debug, Default)]
pub(super) struct AgentOutputState {
    /// End of the last whole line, or of what came after it on standard error.
    line_end: u64,
    /// Where a line began whose end has not come.
    partial_line_start: Option<u64>,
    /// Standard error that came inside that line.
    deferred_stderr: DeferredStderr,
    /// Position of the last snapshot.
    pub(super) snapshot_position: u64,
    /// The child's process, once there is one.
    pid: Option<i32>,
    /// Number of the last message that the child has.
    stdin_done: u64,
    /// Until when the process may end by itself.
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

    /// What was told before: only what follows from it is kept.
    pub(super) fn replay_stdout(&mut self, bytes: &[u8]) {
        if let Some(talk) = &mut self.agent_session {
            talk.push_stdout(bytes);
            while talk.next_events().is_some() {}
        }
    }

    /// Everything that was told is known again: what is open is watched from here on.
    pub(crate) fn finish_replay(&mut self, now: BootTime) {
        let Some(mut talk) = self.agent_session.take() else {
            return;
        };
        talk.mark_answers_stored();
        for tool in talk.open_tools() {
            self.timers
                .apply(TimerEvent::ToolStarted(tool.clone()), now);
        }
        for _ in 0..talk.open_inputs() {
            self.timers.apply(TimerEvent::InputOpened, now);
        }
        self.agent_session = Some(talk);
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

    /// Nobody hears of a position by itself, and whoever reads on waits for that: pieces of a long tool call, or a line
    /// that is too long, come to nothing that could be told.
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
        let Some(mut talk) = self.agent_session.take() else {
            return;
        };
        talk.push_stdout(bytes);
        let mut any = false;
        loop {
            let told = talk.next_events();
            let held = talk.partial_line_bytes();
            self.agent_session = Some(talk);
            let Some(told) = told else {
                self.note_partial_line(held, any, now);
                return;
            };
            any = true;
            // First: its line moves the position beyond it.
            self.flush_deferred_stderr(self.agent_output.line_end, now);
            self.apply_line_events(told, self.read_end - held, now);
            talk = match self.agent_session.take() {
                Some(talk) => talk,
                None => return,
            };
        }
    }

    fn note_partial_line(&mut self, held: u64, any: bool, now: BootTime) {
        if any || held == 0 {
            self.agent_output.partial_line_start = None;
            self.flush_deferred_stderr(self.read_end - held, now);
        }
        if held > 0 {
            self.agent_output
                .partial_line_start
                .get_or_insert(self.read_end - held);
        }
    }

    fn push_agent_stderr(&mut self, bytes: &[u8], now: BootTime) {
        if self.agent_output.partial_line_start.is_none() {
            self.coalesce_stderr(bytes, self.read_end, now);
            return;
        }
        self.agent_output.deferred_stderr.push(bytes);
    }

    /// What came inside a line, as far as it was kept, and that there was more.
    fn flush_deferred_stderr(&mut self, end: u64, now: BootTime) {
        let behind = std::mem::take(&mut self.agent_output.deferred_stderr);
        self.coalesce_stderr(&behind.bytes, end, now);
        if behind.overflow_bytes > 0 {
            self.flush_output();
            self.stderr_tail.push(&behind.overflow_tail.bytes());
            self.report_cut(behind.overflow_bytes, OutputCutReason::Overflow);
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

    /// For operators, not for whoever reads what the agent says.
    fn coalesce_stderr(&mut self, bytes: &[u8], end: u64, now: BootTime) {
        let begun = std::mem::replace(&mut self.agent_output.line_end, end);
        let label = OutputLabel {
            visible: false,
            before_prompt: self.awaits_prompt(),
            ..OutputLabel::from(ChildPipe::Stderr)
        };
        if !bytes.is_empty() {
            self.coalescer.push(label, bytes, begun..end, now);
        }
    }

    /// One line and all that it comes to. Output alone may wait for company.
    fn apply_line_events(&mut self, told: Vec<AgentSessionEvent>, end: u64, now: BootTime) {
        let activity = TimerEvent::Activity { tool_call_id: None };
        self.timers.apply(activity, now);
        let begun = self.agent_output.line_end;
        let only_output = told.iter().all(|told| match told {
            AgentSessionEvent::Output(label, _) => !label.visible || !self.begins_to_stream(),
            AgentSessionEvent::Phase(_)
            | AgentSessionEvent::Notice(_)
            | AgentSessionEvent::LineCut(_) => false,
        });
        if !only_output {
            self.flush_output();
        }
        let before = self.ready.len();
        for told in told {
            match told {
                AgentSessionEvent::Output(label, text) => {
                    self.push_labeled_output(label, text, only_output.then_some(begun..end), now);
                }
                AgentSessionEvent::Phase(phase) => {
                    // The word that the prompt is written comes another way, and may come later than the answer to it.
                    self.enter_within_line(OneTimePhase::PromptWritten, now);
                    self.enter_within_line(phase, now);
                }
                AgentSessionEvent::Notice(said) => self.push_notice(said, now),
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

    /// What is said now is said without a prompt, unless people can see it.
    fn awaits_prompt(&self) -> bool {
        !self.phase_order.has_reached(OneTimePhase::PromptWritten)
    }

    /// The first visible output after the first one.
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

    fn push_notice(&mut self, said: AgentNotice, now: BootTime) {
        let fact = match &said {
            AgentNotice::ToolStarted { id, .. } => TimerEvent::ToolStarted(id.clone()),
            AgentNotice::ToolFinished { id, .. } => TimerEvent::ToolFinished(id.clone()),
            AgentNotice::Permission(_) | AgentNotice::Question(_) => TimerEvent::InputOpened,
            AgentNotice::InputReceived { .. } | AgentNotice::InputWithdrawn { .. } => {
                TimerEvent::InputClosed
            }
        };
        self.timers.apply(fact, now);
        let progress = self.progress(false);
        self.ready.push_back(AttemptEvent::AgentNotice {
            notice: said,
            progress,
        });
    }

    /// Tells all output that waits, so that what comes next comes after it.
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

    /// The last event that is ready moves the position here, and holds the state here.
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

    /// Somebody's word to what the agent asked. It is stored before it goes to the agent.
    pub(crate) fn answer_input(&mut self, word: InputResponse, now: BootTime) {
        let told = self
            .agent_session
            .as_mut()
            .and_then(|talk| talk.answer_input(word));
        if let Some(told) = told {
            self.flush_output();
            self.apply_line_events(told, self.agent_output.line_end, now);
        }
    }

    /// A turn has ended with a result, and somebody has to look for the files before that is the attempt's.
    pub(crate) fn awaits_file_check(&self) -> bool {
        self.agent_session
            .as_ref()
            .is_some_and(|talk| talk.awaits_file_check())
    }

    /// What is missing of them: nothing makes the turn the last. Stored before the agent hears of it.
    pub(crate) fn on_files_checked(
        &mut self,
        unmet: &[UnmetRequirement],
        root: &Path,
        now: BootTime,
    ) {
        let talk = self.agent_session.as_mut();
        if let Some(told) = talk.and_then(|talk| talk.on_files_checked(unmet, root)) {
            self.flush_output();
            self.apply_line_events(told, self.agent_output.line_end, now);
            self.store_position();
        }
    }

    /// Asks the agent to end its turn. False where there is nothing to ask, or nobody who would understand.
    pub(crate) fn interrupt_turn(&mut self, now: BootTime) -> bool {
        let works = self.phase_order.has_reached(OneTimePhase::PromptWritten)
            && !self.phase_order.has_reached(OneTimePhase::CleanupStarted);
        let talk = self.agent_session.as_mut().filter(|_| works);
        let Some(told) = talk.and_then(|talk| talk.interrupt_turn()) else {
            return false;
        };
        self.flush_output();
        self.apply_line_events(told, self.agent_output.line_end, now);
        true
    }

    /// The turn ended, and not because somebody asked for that.
    pub(crate) fn turn_ended_unprompted(&self) -> bool {
        let end = self.agent_summary().and_then(|spoken| spoken.end);
        end.is_some_and(|end| end.outcome != TurnOutcome::Interrupted)
    }

    /// What goes to the child's stdin after `sent`, as far as the answers in it are stored.
    pub(crate) fn stdin_after(
        &self,
        sent: u64,
        stored_answers: u64,
    ) -> impl Iterator<Item = baton_proto::worker::Stdin> {
        let talk = self.agent_session.iter();
        talk.flat_map(move |talk| talk.stdin_after(sent, stored_answers))
    }

    /// The child has what it was sent, up to this number.
    pub(crate) fn on_stdin_done(&mut self, id: u64, now: BootTime) {
        self.agent_output.stdin_done = self.agent_output.stdin_done.max(id);
        if let Some(talk) = &mut self.agent_session {
            talk.on_stdin_done(id);
        }
        self.check_prompt_written(now);
    }

    /// There is a process.
    pub(crate) fn on_spawned(&mut self, pid: i32, now: BootTime) {
        self.agent_output.pid = Some(pid);
        self.check_agent_started(now);
    }

    /// An agent has started when its prompt can be written. Two wires shake hands first, and a program that needs
    /// seconds to load answers late: that is its start, and not a prompt that it does not take.
    fn check_agent_started(&mut self, now: BootTime) {
        if self.agent_output.pid.is_some() && self.may_have_prompt() {
            self.enter_phase(OneTimePhase::AgentStarted, self.agent_output.pid, now);
        }
    }

    /// Whether it was written may be known before the line is read again that the prompt was the answer to.
    fn check_prompt_written(&mut self, now: BootTime) {
        let prompt = match &self.agent_session {
            Some(talk) => talk.prompt_message_id(),
            None => Some(super::PROMPT_MESSAGE_ID),
        };
        if prompt.is_some_and(|prompt| prompt <= self.agent_output.stdin_done) {
            self.enter_phase(OneTimePhase::PromptWritten, None, now);
        }
    }

    /// False where a coding agent was never even sent a prompt. A command acts without any.
    pub(crate) fn may_have_prompt(&self) -> bool {
        self.agent_session
            .as_ref()
            .is_none_or(|talk| talk.prompt_message_id().is_some())
    }

    fn check_turn_ended(&mut self, now: BootTime) {
        let end = self
            .agent_session
            .as_ref()
            .and_then(|talk| talk.may_exit_by_itself());
        if let Some(patient) = end {
            let span = if patient {
                SELF_EXIT_TIME
            } else {
                Duration::ZERO
            };
            self.agent_output
                .self_exit_until
                .get_or_insert(now.after(span));
        }
    }

    /// The turn is over, and the process should be by now.
    pub(crate) fn is_past_self_exit(&self, now: BootTime) -> bool {
        self.agent_output
            .self_exit_until
            .is_some_and(|until| until <= now)
    }

    /// The process is gone, and everything that it said was taken in.
    pub(crate) fn on_exit(&mut self, exit: Option<ChildExit>, now: BootTime) {
        // The end of the line that it came inside of will not come any more.
        self.flush_deferred_stderr(self.read_end, now);
        let exit = match exit {
            Some(ChildExit::Code(code)) => AgentExit::Code(code),
            Some(ChildExit::Signal(signal)) => AgentExit::Signal(signal),
            // Nobody knows how: then there is no end to tell.
            Some(ChildExit::Unknown) | None => return,
        };
        self.flush_output();
        let stderr = self.stderr_tail();
        let told = self
            .agent_session
            .as_mut()
            .map(|talk| talk.on_exit(exit, &stderr));
        if let Some(told) = told {
            self.apply_line_events(told, self.read_end, now);
        }
    }

    pub(crate) fn agent_summary(&self) -> Option<AgentSummary> {
        self.agent_session.as_deref().map(AgentSession::summary)
    }
}

#[cfg(test)]
#[path = "agent_output_tests.rs"]
mod tests;
