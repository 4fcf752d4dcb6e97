//! What a coding agent prints, line by line. All that one line comes to is told before the next one, and the position
//! moves with the last of it: a daemon that was killed in between tells the line again, and never loses a part of it.
//! A snapshot is taken only where everything before it is told, so that the talk and the position agree.

use std::path::Path;
use std::time::Duration;

use baton_contract::Unmet;
use baton_proto::worker::FoldSnapshot;
use bytes::Bytes;

use super::super::AttemptEvent;
use super::super::coalesce::Chunk;
use super::super::talk::{Said, Spoken, Talk, Told, Word};
use super::behind::Behind;
use super::{Fold, OutputKind, SNAPSHOT_EVERY};
use crate::agents::{AgentExit, Outcome};
use crate::clock::Moment;
use crate::outbox::{CutWhy, Label};
use crate::phases::OncePhase;
use crate::process::Exit;
use crate::timers::Fact;

/// What a process may take to end by itself after its result.
const LINGER: Duration = Duration::from_secs(5);

/// A chunk is one frame.
const CHUNK: usize = 64 * 1024;

/// Where the talk stands in the transcript.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// End of the last whole line, or of what came after it on standard error.
    line_end: u64,
    /// Where a line began whose end has not come.
    half_line: Option<u64>,
    /// Standard error that came inside that line.
    behind: Behind,
    /// Position of the last snapshot.
    pub(super) saved_at: u64,
    /// The child's process, once there is one.
    pid: Option<i32>,
    /// Number of the last message that the child has.
    stdin_done: u64,
    /// Until when the process may end by itself.
    pub(super) linger_until: Option<Moment>,
}

impl Fold {
    pub(super) fn restore_talk(&mut self, snapshot: &FoldSnapshot) {
        self.talk = serde_json::from_slice(&snapshot.talk).ok();
        self.heard.line_end = self.told;
        self.heard.saved_at = snapshot.position;
    }

    pub(super) fn stored_talk(&self) -> Bytes {
        let stored = self.talk.as_ref().map(serde_json::to_vec);
        stored.and_then(Result::ok).unwrap_or_default().into()
    }

    /// What was told before: only what follows from it is kept.
    pub(super) fn hear_again(&mut self, bytes: &[u8]) {
        if let Some(talk) = &mut self.talk {
            talk.stdout(bytes);
            while talk.next().is_some() {}
        }
    }

    /// Everything that was told is known again: what is open is watched from here on.
    pub(crate) fn recalled(&mut self, now: Moment) {
        let Some(mut talk) = self.talk.take() else {
            return;
        };
        talk.answers_are_stored();
        for tool in talk.open_tools() {
            self.timers.apply(Fact::ToolStarted(tool.clone()), now);
        }
        for _ in 0..talk.open_inputs() {
            self.timers.apply(Fact::InputOpened, now);
        }
        self.talk = Some(talk);
        self.notice_the_end(now);
    }

    pub(super) fn hear(&mut self, kind: OutputKind, bytes: &[u8], now: Moment) {
        match kind {
            OutputKind::Stdout => self.hear_stdout(bytes, now),
            OutputKind::Stderr => self.hear_stderr(bytes, now),
        }
        if self.heard.line_end - self.heard.saved_at >= SNAPSHOT_EVERY {
            self.catch_up();
            self.save_or_say_so();
        }
    }

    /// Nobody hears of a position by itself, and whoever reads on waits for that: pieces of a long tool call, or a line
    /// that is too long, come to nothing that could be told.
    fn save_or_say_so(&mut self) {
        if self.ready.is_empty() {
            let progress = self.progress(true);
            self.ready.push_back(AttemptEvent::Read { progress });
        } else {
            self.save();
        }
    }

    fn hear_stdout(&mut self, bytes: &[u8], now: Moment) {
        let Some(mut talk) = self.talk.take() else {
            return;
        };
        talk.stdout(bytes);
        let mut any = false;
        loop {
            let told = talk.next();
            let held = talk.held();
            self.talk = Some(talk);
            let Some(told) = told else {
                self.note_half_line(held, any, now);
                return;
            };
            any = true;
            // First: its line moves the position beyond it.
            self.tell_behind(self.heard.line_end, now);
            self.take_line(told, self.read - held, now);
            talk = match self.talk.take() {
                Some(talk) => talk,
                None => return,
            };
        }
    }

    fn note_half_line(&mut self, held: u64, any: bool, now: Moment) {
        if any || held == 0 {
            self.heard.half_line = None;
            self.tell_behind(self.read - held, now);
        }
        if held > 0 {
            self.heard.half_line.get_or_insert(self.read - held);
        }
    }

    fn hear_stderr(&mut self, bytes: &[u8], now: Moment) {
        if self.heard.half_line.is_none() {
            self.push_stderr(bytes, self.read, now);
            return;
        }
        self.heard.behind.push(bytes);
    }

