//! Claude Code as it prints with `--output-format stream-json`: messages in pieces and whole, control requests for
//! leave and for questions, one `result` for each turn.

mod forms;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::pipes::Pipes;
use crate::play::{Answer, Heard, Outcome, Tool, Wire, is_known, new_conversation};
use crate::script::Question;
use crate::{argument, halves, text};
use forms::{
    MODEL, NOW, PRICE, USAGE, USED, init, prompt, respond, result_of_nothing, rounded,
    usage_of_model, usage_of_request,
};

pub(crate) struct Claude {
    session: String,
    /// It was told to go on with a conversation that it does not know.
    lost: Option<String>,
    message: String,
    /// Blocks of the message that is open.
    blocks: u32,
    requests: u32,
    turns: u32,
    cost: f64,
    denials: Vec<Value>,
    interrupt: Option<String>,
    questions: Value,
    asks: bool,
    partial: bool,
}

impl Claude {
    pub(crate) fn new(arguments: &[String], script: Option<&str>) -> Self {
        let resume = argument(arguments, "--resume");
        let lost = resume.clone().filter(|id| !is_known(id, script));
        Self {
            session: resume.unwrap_or_else(new_conversation),
            lost,
            message: String::new(),
            blocks: 0,
            requests: 0,
            turns: 0,
            cost: 0.0,
            denials: Vec::new(),
            interrupt: None,
            questions: Value::Null,
            asks: argument(arguments, "--permission-prompt-tool").is_some(),
            partial: arguments
                .iter()
                .any(|word| word == "--include-partial-messages"),
        }
    }

    /// With what nearly every line has.
    fn tell(&self, kind: &str, mut fields: Value, pipes: &mut Pipes) {
        fields["type"] = json!(kind);
        fields["session_id"] = json!(self.session);
        fields["uuid"] = json!(Uuid::now_v7());
        pipes.say(&fields);
    }

    fn event(&self, event: Value, pipes: &mut Pipes) {
        if self.partial {
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
            self.tell("stream_event", about, pipes);
        }
    }

    fn message(&self, content: &Value) -> Value {
        json!({
            "id": self.message, "type": "message", "role": "assistant", "model": MODEL, "content": content,
            "stop_reason": null, "stop_sequence": null, "usage": usage_of_request(1),
        })
    }

    /// Each block of a message comes in pieces, then whole.
    fn block(&mut self, start: Value, deltas: Vec<Value>, whole: Value, pipes: &mut Pipes) {
        self.open_message(pipes);
        let index = self.blocks;
        self.blocks += 1;
        self.event(
            json!({"type": "content_block_start", "index": index, "content_block": start}),
            pipes,
        );
        for delta in deltas {
            self.event(
                json!({"type": "content_block_delta", "index": index, "delta": delta}),
                pipes,
            );
        }
        self.assistant(&whole, pipes);
        self.event(json!({"type": "content_block_stop", "index": index}), pipes);
    }

    fn assistant(&self, block: &Value, pipes: &mut Pipes) {
        let mut message = self.message(&json!([block]));
        message["context_management"] = Value::Null;
        let mut about = json!({
            "message": message, "parent_tool_use_id": null, "timestamp": NOW, "request_id": "req_standin",
        });
        if block["type"] == "thinking" {
            about["thinking_display"] = json!("updates");
            about["thinking_duration_ms"] = json!(1);
        }
        self.tell("assistant", about, pipes);
    }

    fn open_message(&mut self, pipes: &mut Pipes) {
        if self.blocks > 0 {
            return;
        }
        self.requests += 1;
        self.message = format!("msg_{}", Uuid::now_v7().simple());
        let status = json!({"subtype": "status", "status": "requesting"});
        self.tell("system", status, pipes);
        if self.partial {
            let about = json!({
                "event": {"type": "message_start", "message": self.message(&json!([]))},
                "parent_tool_use_id": null, "api_message_id": self.message,
                "ttft_ms": 1, "thinking_display": "updates",
            });
            self.tell("stream_event", about, pipes);
        }
    }

    fn close_message(&mut self, reason: &str, pipes: &mut Pipes) {
        if self.blocks > 0 {
            self.blocks = 0;
            let delta = json!({"stop_reason": reason, "stop_sequence": null});
            self.event(
                json!({"type": "message_delta", "delta": delta, "usage": usage_of_request(USED[1])}),
                pipes,
            );
            self.event(json!({"type": "message_stop"}), pipes);
        }
    }

