//! Claude Code over stream-json in both directions: one JSON object per line, with its kind in
//! `type`. Permissions and questions come as control requests on the same pipes.

mod inputs;
mod subagent_tools;
mod turn_result;

use std::collections::BTreeMap;

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agent_event::{AgentEvent, AgentExit, AgentInputAnswer, InputKey, StdinMessage};
use super::json_rpc::{list_at, text_at};
use super::turn_state::TurnState;
use crate::agents::outcome::failure;
use crate::agents::outcome::turn_usage::DollarAmount;
use subagent_tools::ToolOrigin;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClaudeAdapter {
    turn: TurnState,
    /// It was started to resume a conversation.
    resuming: bool,
    /// The `init` message has arrived.
    initialized: bool,
    model: Option<String>,
    streamed: StreamedMessage,
    /// Running tools by id.
    #[serde(default)]
    tools: BTreeMap<String, ToolOrigin>,
    /// Cost so far; unknown when the conversation is older than the process.
    cost: Option<DollarAmount>,
    /// The provider's last error, which comes before the result that it causes.
    api_error: String,
    /// Control requests that were written to it.
    requests: u64,
}

/// Parts of the current message that were streamed in pieces. The whole message repeats them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct StreamedMessage {
    message: String,
    text: bool,
    thinking: bool,
}

impl ClaudeAdapter {
    pub(crate) fn new(resuming: bool) -> Self {
        Self {
            turn: TurnState::default(),
            resuming,
            initialized: false,
            model: None,
            streamed: StreamedMessage::default(),
            tools: BTreeMap::new(),
            cost: (!resuming).then(DollarAmount::default),
            api_error: String::new(),
            requests: 0,
        }
    }

    /// The prompt as the first message.
    pub(crate) fn prompt_message(text: &str) -> StdinMessage {
        let content = json!([{"type": "text", "text": text}]);
        StdinMessage::json_line(
            &json!({"type": "user", "message": {"role": "user", "content": content}}),
        )
    }

