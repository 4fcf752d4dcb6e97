//! The session with a coding agent: its output becomes events, its requests get ids that people
//! can answer, and messages for its stdin are numbered. Pure, and stored as a whole between any
//! two lines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use baton_proto::v1::{
    InputOutcome, OutputKind, PermissionDecision, PermissionRequest, QuestionAnswer,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::agents::{
    self, AgentEvent, AgentExit, AgentInput, AgentInputAnswer, AgentInputKind, AgentTranslator,
    InputKey, QuestionResponse, TurnPhase, TurnUsage,
};
use crate::deadlines::phase_order::OneTimePhase;
use crate::outbox::OutputLabel;

mod further_turns;
mod input_frames;
mod stdin_queue;

use further_turns::FurtherTurns;
use input_frames::{
    is_askable, permission_answer, permission_request, question_frame, truncate_id,
};
use stdin_queue::UnsentMessage;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentSession {
    attempt_id: String,
    translator: AgentTranslator,
    /// Messages for stdin, each with its number, until the shim has reported them as written.
    unsent: VecDeque<UnsentMessage>,
    /// Their bytes, without the prompt.
    #[serde(skip)]
    unread_bytes: usize,
    last_stdin: u64,
    /// The number of the message that holds the prompt.
    prompt: Option<u64>,
    inputs: BTreeMap<String, OpenInput>,
    /// Replies to questions that are answered together.
    replies: BTreeMap<InputKey, Vec<Option<QuestionResponse>>>,
    asked: u64,
    /// Answers given so far.
    answers: u64,
    open_tools: BTreeSet<String>,
    conversation: Option<String>,
    malformed: u64,
    /// Lines in which invalid characters were replaced.
    #[serde(default)]
    mended: u64,
    /// The last visible output did not end its line.
    mid_line: bool,
    end: Option<agents::TurnEnding>,
    #[serde(default)]
    further: FurtherTurns,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OpenInput {
    key: InputKey,
    /// The index of the question in its request.
    index: usize,
    /// Only for a permission.
    digest: Option<[u8; 32]>,
    /// It was answered, and other questions of the same request are still open.
    #[serde(default)]
    answered: bool,
}

/// What an agent's output means for its attempt.
#[derive(Debug)]
pub(super) enum AgentSessionEvent {
    Phase(OneTimePhase),
    Output(OutputLabel, String),
    Notice(AgentNotice),
    /// A line of this length was too long to be read.
    LineCut(u64),
}

/// An event of an agent that the supervisor sends as a frame of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AgentNotice {
    ToolStarted { id: String, name: String },
    ToolFinished { id: String, failed: bool },
    Permission(PermissionRequest),
    Question(baton_proto::v1::Question),
    InputReceived { input_id: String },
    InputWithdrawn { input_id: String, reason: String },
}

/// The relay's answer to an input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InputResponse {
    Decision(PermissionDecision),
    Answer(QuestionAnswer),
}

impl InputResponse {
    pub(crate) fn input_id(&self) -> &str {
        match self {
            Self::Decision(decision) => &decision.input_id,
            Self::Answer(answer) => &answer.input_id,
        }
    }
}

impl AgentSession {
    pub(crate) fn new(attempt_id: &str, mut translator: AgentTranslator) -> Self {
        let opening = translator.first_message();
        let mut session = Self {
            attempt_id: attempt_id.to_owned(),
            translator,
            unsent: VecDeque::new(),
            unread_bytes: 0,
            last_stdin: 0,
            prompt: None,
            inputs: BTreeMap::new(),
            replies: BTreeMap::new(),
            asked: 0,
            answers: 0,
            open_tools: BTreeSet::new(),
            conversation: None,
            malformed: 0,
            mended: 0,
            mid_line: false,
            end: None,
            further: FurtherTurns::default(),
        };
        // It can only emit the phase of the prompt, which is reported when the prompt is
        // written.
        let mut emitted = Vec::new();
        session.queue_message(opening, &mut emitted);
        session
    }

