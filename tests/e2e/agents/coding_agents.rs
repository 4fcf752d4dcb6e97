//! Every kind of coding agent end to end, with the stand-in in place of the agent: tools,
//! permissions, questions, results and their failures.

use std::path::{Path, PathBuf};

use baton_proto::v1::input::Body;
use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{
    AgentOptions, ContextRef, CutReason, DeadlineProfile, Input, LifecyclePhase, OutputKind, Task,
    TaskEvent, TaskEventKind, TaskSpec, TaskState,
};
use baton_tests::{
    ASKING_AGENTS, CODING_AGENTS, EmbeddedDaemon, EmbeddedRelay, RelayAndDaemon, TestClient,
    agent_task, scripted_task, scripted_task_with_prompt, standin_agents, standin_agents_toml,
};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

/// Prints text, then calls a tool that needs permission.
const PERMISSION_SCRIPT: &str = "say I look.; ask Bash ls";

/// A relay, and a daemon with the stand-in for every wire protocol.
struct CodingAgentsFixture {
    client: TestClient,
    dir: TempDir,
    _relay: EmbeddedRelay,
    _daemon: EmbeddedDaemon,
}

impl CodingAgentsFixture {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let recording = recording_path(dir.path());
        let env = [("STANDIN_TAPE", recording.to_str().expect("a plain path"))];
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

    /// The lines that the agents received.
    fn recorded_agent_input(&self) -> Vec<String> {
        read_agent_input(self.dir.path())
    }
}

fn recording_path(dir: &Path) -> PathBuf {
    dir.join("tape")
}

fn read_agent_input(dir: &Path) -> Vec<String> {
    let recording = std::fs::read_to_string(recording_path(dir)).unwrap_or_default();
    let agent_input = recording.lines().filter_map(|line| line.strip_prefix("> "));
    agent_input.map(str::to_owned).collect()
}

async fn wait_for_permission(client: &TestClient, task: &Task) -> Input {
    let mut open = client.wait_for_inputs(&task.task_id, 1).await;
    assert_eq!(open.len(), 1, "{open:?}");
    open.remove(0)
}

