//! Leases that are held at a terminal, and what a token of role agent may say there.

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
        let token = tempfile::NamedTempFile::new().expect("a file can be made");
        let file = token.path().to_str().expect("a readable path");
        let make = [
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
        std::fs::remove_file(token.path()).expect("it was there");
        let made = BATON.run(relay.data(), &make).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        Self { relay, token }
    }

    /// With the agent's token, and with this lease token in the environment.
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

/// What a grant that was printed as JSON is used with.
struct PrintedGrant {
    task: String,
    attempt: String,
    token: String,
}

impl PrintedGrant {
    fn parse_grant(said: &CommandOutput) -> Self {
        assert_eq!(said.code, Some(0), "{said:?}");
        let grant = said.stdout_json();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        Self {
            task: text(&grant["ref"]["taskId"]),
            attempt: text(&grant["ref"]["attemptId"]),
            token: text(&grant["token"]),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_printed_as_json_is_renewed_given_back_and_picked_up_again() {
    let desk = LeaseCommandsFixture::start().await;
    let admin = desk.relay.admin();
    let task = admin.submit(agent_scope_spec(SCOPE)).await.task_id;
    let held = PrintedGrant::parse_grant(&desk.run_command("", &["claim", &task, "--json"]).await);
    let renewed = desk
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
    let parked = desk.run_command(&held.token, &block).await;
    assert_eq!(parked.code, Some(0), "{parked:?}");
    let held =
        PrintedGrant::parse_grant(&desk.run_command("", &["pick-up", &task, "--json"]).await);
    let back = desk
        .run_command(&held.token, &["release", &held.task, &held.attempt])
        .await;
    assert_eq!(back.code, Some(0), "{back:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_task_at_a_terminal_tells_progress_blocks_and_completes_there() {
    let desk = LeaseCommandsFixture::start().await;
    let admin = desk.relay.admin();
    let first = admin.submit(agent_scope_spec(SCOPE)).await.task_id;
    let held = PrintedGrant::parse_grant(&desk.run_command("", &["claim", &first, "--json"]).await);
    // Without the lease a token of role agent may not, and is told how.
    for verb in [
        vec!["progress", &first, "--done", "half"],
        vec!["block", &first, "--reason", "stuck"],
        vec!["complete", &first, "--reason", "done"],
    ] {
        let said = desk.run_command(&held.token, &verb).await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.stderr.contains("--attempt ATTEMPT"), "{said:?}");
    }
    let under = ["--attempt", held.attempt.as_str()];
    let said = desk
        .run_command(
            &held.token,
            &[["progress", &first, "--done", "half"].as_slice(), &under].concat(),
        )
        .await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("half"), "{said:?}");
    let said = desk
        .run_command(
            &held.token,
            &[
                [
                    "complete", &first, "--reason", "all read", "--result", "good",
                ]
                .as_slice(),
                &under,
            ]
            .concat(),
        )
        .await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let done = admin.get(&first).await;
    assert_eq!(
        (done.state(), &done.result[..]),
        (TaskState::Completed, &b"good"[..])
    );

    let second = admin.submit(agent_scope_spec(SCOPE)).await.task_id;
    let held =
        PrintedGrant::parse_grant(&desk.run_command("", &["claim", &second, "--json"]).await);
    let block = [
        "block",
        &second,
        "--reason",
        "no access",
        "--attempt",
        &held.attempt,
    ];
    let wrong = desk.run_command(&"0".repeat(64), &block).await;
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    let said = desk.run_command(&held.token, &block).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let parked = admin.get(&second).await;
    assert_eq!(parked.state(), TaskState::NeedsAttention);
    assert_eq!(parked.attention.expect("it is parked").reason, "no access");
}
