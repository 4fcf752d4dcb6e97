//! The talk with a coding agent: what it prints becomes what is told of it, what it asks gets an id that people can
//! answer, and what it has to be told is numbered for its stdin. Pure, and stored whole between any two lines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use baton_proto::v1::{
    InputOutcome, OutputKind, PermissionDecision, PermissionRequest, QuestionAnswer,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::agents::{
    self, AgentEvent, AgentExit, Answer, Ask, Input, InputKey, Reply, Translator, TurnPhase,
    TurnUsage,
};
use crate::outbox::Label;
use crate::phases::OncePhase;

mod forms;
mod further;
mod stdin;

use forms::{can_be_asked, clip, decided, permission_request, question_frame};
use further::Further;
use stdin::Unsent;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Talk {
    attempt_id: String,
    translator: Translator,
    /// Messages for stdin, each with its number, until they are known to be written.
    unsent: VecDeque<Unsent>,
    /// Bytes in them, without the prompt.
    #[serde(skip)]
    unread: usize,
    last_stdin: u64,
    /// The message that holds the prompt.
    prompt: Option<u64>,
    inputs: BTreeMap<String, OpenInput>,
    /// Replies to questions that are answered together.
    replies: BTreeMap<InputKey, Vec<Option<Reply>>>,
    asked: u64,
    /// Answers given so far.
    answers: u64,
    open_tools: BTreeSet<String>,
    conversation: Option<String>,
    malformed: u64,
    /// Lines of which some characters were none.
    #[serde(default)]
    mended: u64,
    /// The last visible output did not end its line.
    mid_line: bool,
    end: Option<agents::Ending>,
    #[serde(default)]
    further: Further,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OpenInput {
    key: InputKey,
    /// Which of the questions of one request.
    index: usize,
    /// Of a permission.
    digest: Option<[u8; 32]>,
    /// Somebody has answered it, and others that go with it are still open.
    #[serde(default)]
    answered: bool,
}

/// What is told of an agent.
#[derive(Debug)]
pub(super) enum Told {
    Phase(OncePhase),
    Output(Label, String),
    Said(Said),
    /// A line of this length was too long to be read.
    LineCut(u64),
}

/// What the supervisor says of it in frames of their own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    ToolStarted { id: String, name: String },
    ToolFinished { id: String, failed: bool },
    Permission(PermissionRequest),
    Question(baton_proto::v1::Question),
    InputReceived { input_id: String },
    InputWithdrawn { input_id: String, reason: String },
}

/// What the relay says to an input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    Decision(PermissionDecision),
    Answer(QuestionAnswer),
}

impl Word {
    pub(crate) fn input_id(&self) -> &str {
        match self {
            Self::Decision(decision) => &decision.input_id,
            Self::Answer(answer) => &answer.input_id,
        }
    }
}

impl Talk {
    pub(crate) fn new(attempt_id: &str, mut translator: Translator) -> Self {
        let opening = translator.opening();
        let mut talk = Self {
            attempt_id: attempt_id.to_owned(),
            translator,
            unsent: VecDeque::new(),
            unread: 0,
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
            further: Further::default(),
        };
        // Nothing but the phase of the prompt can come of it, and that is said when it is written.
        let mut told = Vec::new();
        talk.write(opening, &mut told);
        talk
    }

    pub(super) fn stdout(&mut self, bytes: &[u8]) {
        self.translator.stdout(bytes);
    }

    /// What the next whole line comes to.
    pub(super) fn next(&mut self) -> Option<Vec<Told>> {
        let events = self.translator.next()?;
        Some(self.digest(events))
    }

    /// Bytes of a line whose end has not come.
    pub(super) fn held(&self) -> u64 {
        self.translator.held() as u64
    }

    pub(super) fn exited(&mut self, exit: AgentExit, stderr: &str) -> Vec<Told> {
        let events = self.translator.exited(exit, stderr);
        let told = self.digest(events);
        let (malformed, mended) = (self.malformed, self.mended);
        if malformed + mended > 1 {
            warn!(attempt_id = %self.attempt_id, malformed, mended, "so many lines of the agent were no messages, or not quite");
        }
        told
    }

