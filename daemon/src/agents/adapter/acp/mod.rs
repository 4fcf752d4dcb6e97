//! Any agent that implements the Agent Client Protocol, version 1: JSON-RPC over stdio. A
//! session is created or resumed, a prompt is sent, and the response to it ends the turn.

mod inputs;
mod prompt_result;
mod session_opening;
mod session_updates;
mod tool_calls;

use std::collections::BTreeMap;

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agent_event::{AgentEvent, AgentExit, AgentInputAnswer, InputKey, StdinMessage};
use super::json_rpc::{METHOD_NOT_FOUND, OversizedMessage, RpcDialect, RpcMessage, text_at};
use super::turn_state::{MAX_RESULT_BYTES, TurnState, truncate};
use crate::agents::outcome::failure;
use crate::agents::outcome::failure::{ANSWER_TOO_LONG, FailureClass, TurnFailure};
use crate::agents::outcome::turn_usage::{DollarAmount, TokenCounts};
use tool_calls::AcpToolCalls;

pub(crate) use session_opening::{AcpOpening, LinkedFile};

const WIRE: RpcDialect = RpcDialect::Standard;

/// Bytes of one piece of text that are kept to recognize an error.
const MAX_PIECE_BYTES: usize = 4096;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AcpAdapter {
    turn: TurnState,
    opening: AcpOpening,
    /// Our open requests by id. A response without an entry is unexpected.
    waiting: BTreeMap<String, AcpRequest>,
    next_id: u64,
    /// The agent can also load the session if it does not implement resuming it.
    #[serde(default)]
    loads_instead: bool,
    /// Options that still have to be set before the prompt.
    settings: Vec<(String, Value)>,
    /// Cost of the session now, and before this turn; unknown if the session is older than the
    /// process.
    cost: Option<DollarAmount>,
    cost_before: Option<DollarAmount>,
    model: Option<String>,
    #[serde(rename = "beside")]
    program_signals: ProgramSignals,
    #[serde(default)]
    calls: AcpToolCalls,
    /// A permission was denied in this turn.
    denied: bool,
}

/// Output of the program that is not the agent's, used to recognize a failed turn that ends
/// normally.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct ProgramSignals {
    /// The last reported status is a system failure.
    broken: bool,
    /// The last text, if it belonged to no message: all its consecutive pieces.
    last: Option<String>,
    /// The last of those pieces.
    #[serde(default)]
    piece: String,
    /// The agent itself has sent a message or called a tool.
    #[serde(rename = "agent_was_heard")]
    agent_was_active: bool,
    /// The agent's messages have ids, so a text without an id is not the agent's.
    names_messages: bool,
    /// Usage of its model requests, if it is reported after each of them.
    #[serde(default)]
    used: Option<TokenCounts>,
}

