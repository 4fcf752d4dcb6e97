//! An agent that speaks the Agent Client Protocol: JSON-RPC, a session with prompts, what happens as updates of it, and
//! the answer to a prompt as the end of its turn.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::handed::{Server, from_message};
use crate::pipes::Pipes;
use crate::play::{Answer, Heard, Outcome, Tool, Wire, is_known, new_conversation};
use crate::script::Question;
use crate::{halves, text};

/// What each request to the model is said to use: input, output, read from and written to the cache.
const USED: [u64; 4] = [12, 7, 200, 100];
const PRICE: f64 = 0.000_728;
/// What a client that has no answer gets.
const METHOD_NOT_FOUND: i64 = -32601;
const RESOURCE_NOT_FOUND: i64 = -32002;
const AUTH_REQUIRED: i64 = -32000;
const INTERNAL_ERROR: i64 = -32603;

pub(crate) struct Acp {
    script: Option<String>,
    session: String,
    /// The request that the turn answers.
    prompt: Value,
    /// Requests of its own, which have their own numbers.
    requests: u64,
    /// Requests to the model, in this turn and in the session.
    used: u64,
    used_in_session: u64,
    message: String,
    questions: usize,
    handed: Option<Server>,
}

impl Acp {
    pub(crate) fn new(script: Option<&str>) -> Self {
        Self {
            script: script.map(str::to_owned),
            session: String::new(),
            prompt: Value::Null,
            requests: 0,
            used: 0,
            used_in_session: 0,
            message: String::new(),
            questions: 0,
            handed: None,
        }
    }

