//! An agent whose turn ends without the files that its task has to leave is told which, and has another turn of the same
//! conversation and process: so often and no more, exactly once each time, and only where the contract lets it try again.

use std::path::Path;

use baton_proto::v1::{
    CompletionContract, DeadlineProfile, MissingPolicy, RequiredArtifact, Role, Task, TaskSpec,
    TaskState,
};
use baton_tests::{
    ASKING_AGENTS, DaemonProcess, RelayProcess, TestClient, poll_until, scripted_task,
    standin_agents_toml,
};

use crate::{BATON, STANDIN};

/// What the agent is told begins like this.
const MISSING_FILES_NOTICE: &str = "Your work is not taken as done yet";

struct FurtherTurnsFixture {
    relay: RelayProcess,
    daemon: DaemonProcess,
    secret: String,
    dir: tempfile::TempDir,
}

impl FurtherTurnsFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let dir = tempfile::tempdir().expect("a directory");
        let tape = dir.path().join("tape");
        let env = [("STANDIN_TAPE", tape.to_str().expect("a plain path"))];
        let file = dir.path().join("daemon.toml");
        std::fs::write(&file, standin_agents_toml(STANDIN, &env)).expect("a file can be written");
        let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
        let daemon = start_daemon(&relay, dir.path(), &secret).await;
        Self {
            relay,
            daemon,
            secret,
            dir,
        }
    }

    async fn restart_killed_daemon(&mut self) {
        self.daemon.kill().await;
        self.daemon = start_daemon(&self.relay, self.dir.path(), &self.secret).await;
    }

    fn client(&self) -> &TestClient {
        self.relay.admin()
    }

    async fn run_to_end(&self, spec: TaskSpec) -> Task {
        let task = self.client().submit(spec).await;
        self.wait_for_end(&task).await
    }

    async fn wait_for_end(&self, task: &Task) -> Task {
        self.client()
            .watch(&task.task_id)
            .await
            .collect_to_end()
            .await;
        self.client().get(&task.task_id).await
    }

    /// How often agents were told that files are missing.
    fn notice_count(&self) -> usize {
        let tape = std::fs::read_to_string(self.dir.path().join("tape")).unwrap_or_default();
        let told = tape.lines().filter(|line| line.starts_with("> "));
        told.filter(|line| line.contains(MISSING_FILES_NOTICE))
            .count()
    }
}

