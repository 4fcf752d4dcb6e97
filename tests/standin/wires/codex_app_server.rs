//! Codex with `app-server`: JSON-RPC without its version tag, a thread with turns, approvals as
//! requests with their own ids, running totals of usage.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::script::ScriptedQuestion;
use crate::script_player::{
    AgentWireProtocol, ClientAnswer, ClientMessage, OpenToolCall, ToolOutcome,
    is_known_conversation, new_conversation,
};
use crate::stdio_pipes::StdioPipes;
use crate::{split_in_half, text_at};

const MODEL: &str = "standin-1";
/// Reported usage of each model request: input, of that from the cache, output.
const USAGE_PER_REQUEST: [u64; 3] = [312, 200, 27];
/// A fixed time; it is never checked.
const NOW_MS: u64 = 1_700_000_000_000;

pub(crate) struct CodexAppServerWire {
    script: Option<String>,
    thread: String,
    turn: String,
    /// Its own requests are numbered separately.
    request_count: u64,
    /// Requests to the model, in this turn and in the thread.
    model_requests: u64,
    model_requests_in_thread: u64,
    last_message: Option<Value>,
    questions: Vec<String>,
    interrupt: Option<Value>,
}

impl CodexAppServerWire {
    pub(crate) fn new(script: Option<&str>) -> Self {
        Self {
            script: script.map(str::to_owned),
            thread: String::new(),
            turn: String::new(),
            request_count: 0,
            model_requests: 0,
            model_requests_in_thread: 0,
            last_message: None,
            questions: Vec::new(),
            interrupt: None,
        }
    }

    fn notify(&self, method: &str, params: Value, pipes: &mut StdioPipes) {
        pipes.send_message(&json!({"method": method, "params": params, "emittedAtMs": NOW_MS}));
    }

    fn send_status(&self, status: Value, pipes: &mut StdioPipes) {
        let about = json!({"threadId": self.thread, "status": status});
        self.notify("thread/status/changed", about, pipes);
    }

    fn send_item(&self, stage: &str, item: Value, pipes: &mut StdioPipes) {
        let mut item = item;
        let done = stage == "completed";
        item["startedAtMs"] = json!(NOW_MS);
        item["completedAtMs"] = if done { json!(NOW_MS) } else { Value::Null };
        let at = if done { "completedAtMs" } else { "startedAtMs" };
        let about = json!({"item": item, "threadId": self.thread, "turnId": self.turn, at: NOW_MS});
        self.notify(&format!("item/{stage}"), about, pipes);
    }