/// Input, output and cache-read tokens of two model requests, as each wire protocol counts them.
fn expected_usage(agent: &str) -> (u64, u64, u64) {
    match agent {
        "codex" => (2 * 112, 2 * 27, 2 * 200),
        _ => (2 * 12, 2 * 7, 2 * 200),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_agent_kind_asks_works_and_reports_result_and_usage() {
    let fixture = CodingAgentsFixture::start().await;
    for agent in ASKING_AGENTS {
        let task = fixture
            .client
            .submit(scripted_task(agent, PERMISSION_SCRIPT))
            .await;
        let input = wait_for_permission(&fixture.client, &task).await;
        let Some(Body::Permission(shown)) = &input.body else {
            panic!("a permission: {input:?}");
        };
        let shown = String::from_utf8_lossy(&shown.tool_input);
        assert!(shown.contains("ls"), "{agent}: {shown}");
        fixture.client.answer_permission(&input, true).await;
        let done = fixture.client.wait_for_end(&task.task_id).await;
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
        assert_script_was_played(&fixture, agent, &task).await;
    }
}

async fn assert_script_was_played(fixture: &CodingAgentsFixture, agent: &str, task: &Task) {
    let events = fixture
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
    // Messages that an agent prints before its prompt do not count as its first event.
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
    let text = visible_output(&fixture.client, task).await;
    assert!(text.starts_with("I look.\n"), "{agent}: {text}");
    assert!(text.contains("done\n"), "{agent}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_that_are_asked_together_are_answered_together() {
    let fixture = CodingAgentsFixture::start().await;
    let script = "question Which colour? = Red, Blue & Which size? = S, M";
    for agent in ASKING_AGENTS {
        let task = fixture.client.submit(scripted_task(agent, script)).await;
        let asked = fixture.client.wait_for_inputs(&task.task_id, 2).await;
        assert_eq!(asked.len(), 2, "{agent}: {asked:?}");
        fixture.client.answer_all(&task.task_id).await;
        let done = fixture.client.wait_for_end(&task.task_id).await;
        assert_eq!(done.result, "answered Blue and M", "{agent}: {done:?}");
    }
}

/// The interrupt message of each wire protocol.
const INTERRUPTS: [(&str, &str); 3] = [
    ("claude", r#""subtype":"interrupt""#),
    ("codex", r#""method":"turn/interrupt""#),
    ("acp", r#""method":"session/cancel""#),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_or_slow_agent_is_interrupted_and_reports_its_usage() {
    let fixture = CodingAgentsFixture::start().await;
    for (agent, text) in INTERRUPTS {
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
        let task = fixture.client.submit(patient).await;
        let has_output = |event: &TaskEvent| event.phase() == LifecyclePhase::FirstVisibleEventSeen;
        let mut watch = fixture.client.watch(&task.task_id).await;
        watch.wait_for_event("output", has_output).await;
        fixture.client.cancel(&task.task_id).await;
        let canceled = fixture.client.wait_for_end(&task.task_id).await;
        assert_eq!(
            canceled.state(),
            TaskState::Canceled,
            "{agent}: {canceled:?}"
        );
        let late = fixture.client.run_to_end(slow).await;
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
        let agent_input = fixture.recorded_agent_input();
        let asked = agent_input.iter().filter(|line| line.contains(text));
        assert_eq!(asked.count(), 2, "{agent}: {agent_input:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_agent_failure_ends_the_task_with_its_own_code() {
    let fixture = CodingAgentsFixture::start().await;
    // Provider errors, a crash within a turn, and an exit without a result.
    let cases = [
        ("say hm; error 401", "provider_auth"),
        ("say hm; error 429", "provider_quota"),
        ("say hm; error 529", "provider_overloaded"),
        ("say hm; crash 3", "agent_exit"),
        ("garbage; crash 0", "no_result"),
    ];
    for (agent, _, _) in CODING_AGENTS {
        for (script, code) in cases {
            let done = fixture
                .client
                .run_to_end(scripted_task(agent, script))
                .await;
            let attempt = &done.attempts[0];
            let found = (done.state(), attempt.failure_code.as_str());
            assert_eq!(found, (TaskState::Failed, code), "{agent}: {done:?}");
            assert!(!attempt.user_message.is_empty(), "{agent}: {done:?}");
            assert!(!attempt.message.is_empty(), "{agent}: {done:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unexpected_agent_output_does_not_change_its_result() {
    let fixture = CodingAgentsFixture::start().await;
    // An unknown event, a line that is not JSON, a line of more than 4 MiB, and 500 kB of text.
    let script = "novel; garbage; overlong 4500000; flood 500000; think hm; hint; tool Bash ls; say well done";
    for (agent, _, _) in CODING_AGENTS {
        let done = fixture
            .client
            .run_to_end(scripted_task(agent, script))
            .await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!(done.result, "well done", "{agent}");
        let output = fixture.client.read_stored_output(&done.task_id).await;
        let is_cut = |item: &&Item| match item {
            Item::Cut(cut) => cut.reason() == CutReason::LineTooLong,
            Item::Chunk(_) | Item::End(_) => false,
        };
        assert_eq!(output.iter().filter(is_cut).count(), 1, "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_before_a_hang_completes_and_reports_the_kill() {
    let fixture = CodingAgentsFixture::start().await;
    for (agent, _, _) in CODING_AGENTS {
        let done = fixture
            .client
            .run_to_end(scripted_task(agent, "say done; hang"))
            .await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert!(done.attempts[0].killed_after_result, "{agent}: {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn context_reaches_every_agent() {
    let fixture = CodingAgentsFixture::start().await;
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
        let before = fixture.recorded_agent_input().len();
        let done = fixture.client.run_to_end(spec).await;
        assert_eq!(done.result, "done", "{agent}: {done:?}");
        let agent_input = fixture.recorded_agent_input()[before..].join("\n");
        assert!(
            agent_input.contains("src/main.rs"),
            "{agent}: {agent_input}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_reaches_the_agent_once_although_its_daemon_is_killed() {
    let config = |dir: &Path| {
        let recording = recording_path(dir).display().to_string();
        standin_agents_toml(STANDIN, &[("STANDIN_TAPE", &recording)])
    };
    let mut servers = RelayAndDaemon::start_with_config(BATON, config).await;
    let client = servers.client().clone();
    for agent in ASKING_AGENTS {
        let spec = TaskSpec {
            prompt: PERMISSION_SCRIPT.to_owned(),
            ..agent_task(agent)
        };
        let task = client.submit(spec).await;
        let input = wait_for_permission(&client, &task).await;
        servers.daemon.kill().await;
        // The answer is given while no daemon is connected.
        client.answer_permission(&input, true).await;
        servers.restart_daemon().await;
        let done = client.wait_for_end(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!(
            (&done.result[..], done.attempts.len()),
            (&b"allowed"[..], 1)
        );
        let answers = ["\"behavior\"", "\"decision\"", "\"optionId\""];
        let is_answer = |line: &&String| answers.iter().any(|marker| line.contains(marker));
        let agent_input = read_agent_input(servers.dir.path());
        assert_eq!(
            agent_input.iter().filter(is_answer).count(),
            1,
            "{agent}: {agent_input:?}"
        );
        std::fs::remove_file(recording_path(servers.dir.path())).unwrap();
    }
}

/// The output that is visible to a user.
async fn visible_output(client: &TestClient, task: &Task) -> String {
    let mut text = String::new();
    for item in client.read_stored_output(&task.task_id).await {
        if let Item::Chunk(chunk) = item
            && chunk.visible
            && chunk.kind() != OutputKind::Stderr
        {
            text += &String::from_utf8_lossy(&chunk.data);
        }
    }
    text
}
