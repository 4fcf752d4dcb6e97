//! Any agent that speaks the Agent Client Protocol, version 1: JSON-RPC over its stdio. A session is opened or taken up
//! again, one prompt is sent, and the answer to it is the end of the turn.

mod asking;
mod calls;
mod ending;
mod opening;
mod updates;

use std::collections::BTreeMap;

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::event::{AgentEvent, AgentExit, Answer, InputKey, Message};
use super::failure::{self, ANSWER_TOO_LONG, Failure, FailureClass};
use super::turn::{RESULT_MAX, Turn, cut};
use super::usage::{Dollars, Tokens};
use super::wire::{Cut, Dialect, METHOD_NOT_FOUND, Rpc, text};
use calls::Calls;

pub(crate) use opening::{Linked, Opening};

const WIRE: Dialect = Dialect::Standard;

/// Bytes of one piece of text that are kept, to tell an error by.
const PIECE_MAX: usize = 4096;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Acp {
    turn: Turn,
    opening: Opening,
    /// Requests of ours by id; an answer without one is nobody's.
    waiting: BTreeMap<String, Request>,
    next_id: u64,
    /// It could load the session too, should it not know how to resume it.
    #[serde(default)]
    loads_instead: bool,
    /// Options that are still to be set before the prompt.
    settings: Vec<(String, Value)>,
    /// The session's price now, and before this turn; unknown in one that is older than the process.
    cost: Option<Dollars>,
    cost_before: Option<Dollars>,
    model: Option<String>,
    beside: Beside,
    #[serde(default)]
    calls: Calls,
    /// A permission was denied in this turn.
    denied: bool,
}

/// What a program says beside its agent, from which one can tell that a normal end is none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Beside {
    /// It says that its system has failed, and has not taken that back.
    broken: bool,
    /// The last text, when it belonged to no message: all pieces of it that came in a row.
    last: Option<String>,
    /// The last of those pieces.
    #[serde(default)]
    piece: String,
    /// The agent itself has said or done something.
    agent_was_heard: bool,
    /// It gives its messages ids, so that one without is not the agent's.
    names_messages: bool,
    /// What its requests to the model used, where it says so behind each of them.
    #[serde(default)]
    used: Option<Tokens>,
}

impl Beside {
    fn note_words(&mut self, words: &str) {
        if words.is_empty() {
            return;
        }
        let last = self.last.get_or_insert_default();
        let room = RESULT_MAX.saturating_sub(last.len());
        last.push_str(cut(words, room));
        self.piece = cut(words, PIECE_MAX).to_owned();
    }