    fn send_delta(
        &self,
        method: &str,
        item: &str,
        delta: &str,
        more: Value,
        pipes: &mut StdioPipes,
    ) {
        let mut about = json!({
            "threadId": self.thread, "turnId": self.turn, "itemId": item, "delta": delta,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            about[key] = value.clone();
        }
        self.notify(method, about, pipes);
    }

    fn open_thread(&mut self, id: &Value, method: &str, params: &Value, pipes: &mut StdioPipes) {
        let thread_id = text_at(params, "/threadId");
        if method == "thread/resume" && !is_known_conversation(thread_id, self.script.as_deref()) {
            let message = format!("no rollout found for thread id {thread_id}");
            pipes.send_message(&json!({"error": {"code": -32600, "message": message}, "id": id}));
            return;
        }
        self.thread = match method {
            "thread/resume" => thread_id.to_owned(),
            _ => new_conversation(),
        };
        let cwd = text_at(params, "/cwd");
        let result = json!({
            "thread": thread_message(&self.thread, cwd), "model": MODEL, "modelProvider": "standin",
            "serviceTier": null, "disabledPluginIds": [], "cwd": cwd, "runtimeWorkspaceRoots": [cwd],
            "instructionSources": [], "approvalPolicy": text_at(params, "/approvalPolicy"),
            "approvalsReviewer": "user", "sandbox": {"type": "workspaceWrite", "networkAccess": false},
            "activePermissionProfile": null, "reasoningEffort": null, "multiAgentMode": "explicitRequestOnly",
        });
        pipes.send_message(&json!({"id": id, "result": result}));
        if method == "thread/start" {
            self.notify(
                "thread/started",
                json!({"thread": thread_message(&self.thread, cwd)}),
                pipes,
            );
        }
    }

    /// With `startedAt` once it runs, and the other times once it has ended.
    fn turn_message(&self, status: &str, error: Value, ended: bool) -> Value {
        let at = NOW_MS / 1_000;
        let items: Vec<Value> = self
            .last_message
            .clone()
            .into_iter()
            .filter(|_| ended)
            .collect();
        json!({
            "id": self.turn, "rootTurnId": self.turn, "items": items,
            "itemsView": if ended { "summary" } else { "notLoaded" }, "status": status, "error": error,
            "startedAt": at, "completedAt": ended.then_some(at), "durationMs": ended.then_some(1),
        })
    }

    fn send_usage(&mut self, pipes: &mut StdioPipes) {
        if std::mem::take(&mut self.model_requests) == 0 {
            return;
        }
        self.model_requests_in_thread += 1;
        let counted = |requests: u64| {
            let [input, cached, output] = USAGE_PER_REQUEST.map(|used| used * requests);
            json!({
                "totalTokens": input + output, "inputTokens": input, "cachedInputTokens": cached,
                "cacheWriteInputTokens": 0, "outputTokens": output, "reasoningOutputTokens": 0,
            })
        };
        let usage = json!({
            "total": counted(self.model_requests_in_thread), "last": counted(1), "modelContextWindow": 258_400,
        });
        let about = json!({"threadId": self.thread, "turnId": self.turn, "tokenUsage": usage});
        self.notify("thread/tokenUsage/updated", about, pipes);
    }

    fn complete_turn(&mut self, status: &str, error: Value, pipes: &mut StdioPipes) {
        self.send_usage(pipes);
        let state = if status == "failed" {
            "systemError"
        } else {
            "idle"
        };
        self.send_status(json!({"type": state}), pipes);
        let turn = self.turn_message(status, error, true);
        let about = json!({"threadId": self.thread, "turn": turn});
        self.notify("turn/completed", about, pipes);
    }

    fn send_request(
        &mut self,
        method: &str,
        mut params: Value,
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        let id = self.request_count;
        self.request_count += 1;
        params["threadId"] = json!(self.thread);
        params["turnId"] = json!(self.turn);
        params["startedAtMs"] = json!(NOW_MS);
        pipes.send_message(&json!({"method": method, "id": id, "params": params}));
        Some(id.to_string())
    }

    fn parse_answer(&self, result: &Value) -> ClientAnswer {
        match text_at(result, "/decision") {
            "accept" => ClientAnswer::Allowed { for_session: false },
            "acceptForSession" => ClientAnswer::Allowed { for_session: true },
            _ => match result.get("answers").and_then(Value::as_object) {
                Some(answers) if !answers.is_empty() => {
                    ClientAnswer::Replies(self.parse_replies(answers))
                }
                Some(_) | None => ClientAnswer::Denied,
            },
        }
    }

    fn parse_replies(&self, answers: &serde_json::Map<String, Value>) -> Vec<String> {
        let reply = |id: &String| {
            let text = answers
                .get(id)
                .and_then(|answer| answer["answers"].as_array());
            let text = text.into_iter().flatten().filter_map(Value::as_str);
            text.collect::<Vec<_>>().join(", ")
        };
        self.questions.iter().map(reply).collect()
    }
}

impl AgentWireProtocol for CodexAppServerWire {
    fn start_wire(&mut self, _: &mut StdioPipes) -> ClientMessage {
        ClientMessage::Nothing
    }