    fn input(tool: &Tool) -> Value {
        json!({"command": tool.call.argument, "description": format!("Use {}", tool.call.name)})
    }

    fn request(&self, tool: &Tool, input: Value, more: Value, pipes: &mut Pipes) -> Option<String> {
        if !self.asks {
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
        pipes.say(&json!({"type": "control_request", "request_id": id, "request": request}));
        Some(id)
    }

    fn finish(&mut self, subtype: &str, fields: Value, pipes: &mut Pipes) {
        let requests = std::mem::take(&mut self.requests);
        self.cost += PRICE * f64::from(requests);
        let mut used = Map::new();
        if requests > 0 {
            used.insert(MODEL.to_owned(), usage_of_model(requests));
        }
        let mut result = result_of_nothing();
        let usage = result["usage"].as_object_mut().expect("an object");
        for (name, count) in USAGE.into_iter().zip(USED) {
            usage.insert(name.to_owned(), json!(count * u64::from(requests)));
        }
        result["subtype"] = json!(subtype);
        result["num_turns"] = json!(requests);
        result["result_index"] = json!(self.turns);
        result["total_cost_usd"] = json!(rounded(self.cost));
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
        self.turns += 1;
        self.tell("result", result, pipes);
    }
}

impl Wire for Claude {
    fn open(&mut self, pipes: &mut Pipes) -> Heard {
        let Some(lost) = &self.lost else {
            return Heard::Nothing;
        };
        let problem = format!("No conversation found with session ID: {lost}");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes());
        let mut result = result_of_nothing();
        for gone in [
            "terminal_reason",
            "subagent_stats",
            "safety_stops",
            "queued_turn_count",
            "api_error_status",
            "fast_mode_state",
            "fast_mode_disabled_reason",
        ] {
            result.as_object_mut().expect("an object").remove(gone);
        }
        result["subtype"] = json!("error_during_execution");
        result["is_error"] = json!(true);
        result["stop_reason"] = Value::Null;
        result["errors"] = json!([problem]);
        self.tell("result", result, pipes);
        Heard::Over(1)
    }

