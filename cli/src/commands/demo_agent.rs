//! The agent of `baton up --demo`: speaks the Agent Client Protocol, makes one tool call, and asks before it does.
//! It needs no account and no other program; it does not do what it asks for, so that the demo touches nothing.

use std::io::BufRead;

use serde_json::{Value, json};

use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;

const SESSION: &str = "demo";
const TOOL: &str = "greeting";

/// Runs until stdin is closed.
pub(crate) fn run(console: &Console) -> Result<Exit, CliError> {
    let mut turn = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| CliError::local("read stdin", error))?;
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        for answer in hear(&message, &mut turn) {
            console.json(&answer)?;
        }
    }
    Ok(Exit::Done)
}

/// What it says to a message. `turn` is the prompt that it works on.
fn hear(message: &Value, turn: &mut Option<Value>) -> Vec<Value> {
    let id = &message["id"];
    match message["method"].as_str() {
        Some("initialize") => {
            let can = json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}});
            vec![answer(id, can)]
        }
        Some("session/new") => vec![answer(id, json!({"sessionId": SESSION}))],
        Some("session/load") => vec![answer(id, json!({}))],
        Some("session/prompt") => {
            *turn = Some(id.clone());
            ask()
        }
        Some(_) => Vec::new(),
        // What it asked for was answered.
        None => turn
            .take()
            .map_or_else(Vec::new, |prompt| finish(message, &prompt)),
    }
}

fn answer(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn update(update: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": SESSION, "update": update}})
}

fn say(text: &str) -> Value {
    update(
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}),
    )
}

fn ask() -> Vec<Value> {
    let call = json!({
        "toolCallId": TOOL,
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
    let params = json!({"sessionId": SESSION, "toolCall": call, "options": options});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": params});
    vec![
        say("I would like to write a file, and ask before I do."),
        update(started),
        request,
    ]
}

fn finish(answered: &Value, prompt: &Value) -> Vec<Value> {
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
        update(json!({"sessionUpdate": "tool_call_update", "toolCallId": TOOL, "status": status})),
        say(words),
        answer(prompt, json!({"stopReason": "end_turn"})),
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
            let asked = hear(&prompt, &mut turn);
            assert_eq!(asked[2]["method"], "session/request_permission");
            let outcome = json!({"outcome": "selected", "optionId": option});
            let told = json!({"id": 1, "result": {"outcome": outcome}});
            let done = hear(&told, &mut turn);
            assert_eq!(done[0]["params"]["update"]["status"], status);
            assert_eq!(done[2]["id"], 7, "the prompt is answered");
        }
    }
}
