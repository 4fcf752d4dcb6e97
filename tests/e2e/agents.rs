//! Coding agents of every kind through the whole system. The agents are scripts that speak the wire of each: a tool, a
//! permission, a result.

use std::collections::BTreeMap;

use baton_daemon::{AgentConfig, AgentWire};
use baton_proto::v1::answer_request::Answer;
use baton_proto::v1::input::Body;
use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{
    AgentOptions, AnswerRequest, Input, LifecyclePhase, ListInputsRequest, OutputChunk, OutputKind,
    PermissionReply, ReadOutputRequest, ReadOutputResponse, RetryPolicy, Role, Task, TaskEventKind,
    TaskSpec, TaskState,
};
use baton_tests::{Client, DaemonProcess, RealDaemon, Relay, RelayProcess, for_agent, within};
use tempfile::TempDir;
use tonic::Streaming;

use crate::BATON;

pub(crate) const CLAUDE: &str = r#"
read -r prompt
say() { printf '%s\n' "$1"; }
say '{"type":"system","subtype":"init","session_id":"talk-1","model":"opus"}'
say '{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1"}}}'
say '{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"I look."}}}'
say '{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}}'
say '{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{ "command": "ls" },"tool_use_id":"t1"}}'
read -r answer
case "$answer" in
  *'"behavior":"allow","updatedInput":{ "command": "ls" }'*) word=allowed; bad=false ;;
  *) word=denied; bad=true ;;
esac
say '{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"a.txt","is_error":'$bad'}]}}'
say '{"type":"result","subtype":"success","is_error":false,"result":"'$word'","session_id":"talk-1","num_turns":2,"total_cost_usd":0.25,"usage":{"input_tokens":3,"output_tokens":4,"cache_read_input_tokens":5,"cache_creation_input_tokens":6}}'
while read -r more; do say "$more" >&2; done
"#;

const CODEX: &str = r#"
say() { printf '%s\n' "$1"; }
read -r initialize
say '{"id":0,"result":{}}'
read -r initialized; read -r start
say '{"id":1,"result":{"thread":{"id":"talk-1"}}}'
read -r turn
say '{"id":2,"result":{"turn":{"id":"u1"}}}'
say '{"method":"turn/started","params":{"threadId":"talk-1","turn":{"id":"u1"}}}'
say '{"method":"item/agentMessage/delta","params":{"threadId":"talk-1","itemId":"m","delta":"I look."}}'
say '{"method":"item/started","params":{"threadId":"talk-1","item":{"type":"commandExecution","id":"t1","command":"ls"}}}'
say '{"id":0,"method":"item/commandExecution/requestApproval","params":{"threadId":"talk-1","turnId":"u1","itemId":"t1","command":"ls"}}'
read -r answer
case "$answer" in *'"decision":"accept"'*) word=allowed; status=completed ;; *) word=denied; status=declined ;; esac
say '{"method":"item/completed","params":{"threadId":"talk-1","item":{"type":"commandExecution","id":"t1","status":"'$status'","aggregatedOutput":"a.txt"}}}'
say '{"method":"item/completed","params":{"threadId":"talk-1","item":{"type":"agentMessage","id":"n","text":"'$word'"}}}'
say '{"method":"thread/tokenUsage/updated","params":{"threadId":"talk-1","turnId":"u1","tokenUsage":{"total":{"inputTokens":108,"cachedInputTokens":5,"outputTokens":14},"last":{"inputTokens":8,"cachedInputTokens":5,"outputTokens":4}}}}'
say '{"method":"turn/completed","params":{"threadId":"talk-1","turn":{"id":"u1","status":"completed"}}}'
while read -r more; do say "$more" >&2; done
"#;