    fn hear(&mut self, line: &str, pipes: &mut Pipes) -> Heard {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        match text(&message, "/type") {
            "user" => Heard::Prompt(prompt(&message)),
            "control_request" => {
                let id = text(&message, "/request_id").to_owned();
                if text(&message, "/request/subtype") == "interrupt" {
                    self.interrupt = Some(id);
                    return Heard::Interrupt;
                }
                respond(&id, json!({}), pipes);
                Heard::Nothing
            }
            "control_response" => {
                let id = text(&message, "/response/request_id").to_owned();
                let answer = message
                    .pointer("/response/response")
                    .unwrap_or(&Value::Null);
                Heard::Answer(id, self.answer(answer))
            }
            "" => {
                let problem = format!("Error parsing streaming input line: {line}");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes());
                Heard::Over(1)
            }
            _ => Heard::Nothing,
        }
    }

    fn begin_turn(&mut self, pipes: &mut Pipes) {
        self.tell("system", init(), pipes);
    }

    fn say(&mut self, words: &str, pipes: &mut Pipes) {
        let pieces = halves(words).map(|piece| json!({"type": "text_delta", "text": piece}));
        let whole = json!({"type": "text", "text": words});
        self.block(
            json!({"type": "text", "text": ""}),
            pieces.to_vec(),
            whole,
            pipes,
        );
    }

    fn think(&mut self, words: &str, pipes: &mut Pipes) {
        let pieces = vec![json!({"type": "thinking_delta", "thinking": words})];
        let start = json!({"type": "thinking", "thinking": "", "signature": ""});
        let whole = json!({"type": "thinking", "thinking": words, "signature": "standin"});
        self.block(start, pieces, whole, pipes);
    }

    fn hint(&mut self, pipes: &mut Pipes) {
        let status = json!({"subtype": "status", "status": "requesting"});
        self.tell("system", status, pipes);
    }

    fn novel(&mut self, pipes: &mut Pipes) {
        self.tell("novelty", json!({"of": "no version"}), pipes);
    }

    fn begin(&mut self, tool: &Tool, pipes: &mut Pipes) {
        let (id, name, input) = (&tool.id, &tool.call.name, Self::input(tool));
        let pieces = halves(&input.to_string())
            .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        let whole = json!({"type": "tool_use", "id": id, "name": name, "input": input});
        self.block(start, pieces.to_vec(), whole, pipes);
    }

    fn ask(&mut self, tool: &Tool, pipes: &mut Pipes) -> Option<String> {
        let rule = json!({"toolName": tool.call.name, "ruleContent": tool.call.argument});
        let suggestion = json!({
            "type": "addRules", "rules": [rule], "behavior": "allow", "destination": "localSettings",
        });
        let more = json!({
            "description": format!("Use {}", tool.call.name), "permission_suggestions": [suggestion],
        });
        let request = self.request(tool, Self::input(tool), more, pipes);
        self.close_message("tool_use", pipes);
        request
    }

    fn end(&mut self, tool: &Tool, outcome: Outcome, pipes: &mut Pipes) {
        self.close_message("tool_use", pipes);
        let (words, failed) = match outcome {
            Outcome::Done => ("done", false),
            Outcome::Denied => ("Permission was denied.", true),
        };
        if failed {
            let (name, id) = (&tool.call.name, &tool.id);
            self.denials.push(
                json!({"tool_name": name, "tool_use_id": id, "tool_input": Self::input(tool)}),
            );
        }
        let block = json!({
            "tool_use_id": tool.id, "type": "tool_result", "content": words, "is_error": failed,
        });
        let about = json!({
            "message": {"role": "user", "content": [block]}, "parent_tool_use_id": null, "timestamp": NOW,
            "tool_use_result": words, "tool_result_meta": [{"id": tool.id}],
        });
        self.tell("user", about, pipes);
    }

    fn question(&mut self, tool: &Tool, asked: &[Question], pipes: &mut Pipes) -> Option<String> {
        let question = |asked: &Question| {
            let option = |label: &String| json!({"label": label, "description": ""});
            let options: Vec<Value> = asked.options.iter().map(option).collect();
            json!({
                "question": asked.text, "header": "Choice", "options": options, "multiSelect": asked.many,
            })
        };
        let questions: Vec<Value> = asked.iter().map(question).collect();
        self.questions = json!(questions);
        let more = json!({"requires_user_interaction": true});
        let request = self.request(tool, json!({"questions": questions}), more, pipes);
        self.close_message("tool_use", pipes);
        request
    }

    fn result(&mut self, words: &str, pipes: &mut Pipes) {
        self.close_message("end_turn", pipes);
        self.finish("success", json!({"result": words}), pipes);
    }

    /// It comes as a success that is an error.
    fn fail(&mut self, status: u16, pipes: &mut Pipes) {
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
        self.tell("system", retry, pipes);
        let fields = json!({
            "is_error": true, "terminal_reason": "api_error", "api_error_status": status,
            "stop_reason": "stop_sequence", "result": format!("API Error: {status} the provider said no"),
        });
        self.finish("success", fields, pipes);
    }

    fn interrupted(&mut self, pipes: &mut Pipes) {
        if let Some(id) = self.interrupt.take() {
            respond(&id, json!({"still_queued": []}), pipes);
        }
        self.close_message("end_turn", pipes);
        let block = json!({"type": "text", "text": "[Request interrupted by user]"});
        let about = json!({
            "message": {"role": "user", "content": [block]}, "parent_tool_use_id": null, "timestamp": NOW,
        });
        self.tell("user", about, pipes);
        let fields = json!({
            "is_error": true, "terminal_reason": "aborted_streaming", "stop_reason": null,
            "errors": ["[ede_diagnostic] interrupted"],
        });
        self.finish("error_during_execution", fields, pipes);
    }
}

impl Claude {
    fn answer(&self, answer: &Value) -> Answer {
        if text(answer, "/behavior") != "allow" {
            return Answer::Denied;
        }
        let Some(answers) = answer.pointer("/updatedInput/answers") else {
            let for_session = answer.get("updatedPermissions").is_some();
            return Answer::Allowed { for_session };
        };
        let questions = self.questions.as_array().into_iter().flatten();
        let replies = questions.map(|question| {
            let reply = answers.get(text(question, "/question"));
            reply
                .and_then(Value::as_str)
                .unwrap_or("nothing")
                .to_owned()
        });
        Answer::Replies(replies.collect())
    }
}
