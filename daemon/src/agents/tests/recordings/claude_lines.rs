//! Facts from the content blocks and control requests of Claude.

use serde_json::Value;

use super::raw_lines::{LineFact, elicited, items, text_field, visible_text};

pub(super) fn claude_block(role: &str, block: &Value) -> Vec<LineFact> {
    let id = |path| text_field(block, path).to_owned();
    match text_field(block, "/type") {
        "text" if role == "assistant" => visible_text(text_field(block, "/text")),
        "tool_use" | "server_tool_use" | "mcp_tool_use" => {
            vec![
                LineFact::ToolBegan(id("/id"), id("/name")),
                LineFact::Visible,
            ]
        }
        kind if kind.ends_with("tool_result") => {
            let failed = block["is_error"] == true;
            vec![
                LineFact::Visible,
                LineFact::ToolEnded(id("/tool_use_id"), failed),
            ]
        }
        _ => Vec::new(),
    }
}

pub(super) fn claude_request(line: &Value) -> Vec<LineFact> {
    let request = (
        text_field(line, "/request/subtype"),
        text_field(line, "/request/tool_name"),
    );
    let what = match request {
        ("can_use_tool", "AskUserQuestion") => {
            let asked = items(line, "/request/input/questions").len();
            format!("questions({asked})")
        }
        ("can_use_tool", name) => format!("permission({name})"),
        ("elicitation", _) => match elicited(&line["request"]) {
            Some(what) => what,
            None => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    vec![LineFact::Asked(
        text_field(line, "/request_id").to_owned(),
        what,
    )]
}
