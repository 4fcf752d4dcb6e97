//! `codex app-server`: JSON-RPC without its version tag. A thread is opened, one turn is started in it, and what
//! happens comes as notifications until `turn/completed`.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::agent_event::{
    AgentEvent, AgentExit, AgentInputAnswer, InputKey, StdinMessage, TurnOutcome,
};
use super::super::json_rpc::{OversizedMessage, RpcDialect, RpcMessage, text_at};
use super::super::recent_memory::{RecentIds, RecentTexts};
use super::super::turn_state::TurnState;
use super::thread_totals::ThreadTotals;
use super::{inputs, on_item, on_progress};
use crate::agents::outcome::failure;
use crate::agents::outcome::failure::{
    ANSWER_TOO_LONG, FailureClass, TurnFailure, provider_failure,
};
use crate::agents::outcome::turn_usage::TurnUsage;

pub(super) const WIRE: RpcDialect = RpcDialect::Bare;

/// What the thread is opened with.
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
    opening: CodexOpening,
    /// Requests of ours by id; an answer without one is nobody's.
    waiting: BTreeMap<String, AppServerRequest>,
    next_id: u64,
    turn_id: Option<String>,
    /// As the thread was opened with.
    model: Option<String>,
    /// Messages of which pieces have come.
    #[serde(default)]
    in_pieces: RecentIds,
    /// What a change of files would be: the request for leave does not repeat it.
    #[serde(default = "RecentTexts::lost")]
    pub(super) file_changes: RecentTexts,
    /// The same of commands.
    #[serde(default = "RecentTexts::lost")]
    pub(super) command_lines: RecentTexts,
    /// Open tools by which other agents work.
    #[serde(default)]
    helpers: BTreeSet<String>,
    #[serde(flatten)]
    totals: ThreadTotals,
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
            in_pieces: RecentIds::default(),
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

    /// A message was too long to be read. A thread that is taken up again comes whole, in one line.
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
            // That a turn has begun is said again.
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
            Some(wanted) if wanted != id => {
                let message = format!("codex opened thread {id} instead of {wanted}");
                self.turn
                    .fail_turn(TurnFailure::new(FailureClass::ResumeFailed, message), out);
            }
            Some(_) | None => {
                self.turn.set_conversation(id, out);
                out.push(AgentEvent::Write(self.start_turn_request(id)));
            }
        }
    }

    fn on_turn_id(&mut self, id: &str) {
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
        // With the whole machine in its hands it has nothing left to ask for.
        let asks = sandbox.as_deref() != Some("danger-full-access");
        let mut params = Map::new();
        params.insert("cwd".to_owned(), json!(cwd));
        params.insert(
            "approvalPolicy".to_owned(),
            json!(if asks { "on-request" } else { "never" }),
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

    /// The effort of the first turn goes on.
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

    fn on_notification(
        &mut self,
        json: &str,
        method: &str,
        params: &Value,
        out: &mut Vec<AgentEvent>,
    ) {
        let thread = text_at(params, "/threadId");
        let ours = self
            .turn
            .conversation()
            .is_none_or(|known| thread.is_empty() || known == thread);
        if !ours {
            self.on_other_thread(json, method, out);
            return;
        }
        let item = params.get("item").unwrap_or(&Value::Null);
        match method {
            "turn/started" => {
                self.on_turn_id(text_at(params, "/turn/id"));
                self.turn.mark_active(out);
            }
            "item/started" => {
                self.totals.on_item(item);
                self.remember_item(item);
                on_item(&mut self.turn, item, false, false, out);
                self.track_helper(item);
            }
            "item/completed" => {
                self.totals.on_item(item);
                let streamed = self.in_pieces.remove(text_at(item, "/id"));
                self.file_changes.remove(text_at(item, "/id"));
                self.command_lines.remove(text_at(item, "/id"));
                self.helpers.remove(text_at(item, "/id"));
                on_item(&mut self.turn, item, true, streamed, out);
            }
            _ if method.starts_with("item/") => self.on_delta(json, method, params, out),
            "thread/tokenUsage/updated" => {
                let this_turn = self.turn_id.as_deref() == Some(text_at(params, "/turnId"));
                let resumed = self.opening.resume.is_some();
                self.totals.on_usage(params, this_turn, resumed);
            }
            "serverRequest/resolved" => {
                let id = params.get("requestId").unwrap_or(&Value::Null);
                let key = InputKey(id.to_string());
                self.turn
                    .close_withdrawn(&key, "the agent withdrew it", out);
            }
            "turn/completed" if self.is_this_turn(params) => self.on_turn_completed(params, out),
            "turn/plan/updated" => {
                let plan = params.get("plan").unwrap_or(&Value::Null);
                self.turn
                    .push_output(OutputKind::System, true, plan.to_string(), None, out);
            }
            "model/rerouted" => {
                self.model = Some(text_at(params, "/toModel").to_owned());
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            "error" | "thread/status/changed" => {
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            _ if method.starts_with("turn/") || method.starts_with("hook/") => {
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            _ if is_program_notice(method) => self.turn.push_aside(json, out),
            _ => self
                .turn
                .push_output(OutputKind::Opaque, false, json, None, out),
        }
    }

    /// Threads of agents that it has asked for help: they live for the tools that wait for them.
    fn on_other_thread(&mut self, json: &str, method: &str, out: &mut Vec<AgentEvent>) {
        if self.helpers.is_empty() {
            self.turn
                .push_output(OutputKind::System, false, json, None, out);
        }
        let pieces = method.to_lowercase().ends_with("delta");
        for tool in &self.helpers {
            if pieces {
                self.turn.push_silent_activity(json, Some(tool), out);
            } else {
                self.turn
                    .push_output(OutputKind::System, false, json, Some(tool), out);
            }
        }
    }

    /// What an item would do, for the request for leave that need not repeat it.
    fn remember_item(&mut self, item: &Value) {
        let id = text_at(item, "/id");
        if let Some(changes) = item.get("changes") {
            self.file_changes.insert(id, changes.to_string());
        }
        if text_at(item, "/type") == "commandExecution" {
            let command = json!({"command": item.get("command"), "cwd": item.get("cwd")});
            self.command_lines.insert(id, command.to_string());
        }
    }

    /// Other agents work by a tool that is open.
    fn track_helper(&mut self, item: &Value) {
        let id = text_at(item, "/id");
        if text_at(item, "/type").starts_with("collab") && self.turn.is_tool_open(id) {
            self.helpers.insert(id.to_owned());
        }
    }

    /// Whether this is said of the turn that runs, as far as one can tell.
    fn is_this_turn(&self, params: &Value) -> bool {
        let told = text_at(params, "/turn/id");
        let known = self.turn_id.as_deref().unwrap_or(told);
        self.turn.is_running() && (told.is_empty() || told == known)
    }

    /// Pieces of an item.
    fn on_delta(&mut self, json: &str, method: &str, params: &Value, out: &mut Vec<AgentEvent>) {
        let (item, piece) = (text_at(params, "/itemId"), text_at(params, "/delta"));
        match method {
            "item/agentMessage/delta" => {
                self.in_pieces.insert(item);
                self.turn.push_text(piece, Some(item), out);
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.in_pieces.insert(item);
                self.turn
                    .push_output(OutputKind::Thinking, false, piece, None, out);
            }
            "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => {
                self.in_pieces.insert(item);
                self.turn
                    .push_output(OutputKind::ToolResult, true, piece, Some(item), out);
            }
            // What is to be allowed may still change before it is asked for.
            "item/fileChange/patchUpdated" => {
                let changes = params.get("changes").unwrap_or(&Value::Null);
                self.file_changes.insert(item, changes.to_string());
                on_progress(&mut self.turn, json, item, out);
            }
            _ => on_progress(&mut self.turn, json, item, out),
        }
    }

    fn on_turn_completed(&mut self, params: &Value, out: &mut Vec<AgentEvent>) {
        let usage = self.totals.end_turn().map(|tokens| TurnUsage {
            tokens,
            model: self.model.clone().or_else(|| self.opening.model.clone()),
            ..TurnUsage::default()
        });
        let outcome = match text_at(params, "/turn/status") {
            "completed" => TurnOutcome::Result(self.turn.last_text().to_owned()),
            "interrupted" => TurnOutcome::Interrupted,
            "failed" => TurnOutcome::Failed(turn_failure(params.pointer("/turn/error"))),
            other => TurnOutcome::Failed(TurnFailure::new(
                FailureClass::OutputInvalid,
                format!("codex ended the turn as {other:?}"),
            )),
        };
        self.file_changes.clear();
        self.command_lines.clear();
        self.helpers.clear();
        self.in_pieces.clear();
        self.turn.end_turn(outcome, usage, out);
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

/// About the program, the account or the thread as a whole: some of it comes right behind the answer that opens a
/// thread, when the prompt is on its way.
fn is_program_notice(method: &str) -> bool {
    let kinds = [
        "thread/",
        "account/",
        "model/",
        "mcpServer/",
        "remoteControl/",
    ];
    let words = [
        "warning",
        "configWarning",
        "guardianWarning",
        "deprecationNotice",
    ];
    words.contains(&method) || kinds.iter().any(|kind| method.starts_with(kind))
}

/// `codexErrorInfo` is a word, or an object with one key and perhaps a status under it.
fn turn_failure(error: Option<&Value>) -> TurnFailure {
    let error = error.unwrap_or(&Value::Null);
    let (kind, status) = match error.get("codexErrorInfo") {
        Some(Value::String(kind)) => (kind.as_str(), None),
        Some(Value::Object(info)) => info.iter().next().map_or(("", None), |(kind, details)| {
            let status = details.get("httpStatusCode").and_then(Value::as_u64);
            (kind.as_str(), status)
        }),
        Some(_) | None => ("", None),
    };
    provider_failure(status, kind, text_at(error, "/message"))
}
