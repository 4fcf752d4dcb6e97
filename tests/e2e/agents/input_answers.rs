//! Questions of agents and their answers: with `baton inbox` and `baton answer`, by rules of the
//! task, and without any answer; also with the relay, the daemon's link or the answering client
//! killed in between.

use std::path::Path;

use baton_daemon::AgentWire;
use baton_proto::v1::{
    Input, InputOutcome, InputState, ListInputsRequest, OnInputTimeout, OutputKind,
    PermissionEffect, PermissionRule, Task, TaskSpec, TaskState,
};
use baton_tests::{
    CommandOutput, PassedTraffic, RelayAndDaemon, RelayProcess, TcpProxy, TestClient, agent_task,
    wait_within,
};
use serde_json::Value;

use crate::BATON;
use crate::agents::shell_agents;
use crate::agents::shell_agents::{SHELL_AGENTS, agent_of_wire};

/// A relay and a daemon as processes, with one asking agent of each kind.
pub(crate) struct AskingAgentsFixture {
    pub(crate) servers: RelayAndDaemon,
    pub(crate) client: TestClient,
}

pub(crate) async fn start_fixture() -> AskingAgentsFixture {
    let servers = RelayAndDaemon::start_with_config(BATON, daemon_config).await;
    let client = servers.client().clone();
    AskingAgentsFixture { servers, client }
}

/// The same with the daemon behind a proxy.
async fn start_fixture_behind_proxy() -> (AskingAgentsFixture, TcpProxy) {
    let relay = RelayProcess::start(BATON).await;
    let (client, wire) = (
        relay.admin().clone(),
        TcpProxy::start_to(relay.admin().url()).await,
    );
    let servers = RelayAndDaemon::start_at(BATON, relay, wire.url(), daemon_config).await;
    (AskingAgentsFixture { servers, client }, wire)
}

fn daemon_config(dir: &Path) -> String {
    let agent = |(wire, script): &(AgentWire, &str)| {
        let (name, kind) = agent_of_wire(*wire);
        let path = dir.join(name);
        std::fs::write(&path, script).expect("the file can be written");
        format!("[agents.{name}]\nkind = \"{kind}\"\nprogram = \"sh\"\nargs = [{path:?}]\n")
    };
    SHELL_AGENTS.iter().map(agent).collect()
}

impl AskingAgentsFixture {
    pub(crate) async fn run_command(&self, arguments: &[&str]) -> CommandOutput {
        self.servers.run_command(arguments).await
    }

    /// The inputs of this task in `baton inbox`.
    async fn inbox_of_task(&self, task: &Task) -> Vec<Value> {
        let output = self
            .run_command(&["inbox", "--json", "--task", &task.task_id])
            .await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let inputs = output.stdout_json()["inputs"].as_array().cloned();
        inputs.expect("one object with a list")
    }

    pub(crate) async fn submit_until_asked(&self, wire: AgentWire) -> (Task, Input) {
        self.submit_spec_until_asked(agent_task(agent_of_wire(wire).0))
            .await
    }

    async fn submit_spec_until_asked(&self, spec: TaskSpec) -> (Task, Input) {
        let task = self.client.submit(spec).await;
        let mut open = self.client.wait_for_inputs(&task.task_id, 1).await;
        assert_eq!(open.len(), 1, "{open:?}");
        (task, open.remove(0))
    }

    /// Checks that the task completed in one attempt with this result, and that the agent
    /// received no message twice.
    pub(crate) async fn assert_completed_once(&self, task: &Task, result: &str, what: &str) {
        let done = self.client.wait_for_end(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Completed, "{what}: {done:?}");
        let outcome = (&done.result[..], done.attempts.len());
        assert_eq!(outcome, (result.as_bytes(), 1), "{what}");
        // The scripts copy any further input to standard error.
        let more = |chunk: &baton_proto::v1::OutputChunk| chunk.kind() == OutputKind::Stderr;
        let errors = shell_agents::read_output(&self.client, task, more).await;
        assert_eq!(errors, "", "{what}");
    }

    /// Allows an input that may be closed already.
    async fn answer_again(&self, input: &Input) -> CommandOutput {
        let (input_id, task_id) = (&*input.input_id, &*input.task_id);
        self.run_command(&["answer", input_id, "--task", task_id, "--allow"])
            .await
    }

