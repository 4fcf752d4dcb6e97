//! The state of a translator is stored with every forwarded line, so it must not contain texts
//! that are no longer needed.

use serde_json::json;

use crate::agents::adapter::agent_event::AgentEvent;
use crate::agents::adapter::translator::AgentTranslator;
use crate::agents::launch::agent_launch::{ContextFile, LaunchRequest};
use crate::config::AgentWire;

/// A translator whose prompt was written.
fn prompted_translator(wire: AgentWire) -> AgentTranslator {
    let request = LaunchRequest {
        prompt: "the prompt".to_owned(),
        cwd: "/work".to_owned(),
        instructions: "the instructions".to_owned(),
        context: vec![ContextFile {
            path: "the-context".to_owned(),
            ..ContextFile::default()
        }],
        ..LaunchRequest::default()
    };
    let mut translator = wire.launch(&request).unwrap().translator;
    let opening = translator.first_message();
    translator.on_written(&opening.bytes);
    for id in 0..3 {
        let result = json!({"protocolVersion": 1, "sessionId": "s", "thread": {"id": "th"}, "turn": {"id": "tu"}});
        push_line(
            &mut translator,
            json!({"jsonrpc": "2.0", "id": id, "result": result}),
        );
    }
    translator
}

/// Pushes one line and writes the messages that result from it.
fn push_line(translator: &mut AgentTranslator, message: serde_json::Value) {
    translator.push_stdout(format!("{message}\n").as_bytes());
    let events = translator.next_events().expect("a complete line");
    for event in events {
        if let AgentEvent::Write(message) = event {
            translator.on_written(&message.bytes);
        }
    }
}

#[test]
fn texts_of_the_prompt_are_not_stored_after_it() {
    for wire in [AgentWire::CodexAppServer, AgentWire::Acp] {
        let stored = serde_json::to_string(&prompted_translator(wire)).unwrap();
        for text in ["the prompt", "the instructions", "the-context"] {
            assert!(!stored.contains(text), "{text}: {stored}");
        }
    }
}