    /// Somebody's word. None when nothing of this id is open, or when more answers have to come first.
    pub(super) fn answer(&mut self, word: Word) -> Option<Vec<Told>> {
        let (input, answer) = match word {
            Word::Decision(decision) => {
                let open = self.hear(&decision.input_id)?;
                let answer = decided(&decision, &open);
                (open.key, answer)
            }
            Word::Answer(answer) => {
                let open = self.hear(&answer.input_id)?;
                let answer = self.replied(&open, answer)?;
                (open.key, answer)
            }
        };
        let message = self.translator.answer(&input, &answer)?;
        self.answers += 1;
        let mut told = Vec::new();
        self.write(message, &mut told);
        Some(told)
    }

    /// Asks the agent to end its turn, where its wire has words for that. Stored before it is said, like an answer: the
    /// next daemon must not give its number to another message.
    pub(super) fn interrupt(&mut self) -> Option<Vec<Told>> {
        let messages = self.translator.interrupt();
        if messages.is_empty() || self.last_end().is_some() {
            return None;
        }
        self.answers += 1;
        let mut told = Vec::new();
        for message in messages {
            self.write(message, &mut told);
        }
        Some(told)
    }

    fn hear(&mut self, input_id: &str) -> Option<OpenInput> {
        let open = self.inputs.get_mut(input_id)?;
        open.answered = true;
        Some(open.clone())
    }

    fn replied(&mut self, open: &OpenInput, answer: QuestionAnswer) -> Option<Answer> {
        if answer.outcome() != InputOutcome::Answered {
            return Some(Answer::None);
        }
        let replies = self.replies.get_mut(&open.key)?;
        let reply = Reply {
            labels: answer.labels,
            text: answer.text,
        };
        *replies.get_mut(open.index)? = Some(reply);
        replies
            .iter()
            .cloned()
            .collect::<Option<_>>()
            .map(Answer::Replies)
    }

    /// Number of the message that holds the prompt, once there is one.
    pub(super) fn prompt(&self) -> Option<u64> {
        self.prompt
    }