    /// What came inside a line, as far as it was kept, and that there was more.
    fn tell_behind(&mut self, end: u64, now: Moment) {
        let behind = std::mem::take(&mut self.heard.behind);
        self.push_stderr(&behind.kept, end, now);
        if behind.over > 0 {
            self.catch_up();
            self.tail.push(&behind.last.bytes());
            self.cut(behind.over, CutWhy::Overflow);
        }
    }

    fn cut(&mut self, length: u64, why: CutWhy) {
        let progress = self.progress(false);
        self.ready.push_back(AttemptEvent::Missed {
            length,
            why,
            progress,
        });
    }

    /// For operators, not for whoever reads what the agent says.
    fn push_stderr(&mut self, bytes: &[u8], end: u64, now: Moment) {
        let begun = std::mem::replace(&mut self.heard.line_end, end);
        let label = Label {
            visible: false,
            before_prompt: self.awaits_prompt(),
            ..Label::from(OutputKind::Stderr)
        };
        if !bytes.is_empty() {
            self.coalescer.push(label, bytes, begun..end, now);
        }
    }

    /// One line and all that it comes to. Output alone may wait for company.
    fn take_line(&mut self, told: Vec<Told>, end: u64, now: Moment) {
        let activity = Fact::Activity { tool_call_id: None };
        self.timers.apply(activity, now);
        let begun = self.heard.line_end;
        let only_output = told.iter().all(|told| match told {
            Told::Output(label, _) => !label.visible || !self.begins_to_stream(),
            Told::Phase(_) | Told::Said(_) | Told::LineCut(_) => false,
        });
        if !only_output {
            self.catch_up();
        }
        let before = self.ready.len();
        for told in told {
            match told {
                Told::Output(label, text) => {
                    self.hear_output(label, text, only_output.then_some(begun..end), now);
                }
                Told::Phase(phase) => {
                    // The word that the prompt is written comes another way, and may come later than the answer to it.
                    self.enter_within_line(OncePhase::PromptWritten, now);
                    self.enter_within_line(phase, now);
                }
                Told::Said(said) => self.say(said, now),
                Told::LineCut(length) => self.cut(length, CutWhy::LineTooLong),
            }
        }
        self.heard.line_end = end;
        if self.ready.len() > before {
            self.told = end;
            self.save();
        }
        self.notice_the_start(now);
        self.notice_the_prompt(now);
        self.notice_the_end(now);
    }

    /// What is said now is said without a prompt, unless people can see it.
    fn awaits_prompt(&self) -> bool {
        !self.order.reached(OncePhase::PromptWritten)
    }

    /// The first visible output after the first one.
    fn begins_to_stream(&self) -> bool {
        self.order.reached(OncePhase::FirstVisibleEventSeen)
            && !self.order.reached(OncePhase::Streaming)
    }

    fn hear_output(
        &mut self,
        mut label: Label,
        text: String,
        waits: Option<std::ops::Range<u64>>,
        now: Moment,
    ) {
        label.before_prompt = self.awaits_prompt();
        if !label.tool.is_empty() {
            let tool_call_id = Some(label.tool.clone());
            self.timers.apply(Fact::Activity { tool_call_id }, now);
        }
        if label.visible && self.begins_to_stream() {
            self.enter_within_line(OncePhase::Streaming, now);
        }
        if let Some(span) = waits {
            self.coalescer.push(label, text.as_bytes(), span, now);
            return;
        }
        let mut bytes = Bytes::from(text);
        while !bytes.is_empty() {
            let chunk = Chunk {
                label: label.clone(),
                bytes: bytes.split_to(bytes.len().min(CHUNK)),
                upto: self.told,
            };
            let progress = self.progress(false);
            self.ready
                .push_back(AttemptEvent::Output { chunk, progress });
        }
    }

    fn enter_within_line(&mut self, phase: OncePhase, now: Moment) {
        if !self.order.enter(phase) {
            return;
        }
        self.entered.push((phase, now));
        self.timers.apply(Fact::Entered(phase), now);
        let entered = AttemptEvent::Entered {
            phase,
            pid: None,
            next_deadline: self.timers.next_deadline(),
            passed: None,
            progress: self.progress(false),
        };
        self.ready.push_back(entered);
    }

    fn say(&mut self, said: Said, now: Moment) {
        let fact = match &said {
            Said::ToolStarted { id, .. } => Fact::ToolStarted(id.clone()),
            Said::ToolFinished { id, .. } => Fact::ToolFinished(id.clone()),
            Said::Permission(_) | Said::Question(_) => Fact::InputOpened,
            Said::InputReceived { .. } | Said::InputWithdrawn { .. } => Fact::InputClosed,
        };
        self.timers.apply(fact, now);
        let progress = self.progress(false);
        self.ready.push_back(AttemptEvent::Said { said, progress });
    }

    /// Tells all output that waits, so that what comes next comes after it.
    pub(super) fn catch_up(&mut self) {
        if self.talk.is_none() {
            return;
        }
        while let Some(chunk) = self.coalescer.take_rest() {
            let event = self.told(chunk);
            self.ready.push_back(event);
        }
        self.told = self.heard.line_end;
    }

