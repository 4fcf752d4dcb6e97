//! Claude Code over stream-json in both directions: one JSON object per line, the kind of each in `type`.
//! Permissions and questions come as control requests on the same pipes.

mod asking;
mod result;
mod threads;

use std::collections::BTreeMap;

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::event::{AgentEvent, AgentExit, Answer, InputKey, Message};
use super::failure;
use super::turn::Turn;
use super::usage::Dollars;
use super::wire::{list, text};
use threads::Began;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Claude {
    turn: Turn,
    /// It was started to go on with a conversation.
    resuming: bool,
    /// It has said that it is ready.
    initialized: bool,
    model: Option<String>,
    streamed: Streamed,
    /// Tools that run, by their ids.
    #[serde(default)]
    tools: BTreeMap<String, Began>,
    /// Its price so far; unknown when the conversation is older than the process.
    cost: Option<Dollars>,
    /// The provider's last error, which comes before the result that it makes.
    api_error: String,
    /// Control requests that were written to it.
    requests: u64,
}

/// What of the message that comes now has come in pieces; the whole message repeats it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Streamed {
    message: String,
    text: bool,
    thinking: bool,
}

impl Claude {
    pub(super) fn new(resuming: bool) -> Self {
        Self {
            turn: Turn::default(),
            resuming,
            initialized: false,
            model: None,
            streamed: Streamed::default(),
            tools: BTreeMap::new(),
            cost: (!resuming).then(Dollars::default),
            api_error: String::new(),
            requests: 0,
        }
    }

    /// The prompt is the first thing that it reads.
    pub(super) fn prompt(text: &str) -> Message {
        let content = json!([{"type": "text", "text": text}]);
        Message::line(&json!({"type": "user", "message": {"role": "user", "content": content}}))
    }

