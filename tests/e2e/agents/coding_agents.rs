//! Coding agents of every kind through the whole system, played by the stand-in: a tool, a permission, a question, a
//! result, and the ways in which each can go wrong.

use std::path::{Path, PathBuf};

use baton_proto::v1::input::Body;
use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{
    AgentOptions, ContextRef, CutReason, DeadlineProfile, Input, LifecyclePhase, OutputKind,
    ReadOutputRequest, Role, Task, TaskEvent, TaskEventKind, TaskSpec, TaskState,
};
use baton_tests::{
    ASKING_AGENTS, CODING_AGENTS, DaemonProcess, EmbeddedDaemon, EmbeddedRelay, RelayProcess,
    TestClient, agent_task, scripted_task, scripted_task_with_prompt, standin_agents,
    standin_agents_toml, wait_within,
};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

/// Words, then a tool that needs leave.
const PERMISSION_SCRIPT: &str = "say I look.; ask Bash ls";

/// A relay, and a daemon with the stand-in in every wire.
struct CodingAgentsFixture {
    client: TestClient,
    dir: TempDir,
    _relay: EmbeddedRelay,
    _daemon: EmbeddedDaemon,
}

impl CodingAgentsFixture {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let tape = recording_file(dir.path());
        let env = [("STANDIN_TAPE", tape.to_str().expect("a plain path"))];
        let agents = standin_agents(Path::new(STANDIN), &env);
        let relay = EmbeddedRelay::start().await;
        let token = relay.daemon_token().await;
        let daemon = EmbeddedDaemon::start_with(relay.url(), &token, |config| {
            config.agents.extend(agents);
        })
        .await;
        Self {
            client: relay.admin().clone(),
            dir,
            _relay: relay,
            _daemon: daemon,
        }
    }

    async fn run_to_end(&self, spec: TaskSpec) -> Task {
        let task = self.client.submit(spec).await;
        self.wait_for_end(&task).await
    }

    async fn wait_for_end(&self, task: &Task) -> Task {
        self.client
            .watch(&task.task_id)
            .await
            .collect_to_end()
            .await;
        self.client.get(&task.task_id).await
    }

    /// What agents were told, line by line.
    fn recorded_agent_input(&self) -> Vec<String> {
        read_agent_input(self.dir.path())
    }
}

fn recording_file(dir: &Path) -> PathBuf {
    dir.join("tape")
}

fn read_agent_input(dir: &Path) -> Vec<String> {
    let tape = std::fs::read_to_string(recording_file(dir)).unwrap_or_default();
    let told = tape.lines().filter_map(|line| line.strip_prefix("> "));
    told.map(str::to_owned).collect()
}

async fn wait_for_permission(client: &TestClient, task: &Task) -> Input {
    let mut open = client.wait_for_inputs(&task.task_id, 1).await;
    assert_eq!(open.len(), 1, "{open:?}");
    open.remove(0)
}