    fn update(&self, kind: &str, mut update: Value, pipes: &mut Pipes) {
        update["sessionUpdate"] = json!(kind);
        let params = json!({"sessionId": self.session, "update": update});
        pipes.say(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    }

    fn request(&mut self, method: &str, mut params: Value, pipes: &mut Pipes) -> Option<String> {
        let id = self.requests;
        self.requests += 1;
        params["sessionId"] = json!(self.session);
        pipes.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        Some(id.to_string())
    }

    fn open_session(&mut self, id: &Value, method: &str, params: &Value, pipes: &mut Pipes) {
        let wanted = text(params, "/sessionId");
        self.handed = params.pointer("/mcpServers/0").and_then(from_message);
        let fresh = method == "session/new";
        if !fresh && !is_known(wanted, self.script.as_deref()) {
            let message = format!("Resource not found: {wanted}");
            refuse(
                id,
                RESOURCE_NOT_FOUND,
                &message,
                json!({"sessionId": wanted}),
                pipes,
            );
            return;
        }
        self.session = if fresh {
            new_conversation()
        } else {
            wanted.to_owned()
        };
        if method == "session/load" {
            let content = json!({"type": "text", "text": "what was said before"});
            let update = json!({"content": content, "messageId": "before"});
            self.update("user_message_chunk", update, pipes);
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
        answer(id, result, pipes);
        self.update(
            "available_commands_update",
            json!({"availableCommands": []}),
            pipes,
        );
    }

    fn usage(&mut self, pipes: &mut Pipes) {
        if self.used > 0 {
            let price = PRICE * (self.used_in_session as f64);
            let price = (price * 1e6).round() / 1e6;
            let update = json!({
                "used": 319, "size": 200_000, "cost": {"amount": price, "currency": "USD"}, "_meta": {},
            });
            self.update("usage_update", update, pipes);
        }
    }

    fn stop(&mut self, reason: &str, pipes: &mut Pipes) {
        self.usage(pipes);
        let [input, output, read, write] = USED.map(|used| used * self.used);
        let usage = json!({
            "inputTokens": input, "outputTokens": output, "cachedReadTokens": read,
            "cachedWriteTokens": write, "totalTokens": input + output + read + write,
        });
        let result = json!({"stopReason": reason, "usage": usage, "_meta": {}});
        answer(&self.prompt, result, pipes);
    }

    fn works(&mut self) {
        self.used += 1;
        self.used_in_session += 1;
    }

    fn reply(&self, result: &Value) -> Answer {
        match text(result, "/outcome/optionId") {
            "allow-once" => return Answer::Allowed { for_session: false },
            "allow-always" => return Answer::Allowed { for_session: true },
            _ => {}
        }
        if let Some(contents) = result.get("content").and_then(Value::as_str) {
            return Answer::Replies(vec![contents.to_owned()]);
        }
        match result.get("content").and_then(Value::as_object) {
            Some(fields) if text(result, "/action") == "accept" => {
                Answer::Replies((0..self.questions).map(|at| field(fields, at)).collect())
            }
            Some(_) | None => Answer::Denied,
        }
    }
}

impl Wire for Acp {
    fn open(&mut self, _: &mut Pipes) -> Heard {
        Heard::Nothing
    }

    fn handed(&self) -> Option<Server> {
        self.handed.clone()
    }

    fn hear(&mut self, line: &str, pipes: &mut Pipes) -> Heard {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            let error = json!({"code": -32700, "message": "Parse error"});
            pipes.say(&json!({"jsonrpc": "2.0", "id": null, "error": error}));
            return Heard::Nothing;
        };
        let (id, params) = (message["id"].clone(), message["params"].clone());
        match text(&message, "/method") {
            "initialize" => answer(&id, initialized(), pipes),
            method @ ("session/new" | "session/load" | "session/resume") => {
                self.open_session(&id, method, &params, pipes);
            }
            "session/set_mode" | "session/set_config_option" => answer(&id, json!({}), pipes),
            "session/prompt" => {
                self.prompt = id;
                let blocks = params["prompt"].as_array().into_iter().flatten();
                let words: Vec<&str> = blocks.map(|block| text(block, "/text")).collect();
                return Heard::Prompt(words.join("\n"));
            }
            "session/cancel" => return Heard::Interrupt,
            "" if message.get("result").is_some() => {
                return Heard::Answer(id.to_string(), self.reply(&message["result"]));
            }
            "" if message.get("error").is_some() => {
                return Heard::Answer(id.to_string(), Answer::Denied);
            }
            method if !id.is_null() => {
                let about = json!({"method": method});
                refuse(&id, METHOD_NOT_FOUND, "\"Method not found\"", about, pipes);
            }
            _ => {}
        }
        Heard::Nothing
    }

    fn is_ready(&self) -> bool {
        !self.session.is_empty()
    }

    fn begin_turn(&mut self, _: &mut Pipes) {
        self.used = 0;
    }

    fn say(&mut self, words: &str, pipes: &mut Pipes) {
        self.works();
        self.message = format!("msg_{}", Uuid::now_v7().simple());
        for piece in halves(words) {
            let content = json!({"type": "text", "text": piece});
            let update = json!({"content": content, "messageId": self.message});
            self.update("agent_message_chunk", update, pipes);
        }
    }

    fn think(&mut self, words: &str, pipes: &mut Pipes) {
        let content = json!({"type": "text", "text": words});
        let id = format!("msg_{}", Uuid::now_v7().simple());
        let update = json!({"content": content, "messageId": id});
        self.update("agent_thought_chunk", update, pipes);
    }

    fn hint(&mut self, pipes: &mut Pipes) {
        let update = json!({"used": 1, "size": 200_000, "_meta": {}});
        self.update("usage_update", update, pipes);
    }

    fn novel(&mut self, pipes: &mut Pipes) {
        self.update("novelty_of_no_version", json!({}), pipes);
    }

    fn begin(&mut self, tool: &Tool, pipes: &mut Pipes) {
        let mut call = call(tool);
        call["status"] = json!("pending");
        call["_meta"] = json!({});
        self.update("tool_call", call, pipes);
    }

    fn ask(&mut self, tool: &Tool, pipes: &mut Pipes) -> Option<String> {
        let mut call = call(tool);
        call["status"] = json!("pending");
        call["locations"] = json!([]);
        let options = json!([
            {"optionId": "allow-once", "name": "Yes", "kind": "allow_once"},
            {"optionId": "allow-always", "name": "Yes, and always", "kind": "allow_always"},
            {"optionId": "reject", "name": "No", "kind": "reject_once"},
        ]);
        let params = json!({"toolCall": call, "options": options});
        self.request("session/request_permission", params, pipes)
    }

    fn end(&mut self, tool: &Tool, outcome: Outcome, pipes: &mut Pipes) {
        let (status, words) = match outcome {
            Outcome::Done => ("completed", "done"),
            Outcome::Denied => ("failed", "Permission was denied."),
        };
        let content = json!([{"type": "content", "content": {"type": "text", "text": words}}]);
        let update = json!({
            "toolCallId": tool.id, "status": status, "rawOutput": words, "content": content, "_meta": {},
        });
        self.update("tool_call_update", update, pipes);
    }

    fn question(&mut self, tool: &Tool, asked: &[Question], pipes: &mut Pipes) -> Option<String> {
        let mut properties = Map::new();
        for (at, asked) in asked.iter().enumerate() {
            let option = |label: &String| json!({"const": label, "title": label});
            let options: Vec<Value> = asked.options.iter().map(option).collect();
            let property = match asked.many {
                true => json!({"type": "array", "title": asked.text, "items": {"anyOf": options}}),
                false => json!({"type": "string", "title": asked.text, "oneOf": options}),
            };
            properties.insert(format!("question_{at}"), property);
        }
        self.questions = asked.len();
        let schema = json!({"type": "object", "properties": properties});
        let message = asked.first().map_or("", |asked| &asked.text);
        let params = json!({
            "mode": "form", "toolCallId": tool.id, "message": message, "requestedSchema": schema,
        });
        self.request("elicitation/create", params, pipes)
    }

    fn read(&mut self, path: &str, pipes: &mut Pipes) -> Option<String> {
        let path = std::env::current_dir().unwrap_or_default().join(path);
        self.request("fs/read_text_file", json!({"path": path}), pipes)
    }

    fn result(&mut self, _: &str, pipes: &mut Pipes) {
        self.stop("end_turn", pipes);
    }

    fn fail(&mut self, status: u16, pipes: &mut Pipes) {
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
        refuse(
            &self.prompt,
            code,
            message,
            json!({"errorKind": kind}),
            pipes,
        );
    }

    fn interrupted(&mut self, pipes: &mut Pipes) {
        self.stop("cancelled", pipes);
    }
}

/// One of several, or several.
fn field(fields: &Map<String, Value>, at: usize) -> String {
    match fields.get(&format!("question_{at}")) {
        Some(Value::String(one)) => one.clone(),
        Some(Value::Array(many)) => {
            let many: Vec<&str> = many.iter().filter_map(Value::as_str).collect();
            many.join(", ")
        }
        Some(_) | None => "nothing".to_owned(),
    }
}

fn call(tool: &Tool) -> Value {
    json!({
        "toolCallId": tool.id, "name": tool.call.name, "title": tool.call.argument, "kind": "execute",
        "rawInput": {"command": tool.call.argument}, "content": [],
    })
}

fn answer(id: &Value, result: Value, pipes: &mut Pipes) {
    pipes.say(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn refuse(id: &Value, code: i64, message: &str, data: Value, pipes: &mut Pipes) {
    let error = json!({"code": code, "message": message, "data": data});
    pipes.say(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
}

fn initialized() -> Value {
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
