//! Codex with `exec --json`: it reads the prompt up to the end of stdin, sends only whole
//! items, cannot ask for input, and reports the usage of the whole thread.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::script::ScriptedQuestion;
use crate::script_player::{
    AgentWireProtocol, ClientMessage, OpenToolCall, ToolOutcome, is_known_conversation,
    new_conversation,
};
use crate::stdio_pipes::StdioPipes;

/// Reported usage of each model request: input, of that from the cache, output.
const USAGE_PER_REQUEST: [u64; 3] = [312, 200, 27];

pub(crate) struct CodexExecWire {
    resume: Option<String>,
    is_unknown_thread: bool,
    item_count: u32,
    /// The item id of the open tool call.
    open_item: Option<String>,
}

impl CodexExecWire {
    pub(crate) fn new(arguments: &[String], script: Option<&str>) -> Self {
        let resume = arguments
            .iter()
            .skip_while(|word| *word != "resume")
            .nth(1)
            .cloned();
        Self {
            is_unknown_thread: resume
                .as_ref()
                .is_some_and(|id| !is_known_conversation(id, script)),
            resume,
            item_count: 0,
            open_item: None,
        }
    }

    fn next_item(&mut self) -> String {
        self.item_count += 1;
        format!("item_{}", self.item_count - 1)
    }

    fn send_completed_item(&mut self, mut item: Value, pipes: &mut StdioPipes) {
        item["id"] = json!(self.next_item());
        pipes.send_message(&json!({"type": "item.completed", "item": item}));
    }
}

impl AgentWireProtocol for CodexExecWire {
    fn start_wire(&mut self, pipes: &mut StdioPipes) -> ClientMessage {
        let prompt = pipes.read_to_end();
        let thread = match &self.resume {
            // A value that is not an id is taken as a name, and a new thread begins.
            Some(id) if self.is_unknown_thread && Uuid::parse_str(id).is_ok() => {
                let problem = format!(
                    "Error: thread/resume: thread/resume failed: no rollout found for thread id {id} (code -32600)\n"
                );
                let _ = std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes());
                return ClientMessage::Exit(1);
            }
            Some(id) if !self.is_unknown_thread => id.clone(),
            Some(_) | None => new_conversation(),
        };
        pipes.send_message(&json!({"type": "thread.started", "thread_id": thread}));
        ClientMessage::Prompt(prompt)
    }

    fn handle_line(&mut self, _: &str, _: &mut StdioPipes) -> ClientMessage {
        ClientMessage::Nothing
    }

    fn begin_turn(&mut self, pipes: &mut StdioPipes) {
        pipes.send_message(&json!({"type": "turn.started"}));
    }

    fn send_text(&mut self, text: &str, pipes: &mut StdioPipes) {
        self.send_completed_item(json!({"type": "agent_message", "text": text}), pipes);
    }

    fn send_thinking(&mut self, text: &str, pipes: &mut StdioPipes) {
        self.send_completed_item(json!({"type": "reasoning", "text": text}), pipes);
    }

    /// A warning, which is not a failure.
    fn send_invisible_event(&mut self, pipes: &mut StdioPipes) {
        self.send_completed_item(json!({"type": "error", "message": "nothing to see"}), pipes);
    }

    fn send_unknown_event(&mut self, pipes: &mut StdioPipes) {
        pipes.send_message(&json!({"type": "novelty.of.no.version"}));
    }

    fn begin_tool(&mut self, tool: &OpenToolCall, pipes: &mut StdioPipes) {
        let id = self.next_item();
        let item = json!({
            "id": id, "type": "command_execution", "command": command_line(tool), "aggregated_output": "",
            "exit_code": null, "status": "in_progress",
        });
        self.open_item = Some(id);
        pipes.send_message(&json!({"type": "item.started", "item": item}));
    }

    fn request_permission(&mut self, _: &OpenToolCall, _: &mut StdioPipes) -> Option<String> {
        None
    }

    fn end_tool(&mut self, tool: &OpenToolCall, _: ToolOutcome, pipes: &mut StdioPipes) {
        let item = json!({
            "id": self.open_item.take(), "type": "command_execution", "command": command_line(tool),
            "aggregated_output": "done\n", "exit_code": 0, "status": "completed",
        });
        pipes.send_message(&json!({"type": "item.completed", "item": item}));
    }

    fn ask_questions(
        &mut self,
        _: &OpenToolCall,
        _: &[ScriptedQuestion],
        _: &mut StdioPipes,
    ) -> Option<String> {
        None
    }

    /// Usage of the whole thread: one turn more after a resume.
    fn send_result(&mut self, _: &str, pipes: &mut StdioPipes) {
        let turns = if self.resume.is_some() { 2 } else { 1 };
        let [input, cached, output] = USAGE_PER_REQUEST.map(|used| used * turns);
        let usage = json!({
            "input_tokens": input, "cached_input_tokens": cached, "cache_write_input_tokens": 0,
            "output_tokens": output, "reasoning_output_tokens": 0,
        });
        pipes.send_message(&json!({"type": "turn.completed", "usage": usage}));
    }

    fn send_failure(&mut self, status: u16, pipes: &mut StdioPipes) {
        let message = format!("exceeded retry limit, last status: {status}");
        pipes.send_message(&json!({"type": "error", "message": message}));
        pipes.send_message(&json!({"type": "turn.failed", "error": {"message": message}}));
    }

    fn send_interrupted(&mut self, _: &mut StdioPipes) {}
}

fn command_line(tool: &OpenToolCall) -> String {
    format!("/bin/bash -lc '{}'", tool.call.argument)
}
