//! `codex app-server`: JSON-RPC without its version tag. A thread is opened, one turn is started in it, and what
//! happens comes as notifications until `turn/completed`.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::event::{AgentEvent, AgentExit, Answer, InputKey, Message, Outcome};
use super::super::failure::{self, ANSWER_TOO_LONG, Failure, FailureClass, provider_failure};
use super::super::memory::{Ids, Texts};
use super::super::turn::Turn;
use super::super::usage::TurnUsage;
use super::super::wire::{Cut, Dialect, Rpc, text};
use super::totals::Totals;
use super::{approvals, on_item, on_progress};

pub(super) const WIRE: Dialect = Dialect::Bare;

/// What the thread is opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opening {
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
pub(crate) struct AppServer {
    pub(super) turn: Turn,
    opening: Opening,
    /// Requests of ours by id; an answer without one is nobody's.
    waiting: BTreeMap<String, Request>,
    next_id: u64,
    turn_id: Option<String>,
    /// As the thread was opened with.
    model: Option<String>,
    /// Messages of which pieces have come.
    #[serde(default)]
    in_pieces: Ids,
    /// What a change of files would be: the request for leave does not repeat it.
    #[serde(default = "Texts::lost")]
    pub(super) file_changes: Texts,
    /// The same of commands.
    #[serde(default = "Texts::lost")]
    pub(super) command_lines: Texts,
    /// Open tools by which other agents work.
    #[serde(default)]
    helpers: BTreeSet<String>,
    #[serde(flatten)]
    totals: Totals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Request {
    Initialize,
    OpenThread,
    StartTurn,
    Other,
}

impl AppServer {
    pub(crate) fn new(opening: Opening) -> Self {
        Self {
            turn: Turn::default(),
            opening,
            waiting: BTreeMap::new(),
            next_id: 0,
            turn_id: None,
            model: None,
            in_pieces: Ids::default(),
            file_changes: Texts::default(),
            command_lines: Texts::default(),
            helpers: BTreeSet::new(),
            totals: Totals::default(),
        }
    }

    pub(in super::super) fn greeting() -> Message {
        let client =
            json!({"name": "baton", "title": "Baton", "version": env!("CARGO_PKG_VERSION")});
        WIRE.request(0, "initialize", json!({"clientInfo": client}))
    }