    /// The last event that is ready moves the position here, and holds the state here.
    fn save(&mut self) {
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
    pub(crate) fn answer(&mut self, word: Word, now: Moment) {
        let told = self.talk.as_mut().and_then(|talk| talk.answer(word));
        if let Some(told) = told {
            self.catch_up();
            self.take_line(told, self.heard.line_end, now);
        }
    }

    /// A turn has ended with a result, and somebody has to look for the files before that is the attempt's.
    pub(crate) fn rests(&self) -> bool {
        self.talk.as_ref().is_some_and(|talk| talk.rests())
    }

    /// What is missing of them: nothing makes the turn the last. Stored before the agent hears of it.
    pub(crate) fn judged(&mut self, unmet: &[Unmet], root: &Path, now: Moment) {
        let talk = self.talk.as_mut();
        if let Some(told) = talk.and_then(|talk| talk.judged(unmet, root)) {
            self.catch_up();
            self.take_line(told, self.heard.line_end, now);
            self.save_or_say_so();
        }
    }

    /// Asks the agent to end its turn. False where there is nothing to ask, or nobody who would understand.
    pub(crate) fn interrupt(&mut self, now: Moment) -> bool {
        let works = self.order.reached(OncePhase::PromptWritten)
            && !self.order.reached(OncePhase::CleanupStarted);
        let talk = self.talk.as_mut().filter(|_| works);
        let Some(told) = talk.and_then(|talk| talk.interrupt()) else {
            return false;
        };
        self.catch_up();
        self.take_line(told, self.heard.line_end, now);
        true
    }

    /// The turn ended, and not because somebody asked for that.
    pub(crate) fn ended_by_itself(&self) -> bool {
        let end = self.spoken().and_then(|spoken| spoken.end);
        end.is_some_and(|end| end.outcome != Outcome::Interrupted)
    }

    /// What goes to the child's stdin after `sent`, as far as the answers in it are stored.
    pub(crate) fn stdin_after(
        &self,
        sent: u64,
        stored_answers: u64,
    ) -> impl Iterator<Item = baton_proto::worker::Stdin> {
        let talk = self.talk.iter();
        talk.flat_map(move |talk| talk.stdin_after(sent, stored_answers))
    }

    /// The child has what it was sent, up to this number.
    pub(crate) fn stdin_done(&mut self, id: u64, now: Moment) {
        self.heard.stdin_done = self.heard.stdin_done.max(id);
        if let Some(talk) = &mut self.talk {
            talk.stdin_done(id);
        }
        self.notice_the_prompt(now);
    }

    /// There is a process.
    pub(crate) fn spawned(&mut self, pid: i32, now: Moment) {
        self.heard.pid = Some(pid);
        self.notice_the_start(now);
    }

    /// An agent has started when its prompt can be written. Two wires shake hands first, and a program that needs
    /// seconds to load answers late: that is its start, and not a prompt that it does not take.
    fn notice_the_start(&mut self, now: Moment) {
        if self.heard.pid.is_some() && self.may_have_prompt() {
            self.enter(OncePhase::AgentStarted, self.heard.pid, now);
        }
    }

    /// Whether it was written may be known before the line is read again that the prompt was the answer to.
    fn notice_the_prompt(&mut self, now: Moment) {
        let prompt = match &self.talk {
            Some(talk) => talk.prompt(),
            None => Some(super::PROMPT),
        };
        if prompt.is_some_and(|prompt| prompt <= self.heard.stdin_done) {
            self.enter(OncePhase::PromptWritten, None, now);
        }
    }

    /// False where a coding agent was never even sent a prompt. A command acts without any.
    pub(crate) fn may_have_prompt(&self) -> bool {
        self.talk
            .as_ref()
            .is_none_or(|talk| talk.prompt().is_some())
    }

    fn notice_the_end(&mut self, now: Moment) {
        let end = self.talk.as_ref().and_then(|talk| talk.linger());
        if let Some(patient) = end {
            let span = if patient { LINGER } else { Duration::ZERO };
            self.heard.linger_until.get_or_insert(now.after(span));
        }
    }

    /// The turn is over, and the process should be by now.
    pub(crate) fn lingers(&self, now: Moment) -> bool {
        self.heard.linger_until.is_some_and(|until| until <= now)
    }

    /// The process is gone, and everything that it said was taken in.
    pub(crate) fn exited(&mut self, exit: Option<Exit>, now: Moment) {
        // The end of the line that it came inside of will not come any more.
        self.tell_behind(self.read, now);
        let exit = match exit {
            Some(Exit::Code(code)) => AgentExit::Code(code),
            Some(Exit::Signal(signal)) => AgentExit::Signal(signal),
            // Nobody knows how: then there is no end to tell.
            Some(Exit::Unseen) | None => return,
        };
        self.catch_up();
        let stderr = self.stderr_tail();
        let told = self.talk.as_mut().map(|talk| talk.exited(exit, &stderr));
        if let Some(told) = told {
            self.take_line(told, self.read, now);
        }
    }

    pub(crate) fn spoken(&self) -> Option<Spoken> {
        self.talk.as_deref().map(Talk::spoken)
    }
}

#[cfg(test)]
#[path = "hearing_tests.rs"]
mod tests;
