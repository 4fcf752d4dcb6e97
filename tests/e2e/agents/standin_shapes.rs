//! The stand-in imitates the real agents: its messages have the same fields and JSON types as
//! theirs in each wire protocol. `BATON_RECORDINGS` names the folder with recordings of real
//! agents; the transcripts beside the adapters are written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use baton_proto::v1::TaskState;
use baton_tests::{EmbeddedDaemon, EmbeddedRelay, scripted_task, standin_agents};
use serde_json::Value;

use crate::STANDIN;

/// Scripts with every kind of message of a turn, for successful and failed turns.
const SCRIPTS: [(&str, TaskState); 3] = [
    (
        "hint; think hm; say I look.; tool Bash ls; ask Bash make; question Which? = A, B; say done",
        TaskState::Completed,
    ),
    ("say hm; error 429", TaskState::Failed),
    ("say hm; error 401", TaskState::Failed),
];

/// Whether a folder has recordings of a wire protocol.
type FolderMatches = fn(&str) -> bool;

/// For each wire protocol: its name in transcripts, the stand-in's agent, and the match for its
/// recording folders.
const WIRES: [(&str, &str, FolderMatches); 4] = [
    ("claude", "claude", |folder| {
        folder.starts_with("claude-") && !folder.contains("acp")
    }),
    ("codex", "codex", |folder| folder.contains("app-server")),
    ("codex-exec", "codex-exec", |folder| {
        folder.starts_with("codex-") && !folder.contains("app-server") && !folder.contains("acp")
    }),
    ("acp", "acp", |folder| folder.contains("acp")),
];

/// Messages of the stand-in that no recording has. Their fields follow the published schema.
const UNRECORDED_KINDS: [&str; 4] = [
    "request item/tool/requestUserInput",
    "notify item/started reasoning",
    "notify item/completed reasoning",
    "notify item/reasoning/summaryTextDelta",
];

/// Fields whose objects are free data, so their shape is not compared.
const DATA_FIELDS: [&str; 8] = [
    "input",
    "rawInput",
    "modelUsage",
    "model_usage_since_last_result",
    "tool_use_result",
    "_meta",
    "properties",
    "rawOutput",
];

/// The JSON types of each field path.
type MessageShape = BTreeMap<String, BTreeSet<&'static str>>;