async fn start_daemon(relay: &RelayProcess, dir: &Path, secret: &str) -> DaemonProcess {
    let file = dir.join("daemon.toml");
    let more = ["--config", file.to_str().expect("a plain path")];
    let link = (relay.admin().url(), secret);
    DaemonProcess::start_with(BATON, dir, "d", link, &more).await
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
async fn an_agent_that_forgot_a_file_is_told_and_makes_it_in_another_turn() {
    let stage = FurtherTurnsFixture::start().await;
    for (round, agent) in ASKING_AGENTS.into_iter().enumerate() {
        let path = format!("made/{agent}");
        let script = format!("say Done.; again; echo; write {path} x; say Made.");
        // Nothing of the first turn is waited for in the second: only silence would end it.
        let spec = TaskSpec {
            profile: Some(DeadlineProfile {
                first_event_ms: Some(20_000),
                first_visible_event_ms: Some(20_000),
                stream_idle_ms: Some(20_000),
                ..DeadlineProfile::default()
            }),
            ..scripted_task(agent, &script)
        };
        let done = stage
            .run_to_end(task_requiring_file(&path, MissingPolicy::Unspecified, spec))
            .await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!(done.result, "Made.", "{agent}");
        let [attempt] = &done.attempts[..] else {
            panic!("{agent}: one attempt: {done:?}");
        };
        assert_eq!(attempt.artifacts[0].size, 1, "{agent}: {attempt:?}");
        let usage = attempt.usage.clone().expect("what it used");
        // Requests to the model: one in the first turn, and where every message is one, two in the second.
        let requests = if agent == "acp" { 3 } else { 2 };
        let (input, output) = if agent == "codex" { (112, 27) } else { (12, 7) };
        let used = (usage.input_tokens, usage.output_tokens);
        assert_eq!(used, (requests * input, requests * output), "{agent}");
        assert_eq!(stage.notice_count(), round + 1, "{agent}");
        let shown = BATON
            .run(stage.relay.data(), &["output", &done.task_id])
            .await
            .stdout;
        assert!(
            shown.contains(&format!("- {path}: missing")),
            "{agent}: the agent heard which: {shown}"
        );
        assert!(
            shown.contains("The agent was asked to create them and has another turn."),
            "{agent}: so does whoever reads: {shown}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_never_makes_its_file_is_told_twice_and_then_it_is_a_failure() {
    let stage = FurtherTurnsFixture::start().await;
    for (round, agent) in ASKING_AGENTS.into_iter().enumerate() {
        let spec = scripted_task(agent, "say Done.");
        let failed = stage
            .run_to_end(task_requiring_file(
                "never/made",
                MissingPolicy::Reject,
                spec,
            ))
            .await;
        assert_eq!(failed.state(), TaskState::Failed, "{agent}: {failed:?}");
        let [attempt] = &failed.attempts[..] else {
            panic!("{agent}: one attempt: {failed:?}");
        };
        assert_eq!(attempt.failure_code, "receipts_missing", "{agent}");
        assert!(attempt.message.contains("never/made: missing"), "{agent}");
        assert_eq!(stage.notice_count(), 2 * (round + 1), "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_try_again_or_has_ended_or_failed_is_told_nothing() {
    let stage = FurtherTurnsFixture::start().await;
    let fail = MissingPolicy::Fail;
    let reject = MissingPolicy::Reject;
    for (agent, policy, script, code) in [
        ("claude", fail, "say Done.", "receipts_missing"),
        ("codex-exec", reject, "say Done.", "receipts_missing"),
        ("acp", reject, "error 401", "provider_auth"),
        // The second turn decides, as the only one would.
        ("codex", reject, "say Done.; again; crash 3", "agent_exit"),
    ] {
        let before = stage.notice_count();
        let failed = stage
            .run_to_end(task_requiring_file(
                "never/made",
                policy,
                scripted_task(agent, script),
            ))
            .await;
        let attempt = &failed.attempts[0];
        assert_eq!(attempt.failure_code, code, "{agent}: {attempt:?}");
        let told = usize::from(script.contains("again"));
        assert_eq!(stage.notice_count() - before, told, "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_killed_in_a_further_turn_is_followed_by_one_that_knows_it() {
    let mut stage = FurtherTurnsFixture::start().await;
    for (round, agent) in ASKING_AGENTS.into_iter().enumerate() {
        let (path, gate) = (
            format!("kept/{agent}"),
            stage.dir.path().join(format!("gate-{agent}")),
        );
        let script = format!(
            "say Done.; again; until {}; write {path} x; say Made.",
            gate.display()
        );
        let spec = task_requiring_file(&path, MissingPolicy::Reject, scripted_task(agent, &script));
        let task = stage.client().submit(spec).await;
        poll_until("the agent to be told", || {
            (stage.notice_count() == round + 1).then_some(())
        })
        .await;
        stage.restart_killed_daemon().await;
        std::fs::write(&gate, "").expect("a file can be written");
        let done = stage.wait_for_end(&task).await;
        assert_eq!(done.state(), TaskState::Completed, "{agent}: {done:?}");
        assert_eq!((&done.result[..], done.attempts.len()), (&b"Made."[..], 1));
        let usage = done.attempts[0].usage.clone().expect("what it used");
        let output = if agent == "codex" { 27 } else { 7 };
        assert_eq!(usage.output_tokens, 2 * output, "{agent}: both turns");
        assert_eq!(stage.notice_count(), round + 1, "{agent}: once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_turn_can_be_canceled_and_says_what_all_turns_used() {
    let stage = FurtherTurnsFixture::start().await;
    let spec = scripted_task("claude", "say Done.; again; say On it.; stall");
    let spec = task_requiring_file("never/made", MissingPolicy::Reject, spec);
    let task = stage.client().submit(spec).await;
    poll_until("the agent to be told", || {
        (stage.notice_count() == 1).then_some(())
    })
    .await;
    stage.client().cancel(&task.task_id).await;
    let canceled = stage.wait_for_end(&task).await;
    assert_eq!(canceled.state(), TaskState::Canceled, "{canceled:?}");
    let usage = canceled.attempts[0].usage.clone().expect("what it used");
    assert!(usage.output_tokens >= 7, "{usage:?}");
}