impl ProgramSignals {
    fn remember_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let last = self.last.get_or_insert_default();
        let room = MAX_RESULT_BYTES.saturating_sub(last.len());
        last.push_str(truncate(text, room));
        self.piece = truncate(text, MAX_PIECE_BYTES).to_owned();
    }

    fn forget_text(&mut self) {
        self.last = None;
        self.piece.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum AcpRequest {
    Initialize,
    OpenSession,
    Set,
    Prompt,
    Other,
}

impl AcpAdapter {
    pub(crate) fn new(opening: AcpOpening) -> Self {
        let is_new_session = opening.resume.is_none();
        Self {
            turn: TurnState::default(),
            opening,
            waiting: BTreeMap::new(),
            next_id: 0,
            loads_instead: false,
            settings: Vec::new(),
            cost: is_new_session.then(DollarAmount::default),
            cost_before: None,
            model: None,
            program_signals: ProgramSignals::default(),
            calls: AcpToolCalls::default(),
            denied: false,
        }
    }

    pub(crate) fn on_message(
        &mut self,
        json: &str,
        message: &Value,
        out: &mut Vec<AgentEvent>,
    ) -> bool {
        match RpcMessage::read(message) {
            Some(RpcMessage::Request { id, method, params }) => {
                self.on_request(json, id, method, params, out);
            }
            Some(RpcMessage::Notification { method, params }) => match method {
                "session/update" => self.on_update(json, params, out),
                "$/cancel_request" => self.on_cancel_request(params, out),
                // About the agent itself, as are its extension methods.
                "auth/status_update" | "elicitation/complete" => self.turn.push_aside(json, out),
                _ if method.starts_with('_') => self.turn.push_aside(json, out),
                _ => self
                    .turn
                    .push_output(OutputKind::Opaque, false, json, None, out),
            },
            Some(RpcMessage::Result { id, result }) => match self.waiting.remove(&id.to_string()) {
                Some(request) => self.on_result(request, result, out),
                None => self
                    .turn
                    .push_output(OutputKind::Opaque, false, json, None, out),
            },
            Some(RpcMessage::Error { id, error }) => {
                let request = self.waiting.remove(&id.to_string());
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
                self.on_error(request.unwrap_or(AcpRequest::Other), error, out);
            }
            None => return false,
        }
        true
    }

    fn on_result(&mut self, request: AcpRequest, result: &Value, out: &mut Vec<AgentEvent>) {
        match request {
            AcpRequest::Initialize => self.on_initialized(result, out),
            AcpRequest::OpenSession => self.on_session(result, out),
            AcpRequest::Set => self.send_next_setting(out),
            AcpRequest::Prompt => self.on_prompt_result(result, out),
            AcpRequest::Other => {}
        }
    }

    /// A message was too long to be read.
    pub(crate) fn on_oversized_message(
        &mut self,
        cut: &OversizedMessage,
        out: &mut Vec<AgentEvent>,
    ) {
        let class = match cut.resolve_waiting(WIRE, &mut self.waiting, out) {
            Some(AcpRequest::OpenSession) if self.opening.resume.is_some() => {
                FailureClass::ResumeFailed
            }
            Some(
                AcpRequest::Initialize
                | AcpRequest::OpenSession
                | AcpRequest::Set
                | AcpRequest::Prompt,
            ) => FailureClass::OutputInvalid,
            Some(AcpRequest::Other) | None => return,
        };
        self.turn
            .fail_turn(TurnFailure::new(class, ANSWER_TOO_LONG), out);
    }

    /// The agent accesses files and terminals itself: the client capabilities exclude both.
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
                self.turn
                    .push_output(OutputKind::Opaque, false, json, None, out);
                let problem = format!("this client does not serve {method}");
                let refusal = WIRE.error_response(id, METHOD_NOT_FOUND, &problem);
                out.push(AgentEvent::Write(refusal));
            }
        }
    }

    pub(crate) fn on_written(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        match RpcMessage::read(message) {
            Some(RpcMessage::Request { id, method, .. }) => {
                let request = match method {
                    "initialize" => AcpRequest::Initialize,
                    "session/new" | "session/load" | "session/resume" => AcpRequest::OpenSession,
                    "session/set_mode" | "session/set_model" | "session/set_config_option" => {
                        AcpRequest::Set
                    }
                    "session/prompt" => {
                        self.on_prompt_written(out);
                        AcpRequest::Prompt
                    }
                    _ => AcpRequest::Other,
                };
                self.next_id = self.next_id.max(id.as_u64().unwrap_or(0) + 1);
                self.waiting.insert(id.to_string(), request);
            }
            Some(RpcMessage::Notification {
                method: "session/cancel",
                ..
            }) => {
                self.turn.mark_interrupted();
            }
            Some(RpcMessage::Result { id, result }) => {
                let key = InputKey(id.to_string());
                let context = self.turn.answer_context(&key);
                let denied = context.and_then(|context| inputs::denied_tool(context, result));
                self.turn.close_answered(&key, out);
                if let Some(tool) = denied {
                    self.denied = true;
                    // Not every agent reports the end of a denied tool.
                    self.turn.on_tool_finished(&tool, true, out);
                }
            }
            Some(RpcMessage::Error { id, .. }) => {
                self.turn.close_answered(&InputKey(id.to_string()), out)
            }
            Some(RpcMessage::Notification { .. }) | None => {}
        }
    }

    fn on_prompt_written(&mut self, out: &mut Vec<AgentEvent>) {
        self.opening.prompt = String::new();
        self.opening.instructions = None;
        self.opening.context.clear();
        if !self.turn.is_running() {
            self.program_signals = ProgramSignals::default();
            self.calls = AcpToolCalls::default();
            self.denied = false;
            self.cost_before = self.cost;
        }
        self.turn.on_prompt_written(out);
    }

    pub(crate) fn further_prompt(&self, prompt: &str) -> Option<StdinMessage> {
        let blocks = json!([{"type": "text", "text": prompt}]);
        let params = json!({"sessionId": self.turn.conversation()?, "prompt": blocks});
        Some(WIRE.request(self.next_id, "session/prompt", params))
    }

    pub(crate) fn answer_message(
        &self,
        key: &InputKey,
        answer: &AgentInputAnswer,
    ) -> Option<StdinMessage> {
        inputs::answer_message(self.turn.answer_context(key)?, answer)
    }

    /// After the cancellation, every open request has to be answered as canceled.
    pub(crate) fn interrupt_messages(&self) -> Vec<StdinMessage> {
        let Some(session) = self.turn.conversation() else {
            return Vec::new();
        };
        let cancel = WIRE.notification("session/cancel", Some(json!({"sessionId": session})));
        let open = self
            .turn
            .open_inputs()
            .filter_map(|key| inputs::cancel_message(self.turn.answer_context(key)?));
        std::iter::once(cancel).chain(open).collect()
    }

    pub(crate) fn on_exit(&mut self, exit: AgentExit, stderr: &str, out: &mut Vec<AgentEvent>) {
        let resuming = self.opening.resume.is_some();
        let failure = || failure::exit_failure(exit, resuming, stderr);
        self.turn.on_process_end(failure, out);
    }

    /// Whether the message belongs to our session or names none.
    fn is_own_session(&self, params: &Value) -> bool {
        let session = text_at(params, "/sessionId");
        session.is_empty()
            || self
                .turn
                .conversation()
                .is_none_or(|known| known == session)
    }
}