    pub(super) fn push_stdout(&mut self, bytes: &[u8]) {
        self.translator.push_stdout(bytes);
    }

    /// The events of the next complete line.
    pub(super) fn next_events(&mut self) -> Option<Vec<AgentSessionEvent>> {
        let events = self.translator.next_events()?;
        Some(self.apply_events(events))
    }

    /// Bytes of a line that is not complete yet.
    pub(super) fn partial_line_bytes(&self) -> u64 {
        self.translator.buffered_bytes() as u64
    }

    pub(super) fn on_exit(&mut self, exit: AgentExit, stderr: &str) -> Vec<AgentSessionEvent> {
        let events = self.translator.on_exit(exit, stderr);
        let emitted = self.apply_events(events);
        let (malformed, mended) = (self.malformed, self.mended);
        if malformed + mended > 1 {
            warn!(attempt_id = %self.attempt_id, malformed, mended, "the agent printed lines that are not valid messages");
        }
        emitted
    }

    /// Answers an input. `None` when no such input is open, or when other answers have to come
    /// first.
    pub(super) fn answer_input(
        &mut self,
        response: InputResponse,
    ) -> Option<Vec<AgentSessionEvent>> {
        let (input, answer) = match response {
            InputResponse::Decision(decision) => {
                let open = self.mark_answered(&decision.input_id)?;
                let answer = permission_answer(&decision, &open);
                (open.key, answer)
            }
            InputResponse::Answer(answer) => {
                let open = self.mark_answered(&answer.input_id)?;
                let answer = self.collect_reply(&open, answer)?;
                (open.key, answer)
            }
        };
        let message = self.translator.answer_message(&input, &answer)?;
        self.answers += 1;
        let mut emitted = Vec::new();
        self.queue_message(message, &mut emitted);
        Some(emitted)
    }

    /// Asks the agent to end its turn, if its protocol can do that. Like an answer, the message
    /// is stored before it is sent: the next daemon must not give its number to another
    /// message.
    pub(super) fn interrupt_turn(&mut self) -> Option<Vec<AgentSessionEvent>> {
        let messages = self.translator.interrupt_messages();
        if messages.is_empty() || self.latest_ending().is_some() {
            return None;
        }
        self.answers += 1;
        let mut emitted = Vec::new();
        for message in messages {
            self.queue_message(message, &mut emitted);
        }
        Some(emitted)
    }

    fn mark_answered(&mut self, input_id: &str) -> Option<OpenInput> {
        let open = self.inputs.get_mut(input_id)?;
        open.answered = true;
        Some(open.clone())
    }

    fn collect_reply(
        &mut self,
        open: &OpenInput,
        answer: QuestionAnswer,
    ) -> Option<AgentInputAnswer> {
        if answer.outcome() != InputOutcome::Answered {
            return Some(AgentInputAnswer::None);
        }
        let replies = self.replies.get_mut(&open.key)?;
        let reply = QuestionResponse {
            labels: answer.labels,
            text: answer.text,
        };
        *replies.get_mut(open.index)? = Some(reply);
        replies
            .iter()
            .cloned()
            .collect::<Option<_>>()
            .map(AgentInputAnswer::Replies)
    }

    /// The number of the message that holds the prompt, once there is one.
    pub(super) fn prompt_message_id(&self) -> Option<u64> {
        self.prompt
    }

    /// The session was read from the disk, so none of its messages has to wait to be stored.
    pub(super) fn mark_answers_stored(&mut self) {
        self.answers = 0;
        for unsent in &mut self.unsent {
            unsent.after_answers = 0;
        }
        self.unread_bytes = self
            .unsent
            .iter()
            .map(|unsent| self.unread_size(unsent))
            .sum();
    }

    pub(super) fn answer_count(&self) -> u64 {
        self.answers
    }

    pub(super) fn open_tools(&self) -> impl Iterator<Item = &String> {
        self.open_tools.iter()
    }

