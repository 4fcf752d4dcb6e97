//! `session/update` notifications: all kinds of protocol version 1. Unknown kinds are passed on
//! as opaque output.

use baton_proto::v1::OutputKind;
use serde_json::Value;

use super::super::agent_event::AgentEvent;
use super::super::json_rpc::{list_at, text_at};
use super::AcpAdapter;
use super::prompt_result::tokens;
use crate::agents::outcome::turn_usage::DollarAmount;

impl AcpAdapter {
    pub(super) fn on_update(&mut self, json: &str, params: &Value, out: &mut Vec<AgentEvent>) {
        let update = params.get("update").unwrap_or(&Value::Null);
        let kind = text_at(update, "/sessionUpdate");
        if !self.is_own_session(params) {
            self.turn
                .push_output(OutputKind::System, false, json, None, out);
            return;
        }
        match kind {
            "agent_message_chunk" => {
                self.on_request_usage(update);
                self.on_message_text(update, out);
            }
            "agent_thought_chunk" => {
                self.program_signals.agent_was_active = true;
                let text = block_text(update.get("content").unwrap_or(&Value::Null));
                self.turn
                    .push_output(OutputKind::Thinking, false, text, None, out);
            }
            "tool_call" => {
                self.on_tool(update, out);
                let id = text_at(update, "/toolCallId");
                self.turn.push_output(
                    OutputKind::ToolCall,
                    true,
                    update.to_string(),
                    Some(id),
                    out,
                );
                self.on_tool_state(update, out);
            }
            "tool_call_update" => {
                self.on_tool(update, out);
                self.on_tool_state(update, out);
            }
            "usage_update" => {
                self.on_cost(update);
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            "session_info_update" => {
                self.on_session_info(update);
                self.turn.push_aside(json, out);
            }
            "plan" | "plan_update" => {
                self.program_signals.agent_was_active = true;
                self.turn
                    .push_output(OutputKind::System, true, update.to_string(), None, out)
            }
            "notice" => self.on_notice(update, out),
            // Properties and offers of the session. Some come right after the response that
            // opens it, when the prompt has just been written.
            "user_message_chunk"
            | "available_commands_update"
            | "current_mode_update"
            | "config_option_update" => self.turn.push_aside(json, out),
            "compaction_update"
            | "compaction_summary_chunk"
            | "plan_removed"
            | "subagent_update"
            | "session_message"
            | "session_message_chunk" => {
                self.program_signals.agent_was_active = true;
                self.turn
                    .push_output(OutputKind::System, false, json, None, out);
            }
            _ => self
                .turn
                .push_output(OutputKind::Opaque, false, json, None, out),
        }
    }

    fn on_notice(&mut self, update: &Value, out: &mut Vec<AgentEvent>) {
        let text = [text_at(update, "/title"), text_at(update, "/description")].join("\n");
        self.turn
            .push_output(OutputKind::System, true, text.trim(), None, out);
    }

    /// Content other than text is shown but is not part of the result.
    fn on_message_text(&mut self, update: &Value, out: &mut Vec<AgentEvent>) {
        let content = update.get("content").unwrap_or(&Value::Null);
        let text = block_text(content);
        if !matches!(text_at(content, "/type"), "text" | "") {
            self.program_signals.agent_was_active = true;
            self.turn
                .push_output(OutputKind::Text, true, format!("{text}\n"), None, out);
            return;
        }
        let message = Some(text_at(update, "/messageId")).filter(|message| !message.is_empty());
        self.program_signals.agent_was_active |= message.is_some();
        self.program_signals.names_messages |= message.is_some();
        match message {
            Some(_) => self.program_signals.forget_text(),
            None => self.program_signals.remember_text(&text),
        }
        self.turn.push_text(&text, message, out);
    }

    /// Some agents never report the start of a tool call: the first message about it is its
    /// start.
    pub(super) fn on_tool(&mut self, call: &Value, out: &mut Vec<AgentEvent>) {
        self.program_signals.agent_was_active = true;
        let id = text_at(call, "/toolCallId");
        if !id.is_empty() {
            self.turn
                .on_tool_started(id, self.calls.tool_name(call), out);
        }
        if self.turn.is_running() {
            self.calls.record_update(id, call);
            self.turn.forget_text();
            self.program_signals.forget_text();
        }
    }

    fn on_tool_state(&mut self, call: &Value, out: &mut Vec<AgentEvent>) {
        let id = text_at(call, "/toolCallId");
        let piece = text_at(call, "/_meta/terminal_output_delta/data");
        self.turn
            .push_output(OutputKind::ToolResult, true, piece, Some(id), out);
        let status = text_at(call, "/status");
        if matches!(status, "completed" | "failed") {
            // Some agents repeat the status with every later update.
            if self.calls.mark_shown(id) {
                self.turn
                    .push_output(OutputKind::ToolResult, true, tool_text(call), Some(id), out);
            }
            self.calls.forget(id);
            self.turn.on_tool_finished(id, status == "failed", out);
        } else if piece.is_empty() && text_at(call, "/sessionUpdate") == "tool_call_update" {
            self.turn
                .push_output(OutputKind::ToolCall, false, call.to_string(), Some(id), out);
        }
    }

    /// Qwen Code reports the usage of each request on an empty piece after it, and its response
    /// to the prompt has no usage.
    fn on_request_usage(&mut self, update: &Value) {
        let used = update.pointer("/_meta/usage").and_then(tokens);
        if let Some(used) = used.filter(|_| self.turn.is_running()) {
            self.program_signals.used =
                Some(self.program_signals.used.unwrap_or_default().plus(used));
        }
    }

    fn on_cost(&mut self, update: &Value) {
        if text_at(update, "/cost/currency") == "USD" {
            self.cost = update
                .pointer("/cost/amount")
                .and_then(DollarAmount::from_json)
                .or(self.cost);
        }
    }

    /// Codex behind this protocol reports a failed turn only here.
    fn on_session_info(&mut self, update: &Value) {
        match text_at(update, "/_meta/codex/threadStatus/type") {
            "" => {}
            status => self.program_signals.broken = status == "systemError",
        }
    }
}

/// A content block as text. For content other than text, a description of it.
fn block_text(block: &Value) -> String {
    match text_at(block, "/type") {
        "text" => text_at(block, "/text").to_owned(),
        "" => String::new(),
        "resource_link" => format!("[{}]({})", text_at(block, "/name"), text_at(block, "/uri")),
        "resource" => match text_at(block, "/resource/text") {
            "" => format!("[{}]", text_at(block, "/resource/uri")),
            text => text.to_owned(),
        },
        kind @ ("image" | "audio") => format!("[{kind}: {}]", text_at(block, "/mimeType")),
        _ => block.to_string(),
    }
}

fn tool_text(call: &Value) -> String {
    let blocks = list_at(call, "/content").iter();
    let texts = blocks.filter_map(|content| match text_at(content, "/type") {
        "content" => content.get("content").map(block_text),
        // Terminal output is streamed separately.
        "terminal" => None,
        _ => Some(content.to_string()),
    });
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    match call.get("rawOutput") {
        Some(output) if texts.is_empty() && !output.is_null() => output
            .as_str()
            .map_or_else(|| output.to_string(), str::to_owned),
        Some(_) | None => texts.join("\n"),
    }
}