    pub(crate) fn on_message(
        &mut self,
        json: &str,
        message: &Value,
        out: &mut Vec<AgentEvent>,
    ) -> bool {
        let Some(kind) = message.get("type").and_then(Value::as_str) else {
            return false;
        };
        match kind {
            "system" => self.on_system(json, message, out),
            "stream_event" => self.on_stream_event(json, message, out),
            "assistant" => self.on_assistant(json, message, out),
            "user" => self.on_user(json, message, out),
            "result" => self.on_result(message, out),
            "control_request" => self.on_control_request(json, message, out),
            "control_cancel_request" => {
                let key = InputKey(text_at(message, "/request_id").to_owned());
                self.turn
                    .close_withdrawn(&key, "the agent withdrew it", out);
            }
            "control_response" | "rate_limit_event" | "auth_status" | "tool_use_summary"
            | "prompt_suggestion" | "command_lifecycle" | "conversation_reset" => self
                .turn
                .push_output(OutputKind::System, false, json, None, out),
            "tool_progress" => self.on_tool_progress(json, message, out),
            "error" => {
                let error = message.get("error").unwrap_or(&Value::Null);
                self.api_error = [text_at(error, "/type"), text_at(error, "/message")].join(" ");
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            // Shows only that the connection is open, not that the agent works.
            "keep_alive" => {}
            _ => self
                .turn
                .push_output(OutputKind::Opaque, false, json, None, out),
        }
        if kind != "stream_event" {
            self.mark_parents_active(message, out);
        }
        true
    }

    fn on_system(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        if text_at(message, "/subtype") == "init" {
            self.initialized = true;
            self.model =
                Some(text_at(message, "/model").to_owned()).filter(|model| !model.is_empty());
            self.turn.begin_if_not_begun(out);
            self.turn
                .set_conversation(text_at(message, "/session_id"), out);
        }
        // Progress of a background task counts as activity of the tool that started it.
        let tool =
            Some(text_at(message, "/tool_use_id")).filter(|tool| self.turn.is_tool_open(tool));
        self.turn
            .push_output(OutputKind::System, false, json, tool, out);
    }

    /// Activity of a tool. A progress message that is only a heartbeat does not count.
    fn on_tool_progress(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let is_activity = message.get("heartbeat") != Some(&Value::Bool(true));
        let tool =
            Some(text_at(message, "/tool_use_id")).filter(|tool| is_activity && !tool.is_empty());
        self.turn
            .push_output(OutputKind::System, false, json, tool, out);
    }

    /// Pieces of a message. Those of a subagent are not shown; its messages are shown when they
    /// are complete.
    fn on_stream_event(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let thread = text_at(message, "/parent_tool_use_id");
        let kind = text_at(message, "/event/type");
        let id = text_at(message, "/event/message/id");
        if kind == "message_start" {
            self.on_message_start(thread, id, out);
        }
        if !thread.is_empty() {
            let tools = self.open_ancestors(thread);
            for tool in &tools {
                self.turn.push_silent_activity(json, Some(tool), out);
            }
            // A subagent that outlives its tool still counts as work.
            if tools.is_empty() {
                self.turn.push_silent_activity(json, None, out);
            }
            return;
        }
        match (kind, text_at(message, "/event/delta/type")) {
            ("message_start", _) => {
                self.streamed = StreamedMessage {
                    message: id.to_owned(),
                    ..StreamedMessage::default()
                };
                self.turn.mark_active(out);
            }
            ("content_block_delta", "text_delta") => {
                self.streamed.text = true;
                let id = self.streamed.message.clone();
                let piece = text_at(message, "/event/delta/text");
                self.turn.push_text(piece, Some(&id), out);
            }
            ("content_block_delta", "thinking_delta") => {
                self.streamed.thinking = true;
                match text_at(message, "/event/delta/thinking") {
                    "" => self.turn.push_silent_activity(json, None, out),
                    piece => self
                        .turn
                        .push_output(OutputKind::Thinking, false, piece, None, out),
                }
            }
            ("content_block_delta", _) => self.turn.push_silent_activity(json, None, out),
            _ => self.turn.mark_active(out),
        }
    }

    fn on_assistant(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        if message.get("is_api_error_message") == Some(&Value::Bool(true)) {
            // This is the provider's error and not the agent's text. The result that follows
            // repeats it.
            self.api_error = ["/error", "/api_error", "/api_error_type"]
                .map(|path| text_at(message, path))
                .join(" ");
            self.turn
                .push_output(OutputKind::System, false, json, None, out);
            return;
        }
        let subagent = text_at(message, "/parent_tool_use_id");
        let id = text_at(message, "/message/id");
        self.on_message_start(subagent, id, out);
        let repeated = subagent.is_empty() && !id.is_empty() && id == self.streamed.message;
        for block in list_at(message, "/message/content") {
            match text_at(block, "/type") {
                "text" if repeated && self.streamed.text => {}
                "text" if subagent.is_empty() => {
                    self.turn.push_text(text_at(block, "/text"), Some(id), out);
                }
                "text" => {
                    let text = text_at(block, "/text");
                    self.turn
                        .push_output(OutputKind::Text, false, text, Some(subagent), out);
                }
                "thinking" if repeated && self.streamed.thinking => {}
                "thinking" => {
                    let text = text_at(block, "/thinking");
                    self.turn
                        .push_output(OutputKind::Thinking, false, text, None, out);
                }
                "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                    let origin = ToolOrigin {
                        thread: subagent.to_owned(),
                        message: id.to_owned(),
                    };
                    self.on_tool_use(block, origin, out);
                }
                kind if kind.ends_with("_tool_result") => self.on_tool_result(block, out),
                _ => self
                    .turn
                    .push_output(OutputKind::Opaque, false, block.to_string(), None, out),
            }
        }
    }

    fn on_tool_use(&mut self, block: &Value, origin: ToolOrigin, out: &mut Vec<AgentEvent>) {
        let id = text_at(block, "/id");
        self.turn.on_tool_started(id, text_at(block, "/name"), out);
        if self.turn.is_tool_open(id) {
            self.tools.insert(id.to_owned(), origin);
        }
        self.turn
            .push_output(OutputKind::ToolCall, true, block.to_string(), Some(id), out);
    }

    fn on_tool_result(&mut self, block: &Value, out: &mut Vec<AgentEvent>) {
        let id = text_at(block, "/tool_use_id");
        let failed = block.get("is_error") == Some(&Value::Bool(true));
        self.turn.push_output(
            OutputKind::ToolResult,
            true,
            content_text(block),
            Some(id),
            out,
        );
        self.on_tool_end(id, failed, out);
    }

    fn on_user(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let results = list_at(message, "/message/content").iter();
        let mut results = results
            .filter(|block| text_at(block, "/type") == "tool_result")
            .peekable();
        if results.peek().is_none() {
            self.turn
                .push_output(OutputKind::System, false, json, None, out);
        }
        for block in results {
            self.on_tool_result(block, out);
        }
    }

    pub(crate) fn on_written(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        match text_at(message, "/type") {
            "user" => self.turn.on_prompt_written(out),
            "control_request" => {
                self.requests += 1;
                if text_at(message, "/request/subtype") == "interrupt" {
                    self.turn.mark_interrupted();
                }
            }
            "control_response" => {
                let key = InputKey(text_at(message, "/response/request_id").to_owned());
                if message.pointer("/response/response/interrupt") == Some(&Value::Bool(true)) {
                    self.turn.mark_interrupted();
                }
                self.turn.close_answered(&key, out);
            }
            _ => {}
        }
    }

    pub(crate) fn on_exit(&mut self, exit: AgentExit, stderr: &str, out: &mut Vec<AgentEvent>) {
        let resuming = self.resuming;
        let failure = || failure::exit_failure(exit, resuming, stderr);
        self.turn.on_process_end(failure, out);
    }

    pub(crate) fn answer_message(
        &self,
        key: &InputKey,
        answer: &AgentInputAnswer,
    ) -> Option<StdinMessage> {
        inputs::answer_message(self.turn.answer_context(key)?, key, answer)
    }

    pub(crate) fn oversized_response(beginning: &str) -> Option<StdinMessage> {
        inputs::oversized_response(beginning)
    }

    pub(crate) fn interrupt_messages(&self) -> Vec<StdinMessage> {
        let id = format!("baton-{}", self.requests);
        let request = json!({"subtype": "interrupt"});
        vec![StdinMessage::json_line(
            &json!({"type": "control_request", "request_id": id, "request": request}),
        )]
    }
}

/// A tool's output: text, or blocks of which some are text.
fn content_text(block: &Value) -> String {
    match block.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| match text_at(part, "/type") {
                "text" => text_at(part, "/text").to_owned(),
                "image" => "[image]".to_owned(),
                _ => part.to_string(),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}