    pub(super) fn open_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Once the turn has ended: whether its process may take a moment to exit. Not after a
    /// failed turn.
    pub(super) fn may_exit_by_itself(&self) -> Option<bool> {
        let end = self.end.as_ref()?;
        Some(!matches!(end.outcome, agents::TurnOutcome::Failed(_)))
    }

    pub(super) fn summary(&self) -> AgentSummary {
        AgentSummary {
            end: self.latest_ending().cloned(),
            conversation: self.conversation.clone(),
            used_before: self.used_before(),
        }
    }

    fn apply_events(&mut self, events: Vec<AgentEvent>) -> Vec<AgentSessionEvent> {
        let mut emitted = Vec::new();
        for event in events {
            self.apply_event(event, &mut emitted);
        }
        emitted
    }

    fn apply_event(&mut self, event: AgentEvent, emitted: &mut Vec<AgentSessionEvent>) {
        match event {
            // Reported when the message that holds the prompt is written.
            AgentEvent::Phase(TurnPhase::PromptWritten) => {}
            AgentEvent::Phase(TurnPhase::FirstEventSeen) => {
                emitted.push(AgentSessionEvent::Phase(OneTimePhase::FirstEventSeen));
            }
            AgentEvent::Phase(TurnPhase::FirstVisibleEventSeen) => {
                emitted.push(AgentSessionEvent::Phase(
                    OneTimePhase::FirstVisibleEventSeen,
                ));
            }
            AgentEvent::Output(output) => {
                let label = OutputLabel {
                    kind: output.kind,
                    visible: output.visible,
                    tool_call_id: output.tool.as_deref().map(truncate_id).unwrap_or_default(),
                    before_prompt: false,
                };
                let text = self.format_output(&label, output.text);
                emitted.push(AgentSessionEvent::Output(label, text));
            }
            AgentEvent::ToolStarted { id, name } => {
                let (id, name) = (truncate_id(&id), truncate_id(&name));
                if !id.is_empty() && self.open_tools.insert(id.clone()) {
                    emitted.push(AgentSessionEvent::Notice(AgentNotice::ToolStarted {
                        id,
                        name,
                    }));
                }
            }
            AgentEvent::ToolFinished { id, failed } => {
                let id = truncate_id(&id);
                if self.open_tools.remove(&id) {
                    emitted.push(AgentSessionEvent::Notice(AgentNotice::ToolFinished {
                        id,
                        failed,
                    }));
                }
            }
            AgentEvent::InputAsked(input) => self.open_request(&input, emitted),
            AgentEvent::InputAnswered { key } => self.close_answered(&key, emitted),
            AgentEvent::InputWithdrawn { key, reason } => {
                let withdrawn = |input_id| AgentNotice::InputWithdrawn {
                    input_id,
                    reason: reason.clone(),
                };
                let ids = self.close_inputs(&key).into_keys();
                emitted.extend(ids.map(withdrawn).map(AgentSessionEvent::Notice));
            }
            AgentEvent::Conversation(id) => {
                // Reported with the end: the relay needs it for the next turn and not earlier.
                self.conversation = Some(id);
            }
            AgentEvent::Write(message) => self.queue_within_turn(message, emitted),
            AgentEvent::Malformed { line } => {
                self.malformed += 1;
                self.log_odd_line(line);
            }
            AgentEvent::Repaired { line } => {
                self.mended += 1;
                self.log_odd_line(line);
            }
            AgentEvent::LineCut { length } => emitted.push(AgentSessionEvent::LineCut(length)),
            AgentEvent::Ended(end) => self.on_turn_end(end, emitted),
        }
    }

    /// The agent has received all answers to questions that were asked together, or none of them.
    /// Those without an answer are withdrawn.
    fn close_answered(&mut self, key: &InputKey, emitted: &mut Vec<AgentSessionEvent>) {
        let closed = self.close_inputs(key).into_iter();
        let notices = closed.map(|(input_id, open)| match open.answered {
            true => AgentNotice::InputReceived { input_id },
            false => AgentNotice::InputWithdrawn {
                input_id,
                reason: "the questions of the same request were closed".to_owned(),
            },
        });
        emitted.extend(notices.map(AgentSessionEvent::Notice));
    }

