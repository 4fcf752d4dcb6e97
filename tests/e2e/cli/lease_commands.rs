//! Leases used from the command line, and the commands that a token of role agent may run.

use baton_proto::v1::TaskState;
use baton_tests::{CommandOutput, RelayProcess, agent_scope_spec, wait_within};
use serde_json::Value;

use crate::BATON;

const SCOPE: &str = "reviewers";

struct LeaseCommandsFixture {
    relay: RelayProcess,
    token: tempfile::NamedTempFile,
}

impl LeaseCommandsFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let token = tempfile::NamedTempFile::new().expect("a file can be created");
        let file = token.path().to_str().expect("a UTF-8 path");
        let create_token = [
            "token",
            "create",
            "--role",
            "agent",
            "--name",
            "ada",
            "--agent-scope",
            SCOPE,
            "--out",
            file,
        ];
        std::fs::remove_file(token.path()).expect("the file exists");
        let made = BATON.run(relay.data(), &create_token).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        Self { relay, token }
    }

    /// Runs a command with the agent's token and this lease token in the environment.
    async fn run_command(&self, lease: &str, arguments: &[&str]) -> CommandOutput {
        let mut command = BATON.command(self.relay.data());
        command
            .env("BATON_TOKEN_FILE", self.token.path())
            .env("BATON_LEASE_TOKEN", lease)
            .args(arguments);
        let output = wait_within(&format!("baton {arguments:?}"), command.output()).await;
        let output = output.expect("the executable can be started");
        CommandOutput {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The ids and the lease token from a grant printed as JSON.
struct PrintedGrant {
    task: String,
    attempt: String,
    token: String,
}

impl PrintedGrant {
    fn parse_grant(output: &CommandOutput) -> Self {
        assert_eq!(output.code, Some(0), "{output:?}");
        let grant = output.stdout_json();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        Self {
            task: text(&grant["ref"]["taskId"]),
            attempt: text(&grant["ref"]["attemptId"]),
            token: text(&grant["token"]),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_printed_as_json_can_be_renewed_blocked_and_released() {
    let fixture = LeaseCommandsFixture::start().await;
    let admin = fixture.relay.admin();
    let task = admin.submit(agent_scope_spec(SCOPE)).await.task_id;
    let held =
        PrintedGrant::parse_grant(&fixture.run_command("", &["claim", &task, "--json"]).await);
    let renewed = fixture
        .run_command(&held.token, &["renew", &held.task, &held.attempt])
        .await;
    assert_eq!(renewed.code, Some(0), "{renewed:?}");
    let block = [
        "block",
        &task,
        "--reason",
        "which way?",
        "--attempt",
        &held.attempt,
    ];
    let parked = fixture.run_command(&held.token, &block).await;
    assert_eq!(parked.code, Some(0), "{parked:?}");
    let held =
        PrintedGrant::parse_grant(&fixture.run_command("", &["pick-up", &task, "--json"]).await);
    let back = fixture
        .run_command(&held.token, &["release", &held.task, &held.attempt])
        .await;
    assert_eq!(back.code, Some(0), "{back:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_holder_reports_progress_blocks_and_completes_by_command() {
    let fixture = LeaseCommandsFixture::start().await;
    let admin = fixture.relay.admin();
    let first = admin.submit(agent_scope_spec(SCOPE)).await.task_id;
    let held =
        PrintedGrant::parse_grant(&fixture.run_command("", &["claim", &first, "--json"]).await);
    // Without --attempt a token of role agent is refused with a hint.
    for verb in [
        vec!["progress", &first, "--done", "half"],
        vec!["block", &first, "--reason", "stuck"],
        vec!["complete", &first, "--reason", "done"],
    ] {
        let output = fixture.run_command(&held.token, &verb).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains("--attempt ATTEMPT"), "{output:?}");
    }
    let attempt_flag = ["--attempt", held.attempt.as_str()];
    let output = fixture
        .run_command(
            &held.token,
            &[
                ["progress", &first, "--done", "half"].as_slice(),
                &attempt_flag,
            ]
            .concat(),
        )
        .await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("half"), "{output:?}");
    let output = fixture
        .run_command(
            &held.token,
            &[
                [
                    "complete", &first, "--reason", "all read", "--result", "good",
                ]
                .as_slice(),
                &attempt_flag,
            ]
            .concat(),
        )
        .await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let done = admin.get(&first).await;
    assert_eq!(
        (done.state(), &done.result[..]),
        (TaskState::Completed, &b"good"[..])
    );

    let second = admin.submit(agent_scope_spec(SCOPE)).await.task_id;
    let held =
        PrintedGrant::parse_grant(&fixture.run_command("", &["claim", &second, "--json"]).await);
    let block = [
        "block",
        &second,
        "--reason",
        "no access",
        "--attempt",
        &held.attempt,
    ];
    let wrong = fixture.run_command(&"0".repeat(64), &block).await;
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    let output = fixture.run_command(&held.token, &block).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let parked = admin.get(&second).await;
    assert_eq!(parked.state(), TaskState::NeedsAttention);
    assert_eq!(
        parked.attention.expect("the task is parked").reason,
        "no access"
    );
}