    fn handle_line(&mut self, line: &str, pipes: &mut StdioPipes) -> ClientMessage {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        let (id, params) = (message["id"].clone(), message["params"].clone());
        match text_at(&message, "/method") {
            "initialize" => {
                let result = json!({
                    "userAgent": "standin/0.166.0", "codexHome": "/home/user/.codex",
                    "platformFamily": "unix", "platformOs": "linux",
                });
                pipes.send_message(&json!({"id": id, "result": result}));
            }
            method @ ("thread/start" | "thread/resume") => {
                self.open_thread(&id, method, &params, pipes);
            }
            "turn/start" => {
                self.turn = Uuid::now_v7().to_string();
                let mut turn = self.turn_message("inProgress", Value::Null, false);
                turn["startedAt"] = Value::Null;
                pipes.send_message(&json!({"id": id, "result": {"turn": turn}}));
                return ClientMessage::Prompt(text_at(&params, "/input/0/text").to_owned());
            }
            "turn/interrupt" => {
                self.interrupt = Some(id);
                return ClientMessage::Interrupt;
            }
            "" if message.get("result").is_some() => {
                return ClientMessage::Answer(
                    id.to_string(),
                    self.parse_answer(&message["result"]),
                );
            }
            "" if message.get("error").is_some() => {
                return ClientMessage::Answer(id.to_string(), ClientAnswer::Denied);
            }
            method if !id.is_null() => {
                let message = format!("Invalid request: unknown variant `{method}`");
                pipes.send_message(
                    &json!({"error": {"code": -32600, "message": message}, "id": id}),
                );
            }
            _ => {}
        }
        ClientMessage::Nothing
    }

    fn is_ready(&self) -> bool {
        !self.thread.is_empty()
    }

    fn begin_turn(&mut self, pipes: &mut StdioPipes) {
        self.last_message = None;
        self.send_status(json!({"type": "active", "activeFlags": []}), pipes);
        let turn = self.turn_message("inProgress", Value::Null, false);
        self.notify(
            "turn/started",
            json!({"threadId": self.thread, "turn": turn}),
            pipes,
        );
    }

    fn send_text(&mut self, text: &str, pipes: &mut StdioPipes) {
        self.model_requests = 1;
        let id = format!("msg_{}", Uuid::now_v7().simple());
        let message = |text: &str| {
            json!({
                "type": "agentMessage", "id": id, "text": text, "phase": null, "memoryCitation": null,
                "delivery": null, "questions": null,
            })
        };
        self.send_item("started", message(""), pipes);
        for piece in split_in_half(text) {
            self.send_delta("item/agentMessage/delta", &id, piece, json!({}), pipes);
        }
        self.send_item("completed", message(text), pipes);
        let mut sent_message = message(text);
        sent_message["startedAtMs"] = json!(NOW_MS);
        sent_message["completedAtMs"] = json!(NOW_MS);
        self.last_message = Some(sent_message);
    }

    fn send_thinking(&mut self, text: &str, pipes: &mut StdioPipes) {
        self.model_requests = 1;
        let id = format!("rs_{}", Uuid::now_v7().simple());
        let thoughts = |summary: Value| json!({"type": "reasoning", "id": id, "summary": summary, "content": []});
        self.send_item("started", thoughts(json!([])), pipes);
        let first = json!({"summaryIndex": 0});
        self.send_delta("item/reasoning/summaryTextDelta", &id, text, first, pipes);
        self.send_item("completed", thoughts(json!([text])), pipes);
    }

    fn send_invisible_event(&mut self, pipes: &mut StdioPipes) {
        let about = json!({"threadId": self.thread, "message": "nothing to see"});
        self.notify("warning", about, pipes);
    }

    fn send_unknown_event(&mut self, pipes: &mut StdioPipes) {
        self.notify(
            "novelty/of/no/version",
            json!({"threadId": self.thread}),
            pipes,
        );
    }

    fn begin_tool(&mut self, tool: &OpenToolCall, pipes: &mut StdioPipes) {
        self.model_requests = 1;
        self.send_item("started", execution_item(tool, "inProgress", false), pipes);
    }

    fn request_permission(
        &mut self,
        tool: &OpenToolCall,
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        let waiting = json!({"type": "active", "activeFlags": ["waitingOnApproval"]});
        self.send_status(waiting, pipes);
        let command = command_line(tool);
        let params = json!({
            "kind": "command", "itemId": tool.id, "environmentId": "local",
            "reason": format!("Need {}", tool.call.name), "command": command, "cwd": cwd(),
            "commandActions": [{"type": "unknown", "command": tool.call.argument}],
            "proposedExecpolicyAmendment": [command],
            "availableDecisions": ["accept", "acceptForSession", "cancel"],
        });
        self.send_request("item/commandExecution/requestApproval", params, pipes)
    }

