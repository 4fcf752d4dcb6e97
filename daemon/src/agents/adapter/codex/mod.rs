//! Codex: JSON-RPC with its app-server, or the events of `codex exec` for versions without one.
//! Both report the same items with slightly different names.

mod app_server;
mod exec;
mod inputs;
mod notifications;
mod thread_totals;

use baton_proto::v1::OutputKind;
use serde_json::Value;

use super::agent_event::AgentEvent;
use super::json_rpc::{list_at, text_at};
use super::turn_state::TurnState;

pub(crate) use app_server::{CodexAppServer, CodexOpening};
pub(crate) use exec::CodexExec;

/// Kinds of items in a thread.
enum CodexItem {
    Message,
    Reasoning,
    /// With the tool's name.
    Tool(String),
    /// The agent's plan, for people to read.
    Plan,
    /// About the thread itself.
    Note,
    Unknown,
}

impl CodexItem {
    fn of_json(item: &Value) -> Self {
        match text_at(item, "/type") {
            "agent_message" | "agentMessage" => Self::Message,
            "reasoning" => Self::Reasoning,
            "mcp_tool_call" | "mcpToolCall" => Self::Tool(format!(
                "{}.{}",
                text_at(item, "/server"),
                text_at(item, "/tool")
            )),
            "dynamicToolCall" | "collab_tool_call" | "collabToolCall" | "collabAgentToolCall" => {
                Self::Tool(text_at(item, "/tool").to_owned())
            }
            kind @ ("command_execution" | "commandExecution" | "file_change" | "fileChange"
            | "web_search" | "webSearch" | "imageView" | "imageGeneration" | "sleep") => {
                Self::Tool(kind.to_owned())
            }
            "plan" => Self::Plan,
            "userMessage" | "user_message" | "todo_list" | "error" | "hookPrompt"
            | "functionCallOutput" | "subAgentActivity" | "contextCompaction"
            | "enteredReviewMode" | "exitedReviewMode" => Self::Note,
            _ => Self::Unknown,
        }
    }
}

/// Handles the start or end of an item. An item may come with its end only.
fn on_item(
    turn: &mut TurnState,
    item: &Value,
    ended: bool,
    streamed: bool,
    out: &mut Vec<AgentEvent>,
) {
    let id = text_at(item, "/id");
    match CodexItem::of_json(item) {
        CodexItem::Message if ended && streamed => turn.mark_active(out),
        CodexItem::Message if ended => turn.push_text(text_at(item, "/text"), Some(id), out),
        CodexItem::Reasoning if ended && !streamed => {
            turn.push_output(OutputKind::Thinking, false, reasoning_text(item), None, out);
        }
        CodexItem::Message | CodexItem::Reasoning => turn.mark_active(out),
        CodexItem::Tool(name) => {
            turn.on_tool_started(id, &name, out);
            if ended {
                let output = if streamed {
                    String::new()
                } else {
                    tool_output(item)
                };
                turn.push_output(OutputKind::ToolResult, true, output, Some(id), out);
                turn.on_tool_finished(id, has_failed(item), out);
            } else {
                turn.push_output(OutputKind::ToolCall, true, item.to_string(), Some(id), out);
            }
        }
        CodexItem::Plan if ended => {
            turn.push_output(OutputKind::System, true, text_at(item, "/text"), None, out);
        }
        CodexItem::Plan => turn.mark_active(out),
        CodexItem::Note => turn.push_output(OutputKind::System, false, item.to_string(), None, out),
        CodexItem::Unknown => {
            turn.push_output(OutputKind::Opaque, false, item.to_string(), None, out)
        }
    }
}

fn reasoning_text(item: &Value) -> String {
    let parts = list_at(item, "/summary")
        .iter()
        .chain(list_at(item, "/content"));
    let parts: Vec<&str> = parts.filter_map(Value::as_str).collect();
    match text_at(item, "/text") {
        "" => parts.join("\n"),
        text => text.to_owned(),
    }
}

fn tool_output(item: &Value) -> String {
    match item
        .get("aggregated_output")
        .or_else(|| item.get("aggregatedOutput"))
    {
        Some(Value::String(output)) => output.clone(),
        Some(_) => String::new(),
        None => item.to_string(),
    }
}

/// By its status, exit code, success flag or error.
fn has_failed(item: &Value) -> bool {
    let code = item.get("exit_code").or_else(|| item.get("exitCode"));
    let error = item.get("error").or_else(|| item.get("failure"));
    matches!(
        text_at(item, "/status"),
        "failed" | "declined" | "interrupted"
    ) || code.and_then(Value::as_i64).is_some_and(|code| code != 0)
        || error.is_some_and(|error| !error.is_null())
        || item.get("success") == Some(&Value::Bool(false))
}

/// Progress of a running item. It is not visible to a person, but counts as activity of its
/// tool.
fn on_progress(turn: &mut TurnState, json: &str, item: &str, out: &mut Vec<AgentEvent>) {
    let item = Some(item).filter(|item| !item.is_empty());
    turn.push_output(OutputKind::System, false, json, item, out);
}
