//! The agent of `baton up --demo`: uses the Agent Client Protocol, makes one tool call, and asks for
//! permission first. It needs no account and no other program. It does not carry out the tool call, so that the
//! demo changes nothing.

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
        let line = line.map_err(|error| CliError::local("cannot read stdin", error))?;
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        for answer in handle_message(&message, &mut turn) {
            console.json(&answer)?;
        }
    }
    Ok(CommandExit::Done)
}

/// The agent's replies to a message. `turn` is the id of the current prompt.
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
        // The answer to the permission request.
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
        text_update("I would like to write a file and ask for permission first."),
        update_message(started),
        request,
    ]
}

fn finish_turn(answered: &Value, prompt: &Value) -> Vec<Value> {
    let allowed = answered["result"]["outcome"]["optionId"] == "yes";
    let (status, text) = if allowed {
        (
            "completed",
            "It was allowed. (This is a demo: nothing was written.)\n",
        )
    } else {
        ("failed", "It was denied, so I write nothing.\n")
    };
    vec![
        update_message(
            json!({"sessionUpdate": "tool_call_update", "toolCallId": TOOL_CALL_ID, "status": status}),
        ),
        text_update(text),
        response_message(prompt, json!({"stopReason": "end_turn"})),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_agent_asks_first_and_follows_the_answer() {
        for (option, status) in [("yes", "completed"), ("no", "failed")] {
            let mut turn = None;
            let prompt = json!({"id": 7, "method": "session/prompt"});
            let asked = handle_message(&prompt, &mut turn);
            assert_eq!(asked[2]["method"], "session/request_permission");
            let outcome = json!({"outcome": "selected", "optionId": option});
            let answer = json!({"id": 1, "result": {"outcome": outcome}});
            let done = handle_message(&answer, &mut turn);
            assert_eq!(done[0]["params"]["update"]["status"], status);
            assert_eq!(done[2]["id"], 7, "the prompt is answered");
        }
    }
}