    /// Logs only the first invalid line; their number is logged at the end.
    fn log_odd_line(&self, line: u64) {
        let (malformed, mended) = (self.malformed, self.mended);
        if malformed + mended == 1 {
            warn!(attempt_id = %self.attempt_id, line, malformed, mended, "the agent printed a line that is not a valid message");
        }
    }

    /// Text is passed on as it comes; everything else begins on a line of its own. Invisible
    /// output does not break visible text.
    fn format_output(&mut self, label: &OutputLabel, text: String) -> String {
        let flows = matches!(label.kind, OutputKind::Text | OutputKind::Thinking);
        let mut text = text;
        if !flows && !text.ends_with('\n') {
            text.push('\n');
        }
        if label.visible {
            if self.mid_line && !flows {
                text.insert(0, '\n');
            }
            self.mid_line = !text.ends_with('\n');
        }
        text
    }

    /// Opens one input for a permission, or one for each question. A request that cannot be
    /// shown to people is answered at once, without an answer.
    fn open_request(&mut self, input: &AgentInput, emitted: &mut Vec<AgentSessionEvent>) {
        let tool = input
            .tool_call_id
            .as_deref()
            .map(truncate_id)
            .unwrap_or_default();
        match &input.kind {
            AgentInputKind::Permission(permission) => {
                let input_id = self.open_input(&input.key, 0, Some(permission.digest));
                let request = permission_request(input_id, tool, permission);
                emitted.push(AgentSessionEvent::Notice(AgentNotice::Permission(request)));
            }
            AgentInputKind::Questions(questions) if questions.iter().all(is_askable) => {
                self.asked += 1;
                let group = self.derive_id("group");
                self.replies
                    .insert(input.key.clone(), vec![None; questions.len()]);
                for (index, question) in questions.iter().enumerate() {
                    let input_id = self.open_input(&input.key, index, None);
                    let mut question = question_frame(input_id, &tool, question);
                    if questions.len() > 1 {
                        question.group_id = group.clone();
                        question.group_size = u32::try_from(questions.len()).unwrap_or(u32::MAX);
                    }
                    emitted.push(AgentSessionEvent::Notice(AgentNotice::Question(question)));
                }
            }
            AgentInputKind::Questions(_) => {
                if let Some(message) = self
                    .translator
                    .answer_message(&input.key, &AgentInputAnswer::None)
                {
                    self.queue_message(message, emitted);
                }
            }
        }
    }

    fn open_input(&mut self, key: &InputKey, index: usize, digest: Option<[u8; 32]>) -> String {
        self.asked += 1;
        let id = self.derive_id("input");
        let open = OpenInput {
            key: key.clone(),
            index,
            digest,
            answered: false,
        };
        self.inputs.insert(id.clone(), open);
        id
    }

    /// The same request gets the same id from every daemon that reads it.
    fn derive_id(&self, what: &str) -> String {
        let name = format!("{} {what} {}", self.attempt_id, self.asked);
        let digest = Sha256::digest(name.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        let id = uuid::Builder::from_bytes(bytes)
            .with_variant(uuid::Variant::RFC4122)
            .with_version(uuid::Version::Custom);
        id.into_uuid().to_string()
    }

    fn close_inputs(&mut self, key: &InputKey) -> BTreeMap<String, OpenInput> {
        self.replies.remove(key);
        let (closed, open) = std::mem::take(&mut self.inputs)
            .into_iter()
            .partition(|(_, input)| input.key == *key);
        self.inputs = open;
        closed
    }
}

/// What an agent has reported by its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentSummary {
    pub(crate) end: Option<agents::TurnEnding>,
    pub(crate) conversation: Option<String>,
    /// What turns before an unfinished one have used.
    pub(crate) used_before: Option<TurnUsage>,
}
#[cfg(test)]
mod tests;
