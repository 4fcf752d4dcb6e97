//! Claude Code with `--output-format stream-json`: partial and whole messages, control requests
//! for permissions and questions, one `result` for each turn.

mod messages;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::script::ScriptedQuestion;
use crate::script_player::{
    AgentWireProtocol, ClientAnswer, ClientMessage, OpenToolCall, ToolOutcome,
    is_known_conversation, new_conversation,
};
use crate::stdio_pipes::StdioPipes;
use crate::{argument_value, split_in_half, text_at};
use messages::{
    FIXED_TIME, MODEL, PRICE_PER_REQUEST, USAGE_FIELDS, USAGE_PER_REQUEST, empty_result,
    init_message, prompt_text, round_price, send_control_response, usage_of_model,
    usage_of_request,
};

pub(crate) struct ClaudeWire {
    session: String,
    /// The session that it was asked to resume but does not have.
    unknown_session: Option<String>,
    message: String,
    /// Blocks of the open message.
    block_count: u32,
    model_requests: u32,
    turn_count: u32,
    cost: f64,
    denials: Vec<Value>,
    interrupt: Option<String>,
    questions: Value,
    asks_permission: bool,
    sends_partial_messages: bool,
}

impl ClaudeWire {
    pub(crate) fn new(arguments: &[String], script: Option<&str>) -> Self {
        let resume = argument_value(arguments, "--resume");
        let unknown_session = resume
            .clone()
            .filter(|id| !is_known_conversation(id, script));
        Self {
            session: resume.unwrap_or_else(new_conversation),
            unknown_session,
            message: String::new(),
            block_count: 0,
            model_requests: 0,
            turn_count: 0,
            cost: 0.0,
            denials: Vec::new(),
            interrupt: None,
            questions: Value::Null,
            asks_permission: argument_value(arguments, "--permission-prompt-tool").is_some(),
            sends_partial_messages: arguments
                .iter()
                .any(|word| word == "--include-partial-messages"),
        }
    }

    /// Adds the fields that nearly every line has.
    fn send_line_of_kind(&self, kind: &str, mut fields: Value, pipes: &mut StdioPipes) {
        fields["type"] = json!(kind);
        fields["session_id"] = json!(self.session);
        fields["uuid"] = json!(Uuid::now_v7());
        pipes.send_message(&fields);
    }

    fn send_stream_event(&self, event: Value, pipes: &mut StdioPipes) {
        if self.sends_partial_messages {
            let thinks = [&event["content_block"]["type"], &event["delta"]["type"]]
                .iter()
                .any(|kind| {
                    kind.as_str()
                        .is_some_and(|kind| kind.starts_with("thinking"))
                });
            let mut about = json!({
                "event": event, "parent_tool_use_id": null, "api_message_id": self.message,
            });
            if thinks {
                about["thinking_display"] = json!("updates");
            }
            self.send_line_of_kind("stream_event", about, pipes);
        }
    }

    fn assistant_message(&self, content: &Value) -> Value {
        json!({
            "id": self.message, "type": "message", "role": "assistant", "model": MODEL, "content": content,
            "stop_reason": null, "stop_sequence": null, "usage": usage_of_request(1),
        })
    }

    /// Each block of a message is sent in parts, then whole.
    fn send_block(
        &mut self,
        start: Value,
        deltas: Vec<Value>,
        whole: Value,
        pipes: &mut StdioPipes,
    ) {
        self.open_message(pipes);
        let index = self.block_count;
        self.block_count += 1;
        self.send_stream_event(
            json!({"type": "content_block_start", "index": index, "content_block": start}),
            pipes,
        );
        for delta in deltas {
            self.send_stream_event(
                json!({"type": "content_block_delta", "index": index, "delta": delta}),
                pipes,
            );
        }
        self.send_assistant_message(&whole, pipes);
        self.send_stream_event(json!({"type": "content_block_stop", "index": index}), pipes);
    }

