//! The agent of `baton up --demo`: speaks the Agent Client Protocol, makes one tool call, and asks before it does.
//! It needs no account and no other program; it does not do what it asks for, so that the demo touches nothing.

use std::io::BufRead;

use serde_json::{Value, json};

use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;

const SESSION_ID: &str = "demo";
const TOOL_CALL_ID: &str = "greeting";

/// Runs until stdin is closed.
pub(crate) fn run(console: &CliConsole) -> Result<CommandExit, CliError> {
    let mut turn = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| CliError::local("read stdin", error))?;
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        for answer in handle_message(&message, &mut turn) {
            console.json(&answer)?;
        }
    }
    Ok(CommandExit::Done)
}

/// What it says to a message. `turn` is the prompt that it works on.
fn handle_message(message: &Value, turn: &mut Option<Value>) -> Vec<Value> {
    let id = &message["id"];
    match message["method"].as_str() {
        Some("initialize") => {
            let can = json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}});
            vec![response_message(id, can)]
        }
        Some("session/new") => vec![response_message(id, json!({"sessionId": SESSION_ID}))],
        Some("session/load") => vec![response_message(id, json!({}))],
        Some("session/prompt") => {
            *turn = Some(id.clone());
            permission_messages()
        }
        Some(_) => Vec::new(),
        // What it asked for was answered.
        None => turn
            .take()
            .map_or_else(Vec::new, |prompt| finish_turn(message, &prompt)),
    }
}

fn response_message(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn update_message(update: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": SESSION_ID, "update": update}})
}

fn text_update(text: &str) -> Value {
    update_message(
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}),
    )
}

fn permission_messages() -> Vec<Value> {
    let call = json!({
        "toolCallId": TOOL_CALL_ID,
        "title": "Write greeting.txt",
        "kind": "edit",
        "status": "pending",
        "rawInput": {"file_path": "greeting.txt", "content": "hello from Baton"},
    });
    let mut started = call.clone();
    started["sessionUpdate"] = json!("tool_call");
    let options = json!([
        {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
        {"optionId": "no", "name": "Deny", "kind": "reject_once"},
    ]);
    let params = json!({"sessionId": SESSION_ID, "toolCall": call, "options": options});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": params});
    vec![
        text_update("I would like to write a file, and ask before I do."),
        update_message(started),
        request,
    ]
}

fn finish_turn(answered: &Value, prompt: &Value) -> Vec<Value> {
    let allowed = answered["result"]["outcome"]["optionId"] == "yes";
    let (status, words) = if allowed {
        (
            "completed",
            "It was allowed. (This is a demo: nothing was written.)\n",
        )
    } else {
        ("failed", "It was not allowed, so I leave it.\n")
    };
    vec![
        update_message(
            json!({"sessionUpdate": "tool_call_update", "toolCallId": TOOL_CALL_ID, "status": status}),
        ),
        text_update(words),
        response_message(prompt, json!({"stopReason": "end_turn"})),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_before_it_acts_and_does_as_it_is_told() {
        for (option, status) in [("yes", "completed"), ("no", "failed")] {
            let mut turn = None;
            let prompt = json!({"id": 7, "method": "session/prompt"});
            let asked = handle_message(&prompt, &mut turn);
            assert_eq!(asked[2]["method"], "session/request_permission");
            let outcome = json!({"outcome": "selected", "optionId": option});
            let told = json!({"id": 1, "result": {"outcome": outcome}});
            let done = handle_message(&told, &mut turn);
            assert_eq!(done[0]["params"]["update"]["status"], status);
            assert_eq!(done[2]["id"], 7, "the prompt is answered");
        }
    }
}
