//! An agent with the Agent Client Protocol: JSON-RPC, a session with prompts, events as updates
//! of it, and the answer to a prompt as the end of its turn.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::script::ScriptedQuestion;
use crate::script_player::{
    AgentWireProtocol, ClientAnswer, ClientMessage, OpenToolCall, ToolOutcome,
    is_known_conversation, new_conversation,
};
use crate::stdio_pipes::StdioPipes;
use crate::tool_server::{McpToolServer, server_from_message};
use crate::{split_in_half, text_at};

/// Reported usage of each model request: input, output, cache reads and cache writes.
const USAGE_PER_REQUEST: [u64; 4] = [12, 7, 200, 100];
const PRICE_PER_REQUEST: f64 = 0.000_728;
/// Error codes for requests that fail.
const METHOD_NOT_FOUND: i64 = -32601;
const RESOURCE_NOT_FOUND: i64 = -32002;
const AUTH_REQUIRED: i64 = -32000;
const INTERNAL_ERROR: i64 = -32603;

pub(crate) struct AcpWire {
    script: Option<String>,
    session: String,
    /// The prompt request that the end of the turn answers.
    prompt_request_id: Value,
    /// Its own requests are numbered separately.
    request_count: u64,
    /// Requests to the model, in this turn and in the session.
    model_requests: u64,
    model_requests_in_session: u64,
    message: String,
    question_count: usize,
    tool_server: Option<McpToolServer>,
}

impl AcpWire {
    pub(crate) fn new(script: Option<&str>) -> Self {
        Self {
            script: script.map(str::to_owned),
            session: String::new(),
            prompt_request_id: Value::Null,
            request_count: 0,
            model_requests: 0,
            model_requests_in_session: 0,
            message: String::new(),
            question_count: 0,
            tool_server: None,
        }
    }

    fn send_update(&self, kind: &str, mut update: Value, pipes: &mut StdioPipes) {
        update["sessionUpdate"] = json!(kind);
        let params = json!({"sessionId": self.session, "update": update});
        pipes
            .send_message(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    }

    fn send_request(
        &mut self,
        method: &str,
        mut params: Value,
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        let id = self.request_count;
        self.request_count += 1;
        params["sessionId"] = json!(self.session);
        pipes
            .send_message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        Some(id.to_string())
    }

    fn open_session(&mut self, id: &Value, method: &str, params: &Value, pipes: &mut StdioPipes) {
        let session_id = text_at(params, "/sessionId");
        self.tool_server = params
            .pointer("/mcpServers/0")
            .and_then(server_from_message);
        let fresh = method == "session/new";
        if !fresh && !is_known_conversation(session_id, self.script.as_deref()) {
            let message = format!("Resource not found: {session_id}");
            send_error_message(
                id,
                RESOURCE_NOT_FOUND,
                &message,
                json!({"sessionId": session_id}),
                pipes,
            );
            return;
        }
        self.session = if fresh {
            new_conversation()
        } else {
            session_id.to_owned()
        };
        if method == "session/load" {
            let content = json!({"type": "text", "text": "what was said before"});
            let update = json!({"content": content, "messageId": "before"});
            self.send_update("user_message_chunk", update, pipes);
        }
        let modes = json!([
            {"id": "default", "name": "Manual", "description": "Asks before it changes anything"},
            {"id": "plan", "name": "Plan", "description": "Changes nothing"},
        ]);
        let model = json!({
            "id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "small",
            "options": [{"value": "small", "name": "Small"}, {"value": "large", "name": "Large"}],
        });
        let mut result = json!({
            "modes": {"currentModeId": "default", "availableModes": modes}, "configOptions": [model],
        });
        if fresh {
            result["sessionId"] = json!(self.session);
        }
        send_result_message(id, result, pipes);
        self.send_update(
            "available_commands_update",
            json!({"availableCommands": []}),
            pipes,
        );
    }

    fn send_usage(&mut self, pipes: &mut StdioPipes) {
        if self.model_requests > 0 {
            let price = PRICE_PER_REQUEST * (self.model_requests_in_session as f64);
            let price = (price * 1e6).round() / 1e6;
            let update = json!({
                "used": 319, "size": 200_000, "cost": {"amount": price, "currency": "USD"}, "_meta": {},
            });
            self.send_update("usage_update", update, pipes);
        }
    }

    fn end_prompt(&mut self, reason: &str, pipes: &mut StdioPipes) {
        self.send_usage(pipes);
        let [input, output, read, write] = USAGE_PER_REQUEST.map(|used| used * self.model_requests);
        let usage = json!({
            "inputTokens": input, "outputTokens": output, "cachedReadTokens": read,
            "cachedWriteTokens": write, "totalTokens": input + output + read + write,
        });
        let result = json!({"stopReason": reason, "usage": usage, "_meta": {}});
        send_result_message(&self.prompt_request_id, result, pipes);
    }

    fn count_model_request(&mut self) {
        self.model_requests += 1;
        self.model_requests_in_session += 1;
    }

    fn parse_answer(&self, result: &Value) -> ClientAnswer {
        match text_at(result, "/outcome/optionId") {
            "allow-once" => return ClientAnswer::Allowed { for_session: false },
            "allow-always" => return ClientAnswer::Allowed { for_session: true },
            _ => {}
        }
        if let Some(contents) = result.get("content").and_then(Value::as_str) {
            return ClientAnswer::Replies(vec![contents.to_owned()]);
        }
        match result.get("content").and_then(Value::as_object) {
            Some(fields) if text_at(result, "/action") == "accept" => ClientAnswer::Replies(
                (0..self.question_count)
                    .map(|at| answer_field(fields, at))
                    .collect(),
            ),
            Some(_) | None => ClientAnswer::Denied,
        }
    }
}

impl AgentWireProtocol for AcpWire {
    fn start_wire(&mut self, _: &mut StdioPipes) -> ClientMessage {
        ClientMessage::Nothing
    }

