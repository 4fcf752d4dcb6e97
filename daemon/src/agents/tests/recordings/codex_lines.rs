//! What the items and requests of Codex say, over either of its wires.

use serde_json::Value;

use super::raw_lines::{LineFact, elicited, items, number, says, visible, word};
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

/// Input includes what came from the cache.
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
    let (id, kind) = (word(item, "/id").to_owned(), word(item, "/type"));
    match kind {
        "agent_message" if ended => says(id, word(item, "/text")),
        "plan" if ended => visible(word(item, "/text")),
        "command_execution" | "commandExecution" | "file_change" | "fileChange" | "web_search"
        | "webSearch" => codex_tool(id, kind.to_owned(), item, ended),
        "mcp_tool_call" | "mcpToolCall" => {
            let name = format!("{}.{}", word(item, "/server"), word(item, "/tool"));
            codex_tool(id, name, item, ended)
        }
        _ => Vec::new(),
    }
}

fn codex_tool(id: String, name: String, item: &Value, ended: bool) -> Vec<LineFact> {
    let mut marks = vec![LineFact::ToolBegan(id.clone(), name), LineFact::Visible];
    if ended {
        let code = item.get("exit_code").or_else(|| item.get("exitCode"));
        let code = code.and_then(Value::as_i64).unwrap_or(0);
        let status = word(item, "/status");
        let failed = matches!(status, "failed" | "declined") || code != 0;
        marks.push(LineFact::ToolEnded(id, failed));
    }
    marks
}

pub(super) fn codex_request(line: &Value) -> Vec<LineFact> {
    let what = match word(line, "/method") {
        "item/commandExecution/requestApproval" => "permission(commandExecution)".to_owned(),
        "item/fileChange/requestApproval" => "permission(fileChange)".to_owned(),
        "item/permissions/requestApproval" => "permission(permissions)".to_owned(),
        "item/tool/requestUserInput" => {
            format!("questions({})", items(line, "/params/questions").len())
        }
        "mcpServer/elicitation/request" => match elicited(&line["params"]) {
            Some(what) => what,
            None => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    vec![LineFact::Asked(line["id"].to_string(), what)]
}
