//! An agent whose turn ends without its required files gets a notice with their names and a
//! further turn in the same process and conversation. The number of further turns is limited,
//! each notice is sent exactly once, and only if the contract allows another try.

use std::path::Path;

use baton_proto::v1::{
    CompletionContract, DeadlineProfile, MissingPolicy, RequiredArtifact, TaskSpec, TaskState,
};
use baton_tests::{
    ASKING_AGENTS, RelayAndDaemon, TestClient, poll_until, scripted_task, standin_agents_toml,
};

use crate::{BATON, STANDIN};

/// The beginning of the notice to the agent.
const MISSING_FILES_NOTICE: &str = "Your work is not taken as done yet";

struct FurtherTurnsFixture {
    servers: RelayAndDaemon,
}

impl FurtherTurnsFixture {
    async fn start() -> Self {
        let config = |dir: &Path| {
            let recording = dir.join("tape");
            let recording = recording.to_str().expect("a plain path");
            standin_agents_toml(STANDIN, &[("STANDIN_TAPE", recording)])
        };
        let servers = RelayAndDaemon::start_with_config(BATON, config).await;
        Self { servers }
    }

    fn client(&self) -> &TestClient {
        self.servers.client()
    }

    fn dir(&self) -> &Path {
        self.servers.dir.path()
    }

    /// The number of notices about missing files that agents received.
    fn notice_count(&self) -> usize {
        let recording = std::fs::read_to_string(self.dir().join("tape")).unwrap_or_default();
        let expected_notices = recording.lines().filter(|line| line.starts_with("> "));
        expected_notices
            .filter(|line| line.contains(MISSING_FILES_NOTICE))
            .count()
    }
}

/// A task that has to leave `path` in the daemon's work directory.
fn task_requiring_file(path: &str, policy: MissingPolicy, spec: TaskSpec) -> TaskSpec {
    TaskSpec {
        contract: Some(CompletionContract {
            required_artifacts: vec![RequiredArtifact {
                path: path.to_owned(),
                ..RequiredArtifact::default()
            }],
            missing_policy: policy.into(),
        }),
        ..spec
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_forgot_a_file_creates_it_in_a_further_turn() {
    let fixture = FurtherTurnsFixture::start().await;
    for (round, agent) in ASKING_AGENTS.into_iter().enumerate() {
        let path = format!("made/{agent}");
        let script = format!("say Done.; again; echo; write {path} x; say Made.");
        // The second turn must not wait for first events again: only the idle deadline applies
        // to it.
        let spec = TaskSpec {
            profile: Some(DeadlineProfile {
                first_event_ms: Some(20_000),
                first_visible_event_ms: Some(20_000),
                stream_idle_ms: Some(20_000),
                ..DeadlineProfile::default()
            }),
            ..scripted_task(agent, &script)
        };
        let done = fixture
            .client()
            .run_to_end(task_requiring_file(&path, MissingPolicy::Unspecified, spec))
            .await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!(done.result, "Made.", "{agent}");
        let [attempt] = &done.attempts[..] else {
            panic!("{agent}: one attempt: {done:?}");
        };
        assert_eq!(attempt.artifacts[0].size, 1, "{agent}: {attempt:?}");
        let usage = attempt.usage.clone().expect("the attempt has usage");
        // Model requests: one in the first turn, and two in the second for ACP, which counts
        // each message.
        let requests = if agent == "acp" { 3 } else { 2 };
        let (input, output) = if agent == "codex" { (112, 27) } else { (12, 7) };
        let used = (usage.input_tokens, usage.output_tokens);
        assert_eq!(used, (requests * input, requests * output), "{agent}");
        assert_eq!(fixture.notice_count(), round + 1, "{agent}");
        let shown = fixture
            .servers
            .run_command(&["output", &done.task_id])
            .await
            .stdout;
        assert!(
            shown.contains(&format!("- {path}: missing")),
            "{agent}: the notice names the file: {shown}"
        );
        assert!(
            shown.contains("The agent was asked to create them and has another turn."),
            "{agent}: the output shows the further turn: {shown}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_get_no_further_turn_get_no_notice() {
    let fixture = FurtherTurnsFixture::start().await;
    let fail = MissingPolicy::Fail;
    let reject = MissingPolicy::Reject;
    for (agent, policy, script, code) in [
        ("claude", fail, "say Done.", "receipts_missing"),
        ("codex-exec", reject, "say Done.", "receipts_missing"),
        ("acp", reject, "error 401", "provider_auth"),
        // The failure of the second turn decides.
        ("codex", reject, "say Done.; again; crash 3", "agent_exit"),
    ] {
        let before = fixture.notice_count();
        let failed = fixture
            .client()
            .run_to_end(task_requiring_file(
                "never/made",
                policy,
                scripted_task(agent, script),
            ))
            .await;
        let attempt = &failed.attempts[0];
        assert_eq!(attempt.failure_code, code, "{agent}: {attempt:?}");
        let expected_notices = usize::from(script.contains("again"));
        assert_eq!(fixture.notice_count() - before, expected_notices, "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_turn_survives_a_killed_daemon() {
    let mut fixture = FurtherTurnsFixture::start().await;
    for (round, agent) in ASKING_AGENTS.into_iter().enumerate() {
        let (path, gate) = (
            format!("kept/{agent}"),
            fixture.dir().join(format!("gate-{agent}")),
        );
        let script = format!(
            "say Done.; again; until {}; write {path} x; say Made.",
            gate.display()
        );
        let spec = task_requiring_file(&path, MissingPolicy::Reject, scripted_task(agent, &script));
        let task = fixture.client().submit(spec).await;
        poll_until("the agent to get the notice", || {
            (fixture.notice_count() == round + 1).then_some(())
        })
        .await;
        fixture.servers.kill_and_restart_daemon().await;
        std::fs::write(&gate, "").expect("a file can be written");
        let done = fixture.client().wait_for_end(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!((&done.result[..], done.attempts.len()), (&b"Made."[..], 1));
        let usage = done.attempts[0]
            .usage
            .clone()
            .expect("the attempt has usage");
        let output = if agent == "codex" { 27 } else { 7 };
        assert_eq!(
            usage.output_tokens,
            2 * output,
            "{agent}: usage of both turns"
        );
        assert_eq!(fixture.notice_count(), round + 1, "{agent}: one notice");
    }
}
