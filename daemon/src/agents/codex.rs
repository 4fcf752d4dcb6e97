//! Codex: its app-server is spoken to over JSON-RPC; where a version has none, `codex exec` prints events. Both tell of
//! the same items under slightly different names.

mod app_server;
mod approvals;
mod exec;
mod totals;

use baton_proto::v1::OutputKind;
use serde_json::Value;

use super::event::AgentEvent;
use super::turn::Turn;
use super::wire::{list, text};

pub(crate) use app_server::{AppServer, Opening};
pub(crate) use exec::Exec;

/// What an item of a thread is.
enum Item {
    Words,
    Thoughts,
    /// With the tool's name.
    Tool(String),
    /// What it means to do, for people to read.
    Plan,
    /// About the thread itself.
    Note,
    Unknown,
}

impl Item {
    fn of(item: &Value) -> Self {
        match text(item, "/type") {
            "agent_message" | "agentMessage" => Self::Words,
            "reasoning" => Self::Thoughts,
            "mcp_tool_call" | "mcpToolCall" => {
                Self::Tool(format!("{}.{}", text(item, "/server"), text(item, "/tool")))
            }
            "dynamicToolCall" | "collab_tool_call" | "collabToolCall" | "collabAgentToolCall" => {
                Self::Tool(text(item, "/tool").to_owned())
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

/// `started` and `completed` are both known: an item may come with its end only.
fn on_item(turn: &mut Turn, item: &Value, ended: bool, streamed: bool, out: &mut Vec<AgentEvent>) {
    let id = text(item, "/id");
    match Item::of(item) {
        Item::Words if ended && streamed => turn.heard(out),
        Item::Words if ended => turn.speak(text(item, "/text"), Some(id), out),
        Item::Thoughts if ended && !streamed => {
            turn.say(OutputKind::Thinking, false, thoughts(item), None, out);
        }
        Item::Words | Item::Thoughts => turn.heard(out),
        Item::Tool(name) => {
            turn.tool_started(id, &name, out);
            if ended {
                let output = if streamed {
                    String::new()
                } else {
                    tool_output(item)
                };
                turn.say(OutputKind::ToolResult, true, output, Some(id), out);
                turn.tool_finished(id, has_failed(item), out);
            } else {
                turn.say(OutputKind::ToolCall, true, item.to_string(), Some(id), out);
            }
        }
        Item::Plan if ended => {
            turn.say(OutputKind::System, true, text(item, "/text"), None, out);
        }
        Item::Plan => turn.heard(out),
        Item::Note => turn.say(OutputKind::System, false, item.to_string(), None, out),
        Item::Unknown => turn.say(OutputKind::Opaque, false, item.to_string(), None, out),
    }
}

fn thoughts(item: &Value) -> String {
    let parts = list(item, "/summary").iter().chain(list(item, "/content"));
    let parts: Vec<&str> = parts.filter_map(Value::as_str).collect();
    match text(item, "/text") {
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

/// By its status, its exit code, or the error that it came to.
fn has_failed(item: &Value) -> bool {
    let code = item.get("exit_code").or_else(|| item.get("exitCode"));
    let error = item.get("error").or_else(|| item.get("failure"));
    matches!(text(item, "/status"), "failed" | "declined" | "interrupted")
        || code.and_then(Value::as_i64).is_some_and(|code| code != 0)
        || error.is_some_and(|error| !error.is_null())
        || item.get("success") == Some(&Value::Bool(false))
}

/// A word about an item that goes on: it is no news to a person, and life to a tool.
fn on_progress(turn: &mut Turn, json: &str, item: &str, out: &mut Vec<AgentEvent>) {
    let item = Some(item).filter(|item| !item.is_empty());
    turn.say(OutputKind::System, false, json, item, out);
}
