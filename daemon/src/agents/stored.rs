//! What is kept of a talk goes to the disk with every line that is told: what nobody needs any more is gone.

use serde_json::json;

use super::event::AgentEvent;
use super::launch::{ContextFile, Wanted};
use super::translator::Translator;
use crate::config::AgentWire;

/// One that has its prompt.
fn working(wire: AgentWire) -> Translator {
    let wanted = Wanted {
        prompt: "the prompt".to_owned(),
        cwd: "/work".to_owned(),
        instructions: "the instructions".to_owned(),
        context: vec![ContextFile {
            path: "the-context".to_owned(),
            ..ContextFile::default()
        }],
        ..Wanted::default()
    };
    let mut translator = wire.launch(&wanted).unwrap().translator;
    let opening = translator.opening();
    translator.wrote(&opening.bytes);
    for id in 0..3 {
        let result = json!({"protocolVersion": 1, "sessionId": "s", "thread": {"id": "th"}, "turn": {"id": "tu"}});
        say(
            &mut translator,
            json!({"jsonrpc": "2.0", "id": id, "result": result}),
        );
    }
    translator
}

/// One line; what the agent is told because of it is told.
fn say(translator: &mut Translator, message: serde_json::Value) {
    translator.stdout(format!("{message}\n").as_bytes());
    let events = translator.next().expect("a whole line");
    for event in events {
        if let AgentEvent::Write(message) = event {
            translator.wrote(&message.bytes);
        }
    }
}

#[test]
fn what_went_with_the_prompt_is_not_kept_behind_it() {
    for wire in [AgentWire::CodexAppServer, AgentWire::Acp] {
        let stored = serde_json::to_string(&working(wire)).unwrap();
        for gone in ["the prompt", "the instructions", "the-context"] {
            assert!(!stored.contains(gone), "{gone}: {stored}");
        }
    }
}