const ACP: &str = r#"
say() { printf '%s\n' '{"jsonrpc":"2.0",'"$1"; }
update() { say '"method":"session/update","params":{"sessionId":"talk-1","update":{'"$1"'}}}'; }
read -r initialize
say '"id":0,"result":{"protocolVersion":1,"agentCapabilities":{}}}'
read -r new
say '"id":1,"result":{"sessionId":"talk-1"}}'
read -r prompt
update '"sessionUpdate":"agent_message_chunk","messageId":"m1","content":{"type":"text","text":"I look."}'
update '"sessionUpdate":"tool_call","toolCallId":"t1","name":"Bash","status":"pending"'
say '"id":0,"method":"session/request_permission","params":{"sessionId":"talk-1","toolCall":{"toolCallId":"t1","name":"Bash","rawInput":{"command":"ls"}},"options":[{"optionId":"y","kind":"allow_once"},{"optionId":"n","kind":"reject_once"}]}}'
read -r answer
case "$answer" in *'"optionId":"y"'*) word=allowed; status=completed ;; *) word=denied; status=failed ;; esac
update '"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"'$status'","content":[{"type":"content","content":{"type":"text","text":"a.txt"}}]'
update '"sessionUpdate":"agent_message_chunk","messageId":"m2","content":{"type":"text","text":"'$word'"}'
say '"id":2,"result":{"stopReason":"end_turn","usage":{"inputTokens":3,"outputTokens":4,"cachedReadTokens":5,"cachedWriteTokens":6}}}'
while read -r more; do printf '%s\n' "$more" >&2; done
"#;

pub(crate) const KINDS: [(AgentWire, &str); 3] = [
    (AgentWire::Claude, CLAUDE),
    (AgentWire::CodexAppServer, CODEX),
    (AgentWire::Acp, ACP),
];

/// A relay, and a daemon with one agent that is a script.
struct Stage {
    client: Client,
    _relay: Relay,
    _daemon: RealDaemon,
    _scripts: TempDir,
}

async fn stage(wire: AgentWire, script: &str) -> Stage {
    let scripts = tempfile::tempdir().expect("a directory");
    let path = scripts.path().join("agent.sh");
    std::fs::write(&path, script).expect("a file can be written");
    let relay = Relay::start().await;
    let token = relay.daemon_token().await;
    let agent = AgentConfig::Coding {
        wire,
        program: "sh".into(),
        args: vec![path.into()],
        env: BTreeMap::new(),
    };
    let daemon = RealDaemon::start_with(relay.url(), &token, |config| {
        config.agents.insert("coder".to_owned(), agent);
    })
    .await;
    Stage {
        client: relay.admin().clone(),
        _relay: relay,
        _daemon: daemon,
        _scripts: scripts,
    }
}

impl Stage {
    async fn submit(&self) -> Task {
        self.client.submit(for_agent("coder")).await
    }

    async fn asked(&self, task: &Task) -> Input {
        asked(&self.client, task).await
    }

    async fn answer(&self, input: &Input, allow: bool) {
        answer(&self.client, input, allow).await;
    }

    async fn end(&self, task: &Task) -> Task {
        self.client.watch(&task.task_id).await.to_end().await;
        self.client.get(&task.task_id).await
    }
}

pub(crate) async fn asked(client: &Client, task: &Task) -> Input {
    let mut watch = client.watch(&task.task_id).await;
    loop {
        let event = within("the agent to ask", watch.next()).await;
        let event = event.expect("the watch goes on").expect("the task goes on");
        assert_ne!(event.kind(), TaskEventKind::Ended, "{event:?}");
        if event.kind() == TaskEventKind::InputAsked {
            break;
        }
    }
    let request = ListInputsRequest {
        task_id: task.task_id.clone(),
        ..ListInputsRequest::default()
    };
    let mut inputs = client.inputs();
    let listed = within("a list of inputs", inputs.list_inputs(request)).await;
    let mut open = listed.expect("inputs can be listed").into_inner().inputs;
    assert_eq!(open.len(), 1, "{open:?}");
    open.remove(0)
}

