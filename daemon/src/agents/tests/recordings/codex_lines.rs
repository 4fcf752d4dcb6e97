//! Facts from the items and requests of Codex on both of its wires.

use serde_json::Value;

use super::raw_lines::{LineFact, elicited, items, message_text, number, text_field, visible_text};
use crate::agents::outcome::turn_usage::TokenCounts;

pub(super) const SNAKE: [&str; 4] = [
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
];
pub(super) const CAMEL: [&str; 4] = [
    "inputTokens",
    "outputTokens",
    "cachedInputTokens",
    "cacheWriteInputTokens",
];

/// The input includes cached tokens.
pub(super) fn codex_tokens(usage: &Value, names: [&str; 4]) -> TokenCounts {
    let [input, output, cache_read, cache_write] = names.map(|name| number(&usage[name]));
    TokenCounts {
        input: input - cache_read - cache_write,
        output,
        cache_read,
        cache_write,
    }
}

pub(super) fn codex_item(item: &Value, ended: bool) -> Vec<LineFact> {
    let (id, kind) = (
        text_field(item, "/id").to_owned(),
        text_field(item, "/type"),
    );
    match kind {
        "agent_message" if ended => message_text(id, text_field(item, "/text")),
        "plan" if ended => visible_text(text_field(item, "/text")),
        "command_execution" | "commandExecution" | "file_change" | "fileChange" | "web_search"
        | "webSearch" => codex_tool(id, kind.to_owned(), item, ended),
        "mcp_tool_call" | "mcpToolCall" => {
            let name = format!(
                "{}.{}",
                text_field(item, "/server"),
                text_field(item, "/tool")
            );
            codex_tool(id, name, item, ended)
        }
        _ => Vec::new(),
    }
}

fn codex_tool(id: String, name: String, item: &Value, ended: bool) -> Vec<LineFact> {
    let mut facts = vec![LineFact::ToolBegan(id.clone(), name), LineFact::Visible];
    if ended {
        let code = item.get("exit_code").or_else(|| item.get("exitCode"));
        let code = code.and_then(Value::as_i64).unwrap_or(0);
        let status = text_field(item, "/status");
        let failed = matches!(status, "failed" | "declined") || code != 0;
        facts.push(LineFact::ToolEnded(id, failed));
    }
    facts
}

pub(super) fn codex_request(line: &Value) -> Vec<LineFact> {
    let kind = match text_field(line, "/method") {
        "item/commandExecution/requestApproval" => "permission(commandExecution)".to_owned(),
        "item/fileChange/requestApproval" => "permission(fileChange)".to_owned(),
        "item/permissions/requestApproval" => "permission(permissions)".to_owned(),
        "item/tool/requestUserInput" => {
            format!("questions({})", items(line, "/params/questions").len())
        }
        "mcpServer/elicitation/request" => match elicited(&line["params"]) {
            Some(kind) => kind,
            None => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    vec![LineFact::Asked(line["id"].to_string(), kind)]
}