    fn send_assistant_message(&self, block: &Value, pipes: &mut StdioPipes) {
        let mut message = self.assistant_message(&json!([block]));
        message["context_management"] = Value::Null;
        let mut about = json!({
            "message": message, "parent_tool_use_id": null, "timestamp": FIXED_TIME, "request_id": "req_standin",
        });
        if block["type"] == "thinking" {
            about["thinking_display"] = json!("updates");
            about["thinking_duration_ms"] = json!(1);
        }
        self.send_line_of_kind("assistant", about, pipes);
    }

    fn open_message(&mut self, pipes: &mut StdioPipes) {
        if self.block_count > 0 {
            return;
        }
        self.model_requests += 1;
        self.message = format!("msg_{}", Uuid::now_v7().simple());
        let status = json!({"subtype": "status", "status": "requesting"});
        self.send_line_of_kind("system", status, pipes);
        if self.sends_partial_messages {
            let about = json!({
                "event": {"type": "message_start", "message": self.assistant_message(&json!([]))},
                "parent_tool_use_id": null, "api_message_id": self.message,
                "ttft_ms": 1, "thinking_display": "updates",
            });
            self.send_line_of_kind("stream_event", about, pipes);
        }
    }

    fn close_message(&mut self, reason: &str, pipes: &mut StdioPipes) {
        if self.block_count > 0 {
            self.block_count = 0;
            let delta = json!({"stop_reason": reason, "stop_sequence": null});
            self.send_stream_event(
                json!({"type": "message_delta", "delta": delta, "usage": usage_of_request(USAGE_PER_REQUEST[1])}),
                pipes,
            );
            self.send_stream_event(json!({"type": "message_stop"}), pipes);
        }
    }

    fn tool_input(tool: &OpenToolCall) -> Value {
        json!({"command": tool.call.argument, "description": format!("Use {}", tool.call.name)})
    }

    fn send_control_request(
        &self,
        tool: &OpenToolCall,
        input: Value,
        more: Value,
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        if !self.asks_permission {
            return None;
        }
        let id = Uuid::now_v7().to_string();
        let name = &tool.call.name;
        let mut request = json!({
            "subtype": "can_use_tool", "tool_name": name, "display_name": name, "input": input,
            "tool_use_id": tool.id,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            request[key] = value.clone();
        }
        pipes.send_message(
            &json!({"type": "control_request", "request_id": id, "request": request}),
        );
        Some(id)
    }

    fn send_turn_result(&mut self, subtype: &str, fields: Value, pipes: &mut StdioPipes) {
        let requests = std::mem::take(&mut self.model_requests);
        self.cost += PRICE_PER_REQUEST * f64::from(requests);
        let mut used = Map::new();
        if requests > 0 {
            used.insert(MODEL.to_owned(), usage_of_model(requests));
        }
        let mut result = empty_result();
        let usage = result["usage"].as_object_mut().expect("an object");
        for (name, count) in USAGE_FIELDS.into_iter().zip(USAGE_PER_REQUEST) {
            usage.insert(name.to_owned(), json!(count * u64::from(requests)));
        }
        result["subtype"] = json!(subtype);
        result["num_turns"] = json!(requests);
        result["result_index"] = json!(self.turn_count);
        result["total_cost_usd"] = json!(round_price(self.cost));
        result["modelUsage"] = json!(used);
        result["model_usage_since_last_result"] = json!(used);
        result["permission_denials"] = json!(std::mem::take(&mut self.denials));
        for (key, value) in fields.as_object().into_iter().flatten() {
            result[key] = value.clone();
        }
        if subtype != "success" {
            result
                .as_object_mut()
                .expect("an object")
                .remove("api_error_status");
        }
        self.turn_count += 1;
        self.send_line_of_kind("result", result, pipes);
    }
}

impl AgentWireProtocol for ClaudeWire {
    fn start_wire(&mut self, pipes: &mut StdioPipes) -> ClientMessage {
        let Some(lost) = &self.unknown_session else {
            return ClientMessage::Nothing;
        };
        let problem = format!("No conversation found with session ID: {lost}");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes());
        let mut result = empty_result();
        for absent in [
            "terminal_reason",
            "subagent_stats",
            "safety_stops",
            "queued_turn_count",
            "api_error_status",
            "fast_mode_state",
            "fast_mode_disabled_reason",
        ] {
            result.as_object_mut().expect("an object").remove(absent);
        }
        result["subtype"] = json!("error_during_execution");
        result["is_error"] = json!(true);
        result["stop_reason"] = Value::Null;
        result["errors"] = json!([problem]);
        self.send_line_of_kind("result", result, pipes);
        ClientMessage::Exit(1)
    }