    pub(in super::super) fn line(
        &mut self,
        json: &str,
        message: &Value,
        out: &mut Vec<AgentEvent>,
    ) -> bool {
        match Rpc::read(message) {
            Some(Rpc::Request { id, method, params }) => self.on_request(id, method, params, out),
            Some(Rpc::Notice { method, params }) => self.on_notice(json, method, params, out),
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

    /// A message was too long to be read. A thread that is taken up again comes whole, in one line.
    pub(in super::super) fn cut(&mut self, cut: &Cut, out: &mut Vec<AgentEvent>) {
        let class = match cut.settle(WIRE, &mut self.waiting, out) {
            Some(Request::OpenThread) if self.opening.resume.is_some() => {
                FailureClass::ResumeFailed
            }
            Some(Request::Initialize | Request::OpenThread) => FailureClass::OutputInvalid,
            // That a turn has begun is said again.
            Some(Request::StartTurn | Request::Other) | None => return,
        };
        self.turn.fail(Failure::new(class, ANSWER_TOO_LONG), out);
    }

    fn on_result(&mut self, request: Request, result: &Value, out: &mut Vec<AgentEvent>) {
        match request {
            Request::Initialize => {
                out.push(AgentEvent::Write(WIRE.notice("initialized", None)));
                out.push(AgentEvent::Write(self.open_thread()));
            }
            Request::OpenThread => {
                let model = text(result, "/model");
                self.model = Some(model.to_owned()).filter(|model| !model.is_empty());
                self.on_thread(text(result, "/thread/id"), out);
            }
            Request::StartTurn => self.on_turn_id(text(result, "/turn/id")),
            Request::Other => {}
        }
    }

    fn on_thread(&mut self, id: &str, out: &mut Vec<AgentEvent>) {
        match &self.opening.resume {
            Some(wanted) if wanted != id => {
                let message = format!("codex opened thread {id} instead of {wanted}");
                self.turn
                    .fail(Failure::new(FailureClass::ResumeFailed, message), out);
            }
            Some(_) | None => {
                self.turn.converses(id, out);
                out.push(AgentEvent::Write(self.start_turn(id)));
            }
        }
    }

    fn on_turn_id(&mut self, id: &str) {
        if !id.is_empty() && self.turn_id.as_deref() != Some(id) {
            self.turn_id = Some(id.to_owned());
            self.totals.turn_begins();
        }
    }

    fn on_error(&mut self, request: Request, error: &Value, out: &mut Vec<AgentEvent>) {
        let message = text(error, "/message");
        match request {
            Request::Initialize | Request::OpenThread => {
                let resuming = request == Request::OpenThread && self.opening.resume.is_some();
                let class = match provider_failure(None, "", message).class {
                    FailureClass::ProviderError if resuming => FailureClass::ResumeFailed,
                    FailureClass::ProviderError => FailureClass::OutputInvalid,
                    known => known,
                };
                self.turn.fail(Failure::new(class, message), out);
            }
            Request::StartTurn => self.turn.fail(provider_failure(None, "", message), out),
            Request::Other => {}
        }
    }

    fn open_thread(&self) -> Message {
        let Opening {
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
    pub(in super::super) fn further(&self, prompt: &str) -> Option<Message> {
        let params = turn_params(self.turn.conversation()?, prompt);
        Some(WIRE.request(self.next_id, "turn/start", params))
    }

    fn start_turn(&self, thread: &str) -> Message {
        let mut params = turn_params(thread, &self.opening.prompt);
        if let Some(effort) = &self.opening.effort {
            params["effort"] = json!(effort);
        }
        WIRE.request(self.next_id, "turn/start", params)
    }

    fn on_notice(&mut self, json: &str, method: &str, params: &Value, out: &mut Vec<AgentEvent>) {
        let thread = text(params, "/threadId");
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
                self.on_turn_id(text(params, "/turn/id"));
                self.turn.heard(out);
            }
            "item/started" => {
                self.totals.on_item(item);
                self.note_item(item);
                on_item(&mut self.turn, item, false, false, out);
                self.note_helper(item);
            }
            "item/completed" => {
                self.totals.on_item(item);
                let streamed = self.in_pieces.remove(text(item, "/id"));
                self.file_changes.remove(text(item, "/id"));
                self.command_lines.remove(text(item, "/id"));
                self.helpers.remove(text(item, "/id"));
                on_item(&mut self.turn, item, true, streamed, out);
            }
            _ if method.starts_with("item/") => self.on_piece(json, method, params, out),
            "thread/tokenUsage/updated" => {
                let this_turn = self.turn_id.as_deref() == Some(text(params, "/turnId"));
                let resumed = self.opening.resume.is_some();
                self.totals.on_usage(params, this_turn, resumed);
            }
            "serverRequest/resolved" => {
                let id = params.get("requestId").unwrap_or(&Value::Null);
                let key = InputKey(id.to_string());
                self.turn.withdrawn(&key, "the agent withdrew it", out);
            }
            "turn/completed" if self.is_this_turn(params) => self.on_turn_completed(params, out),
            "turn/plan/updated" => {
                let plan = params.get("plan").unwrap_or(&Value::Null);
                self.turn
                    .say(OutputKind::System, true, plan.to_string(), None, out);
            }
            "model/rerouted" => {
                self.model = Some(text(params, "/toModel").to_owned());
                self.turn.say(OutputKind::System, false, json, None, out);
            }
            "error" | "thread/status/changed" => {
                self.turn.say(OutputKind::System, false, json, None, out);
            }
            _ if method.starts_with("turn/") || method.starts_with("hook/") => {
                self.turn.say(OutputKind::System, false, json, None, out);
            }
            _ if is_aside(method) => self.turn.aside(json, out),
            _ => self.turn.say(OutputKind::Opaque, false, json, None, out),
        }
    }

    /// Threads of agents that it has asked for help: they live for the tools that wait for them.
    fn on_other_thread(&mut self, json: &str, method: &str, out: &mut Vec<AgentEvent>) {
        if self.helpers.is_empty() {
            self.turn.say(OutputKind::System, false, json, None, out);
        }
        let pieces = method.to_lowercase().ends_with("delta");
        for tool in &self.helpers {
            if pieces {
                self.turn.stirs(json, Some(tool), out);
            } else {
                self.turn
                    .say(OutputKind::System, false, json, Some(tool), out);
            }
        }
    }

    /// What an item would do, for the request for leave that need not repeat it.
    fn note_item(&mut self, item: &Value) {
        let id = text(item, "/id");
        if let Some(changes) = item.get("changes") {
            self.file_changes.insert(id, changes.to_string());
        }
        if text(item, "/type") == "commandExecution" {
            let command = json!({"command": item.get("command"), "cwd": item.get("cwd")});
            self.command_lines.insert(id, command.to_string());
        }
    }

    /// Other agents work by a tool that is open.
    fn note_helper(&mut self, item: &Value) {
        let id = text(item, "/id");
        if text(item, "/type").starts_with("collab") && self.turn.is_open(id) {
            self.helpers.insert(id.to_owned());
        }
    }

    /// Whether this is said of the turn that runs, as far as one can tell.
    fn is_this_turn(&self, params: &Value) -> bool {
        let told = text(params, "/turn/id");
        let known = self.turn_id.as_deref().unwrap_or(told);
        self.turn.is_running() && (told.is_empty() || told == known)
    }

    /// Pieces of an item.
    fn on_piece(&mut self, json: &str, method: &str, params: &Value, out: &mut Vec<AgentEvent>) {
        let (item, piece) = (text(params, "/itemId"), text(params, "/delta"));
        match method {
            "item/agentMessage/delta" => {
                self.in_pieces.insert(item);
                self.turn.speak(piece, Some(item), out);
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.in_pieces.insert(item);
                self.turn.say(OutputKind::Thinking, false, piece, None, out);
            }
            "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => {
                self.in_pieces.insert(item);
                self.turn
                    .say(OutputKind::ToolResult, true, piece, Some(item), out);
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
        let usage = self.totals.turn_ends().map(|tokens| TurnUsage {
            tokens,
            model: self.model.clone().or_else(|| self.opening.model.clone()),
            ..TurnUsage::default()
        });
        let outcome = match text(params, "/turn/status") {
            "completed" => Outcome::Result(self.turn.words().to_owned()),
            "interrupted" => Outcome::Interrupted,
            "failed" => Outcome::Failed(turn_failure(params.pointer("/turn/error"))),
            other => Outcome::Failed(Failure::new(
                FailureClass::OutputInvalid,
                format!("codex ended the turn as {other:?}"),
            )),
        };
        self.file_changes.clear();
        self.command_lines.clear();
        self.helpers.clear();
        self.in_pieces.clear();
        self.turn.end(outcome, usage, out);
    }

    pub(in super::super) fn wrote(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        match Rpc::read(message) {
            Some(Rpc::Request { id, method, .. }) => {
                let request = match method {
                    "initialize" => Request::Initialize,
                    "thread/start" | "thread/resume" => {
                        self.opening.instructions = None;
                        Request::OpenThread
                    }
                    "turn/start" => {
                        self.opening.prompt = String::new();
                        if !self.turn.is_running() {
                            self.turn_id = None;
                        }
                        self.turn.prompt_written(out);
                        Request::StartTurn
                    }
                    "turn/interrupt" => {
                        self.turn.interrupt();
                        Request::Other
                    }
                    _ => Request::Other,
                };
                self.next_id = self.next_id.max(id.as_u64().unwrap_or(0) + 1);
                self.waiting.insert(id.to_string(), request);
            }
            Some(Rpc::Result { id, .. } | Rpc::Error { id, .. }) => {
                self.turn.answered(&InputKey(id.to_string()), out);
            }
            Some(Rpc::Notice { .. }) | None => {}
        }
    }

    pub(in super::super) fn answer(&self, key: &InputKey, answer: &Answer) -> Option<Message> {
        approvals::answer(self.turn.needs(key)?, answer)
    }

    pub(in super::super) fn interrupt(&self) -> Vec<Message> {
        let (Some(thread), Some(turn)) = (self.turn.conversation(), &self.turn_id) else {
            return Vec::new();
        };
        let params = json!({"threadId": thread, "turnId": turn});
        vec![WIRE.request(self.next_id, "turn/interrupt", params)]
    }

    pub(in super::super) fn exited(
        &mut self,
        exit: AgentExit,
        stderr: &str,
        out: &mut Vec<AgentEvent>,
    ) {
        let resuming = self.opening.resume.is_some();
        let failure = || failure::exit_failure(exit, resuming, stderr);
        self.turn.process_ended(failure, out);
    }
}

fn turn_params(thread: &str, prompt: &str) -> Value {
    let input = json!([{"type": "text", "text": prompt}]);
    json!({"threadId": thread, "input": input})
}

/// About the program, the account or the thread as a whole: some of it comes right behind the answer that opens a
/// thread, when the prompt is on its way.
fn is_aside(method: &str) -> bool {
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
fn turn_failure(error: Option<&Value>) -> Failure {
    let error = error.unwrap_or(&Value::Null);
    let (kind, status) = match error.get("codexErrorInfo") {
        Some(Value::String(kind)) => (kind.as_str(), None),
        Some(Value::Object(info)) => info.iter().next().map_or(("", None), |(kind, details)| {
            let status = details.get("httpStatusCode").and_then(Value::as_u64);
            (kind.as_str(), status)
        }),
        Some(_) | None => ("", None),
    };
    provider_failure(status, kind, text(error, "/message"))
}