    pub(super) fn line(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) -> bool {
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
                let key = InputKey(text(message, "/request_id").to_owned());
                self.turn.withdrawn(&key, "the agent withdrew it", out);
            }
            "control_response" | "rate_limit_event" | "auth_status" | "tool_use_summary"
            | "prompt_suggestion" | "command_lifecycle" | "conversation_reset" => {
                self.turn.say(OutputKind::System, false, json, None, out)
            }
            "tool_progress" => self.on_tool_progress(json, message, out),
            "error" => {
                let error = message.get("error").unwrap_or(&Value::Null);
                self.api_error = [text(error, "/type"), text(error, "/message")].join(" ");
                self.turn.say(OutputKind::System, false, json, None, out);
            }
            // The line is open; whether anybody works is not said.
            "keep_alive" => {}
            _ => self.turn.say(OutputKind::Opaque, false, json, None, out),
        }
        if kind != "stream_event" {
            self.feed_parents(message, out);
        }
        true
    }

    fn on_system(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        if text(message, "/subtype") == "init" {
            self.initialized = true;
            self.model = Some(text(message, "/model").to_owned()).filter(|model| !model.is_empty());
            self.turn.begin_unless_begun(out);
            self.turn.converses(text(message, "/session_id"), out);
        }
        // How a task of an agent beside this one goes: the life of the tool that started it.
        let tool = Some(text(message, "/tool_use_id")).filter(|tool| self.turn.is_open(tool));
        self.turn.say(OutputKind::System, false, json, tool, out);
    }

    /// Says that the tool lives; one that only keeps the line open does not.
    fn on_tool_progress(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let lives = message.get("heartbeat") != Some(&Value::Bool(true));
        let tool = Some(text(message, "/tool_use_id")).filter(|tool| lives && !tool.is_empty());
        self.turn.say(OutputKind::System, false, json, tool, out);
    }

    /// Pieces of a message. Those of a subagent are not shown; its messages are, as they end.
    fn on_stream_event(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let thread = text(message, "/parent_tool_use_id");
        let kind = text(message, "/event/type");
        let id = text(message, "/event/message/id");
        if kind == "message_start" {
            self.message_begins(thread, id, out);
        }
        if !thread.is_empty() {
            let tools = self.ancestors(thread);
            for tool in &tools {
                self.turn.stirs(json, Some(tool), out);
            }
            // One that goes on behind the back of its tool is work all the same.
            if tools.is_empty() {
                self.turn.stirs(json, None, out);
            }
            return;
        }
        match (kind, text(message, "/event/delta/type")) {
            ("message_start", _) => {
                self.streamed = Streamed {
                    message: id.to_owned(),
                    ..Streamed::default()
                };
                self.turn.heard(out);
            }
            ("content_block_delta", "text_delta") => {
                self.streamed.text = true;
                let id = self.streamed.message.clone();
                let piece = text(message, "/event/delta/text");
                self.turn.speak(piece, Some(&id), out);
            }
            ("content_block_delta", "thinking_delta") => {
                self.streamed.thinking = true;
                match text(message, "/event/delta/thinking") {
                    "" => self.turn.stirs(json, None, out),
                    piece => self.turn.say(OutputKind::Thinking, false, piece, None, out),
                }
            }
            ("content_block_delta", _) => self.turn.stirs(json, None, out),
            _ => self.turn.heard(out),
        }
    }

    fn on_assistant(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        if message.get("is_api_error_message") == Some(&Value::Bool(true)) {
            // No words of the agent: the provider's, and the result that follows says the same.
            self.api_error = ["/error", "/api_error", "/api_error_type"]
                .map(|path| text(message, path))
                .join(" ");
            self.turn.say(OutputKind::System, false, json, None, out);
            return;
        }
        let subagent = text(message, "/parent_tool_use_id");
        let id = text(message, "/message/id");
        self.message_begins(subagent, id, out);
        let repeated = subagent.is_empty() && !id.is_empty() && id == self.streamed.message;
        for block in list(message, "/message/content") {
            match text(block, "/type") {
                "text" if repeated && self.streamed.text => {}
                "text" if subagent.is_empty() => {
                    self.turn.speak(text(block, "/text"), Some(id), out);
                }
                "text" => {
                    let words = text(block, "/text");
                    self.turn
                        .say(OutputKind::Text, false, words, Some(subagent), out);
                }
                "thinking" if repeated && self.streamed.thinking => {}
                "thinking" => {
                    let words = text(block, "/thinking");
                    self.turn.say(OutputKind::Thinking, false, words, None, out);
                }
                "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                    let began = Began {
                        thread: subagent.to_owned(),
                        message: id.to_owned(),
                    };
                    self.on_tool_use(block, began, out);
                }
                kind if kind.ends_with("_tool_result") => self.on_tool_result(block, out),
                _ => self
                    .turn
                    .say(OutputKind::Opaque, false, block.to_string(), None, out),
            }
        }
    }

    fn on_tool_use(&mut self, block: &Value, began: Began, out: &mut Vec<AgentEvent>) {
        let id = text(block, "/id");
        self.turn.tool_started(id, text(block, "/name"), out);
        if self.turn.is_open(id) {
            self.tools.insert(id.to_owned(), began);
        }
        self.turn
            .say(OutputKind::ToolCall, true, block.to_string(), Some(id), out);
    }

    fn on_tool_result(&mut self, block: &Value, out: &mut Vec<AgentEvent>) {
        let id = text(block, "/tool_use_id");
        let failed = block.get("is_error") == Some(&Value::Bool(true));
        self.turn.say(
            OutputKind::ToolResult,
            true,
            content_text(block),
            Some(id),
            out,
        );
        self.tool_ends(id, failed, out);
    }

    fn on_user(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) {
        let results = list(message, "/message/content").iter();
        let mut results = results
            .filter(|block| text(block, "/type") == "tool_result")
            .peekable();
        if results.peek().is_none() {
            self.turn.say(OutputKind::System, false, json, None, out);
        }
        for block in results {
            self.on_tool_result(block, out);
        }
    }

    pub(super) fn wrote(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        match text(message, "/type") {
            "user" => self.turn.prompt_written(out),
            "control_request" => {
                self.requests += 1;
                if text(message, "/request/subtype") == "interrupt" {
                    self.turn.interrupt();
                }
            }
            "control_response" => {
                let key = InputKey(text(message, "/response/request_id").to_owned());
                if message.pointer("/response/response/interrupt") == Some(&Value::Bool(true)) {
                    self.turn.interrupt();
                }
                self.turn.answered(&key, out);
            }
            _ => {}
        }
    }

    pub(super) fn exited(&mut self, exit: AgentExit, stderr: &str, out: &mut Vec<AgentEvent>) {
        let resuming = self.resuming;
        let failure = || failure::exit_failure(exit, resuming, stderr);
        self.turn.process_ended(failure, out);
    }

    pub(super) fn answer(&self, key: &InputKey, answer: &Answer) -> Option<Message> {
        asking::answer(self.turn.needs(key)?, key, answer)
    }

    pub(super) fn cut(beginning: &str) -> Option<Message> {
        asking::cut(beginning)
    }

    pub(super) fn interrupt(&self) -> Vec<Message> {
        let id = format!("baton-{}", self.requests);
        let request = json!({"subtype": "interrupt"});
        vec![Message::line(
            &json!({"type": "control_request", "request_id": id, "request": request}),
        )]
    }
}

/// A tool's output: text, or blocks of which some are text.
fn content_text(block: &Value) -> String {
    match block.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| match text(part, "/type") {
                "text" => text(part, "/text").to_owned(),
                "image" => "[image]".to_owned(),
                _ => part.to_string(),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}