    fn on_answer(&mut self, request: &str, pipes: &mut StdioPipes) {
        let id: Value = serde_json::from_str(request).unwrap_or_default();
        let about = json!({"threadId": self.thread, "requestId": id});
        self.notify("serverRequest/resolved", about, pipes);
        self.send_status(json!({"type": "active", "activeFlags": []}), pipes);
    }

    fn end_tool(&mut self, tool: &OpenToolCall, outcome: ToolOutcome, pipes: &mut StdioPipes) {
        let status = match outcome {
            ToolOutcome::Done => "completed",
            ToolOutcome::Denied => "declined",
        };
        self.send_item(
            "completed",
            execution_item(tool, status, outcome == ToolOutcome::Done),
            pipes,
        );
        self.send_usage(pipes);
    }

    fn ask_questions(
        &mut self,
        tool: &OpenToolCall,
        scripted: &[ScriptedQuestion],
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        let question = |(at, scripted): (usize, &ScriptedQuestion)| {
            let option = |label: &String| json!({"label": label, "description": ""});
            let options: Vec<Value> = scripted.options.iter().map(option).collect();
            json!({
                "id": format!("q{at}"), "header": "Choice", "question": scripted.text, "isOther": false,
                "isSecret": false, "options": options,
            })
        };
        let questions: Vec<Value> = scripted.iter().enumerate().map(question).collect();
        self.questions = (0..scripted.len()).map(|at| format!("q{at}")).collect();
        let params = json!({"itemId": tool.id, "questions": questions});
        self.send_request("item/tool/requestUserInput", params, pipes)
    }

    fn send_result(&mut self, _: &str, pipes: &mut StdioPipes) {
        self.complete_turn("completed", Value::Null, pipes);
    }

    fn send_failure(&mut self, status: u16, pipes: &mut StdioPipes) {
        let message = format!("exceeded retry limit, last status: {status}");
        let info = json!({"responseTooManyFailedAttempts": {"httpStatusCode": status}});
        let error = json!({
            "message": message, "codexErrorInfo": info, "additionalDetails": null, "misalignment": null,
        });
        let about = json!({
            "error": error, "willRetry": false, "threadId": self.thread, "turnId": self.turn,
        });
        self.notify("error", about, pipes);
        self.complete_turn("failed", error, pipes);
    }

    fn send_interrupted(&mut self, pipes: &mut StdioPipes) {
        if let Some(id) = self.interrupt.take() {
            pipes.send_message(&json!({"id": id, "result": {}}));
        }
        self.complete_turn("interrupted", Value::Null, pipes);
    }
}

fn cwd() -> String {
    let cwd = std::env::current_dir().unwrap_or_default();
    cwd.display().to_string()
}

fn command_line(tool: &OpenToolCall) -> String {
    format!("/bin/bash -lc '{}'", tool.call.argument)
}

fn execution_item(tool: &OpenToolCall, status: &str, done: bool) -> Value {
    json!({
        "type": "commandExecution", "id": tool.id, "pluginId": null, "scriptPath": null,
        "command": command_line(tool), "cwd": cwd(), "processId": null, "source": "agent", "status": status,
        "commandActions": [{"type": "unknown", "command": tool.call.argument}],
        "aggregatedOutput": done.then_some("done\n"), "exitCode": done.then_some(0),
        "durationMs": done.then_some(1),
    })
}

fn thread_message(id: &str, cwd: &str) -> Value {
    let at = NOW_MS / 1_000;
    json!({
        "id": id, "environments": [], "extra": null, "sessionId": id, "forkedFromId": null,
        "parentThreadId": null, "preview": "", "ephemeral": false, "section": null,
        "sectionEnteredAt": null, "projectId": null, "historyMode": "paginated",
        "modelProvider": "standin", "model": MODEL, "reasoningEffort": null, "createdAt": at,
        "updatedAt": at, "recencyAt": at, "status": {"type": "idle"}, "path": "", "cwd": cwd,
        "cliVersion": "0.166.0", "originator": "standin", "source": "vscode",
        "canAcceptDirectInput": true, "threadSource": null, "agentNickname": null, "agentRole": null,
        "gitInfo": null, "name": null, "daybreakEnabled": null, "turns": [],
    })
}
