//! The size of a snapshot must not grow with the number of tools that the agent has used.

use serde_json::{Value, json};

use crate::agents::adapter::agent_event::AgentEvent;
use crate::agents::adapter::translator::AgentTranslator;
use crate::agents::launch::agent_launch::LaunchRequest;
use crate::config::AgentWire;

const TOOL_COUNT: usize = 10_000;

/// Limit after any number of ended tools.
const MAX_SNAPSHOT_BYTES: usize = 64 * 1024;
/// Limit with any number of tools that never end.
const MAX_SNAPSHOT_BYTES_UNENDED: usize = 1024 * 1024;

const AGENT_WIRES: [AgentWire; 4] = [
    AgentWire::Claude,
    AgentWire::CodexAppServer,
    AgentWire::CodexExec,
    AgentWire::Acp,
];

/// A translator whose prompt was written.
fn prompted_translator(wire: AgentWire) -> AgentTranslator {
    let request = LaunchRequest {
        prompt: "Do it.".to_owned(),
        cwd: "/work".to_owned(),
        ..LaunchRequest::default()
    };
    let mut translator = wire.launch(&request).expect("no option is set").translator;
    let opening = translator.first_message();
    translator.on_written(&opening.bytes);
    let opening_lines = match wire {
        AgentWire::Claude => vec![json!({"type": "system", "subtype": "init", "session_id": "s"})],
        AgentWire::CodexAppServer => vec![
            json!({"id": 0, "result": {}}),
            json!({"id": 1, "result": {"thread": {"id": "th"}}}),
            json!({"id": 2, "result": {"turn": {"id": "tu"}}}),
        ],
        AgentWire::CodexExec => vec![json!({"type": "thread.started", "thread_id": "th"})],
        AgentWire::Acp => vec![
            json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": 1}}),
            json!({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}}),
        ],
    };
    for line in opening_lines {
        push_line(&mut translator, &line);
    }
    translator
}

fn push_line(translator: &mut AgentTranslator, line: &Value) -> Vec<AgentEvent> {
    translator.push_stdout(format!("{line}\n").as_bytes());
    let mut all = Vec::new();
    while let Some(events) = translator.next_events() {
        for event in &events {
            if let AgentEvent::Write(message) = event {
                all.extend(translator.on_written(&message.bytes));
            }
        }
        all.extend(events);
    }
    all
}