    /// It was read from where it was stored: nothing in it has to wait for that.
    pub(super) fn answers_are_stored(&mut self) {
        self.answers = 0;
        for unsent in &mut self.unsent {
            unsent.after_answers = 0;
        }
        self.unread = self.unsent.iter().map(|unsent| self.weight(unsent)).sum();
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    pub(super) fn open_tools(&self) -> impl Iterator<Item = &String> {
        self.open_tools.iter()
    }

    pub(super) fn open_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Once the turn is over: whether its process may take a moment to end by itself. One whose turn failed may not.
    pub(super) fn linger(&self) -> Option<bool> {
        let end = self.end.as_ref()?;
        Some(!matches!(end.outcome, agents::Outcome::Failed(_)))
    }

    pub(super) fn spoken(&self) -> Spoken {
        Spoken {
            end: self.last_end().cloned(),
            conversation: self.conversation.clone(),
            used_before: self.used_before(),
        }
    }

    fn digest(&mut self, events: Vec<AgentEvent>) -> Vec<Told> {
        let mut told = Vec::new();
        for event in events {
            self.take(event, &mut told);
        }
        told
    }

    fn take(&mut self, event: AgentEvent, told: &mut Vec<Told>) {
        match event {
            // Said when the message that holds it is written.
            AgentEvent::Phase(TurnPhase::PromptWritten) => {}
            AgentEvent::Phase(TurnPhase::FirstEventSeen) => {
                told.push(Told::Phase(OncePhase::FirstEventSeen));
            }
            AgentEvent::Phase(TurnPhase::FirstVisibleEventSeen) => {
                told.push(Told::Phase(OncePhase::FirstVisibleEventSeen));
            }
            AgentEvent::Output(output) => {
                let label = Label {
                    kind: output.kind,
                    visible: output.visible,
                    tool: output.tool.as_deref().map(clip).unwrap_or_default(),
                    before_prompt: false,
                };
                let text = self.lay_out(&label, output.text);
                told.push(Told::Output(label, text));
            }
            AgentEvent::ToolStarted { id, name } => {
                let (id, name) = (clip(&id), clip(&name));
                if !id.is_empty() && self.open_tools.insert(id.clone()) {
                    told.push(Told::Said(Said::ToolStarted { id, name }));
                }
            }
            AgentEvent::ToolFinished { id, failed } => {
                let id = clip(&id);
                if self.open_tools.remove(&id) {
                    told.push(Told::Said(Said::ToolFinished { id, failed }));
                }
            }
            AgentEvent::InputAsked(input) => self.ask(&input, told),
            AgentEvent::InputAnswered { key } => {
                // Of questions that go together some may have had no answer: the agent was told of all or none.
                let heard = |(input_id, open): (String, OpenInput)| match open.answered {
                    true => Said::InputReceived { input_id },
                    false => Said::InputWithdrawn {
                        input_id,
                        reason: "the questions that it was asked with are over".to_owned(),
                    },
                };
                let closed = self.close(&key).into_iter();
                told.extend(closed.map(heard).map(Told::Said));
            }
            AgentEvent::InputWithdrawn { key, reason } => {
                let withdrawn = |input_id| Said::InputWithdrawn {
                    input_id,
                    reason: reason.clone(),
                };
                let ids = self.close(&key).into_keys();
                told.extend(ids.map(withdrawn).map(Told::Said));
            }
            AgentEvent::Conversation(id) => {
                // Said with the end: the relay wants to know how to go on, not how it goes.
                self.conversation = Some(id);
            }
            AgentEvent::Write(message) => self.write_within_turn(message, told),
            AgentEvent::Malformed { line } => {
                self.malformed += 1;
                self.note_odd_line(line);
            }
            AgentEvent::Mended { line } => {
                self.mended += 1;
                self.note_odd_line(line);
            }
            AgentEvent::LineCut { length } => told.push(Told::LineCut(length)),
            AgentEvent::Ended(end) => self.on_turn_end(end, told),
        }
    }

    /// The first one is worth a word, and how many there were is said at the end.
    fn note_odd_line(&self, line: u64) {
        let (malformed, mended) = (self.malformed, self.mended);
        if malformed + mended == 1 {
            warn!(attempt_id = %self.attempt_id, line, malformed, mended, "the agent printed a line that is no message, or not quite");
        }
    }

    /// Words flow on; everything else, and whatever follows words, begins on a line of its own. What nobody sees does
    /// not break the words that somebody does.
    fn lay_out(&mut self, label: &Label, text: String) -> String {
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

    /// One input for a permission, one for each question. What cannot be put to people is answered at once: by nobody.
    fn ask(&mut self, input: &Input, told: &mut Vec<Told>) {
        let tool = input.tool_call_id.as_deref().map(clip).unwrap_or_default();
        match &input.ask {
            Ask::Permission(permission) => {
                let input_id = self.open(&input.key, 0, Some(permission.digest));
                let request = permission_request(input_id, tool, permission);
                told.push(Told::Said(Said::Permission(request)));
            }
            Ask::Questions(questions) if questions.iter().all(can_be_asked) => {
                self.asked += 1;
                let group = self.mint("group");
                self.replies
                    .insert(input.key.clone(), vec![None; questions.len()]);
                for (index, question) in questions.iter().enumerate() {
                    let input_id = self.open(&input.key, index, None);
                    let mut question = question_frame(input_id, &tool, question);
                    if questions.len() > 1 {
                        question.group_id = group.clone();
                        question.group_size = u32::try_from(questions.len()).unwrap_or(u32::MAX);
                    }
                    told.push(Told::Said(Said::Question(question)));
                }
            }
            Ask::Questions(_) => {
                if let Some(message) = self.translator.answer(&input.key, &Answer::None) {
                    self.write(message, told);
                }
            }
        }
    }

    fn open(&mut self, key: &InputKey, index: usize, digest: Option<[u8; 32]>) -> String {
        self.asked += 1;
        let id = self.mint("input");
        let open = OpenInput {
            key: key.clone(),
            index,
            digest,
            answered: false,
        };
        self.inputs.insert(id.clone(), open);
        id
    }

    /// The same id for the same request, whichever daemon reads it.
    fn mint(&self, what: &str) -> String {
        let name = format!("{} {what} {}", self.attempt_id, self.asked);
        let digest = Sha256::digest(name.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        let id = uuid::Builder::from_bytes(bytes)
            .with_variant(uuid::Variant::RFC4122)
            .with_version(uuid::Version::Custom);
        id.into_uuid().to_string()
    }

    fn close(&mut self, key: &InputKey) -> BTreeMap<String, OpenInput> {
        self.replies.remove(key);
        let (closed, open) = std::mem::take(&mut self.inputs)
            .into_iter()
            .partition(|(_, input)| input.key == *key);
        self.inputs = open;
        closed
    }
}

/// What an agent has said by its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spoken {
    pub(crate) end: Option<agents::Ending>,
    pub(crate) conversation: Option<String>,
    /// By turns before one that has not ended.
    pub(crate) used_before: Option<TurnUsage>,
}
#[cfg(test)]
mod tests;