pub(crate) async fn answer(client: &Client, input: &Input, allow: bool) {
    let reply = PermissionReply {
        allow,
        message: "because".to_owned(),
        ..PermissionReply::default()
    };
    let request = AnswerRequest {
        task_id: input.task_id.clone(),
        input_id: input.input_id.clone(),
        answer: Some(Answer::Permission(reply)),
        ..AnswerRequest::default()
    };
    let mut inputs = client.inputs();
    within("an answer to Answer", inputs.answer(request))
        .await
        .expect("the answer is taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_agent_asks_works_and_tells_its_result_and_what_it_used() {
    for (wire, script) in KINDS {
        let stage = stage(wire, script).await;
        let task = stage.submit().await;
        let input = stage.asked(&task).await;
        let Some(Body::Permission(shown)) = &input.body else {
            panic!("a permission: {input:?}");
        };
        let shown = String::from_utf8_lossy(&shown.tool_input);
        assert!(shown.contains("\"ls\""), "{wire:?}: {shown}");
        stage.answer(&input, true).await;
        let done = stage.end(&task).await;
        assert_eq!(done.state(), TaskState::Completed, "{wire:?}: {done:?}");
        assert_eq!(done.result, "allowed", "{wire:?}");
        let attempt = &done.attempts[0];
        assert_eq!(attempt.agent_session_id, "talk-1");
        assert!(!attempt.killed_after_result);
        let usage = attempt.usage.clone().unwrap();
        let used = (
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
        );
        assert_eq!(used, (3, 4, 5), "{wire:?}");

        let events = stage.client.watch(&task.task_id).await.to_end().await;
        let kinds: Vec<TaskEventKind> = events.iter().map(|event| event.kind()).collect();
        let mut seen = kinds.iter();
        for kind in [
            TaskEventKind::ToolStarted,
            TaskEventKind::InputAsked,
            TaskEventKind::InputAnswered,
            TaskEventKind::ToolFinished,
        ] {
            assert!(
                seen.any(|seen| *seen == kind),
                "{wire:?}: {kind:?} in {kinds:?}"
            );
        }
        let phases: Vec<LifecyclePhase> = events.iter().map(|event| event.phase()).collect();
        for phase in [
            LifecyclePhase::AgentStarted,
            LifecyclePhase::PromptWritten,
            LifecyclePhase::FirstVisibleEventSeen,
        ] {
            assert!(phases.contains(&phase), "{wire:?}: {phase:?} in {phases:?}");
        }
        let words = visible(&stage.client, &task).await;
        assert!(words.starts_with("I look.\n"), "{wire:?}: {words}");
        assert!(words.contains("a.txt\n"), "{wire:?}: {words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_denied_reaches_the_agent_as_a_no() {
    for (wire, script) in KINDS {
        let stage = stage(wire, script).await;
        let task = stage.submit().await;
        let input = stage.asked(&task).await;
        stage.answer(&input, false).await;
        let done = stage.end(&task).await;
        assert_eq!(done.result, "denied", "{wire:?}: {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_canceled_while_its_agent_asks_ends_canceled() {
    let stage = stage(AgentWire::Claude, CLAUDE).await;
    let task = stage.submit().await;
    stage.asked(&task).await;
    stage.client.cancel(&task.task_id).await;
    let done = stage.end(&task).await;
    assert_eq!(done.state(), TaskState::Canceled, "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_comes_as_success_fails_with_its_class_and_exit_0_is_no_result() {
    let error = r#"read -r prompt; printf '%s\n' '{"type":"result","subtype":"success","is_error":true,"terminal_reason":"api_error","api_error_status":429,"result":"rate limit","session_id":"s"}'; exit 0"#;
    let silent = "read -r prompt; echo not json; exit 0";
    for (script, code) in [(error, "provider_quota"), (silent, "no_result")] {
        let stage = stage(AgentWire::Claude, script).await;
        let spec = TaskSpec {
            retry: Some(RetryPolicy {
                max_attempts: Some(1),
                ..RetryPolicy::default()
            }),
            ..for_agent("coder")
        };
        let task = stage.client.submit(spec).await;
        let done = stage.end(&task).await;
        assert_eq!(done.state(), TaskState::Failed, "{done:?}");
        assert_eq!(done.attempts[0].failure_code, code, "{done:?}");
        assert!(!done.attempts[0].user_message.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_before_a_hang_is_a_success_that_says_so() {
    let script = r#"
        trap '' HUP
        read -r prompt
        printf '%s\n' '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"s"}'
        exec tail -f /dev/null
    "#;
    let stage = stage(AgentWire::Claude, script).await;
    let task = stage.submit().await;
    let done = stage.end(&task).await;
    assert_eq!(done.state(), TaskState::Completed, "{done:?}");
    assert!(done.attempts[0].killed_after_result, "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_that_the_agent_cannot_take_is_refused_before_it_runs() {
    let stage = stage(AgentWire::CodexAppServer, "exit 1").await;
    let spec = TaskSpec {
        options: Some(AgentOptions {
            permission_mode: "yolo".to_owned(),
            ..AgentOptions::default()
        }),
        ..for_agent("coder")
    };
    let task = stage.client.submit(spec).await;
    let mut watch = stage.client.watch(&task.task_id).await;
    let refused = loop {
        let event = within("the daemon to refuse", watch.next()).await;
        let event = event.unwrap().expect("the watch goes on");
        if event.kind() == TaskEventKind::Rejected {
            break event;
        }
    };
    assert_eq!(refused.failure_code, "unsupported_option");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_reaches_the_agent_once_when_its_daemon_is_killed_while_it_asks() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.make_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = String::new();
    for (wire, script) in KINDS {
        let (name, kind) = named(wire);
        let path = dir.path().join(name);
        std::fs::write(&path, script).unwrap();
        config +=
            &format!("[agents.{name}]\nkind = \"{kind}\"\nprogram = \"sh\"\nargs = [{path:?}]\n");
    }
    let file = dir.path().join("daemon.toml");
    std::fs::write(&file, config).unwrap();
    let more = ["--config", file.to_str().unwrap()];
    let link = (client.url(), &secret[..]);
    let start = || DaemonProcess::start_with(BATON, dir.path(), "d", link, &more);
    let mut daemon = start().await;
    for (wire, _) in KINDS {
        let task = client.submit(for_agent(named(wire).0)).await;
        let input = asked(&client, &task).await;
        daemon.kill().await;
        // The answer is given while nobody is there to take it.
        answer(&client, &input, true).await;
        daemon = start().await;
        client.watch(&task.task_id).await.to_end().await;
        let done = client.get(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Completed, "{wire:?}: {done:?}");
        assert_eq!(
            (&done.result[..], done.attempts.len()),
            (&b"allowed"[..], 1)
        );
        // The scripts repeat whatever else they are told there.
        let errors = output(&client, &task, |chunk| chunk.kind() == OutputKind::Stderr).await;
        assert_eq!(errors, "", "{wire:?}");
    }
}

pub(crate) fn named(wire: AgentWire) -> (&'static str, &'static str) {
    match wire {
        AgentWire::Claude => ("a", "claude"),
        AgentWire::CodexAppServer | AgentWire::CodexExec => ("b", "codex"),
        AgentWire::Acp => ("c", "acp"),
    }
}

/// What a person would see.
async fn visible(client: &Client, task: &Task) -> String {
    output(client, task, |chunk| chunk.visible).await
}

pub(crate) async fn output(
    client: &Client,
    task: &Task,
    wanted: impl Fn(&OutputChunk) -> bool,
) -> String {
    let request = ReadOutputRequest {
        task_id: task.task_id.clone(),
        ..ReadOutputRequest::default()
    };
    let mut tasks = client.tasks();
    let opened = within("output to open", tasks.read_output(request)).await;
    let mut pieces = opened.expect("output can be read").into_inner();
    let mut words = String::new();
    while let Some(piece) = next(&mut pieces).await {
        match piece.item {
            Some(Item::Chunk(chunk)) if wanted(&chunk) => {
                words += &String::from_utf8_lossy(&chunk.data);
            }
            Some(Item::Chunk(_) | Item::Cut(_)) | None => {}
            Some(Item::End(_)) => break,
        }
    }
    words
}

async fn next(pieces: &mut Streaming<ReadOutputResponse>) -> Option<ReadOutputResponse> {
    let piece = within("output", pieces.message()).await;
    piece.expect("output goes on")
}