    async fn wait_for_closed_input(&self, task: &Task) -> Input {
        let request = ListInputsRequest {
            task_id: task.task_id.clone(),
            include_closed: true,
            ..ListInputsRequest::default()
        };
        let listed = self.client.inputs().list_inputs(request).await;
        let mut inputs = listed.expect("inputs can be listed").into_inner().inputs;
        assert_eq!(inputs.len(), 1, "{inputs:?}");
        inputs.remove(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_agent_kind_asks_in_the_inbox_and_follows_the_answer() {
    let fixture = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        for (flag, result) in [("--allow", "allowed"), ("--deny", "denied")] {
            let what = format!("{wire:?} {flag}");
            let (task, input) = fixture.submit_until_asked(wire).await;
            let listed = fixture.inbox_of_task(&task).await;
            assert_eq!(listed[0]["inputId"], input.input_id, "{what}");
            let shown = fixture.run_command(&["show", &task.task_id]).await;
            assert!(
                shown.stdout.contains("waiting for an answer to:"),
                "{shown:?}"
            );
            assert!(shown.stdout.contains(r#""ls""#), "{what}: {shown:?}");

            let output = fixture
                .run_command(&["answer", &input.input_id, flag])
                .await;
            assert_eq!(output.code, Some(0), "{what}: {output:?}");
            fixture.assert_completed_once(&task, result, &what).await;
            assert_eq!(
                fixture.wait_for_closed_input(&task).await.state(),
                InputState::Received
            );

            let again = ["answer", &input.input_id, "--task", &task.task_id, flag];
            let output = fixture.run_command(&again).await;
            assert_eq!(
                output.code,
                Some(0),
                "{what}: the same answer again: {output:?}"
            );
            let other = if flag == "--allow" {
                "--deny"
            } else {
                "--allow"
            };
            let other = ["answer", &input.input_id, "--task", &task.task_id, other];
            let output = fixture.run_command(&other).await;
            assert_eq!(output.code, Some(1), "{what}: {output:?}");
            for word in [result, "already answered by", " at 20"] {
                assert!(output.stderr.contains(word), "{what}: {word} in {output:?}");
            }
            let without_task = fixture
                .run_command(&["answer", &input.input_id, other[4]])
                .await;
            assert_eq!(without_task.stderr, output.stderr, "{what}: without --task");
            let unknown_input = fixture.run_command(&["answer", &task.task_id, flag]).await;
            assert_eq!(unknown_input.code, Some(2), "{unknown_input:?}");
            assert!(
                unknown_input.stderr.contains("baton inbox"),
                "{unknown_input:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_survives_a_relay_kill_before_and_after_its_answer() {
    let mut fixture = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        let (task, input) = fixture.submit_until_asked(wire).await;
        fixture.servers.kill_and_restart_relay().await;
        assert_eq!(
            fixture.inbox_of_task(&task).await.len(),
            1,
            "{wire:?}: the question is still open"
        );
        fixture.client.answer_permission(&input, true).await;
        // An acknowledged answer is durable, so the restarted relay delivers it if necessary.
        fixture.servers.kill_and_restart_relay().await;
        fixture
            .assert_completed_once(&task, "allowed", &format!("{wire:?}"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_given_while_the_link_is_cut_is_delivered_once() {
    let (fixture, link) = start_fixture_behind_proxy().await;
    for (wire, _) in SHELL_AGENTS {
        let (task, input) = fixture.submit_until_asked(wire).await;
        link.set_passed_traffic(PassedTraffic::Nothing);
        link.cut_connections();
        fixture.client.answer_permission(&input, true).await;
        link.set_passed_traffic(PassedTraffic::Both);
        link.cut_connections();
        fixture
            .assert_completed_once(&task, "allowed", &format!("{wire:?}"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_answering_client_leaves_one_answer_or_none() {
    let fixture = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        let (task, input) = fixture.submit_until_asked(wire).await;
        for _ in 0..3 {
            let mut command = BATON.command(fixture.servers.relay.data());
            let mut client = command
                .args(["answer", &input.input_id, "--allow"])
                .spawn()
                .unwrap();
            client.start_kill().unwrap();
            wait_within("the killed client to be gone", client.wait())
                .await
                .unwrap();
        }
        let output = fixture.answer_again(&input).await;
        assert_eq!(output.code, Some(0), "{wire:?}: {output:?}");
        fixture
            .assert_completed_once(&task, "allowed", &format!("{wire:?}"))
            .await;
    }
}

fn task_with_input_timeout(agent: &str, policy: OnInputTimeout) -> TaskSpec {
    let profile = baton_proto::v1::DeadlineProfile {
        user_input_ms: Some(200),
        ..Default::default()
    };
    TaskSpec {
        profile: Some(profile),
        on_input_timeout: policy.into(),
        ..agent_task(agent)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_question_is_denied_fails_or_parks_the_task() {
    let fixture = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        let agent = agent_of_wire(wire).0;
        let (task, _) = fixture
            .submit_spec_until_asked(task_with_input_timeout(agent, OnInputTimeout::Deny))
            .await;
        fixture
            .assert_completed_once(&task, "denied", &format!("{wire:?}"))
            .await;
        let input = fixture.wait_for_closed_input(&task).await;
        assert_eq!(input.outcome(), InputOutcome::Expired, "{wire:?}");

        let (task, input) = fixture
            .submit_spec_until_asked(task_with_input_timeout(agent, OnInputTimeout::Fail))
            .await;
        let done = fixture.client.wait_for_end(&task.task_id).await;
        let ended = (done.state(), done.attempts[0].failure_code.as_str());
        assert_eq!(
            ended,
            (TaskState::TimedOut, "user_input_timeout"),
            "{wire:?}"
        );
        assert_eq!(
            fixture.wait_for_closed_input(&task).await.outcome(),
            InputOutcome::Expired
        );
        let late = fixture.answer_again(&input).await;
        assert_eq!(late.code, Some(1), "{late:?}");

        let (task, _) = fixture
            .submit_spec_until_asked(task_with_input_timeout(agent, OnInputTimeout::Park))
            .await;
        fixture
            .client
            .wait_for_state(&task.task_id, TaskState::NeedsAttention)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_attempt_closes_its_questions() {
    let fixture = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        let (task, input) = fixture.submit_until_asked(wire).await;
        fixture.client.cancel(&task.task_id).await;
        let done = fixture.client.wait_for_end(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Canceled, "{wire:?}: {done:?}");
        assert_eq!(
            fixture.wait_for_closed_input(&task).await.outcome(),
            InputOutcome::Superseded
        );
        let late = fixture.answer_again(&input).await;
        assert_eq!(late.code, Some(1), "{late:?}");
        assert!(fixture.inbox_of_task(&task).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permission_rules_of_a_task_answer_and_are_recorded() {
    let fixture = start_fixture().await;
    let rule = |effect: PermissionEffect, pattern: &str| PermissionRule {
        effect: effect.into(),
        tool: "*".to_owned(),
        pattern: pattern.to_owned(),
    };
    for (wire, _) in SHELL_AGENTS {
        for (rules, result) in [
            (vec![rule(PermissionEffect::Allow, "ls*")], "allowed"),
            (
                vec![
                    rule(PermissionEffect::Deny, "*ls*"),
                    rule(PermissionEffect::Allow, ""),
                ],
                "denied",
            ),
        ] {
            let spec = TaskSpec {
                permission_rules: rules.clone(),
                ..agent_task(agent_of_wire(wire).0)
            };
            let task = fixture.client.submit(spec).await;
            fixture
                .assert_completed_once(&task, result, &format!("{wire:?}"))
                .await;
            let input = fixture.wait_for_closed_input(&task).await;
            assert_eq!(input.answered_by, "rule:1", "{wire:?}");
            assert_eq!(input.rule.as_ref(), rules.first(), "{wire:?}");
            let whole = fixture
                .client
                .try_get_with_spec(&task.task_id)
                .await
                .unwrap();
            assert_eq!(whole.spec.unwrap().permission_rules, rules);
        }
    }
    let line = "submit --agent a --prompt x --ask * --allow * --wait --on-input-timeout park --deadline user_input=200ms";
    let output = fixture
        .run_command(&line.split(' ').collect::<Vec<_>>())
        .await;
    assert_eq!(
        output.code,
        Some(4),
        "the question was not answered: {output:?}"
    );
    assert!(output.stderr.contains("baton inbox --task"), "{output:?}");
}
