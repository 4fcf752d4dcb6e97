//! `codex app-server`: JSON-RPC without a version field. A thread is opened and a turn is
//! started in it. Its progress comes as notifications until `turn/completed`, which
//! `notifications` handles.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::agent_event::{AgentEvent, AgentExit, AgentInputAnswer, InputKey, StdinMessage};
use super::super::json_rpc::{OversizedMessage, RpcDialect, RpcMessage, text_at};
use super::super::recent_memory::{RecentIds, RecentTexts};
use super::super::turn_state::TurnState;
use super::inputs;
use super::thread_totals::ThreadTotals;
use crate::agents::outcome::failure;
use crate::agents::outcome::failure::{
    ANSWER_TOO_LONG, FailureClass, TurnFailure, provider_failure,
};

pub(super) const WIRE: RpcDialect = RpcDialect::Bare;

/// Parameters for opening the thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CodexOpening {
    pub(crate) prompt: String,
    pub(crate) cwd: String,
    pub(crate) resume: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) effort: Option<String>,
    pub(crate) instructions: Option<String>,
    /// read-only, workspace-write or danger-full-access.
    pub(crate) sandbox: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CodexAppServer {
    pub(super) turn: TurnState,
    pub(super) opening: CodexOpening,
    /// Our open requests by id. A response without an entry is unexpected.
    waiting: BTreeMap<String, AppServerRequest>,
    next_id: u64,
    pub(super) turn_id: Option<String>,
    /// The model that the thread was opened with.
    pub(super) model: Option<String>,
    /// Messages whose text was streamed in pieces.
    #[serde(default, rename = "in_pieces")]
    pub(super) streamed_items: RecentIds,
    /// Changes of file-change items. The approval request does not repeat them.
    #[serde(default = "RecentTexts::lost")]
    pub(super) file_changes: RecentTexts,
    /// Command lines of command items, for the same reason.
    #[serde(default = "RecentTexts::lost")]
    pub(super) command_lines: RecentTexts,
    /// Open tool calls that run other agents.
    #[serde(default)]
    pub(super) helpers: BTreeSet<String>,
    #[serde(flatten)]
    pub(super) totals: ThreadTotals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum AppServerRequest {
    Initialize,
    OpenThread,
    StartTurn,
    Other,
}

impl CodexAppServer {
    pub(crate) fn new(opening: CodexOpening) -> Self {
        Self {
            turn: TurnState::default(),
            opening,
            waiting: BTreeMap::new(),
            next_id: 0,
            turn_id: None,
            model: None,
            streamed_items: RecentIds::default(),
            file_changes: RecentTexts::default(),
            command_lines: RecentTexts::default(),
            helpers: BTreeSet::new(),
            totals: ThreadTotals::default(),
        }
    }

    pub(in crate::agents) fn initialize_request() -> StdinMessage {
        let client =
            json!({"name": "baton", "title": "Baton", "version": env!("CARGO_PKG_VERSION")});
        WIRE.request(0, "initialize", json!({"clientInfo": client}))
    }

    pub(in crate::agents) fn on_message(
        &mut self,
        json: &str,
        message: &Value,
        out: &mut Vec<AgentEvent>,
    ) -> bool {
        match RpcMessage::read(message) {
            Some(RpcMessage::Request { id, method, params }) => {
                self.on_request(id, method, params, out)
            }
            Some(RpcMessage::Notification { method, params }) => {
                self.on_notification(json, method, params, out)
            }
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
                self.on_error(request.unwrap_or(AppServerRequest::Other), error, out);
            }
            None => return false,
        }
        true
    }

    /// A message was too long to be read. A resumed thread comes completely in one line.
    pub(in crate::agents) fn on_oversized_message(
        &mut self,
        cut: &OversizedMessage,
        out: &mut Vec<AgentEvent>,
    ) {
        let class = match cut.resolve_waiting(WIRE, &mut self.waiting, out) {
            Some(AppServerRequest::OpenThread) if self.opening.resume.is_some() => {
                FailureClass::ResumeFailed
            }
            Some(AppServerRequest::Initialize | AppServerRequest::OpenThread) => {
                FailureClass::OutputInvalid
            }
            // The start of a turn is also reported by a notification.
            Some(AppServerRequest::StartTurn | AppServerRequest::Other) | None => return,
        };
        self.turn
            .fail_turn(TurnFailure::new(class, ANSWER_TOO_LONG), out);
    }

    fn on_result(&mut self, request: AppServerRequest, result: &Value, out: &mut Vec<AgentEvent>) {
        match request {
            AppServerRequest::Initialize => {
                out.push(AgentEvent::Write(WIRE.notification("initialized", None)));
                out.push(AgentEvent::Write(self.open_thread_request()));
            }
            AppServerRequest::OpenThread => {
                let model = text_at(result, "/model");
                self.model = Some(model.to_owned()).filter(|model| !model.is_empty());
                self.on_thread(text_at(result, "/thread/id"), out);
            }
            AppServerRequest::StartTurn => self.on_turn_id(text_at(result, "/turn/id")),
            AppServerRequest::Other => {}
        }
    }

    fn on_thread(&mut self, id: &str, out: &mut Vec<AgentEvent>) {
        match &self.opening.resume {
            Some(requested) if requested != id => {
                let message = format!("codex opened thread {id} instead of {requested}");
                self.turn
                    .fail_turn(TurnFailure::new(FailureClass::ResumeFailed, message), out);
            }
            Some(_) | None => {
                self.turn.set_conversation(id, out);
                out.push(AgentEvent::Write(self.start_turn_request(id)));
            }
        }
    }

    pub(super) fn on_turn_id(&mut self, id: &str) {
        if !id.is_empty() && self.turn_id.as_deref() != Some(id) {
            self.turn_id = Some(id.to_owned());
            self.totals.begin_turn();
        }
    }

    fn on_error(&mut self, request: AppServerRequest, error: &Value, out: &mut Vec<AgentEvent>) {
        let message = text_at(error, "/message");
        match request {
            AppServerRequest::Initialize | AppServerRequest::OpenThread => {
                let resuming =
                    request == AppServerRequest::OpenThread && self.opening.resume.is_some();
                let class = match provider_failure(None, "", message).class {
                    FailureClass::ProviderError if resuming => FailureClass::ResumeFailed,
                    FailureClass::ProviderError => FailureClass::OutputInvalid,
                    known => known,
                };
                self.turn.fail_turn(TurnFailure::new(class, message), out);
            }
            AppServerRequest::StartTurn => self
                .turn
                .fail_turn(provider_failure(None, "", message), out),
            AppServerRequest::Other => {}
        }
    }

    fn open_thread_request(&self) -> StdinMessage {
        let CodexOpening {
            cwd,
            resume,
            model,
            instructions,
            sandbox,
            ..
        } = &self.opening;
        // With full access the agent has nothing to ask permission for.
        let may_ask = sandbox.as_deref() != Some("danger-full-access");
        let mut params = Map::new();
        params.insert("cwd".to_owned(), json!(cwd));
        params.insert(
            "approvalPolicy".to_owned(),
            json!(if may_ask { "on-request" } else { "never" }),
        );
        params.insert(
            "sandbox".to_owned(),
            json!(sandbox.as_deref().unwrap_or("workspace-write")),
        );
        for (name, value) in [("model", model), ("developerInstructions", instructions)] {
            if let Some(value) = value {
                params.insert(name.to_owned(), json!(value));
            }
        }
        let method = match resume {
            Some(thread) => {
                params.insert("threadId".to_owned(), json!(thread));
                "thread/resume"
            }
            None => "thread/start",
        };
        WIRE.request(self.next_id, method, Value::Object(params))
    }

    /// A further turn keeps the effort of the first one.
    pub(in crate::agents) fn further_prompt(&self, prompt: &str) -> Option<StdinMessage> {
        let params = turn_params(self.turn.conversation()?, prompt);
        Some(WIRE.request(self.next_id, "turn/start", params))
    }

    fn start_turn_request(&self, thread: &str) -> StdinMessage {
        let mut params = turn_params(thread, &self.opening.prompt);
        if let Some(effort) = &self.opening.effort {
            params["effort"] = json!(effort);
        }
        WIRE.request(self.next_id, "turn/start", params)
    }

    pub(in crate::agents) fn on_written(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        match RpcMessage::read(message) {
            Some(RpcMessage::Request { id, method, .. }) => {
                let request = match method {
                    "initialize" => AppServerRequest::Initialize,
                    "thread/start" | "thread/resume" => {
                        self.opening.instructions = None;
                        AppServerRequest::OpenThread
                    }
                    "turn/start" => {
                        self.opening.prompt = String::new();
                        if !self.turn.is_running() {
                            self.turn_id = None;
                        }
                        self.turn.on_prompt_written(out);
                        AppServerRequest::StartTurn
                    }
                    "turn/interrupt" => {
                        self.turn.mark_interrupted();
                        AppServerRequest::Other
                    }
                    _ => AppServerRequest::Other,
                };
                self.next_id = self.next_id.max(id.as_u64().unwrap_or(0) + 1);
                self.waiting.insert(id.to_string(), request);
            }
            Some(RpcMessage::Result { id, .. } | RpcMessage::Error { id, .. }) => {
                self.turn.close_answered(&InputKey(id.to_string()), out);
            }
            Some(RpcMessage::Notification { .. }) | None => {}
        }
    }

    pub(in crate::agents) fn answer_message(
        &self,
        key: &InputKey,
        answer: &AgentInputAnswer,
    ) -> Option<StdinMessage> {
        inputs::answer_message(self.turn.answer_context(key)?, answer)
    }

    pub(in crate::agents) fn interrupt_messages(&self) -> Vec<StdinMessage> {
        let (Some(thread), Some(turn)) = (self.turn.conversation(), &self.turn_id) else {
            return Vec::new();
        };
        let params = json!({"threadId": thread, "turnId": turn});
        vec![WIRE.request(self.next_id, "turn/interrupt", params)]
    }

    pub(in crate::agents) fn on_exit(
        &mut self,
        exit: AgentExit,
        stderr: &str,
        out: &mut Vec<AgentEvent>,
    ) {
        let resuming = self.opening.resume.is_some();
        let failure = || failure::exit_failure(exit, resuming, stderr);
        self.turn.on_process_end(failure, out);
    }
}

fn turn_params(thread: &str, prompt: &str) -> Value {
    let input = json!([{"type": "text", "text": prompt}]);
    json!({"threadId": thread, "input": input})
}