/// Input, output, read from a cache: of two requests to the model, as each wire counts them.
fn expected_usage(agent: &str) -> (u64, u64, u64) {
    match agent {
        "codex" => (2 * 112, 2 * 27, 2 * 200),
        _ => (2 * 12, 2 * 7, 2 * 200),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_agent_asks_works_and_tells_its_result_and_what_it_used() {
    let stage = CodingAgentsFixture::start().await;
    for agent in ASKING_AGENTS {
        let task = stage
            .client
            .submit(scripted_task(agent, PERMISSION_SCRIPT))
            .await;
        let input = wait_for_permission(&stage.client, &task).await;
        let Some(Body::Permission(shown)) = &input.body else {
            panic!("a permission: {input:?}");
        };
        let shown = String::from_utf8_lossy(&shown.tool_input);
        assert!(shown.contains("ls"), "{agent}: {shown}");
        stage.client.answer_permission(&input, true).await;
        let done = stage.wait_for_end(&task).await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!(done.result, "allowed", "{agent}");
        let attempt = &done.attempts[0];
        assert!(!attempt.agent_session_id.is_empty());
        assert!(!attempt.killed_after_result);
        let usage = attempt.usage.clone().unwrap();
        let used = (
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
        );
        assert_eq!(used, expected_usage(agent), "{agent}");
        assert_script_was_played(&stage, agent, &task).await;
    }
}

async fn assert_script_was_played(stage: &CodingAgentsFixture, agent: &str, task: &Task) {
    let events = stage
        .client
        .watch(&task.task_id)
        .await
        .collect_to_end()
        .await;
    let kinds: Vec<TaskEventKind> = events.iter().map(|event| event.kind()).collect();
    let mut seen = kinds.iter();
    for kind in [
        TaskEventKind::ToolStarted,
        TaskEventKind::InputAsked,
        TaskEventKind::InputAnswered,
        TaskEventKind::ToolFinished,
    ] {
        let found = seen.any(|seen| *seen == kind);
        assert!(found, "{agent}: {kind:?} in {kinds:?}");
    }
    let phases: Vec<LifecyclePhase> = events.iter().map(|event| event.phase()).collect();
    // What a program says of itself before it has its prompt is no event.
    let mut seen = phases.iter();
    for phase in [
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstEventSeen,
        LifecyclePhase::FirstVisibleEventSeen,
    ] {
        let found = seen.any(|seen| *seen == phase);
        assert!(found, "{agent}: {phase:?} in {phases:?}");
    }
    let words = visible_output(&stage.client, task).await;
    assert!(words.starts_with("I look.\n"), "{agent}: {words}");
    assert!(words.contains("done\n"), "{agent}: {words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_denied_reaches_the_agent_as_a_no() {
    let stage = CodingAgentsFixture::start().await;
    for agent in ASKING_AGENTS {
        let task = stage
            .client
            .submit(scripted_task(agent, PERMISSION_SCRIPT))
            .await;
        let input = wait_for_permission(&stage.client, &task).await;
        stage.client.answer_permission(&input, false).await;
        let done = stage.wait_for_end(&task).await;
        assert_eq!(done.result, "denied", "{agent}: {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_that_are_asked_together_are_answered_together() {
    let stage = CodingAgentsFixture::start().await;
    let script = "question Which colour? = Red, Blue & Which size? = S, M";
    for agent in ASKING_AGENTS {
        let task = stage.client.submit(scripted_task(agent, script)).await;
        let asked = stage.client.wait_for_inputs(&task.task_id, 2).await;
        assert_eq!(asked.len(), 2, "{agent}: {asked:?}");
        stage.client.answer_all(&task.task_id).await;
        let done = stage.wait_for_end(&task).await;
        assert_eq!(done.result, "answered Blue and M", "{agent}: {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_canceled_while_its_agent_asks_ends_canceled() {
    let stage = CodingAgentsFixture::start().await;
    for agent in ASKING_AGENTS {
        let task = stage
            .client
            .submit(scripted_task(agent, PERMISSION_SCRIPT))
            .await;
        wait_for_permission(&stage.client, &task).await;
        stage.client.cancel(&task.task_id).await;
        let done = stage.wait_for_end(&task).await;
        assert_eq!(done.state(), TaskState::Canceled, "{agent}: {done:?}");
    }
}

/// In the words of each wire.
const INTERRUPTS: [(&str, &str); 3] = [
    ("claude", r#""subtype":"interrupt""#),
    ("codex", r#""method":"turn/interrupt""#),
    ("acp", r#""method":"session/cancel""#),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_canceled_or_too_slow_is_asked_to_end_its_turn_and_tells_what_it_used() {
    let stage = CodingAgentsFixture::start().await;
    for (agent, words) in INTERRUPTS {
        let slow = TaskSpec {
            profile: Some(DeadlineProfile {
                stream_idle_ms: Some(1_000),
                cleanup_term_ms: Some(20_000),
                ..DeadlineProfile::default()
            }),
            ..scripted_task(agent, "say hm; stall")
        };
        let patient = TaskSpec {
            profile: Some(DeadlineProfile {
                cleanup_term_ms: Some(20_000),
                ..DeadlineProfile::default()
            }),
            ..slow.clone()
        };
        let task = stage.client.submit(patient).await;
        let spoke = |event: &TaskEvent| event.phase() == LifecyclePhase::FirstVisibleEventSeen;
        let mut watch = stage.client.watch(&task.task_id).await;
        watch.wait_for_event("words", spoke).await;
        stage.client.cancel(&task.task_id).await;
        let canceled = stage.wait_for_end(&task).await;
        assert_eq!(
            canceled.state(),
            TaskState::Canceled,
            "{agent}: {canceled:?}"
        );
        let late = stage.run_to_end(slow).await;
        let attempt = &late.attempts[0];
        let found = (late.state(), attempt.failure_code.as_str());
        assert_eq!(
            found,
            (TaskState::TimedOut, "stream_idle_timeout"),
            "{late:?}"
        );
        for attempt in [&canceled.attempts[0], attempt] {
            let usage = attempt.usage.clone().unwrap_or_default();
            assert!(usage.input_tokens > 0, "{agent}: {attempt:?}");
            assert_eq!(attempt.exit_code, Some(0), "{agent}: {attempt:?}");
        }
        let told = stage.recorded_agent_input();
        let asked = told.iter().filter(|line| line.contains(words));
        assert_eq!(asked.count(), 2, "{agent}: {told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_in_an_agent_ends_its_task_with_a_class_of_its_own() {
    let stage = CodingAgentsFixture::start().await;
    // A turn that fails inside, one that never ends, and a conversation that nobody knows.
    let cases = [
        ("say hm; error 401", "provider_auth"),
        ("say hm; error 429", "provider_quota"),
        ("say hm; error 529", "provider_overloaded"),
        ("say hm; crash 3", "agent_exit"),
        ("garbage; crash 0", "no_result"),
    ];
    for (agent, _, _) in CODING_AGENTS {
        for (script, code) in cases {
            let done = stage.run_to_end(scripted_task(agent, script)).await;
            let attempt = &done.attempts[0];
            let found = (done.state(), attempt.failure_code.as_str());
            assert_eq!(found, (TaskState::Failed, code), "{agent}: {done:?}");
            assert!(!attempt.user_message.is_empty(), "{agent}: {done:?}");
            assert!(!attempt.message.is_empty(), "{agent}: {done:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_of_an_agent_changes_nothing_about_its_result() {
    let stage = CodingAgentsFixture::start().await;
    // An event of no version, a line that is none, one of more than 4 MiB, and half a megabyte of words.
    let script = "novel; garbage; overlong 4500000; flood 500000; think hm; hint; tool Bash ls; say well done";
    for (agent, _, _) in CODING_AGENTS {
        let done = stage.run_to_end(scripted_task(agent, script)).await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!(done.result, "well done", "{agent}");
        let output = output_items(&stage.client, &done).await;
        let is_cut = |item: &&Item| match item {
            Item::Cut(cut) => cut.reason() == CutReason::LineTooLong,
            Item::Chunk(_) | Item::End(_) => false,
        };
        assert_eq!(output.iter().filter(is_cut).count(), 1, "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_before_a_hang_is_a_success_that_says_so() {
    let stage = CodingAgentsFixture::start().await;
    for (agent, _, _) in CODING_AGENTS {
        let done = stage
            .run_to_end(scripted_task(agent, "say done; hang"))
            .await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert!(done.attempts[0].killed_after_result, "{agent}: {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_wants_a_file_of_its_client_is_told_that_there_is_none_to_be_had() {
    let stage = CodingAgentsFixture::start().await;
    let done = stage
        .run_to_end(scripted_task("acp", "read notes.txt"))
        .await;
    assert_eq!(done.result, "cannot read", "{done:?}");
    let refused = stage
        .recorded_agent_input()
        .into_iter()
        .any(|line| line.contains("-32601"));
    assert!(refused, "{:?}", stage.recorded_agent_input());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_that_the_agent_cannot_take_is_refused_before_it_runs() {
    let stage = CodingAgentsFixture::start().await;
    for agent in ["claude", "codex", "codex-exec"] {
        let spec = TaskSpec {
            options: Some(AgentOptions {
                permission_mode: "yolo".to_owned(),
                ..AgentOptions::default()
            }),
            ..scripted_task(agent, "say no")
        };
        let task = stage.client.submit(spec).await;
        let mut watch = stage.client.watch(&task.task_id).await;
        let refused = watch.wait_for_kind(TaskEventKind::Rejected).await;
        assert_eq!(refused.failure_code, "unsupported_option", "{agent}");
        assert_eq!(
            stage.recorded_agent_input().len(),
            0,
            "{agent} was never started"
        );
        stage.client.cancel(&task.task_id).await;
    }
}

/// What a session offers is known when it is open, and refused then, before it has a prompt.
#[tokio::test(flavor = "multi_thread")]
async fn an_option_that_a_session_does_not_offer_fails_before_the_prompt() {
    let stage = CodingAgentsFixture::start().await;
    let with = |model: &str, mode: &str| TaskSpec {
        options: Some(AgentOptions {
            model: model.to_owned(),
            permission_mode: mode.to_owned(),
            ..AgentOptions::default()
        }),
        ..scripted_task("acp", "say done")
    };
    let done = stage.run_to_end(with("huge", "")).await;
    assert_eq!(done.attempts[0].failure_code, "unsupported_option");
    assert!(done.attempts[0].message.contains("model"), "{done:?}");
    let prompted = |line: &String| line.contains("session/prompt");
    assert!(
        !stage.recorded_agent_input().iter().any(prompted),
        "{:?}",
        stage.recorded_agent_input()
    );
    let done = stage.run_to_end(with("large", "plan")).await;
    assert_eq!(done.result, "done", "{done:?}");
    let told = stage.recorded_agent_input();
    let set = |what: &str| told.iter().any(|line| line.contains(what));
    assert!(
        set("\"value\":\"large\"") && set("\"modeId\":\"plan\""),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn context_reaches_every_agent() {
    let stage = CodingAgentsFixture::start().await;
    let context = ContextRef {
        kind: "file".to_owned(),
        path: "src/main.rs".to_owned(),
        ..ContextRef::default()
    };
    for (agent, _, _) in CODING_AGENTS {
        let spec = TaskSpec {
            options: Some(AgentOptions {
                context_refs: vec![context.clone()],
                instructions: "Be brief.".to_owned(),
                ..AgentOptions::default()
            }),
            ..scripted_task_with_prompt(agent, "say done", "Look.")
        };
        let before = stage.recorded_agent_input().len();
        let done = stage.run_to_end(spec).await;
        assert_eq!(done.result, "done", "{agent}: {done:?}");
        let told = stage.recorded_agent_input()[before..].join("\n");
        assert!(told.contains("src/main.rs"), "{agent}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_reaches_the_agent_once_when_its_daemon_is_killed_while_it_asks() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let tape = recording_file(dir.path()).display().to_string();
    let file = dir.path().join("daemon.toml");
    let config = standin_agents_toml(STANDIN, &[("STANDIN_TAPE", &tape)]);
    std::fs::write(&file, config).unwrap();
    let more = ["--config", file.to_str().unwrap()];
    let link = (client.url(), &secret[..]);
    let start = || DaemonProcess::start_with(BATON, dir.path(), "d", link, &more);
    let mut daemon = start().await;
    for agent in ASKING_AGENTS {
        let spec = TaskSpec {
            prompt: PERMISSION_SCRIPT.to_owned(),
            ..agent_task(agent)
        };
        let task = client.submit(spec).await;
        let input = wait_for_permission(&client, &task).await;
        daemon.kill().await;
        // The answer is given while nobody is there to take it.
        client.answer_permission(&input, true).await;
        daemon = start().await;
        client.watch(&task.task_id).await.collect_to_end().await;
        let done = client.get(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!(
            (&done.result[..], done.attempts.len()),
            (&b"allowed"[..], 1)
        );
        let answers = ["\"behavior\"", "\"decision\"", "\"optionId\""];
        let is_answer = |line: &&String| answers.iter().any(|word| line.contains(word));
        let told = read_agent_input(dir.path());
        assert_eq!(
            told.iter().filter(is_answer).count(),
            1,
            "{agent}: {told:?}"
        );
        std::fs::remove_file(&tape).unwrap();
    }
}

/// What a person would see.
async fn visible_output(client: &TestClient, task: &Task) -> String {
    let mut words = String::new();
    for item in output_items(client, task).await {
        if let Item::Chunk(chunk) = item
            && chunk.visible
            && chunk.kind() != OutputKind::Stderr
        {
            words += &String::from_utf8_lossy(&chunk.data);
        }
    }
    words
}

/// Everything up to the end.
async fn output_items(client: &TestClient, task: &Task) -> Vec<Item> {
    let request = ReadOutputRequest {
        task_id: task.task_id.clone(),
        ..ReadOutputRequest::default()
    };
    let mut tasks = client.tasks();
    let opened = wait_within("output to open", tasks.read_output(request)).await;
    let mut pieces = opened.expect("output can be read").into_inner();
    let mut items = Vec::new();
    loop {
        let piece = wait_within("output", pieces.message()).await;
        match piece.expect("output goes on").and_then(|piece| piece.item) {
            Some(Item::End(_)) | None => return items,
            Some(item) => items.push(item),
        }
    }
}