    fn tool_server(&self) -> Option<McpToolServer> {
        self.tool_server.clone()
    }

    fn handle_line(&mut self, line: &str, pipes: &mut StdioPipes) -> ClientMessage {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            let error = json!({"code": -32700, "message": "Parse error"});
            pipes.send_message(&json!({"jsonrpc": "2.0", "id": null, "error": error}));
            return ClientMessage::Nothing;
        };
        let (id, params) = (message["id"].clone(), message["params"].clone());
        match text_at(&message, "/method") {
            "initialize" => send_result_message(&id, initialize_result(), pipes),
            method @ ("session/new" | "session/load" | "session/resume") => {
                self.open_session(&id, method, &params, pipes);
            }
            "session/set_mode" | "session/set_config_option" => {
                send_result_message(&id, json!({}), pipes)
            }
            "session/prompt" => {
                self.prompt_request_id = id;
                let blocks = params["prompt"].as_array().into_iter().flatten();
                let text: Vec<&str> = blocks.map(|block| text_at(block, "/text")).collect();
                return ClientMessage::Prompt(text.join("\n"));
            }
            "session/cancel" => return ClientMessage::Interrupt,
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
                let about = json!({"method": method});
                send_error_message(&id, METHOD_NOT_FOUND, "\"Method not found\"", about, pipes);
            }
            _ => {}
        }
        ClientMessage::Nothing
    }

    fn is_ready(&self) -> bool {
        !self.session.is_empty()
    }

    fn begin_turn(&mut self, _: &mut StdioPipes) {
        self.model_requests = 0;
    }

    fn send_text(&mut self, text: &str, pipes: &mut StdioPipes) {
        self.count_model_request();
        self.message = format!("msg_{}", Uuid::now_v7().simple());
        for piece in split_in_half(text) {
            let content = json!({"type": "text", "text": piece});
            let update = json!({"content": content, "messageId": self.message});
            self.send_update("agent_message_chunk", update, pipes);
        }
    }

    fn send_thinking(&mut self, text: &str, pipes: &mut StdioPipes) {
        let content = json!({"type": "text", "text": text});
        let id = format!("msg_{}", Uuid::now_v7().simple());
        let update = json!({"content": content, "messageId": id});
        self.send_update("agent_thought_chunk", update, pipes);
    }

    fn send_invisible_event(&mut self, pipes: &mut StdioPipes) {
        let update = json!({"used": 1, "size": 200_000, "_meta": {}});
        self.send_update("usage_update", update, pipes);
    }

    fn send_unknown_event(&mut self, pipes: &mut StdioPipes) {
        self.send_update("novelty_of_no_version", json!({}), pipes);
    }

    fn begin_tool(&mut self, tool: &OpenToolCall, pipes: &mut StdioPipes) {
        let mut call = tool_call_message(tool);
        call["status"] = json!("pending");
        call["_meta"] = json!({});
        self.send_update("tool_call", call, pipes);
    }

    fn request_permission(
        &mut self,
        tool: &OpenToolCall,
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        let mut call = tool_call_message(tool);
        call["status"] = json!("pending");
        call["locations"] = json!([]);
        let options = json!([
            {"optionId": "allow-once", "name": "Yes", "kind": "allow_once"},
            {"optionId": "allow-always", "name": "Yes, and always", "kind": "allow_always"},
            {"optionId": "reject", "name": "No", "kind": "reject_once"},
        ]);
        let params = json!({"toolCall": call, "options": options});
        self.send_request("session/request_permission", params, pipes)
    }

    fn end_tool(&mut self, tool: &OpenToolCall, outcome: ToolOutcome, pipes: &mut StdioPipes) {
        let (status, text) = match outcome {
            ToolOutcome::Done => ("completed", "done"),
            ToolOutcome::Denied => ("failed", "Permission was denied."),
        };
        let content = json!([{"type": "content", "content": {"type": "text", "text": text}}]);
        let update = json!({
            "toolCallId": tool.id, "status": status, "rawOutput": text, "content": content, "_meta": {},
        });
        self.send_update("tool_call_update", update, pipes);
    }

    fn ask_questions(
        &mut self,
        tool: &OpenToolCall,
        questions: &[ScriptedQuestion],
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        let mut properties = Map::new();
        for (at, question) in questions.iter().enumerate() {
            let option = |label: &String| json!({"const": label, "title": label});
            let options: Vec<Value> = question.options.iter().map(option).collect();
            let property = match question.allows_many {
                true => {
                    json!({"type": "array", "title": question.text, "items": {"anyOf": options}})
                }
                false => json!({"type": "string", "title": question.text, "oneOf": options}),
            };
            properties.insert(format!("question_{at}"), property);
        }
        self.question_count = questions.len();
        let schema = json!({"type": "object", "properties": properties});
        let message = questions.first().map_or("", |question| &question.text);
        let params = json!({
            "mode": "form", "toolCallId": tool.id, "message": message, "requestedSchema": schema,
        });
        self.send_request("elicitation/create", params, pipes)
    }

    fn request_file(&mut self, path: &str, pipes: &mut StdioPipes) -> Option<String> {
        let path = std::env::current_dir().unwrap_or_default().join(path);
        self.send_request("fs/read_text_file", json!({"path": path}), pipes)
    }

    fn send_result(&mut self, _: &str, pipes: &mut StdioPipes) {
        self.end_prompt("end_turn", pipes);
    }

    fn send_failure(&mut self, status: u16, pipes: &mut StdioPipes) {
        let (code, message, kind) = match status {
            401 | 403 => (
                AUTH_REQUIRED,
                "Authentication required",
                "authentication_failed",
            ),
            429 => (
                INTERNAL_ERROR,
                "Internal error: API Error: 429",
                "rate_limit",
            ),
            _ => (INTERNAL_ERROR, "Internal error: API Error", "server_error"),
        };
        send_error_message(
            &self.prompt_request_id,
            code,
            message,
            json!({"errorKind": kind}),
            pipes,
        );
    }

    fn send_interrupted(&mut self, pipes: &mut StdioPipes) {
        self.end_prompt("cancelled", pipes);
    }
}