fn tool_start_lines(wire: AgentWire, number: usize) -> Vec<Value> {
    let id = format!("toolu_0123456789abcdef_{number}");
    let command = format!("make target-{number}");
    match wire {
        AgentWire::Claude => vec![json!({
            "type": "assistant", "parent_tool_use_id": null,
            "message": {"id": "m", "content": [
                {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": command}},
            ]},
        })],
        AgentWire::CodexAppServer => vec![
            json!({"method": "item/started", "params": {"threadId": "th", "item":
                {"type": "commandExecution", "id": id, "command": command, "cwd": "/work"}}}),
            json!({"method": "item/commandExecution/outputDelta",
                "params": {"threadId": "th", "itemId": id, "delta": "cc"}}),
        ],
        AgentWire::CodexExec => vec![json!({"type": "item.started", "item":
            {"type": "command_execution", "id": id, "command": command}})],
        AgentWire::Acp => vec![update(
            "tool_call",
            json!({"toolCallId": id, "title": command, "kind": "execute", "status": "pending",
                "rawInput": {"command": command}}),
        )],
    }
}

fn tool_end_line(wire: AgentWire, number: usize) -> Value {
    let id = format!("toolu_0123456789abcdef_{number}");
    match wire {
        AgentWire::Claude => json!({"type": "user", "message": {"content": [
            {"type": "tool_result", "tool_use_id": id, "content": "done"},
        ]}}),
        AgentWire::CodexAppServer => {
            json!({"method": "item/completed", "params": {"threadId": "th",
            "item": {"type": "commandExecution", "id": id, "aggregatedOutput": "cc", "exitCode": 0}}})
        }
        AgentWire::CodexExec => json!({"type": "item.completed", "item":
            {"type": "command_execution", "id": id, "aggregated_output": "cc", "exit_code": 0}}),
        AgentWire::Acp => update(
            "tool_call_update",
            json!({"toolCallId": id, "status": "completed",
                "content": [{"type": "content", "content": {"type": "text", "text": "cc"}}]}),
        ),
    }
}

fn update(kind: &str, mut update: Value) -> Value {
    update["sessionUpdate"] = json!(kind);
    json!({"jsonrpc": "2.0", "method": "session/update",
        "params": {"sessionId": "s", "update": update}})
}

fn snapshot_bytes(translator: &AgentTranslator) -> usize {
    serde_json::to_vec(translator)
        .expect("the state can be serialized")
        .len()
}

fn count(events: &[AgentEvent], is: impl Fn(&AgentEvent) -> bool) -> usize {
    events.iter().filter(|event| is(event)).count()
}

#[test]
fn ten_thousand_ended_tools_leave_a_small_snapshot() {
    for wire in AGENT_WIRES {
        let mut translator = prompted_translator(wire);
        let (mut started, mut finished) = (0, 0);
        for number in 0..TOOL_COUNT {
            for line in tool_start_lines(wire, number) {
                let events = push_line(&mut translator, &line);
                started += count(&events, |event| {
                    matches!(event, AgentEvent::ToolStarted { .. })
                });
            }
            let events = push_line(&mut translator, &tool_end_line(wire, number));
            finished += count(&events, |event| {
                matches!(event, AgentEvent::ToolFinished { .. })
            });
        }
        assert_eq!((started, finished), (TOOL_COUNT, TOOL_COUNT), "{wire:?}");
        let size = snapshot_bytes(&translator);
        assert!(size < MAX_SNAPSHOT_BYTES, "{wire:?}: {size} bytes");
        // A late message about an ended tool does not start it again.
        let late = tool_start_lines(wire, TOOL_COUNT - 1);
        let again = late
            .iter()
            .flat_map(|line| push_line(&mut translator, line));
        let again: Vec<AgentEvent> = again.collect();
        let is_start = |event: &AgentEvent| matches!(event, AgentEvent::ToolStarted { .. });
        assert_eq!(count(&again, is_start), 0, "{wire:?}");
    }
}

#[test]
fn tools_that_never_end_are_reported_up_to_a_limit() {
    for wire in AGENT_WIRES {
        let mut translator = prompted_translator(wire);
        let mut started = 0;
        for number in 0..TOOL_COUNT {
            for line in tool_start_lines(wire, number) {
                let events = push_line(&mut translator, &line);
                started += count(&events, |event| {
                    matches!(event, AgentEvent::ToolStarted { .. })
                });
            }
        }
        assert_eq!(started, 256, "{wire:?}");
        let size = snapshot_bytes(&translator);
        assert!(size < MAX_SNAPSHOT_BYTES_UNENDED, "{wire:?}: {size} bytes");
    }
}

/// A change that was described and forgotten cannot be shown to a person, so it is denied.
#[test]
fn approval_of_a_forgotten_change_is_denied_without_asking() {
    let mut translator = prompted_translator(AgentWire::CodexAppServer);
    let change = |number: usize| {
        json!({"method": "item/started", "params": {"threadId": "th", "item": {
            "type": "fileChange", "id": format!("f{number}"), "changes": [{"path": "a"}]}}})
    };
    let approval_request = |number: usize| {
        json!({"id": number, "method": "item/fileChange/requestApproval",
            "params": {"threadId": "th", "itemId": format!("f{number}"), "grantRoot": "/work"}})
    };
    for number in 0..40 {
        push_line(&mut translator, &change(number));
    }
    let is_asked = |event: &AgentEvent| matches!(event, AgentEvent::InputAsked(_));
    let events = push_line(&mut translator, &approval_request(0));
    assert_eq!(count(&events, is_asked), 0, "{events:?}");
    let is_declined = events.iter().any(|event| match event {
        AgentEvent::Write(message) => String::from_utf8_lossy(&message.bytes).contains("decline"),
        _ => false,
    });
    assert!(is_declined, "{events:?}");
    let events = push_line(&mut translator, &approval_request(39));
    assert_eq!(count(&events, is_asked), 1, "{events:?}");
}