#[tokio::test(flavor = "multi_thread")]
async fn stand_in_messages_have_the_shape_of_recorded_messages() {
    let recordings = std::env::var_os("BATON_RECORDINGS").map(PathBuf::from);
    let mut compared = 0;
    let mut problems = Vec::new();
    for (wire, agent, is_of_wire) in WIRES {
        let mut messages = messages_through_daemon(agent).await;
        messages.extend(messages_without_daemon(agent));
        assert!(
            messages.len() > 10,
            "{agent} printed only {} messages",
            messages.len()
        );
        let ours = transcript_messages(wire);
        assert!(!ours.is_empty(), "{wire} has transcripts");
        problems.extend(type_conflicts(wire, &messages, &ours));
        if let Some(folder) = &recordings {
            let recorded = recorded_shapes(folder, is_of_wire);
            assert!(!recorded.is_empty(), "{wire} has recordings");
            problems.extend(shape_differences(wire, &messages, &recorded));
            compared += messages.len();
        }
    }
    match recordings {
        Some(_) => println!("{compared} messages of the stand-in have the shape of recorded ones"),
        None => println!("recordings skipped: BATON_RECORDINGS is not set"),
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Messages of turns that a real daemon runs.
async fn messages_through_daemon(agent: &str) -> Vec<Value> {
    let dir = tempfile::tempdir().expect("a directory");
    let tape = dir.path().join("tape");
    let env = [("STANDIN_TAPE", tape.to_str().expect("a plain path"))];
    let relay = EmbeddedRelay::start().await;
    let token = relay.daemon_token().await;
    let _daemon = EmbeddedDaemon::start_with(relay.url(), &token, |config| {
        config
            .agents
            .extend(standin_agents(Path::new(STANDIN), &env));
    })
    .await;
    for (script, state) in SCRIPTS {
        let task = relay.admin().submit(scripted_task(agent, script)).await;
        relay.admin().answer_all(&task.task_id).await;
        let done = relay.admin().get(&task.task_id).await;
        assert_eq!(done.state(), state, "{agent}, {script}: {done:?}");
    }
    let recording = std::fs::read_to_string(&tape).expect("the stand-in wrote its recording");
    let messages = recording.lines().filter_map(|line| line.strip_prefix("< "));
    messages
        .map(|line| serde_json::from_str(line).expect("the stand-in prints JSON"))
        .collect()
}

/// Messages of situations that the scripts under a daemon do not reach: an interrupt, and a
/// resume of an unknown conversation.
fn messages_without_daemon(agent: &str) -> Vec<Value> {
    const UNKNOWN_ID: &str = "00000000-0000-4000-8000-000000000000";
    let stalled = r#"{"type":"user","message":{"role":"user","content":"say hm; stall"}}"#;
    let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
    let runs: Vec<(Vec<String>, Vec<String>)> = match agent {
        "claude" => vec![
            (
                vec!["--include-partial-messages".to_owned()],
                vec![
                    stalled.to_owned(),
                    r#"{"type":"control_request","request_id":"i","request":{"subtype":"interrupt"}}"#
                        .to_owned(),
                ],
            ),
            (vec![format!("--resume={UNKNOWN_ID}")], vec![stalled.to_owned()]),
        ],
        "codex" => vec![(
            Vec::new(),
            vec![
                initialize.to_owned(),
                format!(r#"{{"id":1,"method":"thread/resume","params":{{"threadId":"{UNKNOWN_ID}"}}}}"#),
                r#"{"id":2,"method":"thread/start","params":{"cwd":"/"}}"#.to_owned(),
                r#"{"id":3,"method":"turn/start","params":{"input":[{"text":"say hm; stall"}]}}"#
                    .to_owned(),
                r#"{"id":4,"method":"turn/interrupt","params":{}}"#.to_owned(),
            ],
        )],
        "acp" => vec![(
            Vec::new(),
            vec![
                initialize.to_owned(),
                format!(
                    r#"{{"id":1,"method":"session/load","params":{{"sessionId":"{UNKNOWN_ID}"}}}}"#
                ),
                r#"{"id":2,"method":"session/new","params":{"cwd":"/"}}"#.to_owned(),
                r#"{"id":3,"method":"session/prompt","params":{"prompt":[{"text":"say hm; stall"}]}}"#
                    .to_owned(),
                r#"{"jsonrpc":"2.0","method":"session/cancel","params":{}}"#.to_owned(),
            ],
        )],
        _ => Vec::new(),
    };
    let wire = if agent == "codex" {
        "app-server"
    } else {
        agent
    };
    let messages = runs
        .iter()
        .map(|(args, lines)| run_standin(wire, args, lines));
    messages.flatten().collect()
}

fn run_standin(wire: &str, args: &[String], lines: &[String]) -> Vec<Value> {
    let mut child = Command::new(STANDIN)
        .args(["speak", wire])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the stand-in can be started");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A stand-in that has already exited does not read its input.
    let _ = stdin.write_all((lines.join("\n") + "\n").as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("the stand-in exits");
    let stdout = String::from_utf8(output.stdout).expect("the stand-in prints text");
    stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("the stand-in prints JSON"))
        .collect()
}

/// The shapes of all recorded messages, by message kind.
fn recorded_shapes(
    folder: &Path,
    is_of_wire: fn(&str) -> bool,
) -> BTreeMap<String, Vec<MessageShape>> {
    let mut found: BTreeMap<String, Vec<MessageShape>> = BTreeMap::new();
    for program in folder_entries(folder) {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        if !program.is_dir() || !is_of_wire(&name) {
            continue;
        }
        for file in folder_entries(&program) {
            if !file.to_string_lossy().ends_with(".stdout.ndjson") {
                continue;
            }
            let lines = std::fs::read_to_string(&file).expect("a recording is text");
            let messages = lines
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            for message in messages.filter(Value::is_object) {
                found
                    .entry(message_kind(&message))
                    .or_default()
                    .push(message_shape(&message));
            }
        }
    }
    found
}

fn folder_entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder exists");
    entries
        .map(|entry| entry.expect("a directory entry").path())
        .collect()
}

/// The agents' messages in the hand-written transcripts of this wire protocol.
fn transcript_messages(wire: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon/src/agents/transcripts");
    let mut found = Vec::new();
    for file in folder_entries(&folder) {
        let text = std::fs::read_to_string(&file).expect("a transcript is text");
        let mut ours = false;
        for line in text.lines() {
            if let Some(start) = line.strip_prefix("start ") {
                ours = start.split(' ').next() == Some(wire);
            }
            let printed = line.strip_prefix("< ").filter(|_| ours);
            let message = printed.and_then(|text| serde_json::from_str::<Value>(text).ok());
            found.extend(message.filter(Value::is_object));
        }
    }
    found
}

/// Fields that occur in both sets of messages must have the same type.
fn type_conflicts(wire: &str, messages: &[Value], ours: &[Value]) -> Vec<String> {
    let messages: BTreeMap<String, MessageShape> = shapes_by_kind(messages);
    let ours: BTreeMap<String, MessageShape> = shapes_by_kind(ours);
    let mut problems = Vec::new();
    for (kind, shape) in &messages {
        let Some(known) = ours.get(kind) else {
            continue;
        };
        let of_data = |path: &str| DATA_FIELDS.iter().any(|name| path.ends_with(name));
        for (path, types) in shape.iter().filter(|(path, _)| !of_data(path)) {
            let differ = known.get(path).is_some_and(|known| {
                let known: BTreeSet<_> = known.iter().filter(|of| **of != "null").collect();
                let types: BTreeSet<_> = types.iter().filter(|of| **of != "null").collect();
                !known.is_empty() && !types.is_empty() && known.is_disjoint(&types)
            });
            if differ {
                problems.push(format!(
                    "{wire}, {kind}: {path} has another type in a transcript"
                ));
            }
        }
    }
    problems
}

fn shapes_by_kind(messages: &[Value]) -> BTreeMap<String, MessageShape> {
    let mut merged: BTreeMap<String, MessageShape> = BTreeMap::new();
    for message in messages {
        let whole = merged.entry(message_kind(message)).or_default();
        for (path, types) in message_shape(message) {
            whole.entry(path).or_default().extend(types);
        }
    }
    merged
}

/// A message must have every field that all recorded messages of its kind have, no field that
/// none of them has, and only recorded types.
fn shape_differences(
    wire: &str,
    messages: &[Value],
    recorded: &BTreeMap<String, Vec<MessageShape>>,
) -> Vec<String> {
    let mut problems = BTreeSet::new();
    for message in messages {
        let kind = message_kind(message);
        let Some(known) = recorded.get(&kind) else {
            if !UNRECORDED_KINDS.contains(&kind.as_str()) {
                problems.insert(format!("{wire}: no recording has {kind:?}"));
            }
            continue;
        };
        let shape = message_shape(message);
        let required = known[0]
            .keys()
            .filter(|path| known.iter().all(|one| one.contains_key(*path)));
        for path in required {
            if !shape.contains_key(path) {
                problems.insert(format!("{wire}, {kind}: {path} is missing"));
            }
        }
        for (path, types) in &shape {
            let fits = known
                .iter()
                .filter_map(|one| one.get(path))
                .any(|one| one == types);
            if !fits {
                problems.insert(format!(
                    "{wire}, {kind}: {path} is {types:?}, which was never recorded"
                ));
            }
        }
    }
    problems.into_iter().collect()
}

fn message_shape(message: &Value) -> MessageShape {
    let mut shape = MessageShape::new();
    collect_field_types(message, "", &mut shape);
    shape
}

fn collect_field_types(value: &Value, path: &str, shape: &mut MessageShape) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        shape
            .entry(path.clone())
            .or_default()
            .insert(type_of(value));
        if !DATA_FIELDS.contains(&name.as_str()) {
            collect_field_types(value, &path, shape);
        }
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The kind of a message, from its type or method and the types nested in it.
fn message_kind(message: &Value) -> String {
    let text_at = |path: &str| {
        message
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let item = [text_at("/params/item/type"), text_at("/item/type")].concat();
    match (text_at("/method"), message.get("id")) {
        ("session/update", _) => format!("update {}", text_at("/params/update/sessionUpdate")),
        ("", Some(_)) => answer_kind(message),
        ("", None) => {
            let parts = [
                text_at("/type"),
                text_at("/subtype"),
                text_at("/request/subtype"),
                text_at("/response/subtype"),
                text_at("/event/type"),
                text_at("/event/delta/type"),
                text_at("/event/content_block/type"),
                text_at("/message/content/0/type"),
                &item,
                failed_start_kind(message),
            ];
            let parts = parts.into_iter().filter(|part| !part.is_empty());
            parts.collect::<Vec<_>>().join(" ")
        }
        (method, Some(_)) => format!("request {method}"),
        (method, None) => format!("notify {method} {item}").trim_end().to_owned(),
    }
}

/// The result of a turn that could not begin has fewer fields.
fn failed_start_kind(message: &Value) -> &'static str {
    let is_result = message["type"] == "result";
    match is_result && message.get("terminal_reason").is_none() {
        true => "of nothing",
        false => "",
    }
}

/// The kind of an answer, from the fields of its result.
fn answer_kind(message: &Value) -> String {
    if message.get("error").is_some() {
        return "error".to_owned();
    }
    let result_fields = [
        "protocolVersion",
        "stopReason",
        "sessionId",
        "thread",
        "turn",
        "codexHome",
    ];
    let result_field = result_fields
        .into_iter()
        .find(|name| message["result"].get(name).is_some());
    format!("answer {}", result_field.unwrap_or("something"))
}