/// A single choice, or several.
fn answer_field(fields: &Map<String, Value>, at: usize) -> String {
    match fields.get(&format!("question_{at}")) {
        Some(Value::String(one)) => one.clone(),
        Some(Value::Array(many)) => {
            let many: Vec<&str> = many.iter().filter_map(Value::as_str).collect();
            many.join(", ")
        }
        Some(_) | None => "nothing".to_owned(),
    }
}

fn tool_call_message(tool: &OpenToolCall) -> Value {
    json!({
        "toolCallId": tool.id, "name": tool.call.name, "title": tool.call.argument, "kind": "execute",
        "rawInput": {"command": tool.call.argument}, "content": [],
    })
}

fn send_result_message(id: &Value, result: Value, pipes: &mut StdioPipes) {
    pipes.send_message(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn send_error_message(id: &Value, code: i64, message: &str, data: Value, pipes: &mut StdioPipes) {
    let error = json!({"code": code, "message": message, "data": data});
    pipes.send_message(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
}

fn initialize_result() -> Value {
    json!({
        "protocolVersion": 1,
        "agentCapabilities": {
            "loadSession": true, "promptCapabilities": {"image": false, "embeddedContext": true},
            "mcpCapabilities": {"http": false, "sse": false}, "sessionCapabilities": {"resume": {}},
        },
        "agentInfo": {"name": "standin", "title": "Stand-in", "version": env!("CARGO_PKG_VERSION")},
        "authMethods": [],
    })
}