    fn forget_words(&mut self) {
        self.last = None;
        self.piece.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Request {
    Initialize,
    OpenSession,
    Set,
    Prompt,
    Other,
}

impl Acp {
    pub(crate) fn new(opening: Opening) -> Self {
        let fresh = opening.resume.is_none();
        Self {
            turn: Turn::default(),
            opening,
            waiting: BTreeMap::new(),
            next_id: 0,
            loads_instead: false,
            settings: Vec::new(),
            cost: fresh.then(Dollars::default),
            cost_before: None,
            model: None,
            beside: Beside::default(),
            calls: Calls::default(),
            denied: false,
        }
    }

    pub(super) fn line(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) -> bool {
        match Rpc::read(message) {
            Some(Rpc::Request { id, method, params }) => {
                self.on_request(json, id, method, params, out);
            }
            Some(Rpc::Notice { method, params }) => match method {
                "session/update" => self.on_update(json, params, out),
                "$/cancel_request" => self.on_cancel_request(params, out),
                // About itself, as its own methods are.
                "auth/status_update" | "elicitation/complete" => self.turn.aside(json, out),
                _ if method.starts_with('_') => self.turn.aside(json, out),
                _ => self.turn.say(OutputKind::Opaque, false, json, None, out),
            },
            Some(Rpc::Result { id, result }) => match self.waiting.remove(&id.to_string()) {
                Some(request) => self.on_result(request, result, out),
                None => self.turn.say(OutputKind::Opaque, false, json, None, out),
            },
            Some(Rpc::Error { id, error }) => {
                let request = self.waiting.remove(&id.to_string());
                self.turn.say(OutputKind::System, false, json, None, out);
                self.on_error(request.unwrap_or(Request::Other), error, out);
            }
            None => return false,
        }
        true
    }

    fn on_result(&mut self, request: Request, result: &Value, out: &mut Vec<AgentEvent>) {
        match request {
            Request::Initialize => self.on_initialized(result, out),
            Request::OpenSession => self.on_session(result, out),
            Request::Set => self.go_on(out),
            Request::Prompt => self.on_prompt_result(result, out),
            Request::Other => {}
        }
    }

    /// A message was too long to be read.
    pub(super) fn cut(&mut self, cut: &Cut, out: &mut Vec<AgentEvent>) {
        let class = match cut.settle(WIRE, &mut self.waiting, out) {
            Some(Request::OpenSession) if self.opening.resume.is_some() => {
                FailureClass::ResumeFailed
            }
            Some(Request::Initialize | Request::OpenSession | Request::Set | Request::Prompt) => {
                FailureClass::OutputInvalid
            }
            Some(Request::Other) | None => return,
        };
        self.turn.fail(Failure::new(class, ANSWER_TOO_LONG), out);
    }

    /// Files and terminals are the agent's own affair: this client has said that it serves neither.
    fn on_request(
        &mut self,
        json: &str,
        id: &Value,
        method: &str,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        match method {
            "session/request_permission" => self.on_permission(json, id, params, out),
            "elicitation/create" => self.on_elicitation(json, id, params, out),
            _ => {
                self.turn.say(OutputKind::Opaque, false, json, None, out);
                let problem = format!("this client does not serve {method}");
                let refusal = WIRE.refuse(id, METHOD_NOT_FOUND, &problem);
                out.push(AgentEvent::Write(refusal));
            }
        }
    }

    pub(super) fn wrote(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        match Rpc::read(message) {
            Some(Rpc::Request { id, method, .. }) => {
                let request = match method {
                    "initialize" => Request::Initialize,
                    "session/new" | "session/load" | "session/resume" => Request::OpenSession,
                    "session/set_mode" | "session/set_model" | "session/set_config_option" => {
                        Request::Set
                    }
                    "session/prompt" => {
                        self.on_prompt_written(out);
                        Request::Prompt
                    }
                    _ => Request::Other,
                };
                self.next_id = self.next_id.max(id.as_u64().unwrap_or(0) + 1);
                self.waiting.insert(id.to_string(), request);
            }
            Some(Rpc::Notice {
                method: "session/cancel",
                ..
            }) => {
                self.turn.interrupt();
            }
            Some(Rpc::Result { id, result }) => {
                let key = InputKey(id.to_string());
                let needs = self.turn.needs(&key);
                let denied = needs.and_then(|needs| asking::denied(needs, result));
                self.turn.answered(&key, out);
                if let Some(tool) = denied {
                    self.denied = true;
                    // Not every agent says so itself.
                    self.turn.tool_finished(&tool, true, out);
                }
            }
            Some(Rpc::Error { id, .. }) => self.turn.answered(&InputKey(id.to_string()), out),
            Some(Rpc::Notice { .. }) | None => {}
        }
    }

    fn on_prompt_written(&mut self, out: &mut Vec<AgentEvent>) {
        self.opening.prompt = String::new();
        self.opening.instructions = None;
        self.opening.context.clear();
        if !self.turn.is_running() {
            self.beside = Beside::default();
            self.calls = Calls::default();
            self.denied = false;
            self.cost_before = self.cost;
        }
        self.turn.prompt_written(out);
    }

    pub(super) fn further(&self, prompt: &str) -> Option<Message> {
        let blocks = json!([{"type": "text", "text": prompt}]);
        let params = json!({"sessionId": self.turn.conversation()?, "prompt": blocks});
        Some(WIRE.request(self.next_id, "session/prompt", params))
    }

    pub(super) fn answer(&self, key: &InputKey, answer: &Answer) -> Option<Message> {
        asking::answer(self.turn.needs(key)?, answer)
    }

    /// After it, what is still open has to be answered as canceled.
    pub(super) fn interrupt(&self) -> Vec<Message> {
        let Some(session) = self.turn.conversation() else {
            return Vec::new();
        };
        let cancel = WIRE.notice("session/cancel", Some(json!({"sessionId": session})));
        let open = self
            .turn
            .open_inputs()
            .filter_map(|key| asking::canceled(self.turn.needs(key)?));
        std::iter::once(cancel).chain(open).collect()
    }

    pub(super) fn exited(&mut self, exit: AgentExit, stderr: &str, out: &mut Vec<AgentEvent>) {
        let resuming = self.opening.resume.is_some();
        let failure = || failure::exit_failure(exit, resuming, stderr);
        self.turn.process_ended(failure, out);
    }

    /// Of our session, or of none.
    fn is_ours(&self, params: &Value) -> bool {
        let session = text(params, "/sessionId");
        session.is_empty()
            || self
                .turn
                .conversation()
                .is_none_or(|known| known == session)
    }
}