    fn handle_line(&mut self, line: &str, pipes: &mut StdioPipes) -> ClientMessage {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        match text_at(&message, "/type") {
            "user" => ClientMessage::Prompt(prompt_text(&message)),
            "control_request" => {
                let id = text_at(&message, "/request_id").to_owned();
                if text_at(&message, "/request/subtype") == "interrupt" {
                    self.interrupt = Some(id);
                    return ClientMessage::Interrupt;
                }
                send_control_response(&id, json!({}), pipes);
                ClientMessage::Nothing
            }
            "control_response" => {
                let id = text_at(&message, "/response/request_id").to_owned();
                let answer = message
                    .pointer("/response/response")
                    .unwrap_or(&Value::Null);
                ClientMessage::Answer(id, self.parse_answer(answer))
            }
            "" => {
                let problem = format!("Error parsing streaming input line: {line}");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes());
                ClientMessage::Exit(1)
            }
            _ => ClientMessage::Nothing,
        }
    }

    fn begin_turn(&mut self, pipes: &mut StdioPipes) {
        self.send_line_of_kind("system", init_message(), pipes);
    }

    fn send_text(&mut self, text: &str, pipes: &mut StdioPipes) {
        let pieces = split_in_half(text).map(|piece| json!({"type": "text_delta", "text": piece}));
        let whole = json!({"type": "text", "text": text});
        self.send_block(
            json!({"type": "text", "text": ""}),
            pieces.to_vec(),
            whole,
            pipes,
        );
    }

    fn send_thinking(&mut self, text: &str, pipes: &mut StdioPipes) {
        let pieces = vec![json!({"type": "thinking_delta", "thinking": text})];
        let start = json!({"type": "thinking", "thinking": "", "signature": ""});
        let whole = json!({"type": "thinking", "thinking": text, "signature": "standin"});
        self.send_block(start, pieces, whole, pipes);
    }

    fn send_invisible_event(&mut self, pipes: &mut StdioPipes) {
        let status = json!({"subtype": "status", "status": "requesting"});
        self.send_line_of_kind("system", status, pipes);
    }

    fn send_unknown_event(&mut self, pipes: &mut StdioPipes) {
        self.send_line_of_kind("novelty", json!({"of": "no version"}), pipes);
    }

    fn begin_tool(&mut self, tool: &OpenToolCall, pipes: &mut StdioPipes) {
        let (id, name, input) = (&tool.id, &tool.call.name, Self::tool_input(tool));
        let pieces = split_in_half(&input.to_string())
            .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        let whole = json!({"type": "tool_use", "id": id, "name": name, "input": input});
        self.send_block(start, pieces.to_vec(), whole, pipes);
    }

    fn request_permission(
        &mut self,
        tool: &OpenToolCall,
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        let rule = json!({"toolName": tool.call.name, "ruleContent": tool.call.argument});
        let suggestion = json!({
            "type": "addRules", "rules": [rule], "behavior": "allow", "destination": "localSettings",
        });
        let more = json!({
            "description": format!("Use {}", tool.call.name), "permission_suggestions": [suggestion],
        });
        let request = self.send_control_request(tool, Self::tool_input(tool), more, pipes);
        self.close_message("tool_use", pipes);
        request
    }

    fn end_tool(&mut self, tool: &OpenToolCall, outcome: ToolOutcome, pipes: &mut StdioPipes) {
        self.close_message("tool_use", pipes);
        let (text, failed) = match outcome {
            ToolOutcome::Done => ("done", false),
            ToolOutcome::Denied => ("Permission was denied.", true),
        };
        if failed {
            let (name, id) = (&tool.call.name, &tool.id);
            self.denials.push(
                json!({"tool_name": name, "tool_use_id": id, "tool_input": Self::tool_input(tool)}),
            );
        }
        let block = json!({
            "tool_use_id": tool.id, "type": "tool_result", "content": text, "is_error": failed,
        });
        let about = json!({
            "message": {"role": "user", "content": [block]}, "parent_tool_use_id": null, "timestamp": FIXED_TIME,
            "tool_use_result": text, "tool_result_meta": [{"id": tool.id}],
        });
        self.send_line_of_kind("user", about, pipes);
    }

    fn ask_questions(
        &mut self,
        tool: &OpenToolCall,
        scripted: &[ScriptedQuestion],
        pipes: &mut StdioPipes,
    ) -> Option<String> {
        let question = |scripted: &ScriptedQuestion| {
            let option = |label: &String| json!({"label": label, "description": ""});
            let options: Vec<Value> = scripted.options.iter().map(option).collect();
            json!({
                "question": scripted.text, "header": "Choice", "options": options, "multiSelect": scripted.allows_many,
            })
        };
        let questions: Vec<Value> = scripted.iter().map(question).collect();
        self.questions = json!(questions);
        let more = json!({"requires_user_interaction": true});
        let request = self.send_control_request(tool, json!({"questions": questions}), more, pipes);
        self.close_message("tool_use", pipes);
        request
    }

    fn send_result(&mut self, text: &str, pipes: &mut StdioPipes) {
        self.close_message("end_turn", pipes);
        self.send_turn_result("success", json!({"result": text}), pipes);
    }

    /// A failure is a result with subtype `success` and `is_error`.
    fn send_failure(&mut self, status: u16, pipes: &mut StdioPipes) {
        self.close_message("end_turn", pipes);
        let kind = match status {
            401 | 403 => "authentication_failed",
            429 => "rate_limit",
            529 => "overloaded",
            _ => "server_error",
        };
        let retry = json!({
            "subtype": "api_retry", "attempt": 1, "max_retries": 1, "retry_delay_ms": 1,
            "error_status": status, "error": kind,
        });
        self.send_line_of_kind("system", retry, pipes);
        let fields = json!({
            "is_error": true, "terminal_reason": "api_error", "api_error_status": status,
            "stop_reason": "stop_sequence", "result": format!("API Error: {status} the provider said no"),
        });
        self.send_turn_result("success", fields, pipes);
    }

    fn send_interrupted(&mut self, pipes: &mut StdioPipes) {
        if let Some(id) = self.interrupt.take() {
            send_control_response(&id, json!({"still_queued": []}), pipes);
        }
        self.close_message("end_turn", pipes);
        let block = json!({"type": "text", "text": "[Request interrupted by user]"});
        let about = json!({
            "message": {"role": "user", "content": [block]}, "parent_tool_use_id": null, "timestamp": FIXED_TIME,
        });
        self.send_line_of_kind("user", about, pipes);
        let fields = json!({
            "is_error": true, "terminal_reason": "aborted_streaming", "stop_reason": null,
            "errors": ["[ede_diagnostic] interrupted"],
        });
        self.send_turn_result("error_during_execution", fields, pipes);
    }
}

impl ClaudeWire {
    fn parse_answer(&self, answer: &Value) -> ClientAnswer {
        if text_at(answer, "/behavior") != "allow" {
            return ClientAnswer::Denied;
        }
        let Some(answers) = answer.pointer("/updatedInput/answers") else {
            let for_session = answer.get("updatedPermissions").is_some();
            return ClientAnswer::Allowed { for_session };
        };
        let questions = self.questions.as_array().into_iter().flatten();
        let replies = questions.map(|question| {
            let reply = answers.get(text_at(question, "/question"));
            reply
                .and_then(Value::as_str)
                .unwrap_or("nothing")
                .to_owned()
        });
        ClientAnswer::Replies(replies.collect())
    }
}
