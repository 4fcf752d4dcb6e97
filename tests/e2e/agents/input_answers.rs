//! What agents ask and people answer, as people do it: `baton inbox`, `baton answer`, rules of the task, nobody at all;
//! and with the relay, the daemon's link and the answering client killed in between.

use std::path::Path;

use baton_daemon::AgentWire;
use baton_proto::v1::{
    Input, InputOutcome, InputState, ListInputsRequest, OnInputTimeout, OutputKind,
    PermissionEffect, PermissionRule, Role, Task, TaskSpec, TaskState,
};
use baton_tests::{
    CommandOutput, DaemonProcess, PassedTraffic, RelayProcess, TcpProxy, TestClient, agent_task,
    wait_within,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::BATON;
use crate::agents::shell_agents;
use crate::agents::shell_agents::{SHELL_AGENTS, agent_of_wire};

/// A relay and a daemon as processes, and an agent of each kind that asks before it does anything.
pub(crate) struct AskingAgentsFixture {
    relay: RelayProcess,
    pub(crate) client: TestClient,
    _daemon: DaemonProcess,
    pub(crate) dir: TempDir,
}

pub(crate) async fn start_fixture() -> AskingAgentsFixture {
    let relay = RelayProcess::start(BATON).await;
    let url = relay.admin().url().to_owned();
    start_fixture_at(relay, &url).await
}

/// The same with a daemon behind a wire that can break.
async fn start_fixture_behind_proxy() -> (AskingAgentsFixture, TcpProxy) {
    let relay = RelayProcess::start(BATON).await;
    let wire = TcpProxy::start_to(relay.admin().url()).await;
    let url = wire.url();
    (start_fixture_at(relay, &url).await, wire)
}

async fn start_fixture_at(relay: RelayProcess, url: &str) -> AskingAgentsFixture {
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("daemon.toml");
    std::fs::write(&file, daemon_config(dir.path())).expect("the file system is there");
    let more = ["--config", file.to_str().expect("paths of tests are text")];
    let daemon = DaemonProcess::start_with(BATON, dir.path(), "d", (url, &secret), &more).await;
    AskingAgentsFixture {
        relay,
        client,
        _daemon: daemon,
        dir,
    }
}

fn daemon_config(dir: &Path) -> String {
    let agent = |(wire, script): &(AgentWire, &str)| {
        let (name, kind) = agent_of_wire(*wire);
        let path = dir.join(name);
        std::fs::write(&path, script).expect("the file system is there");
        format!("[agents.{name}]\nkind = \"{kind}\"\nprogram = \"sh\"\nargs = [{path:?}]\n")
    };
    SHELL_AGENTS.iter().map(agent).collect()
}

impl AskingAgentsFixture {
    pub(crate) async fn run_command(&self, arguments: &[&str]) -> CommandOutput {
        BATON.run(self.relay.data(), arguments).await
    }

    /// What `baton inbox` shows of this task.
    async fn inbox_of_task(&self, task: &Task) -> Vec<Value> {
        let said = self
            .run_command(&["inbox", "--json", "--task", &task.task_id])
            .await;
        assert_eq!(said.code, Some(0), "{said:?}");
        let inputs = said.stdout_json()["inputs"].as_array().cloned();
        inputs.expect("one object with a list")
    }

    pub(crate) async fn submit_until_asked(&self, wire: AgentWire) -> (Task, Input) {
        self.submit_spec_until_asked(agent_task(agent_of_wire(wire).0))
            .await
    }

    async fn submit_spec_until_asked(&self, spec: TaskSpec) -> (Task, Input) {
        let task = self.client.submit(spec).await;
        let input = shell_agents::wait_for_input(&self.client, &task).await;
        (task, input)
    }

    /// It completed in one attempt, with this result, and the agent was told nothing more than once.
    pub(crate) async fn assert_completed_once(&self, task: &Task, result: &str, what: &str) {
        self.client
            .watch(&task.task_id)
            .await
            .collect_to_end()
            .await;
        let done = self.client.get(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Completed, "{what}: {done:?}");
        let told = (&done.result[..], done.attempts.len());
        assert_eq!(told, (result.as_bytes(), 1), "{what}");
        // The scripts repeat there whatever else they are told.
        let more = |chunk: &baton_proto::v1::OutputChunk| chunk.kind() == OutputKind::Stderr;
        let errors = shell_agents::read_output(&self.client, task, more).await;
        assert_eq!(errors, "", "{what}");
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
async fn every_kind_asks_in_the_inbox_and_does_as_it_is_answered_there() {
    let stage = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        for (flag, result) in [("--allow", "allowed"), ("--deny", "denied")] {
            let what = format!("{wire:?} {flag}");
            let (task, input) = stage.submit_until_asked(wire).await;
            let listed = stage.inbox_of_task(&task).await;
            assert_eq!(listed[0]["inputId"], input.input_id, "{what}");
            let shown = stage.run_command(&["show", &task.task_id]).await;
            assert!(
                shown.stdout.contains("waits for an answer to:"),
                "{shown:?}"
            );
            assert!(shown.stdout.contains(r#""ls""#), "{what}: {shown:?}");

            let said = stage.run_command(&["answer", &input.input_id, flag]).await;
            assert_eq!(said.code, Some(0), "{what}: {said:?}");
            stage.assert_completed_once(&task, result, &what).await;
            assert_eq!(
                stage.wait_for_closed_input(&task).await.state(),
                InputState::Received
            );

            let again = ["answer", &input.input_id, "--task", &task.task_id, flag];
            let said = stage.run_command(&again).await;
            assert_eq!(said.code, Some(0), "{what}: the same again: {said:?}");
            let other = if flag == "--allow" {
                "--deny"
            } else {
                "--allow"
            };
            let other = ["answer", &input.input_id, "--task", &task.task_id, other];
            let said = stage.run_command(&other).await;
            assert_eq!(said.code, Some(1), "{what}: {said:?}");
            for word in [result, "has answered it at 20"] {
                assert!(said.stderr.contains(word), "{what}: {word} in {said:?}");
            }
            let unnamed = stage
                .run_command(&["answer", &input.input_id, other[4]])
                .await;
            assert_eq!(unnamed.stderr, said.stderr, "{what}: without --task");
            let gone = stage.run_command(&["answer", &task.task_id, flag]).await;
            assert_eq!(gone.code, Some(2), "{gone:?}");
            assert!(gone.stderr.contains("baton inbox"), "{gone:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_stays_when_the_relay_is_killed_before_and_after_the_answer() {
    let mut stage = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        let (task, input) = stage.submit_until_asked(wire).await;
        stage.relay.kill().await;
        stage.relay.start_again().await;
        stage.client = stage.relay.admin().clone();
        assert_eq!(
            stage.inbox_of_task(&task).await.len(),
            1,
            "{wire:?}: it is still asked"
        );
        shell_agents::answer_permission(&stage.client, &input, true).await;
        // What was answered OK is durable, and reaches the agent from the next life of the relay if it must.
        stage.relay.kill().await;
        stage.relay.start_again().await;
        stage.client = stage.relay.admin().clone();
        stage
            .assert_completed_once(&task, "allowed", &format!("{wire:?}"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_given_while_the_link_is_cut_is_delivered_once_when_it_is_back() {
    let (stage, link) = start_fixture_behind_proxy().await;
    for (wire, _) in SHELL_AGENTS {
        let (task, input) = stage.submit_until_asked(wire).await;
        link.set_passed_traffic(PassedTraffic::Nothing);
        link.cut_connections();
        shell_agents::answer_permission(&stage.client, &input, true).await;
        link.set_passed_traffic(PassedTraffic::Both);
        link.cut_connections();
        stage
            .assert_completed_once(&task, "allowed", &format!("{wire:?}"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answering_client_that_is_killed_leaves_one_answer_or_none() {
    let stage = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        let (task, input) = stage.submit_until_asked(wire).await;
        for _ in 0..3 {
            let mut command = BATON.command(stage.relay.data());
            let mut client = command
                .args(["answer", &input.input_id, "--allow"])
                .spawn()
                .unwrap();
            client.start_kill().unwrap();
            wait_within("the killed client to be gone", client.wait())
                .await
                .unwrap();
        }
        let again = [
            "answer",
            &input.input_id,
            "--task",
            &task.task_id,
            "--allow",
        ];
        let said = stage.run_command(&again).await;
        assert_eq!(said.code, Some(0), "{wire:?}: {said:?}");
        stage
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
async fn nobody_answers_and_it_fails_goes_on_without_or_waits_for_a_person() {
    let stage = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        let agent = agent_of_wire(wire).0;
        let (task, _) = stage
            .submit_spec_until_asked(task_with_input_timeout(agent, OnInputTimeout::Deny))
            .await;
        stage
            .assert_completed_once(&task, "denied", &format!("{wire:?}"))
            .await;
        let input = stage.wait_for_closed_input(&task).await;
        assert_eq!(input.outcome(), InputOutcome::Expired, "{wire:?}");

        let (task, input) = stage
            .submit_spec_until_asked(task_with_input_timeout(agent, OnInputTimeout::Fail))
            .await;
        stage
            .client
            .watch(&task.task_id)
            .await
            .collect_to_end()
            .await;
        let done = stage.client.get(&task.task_id).await;
        let ended = (done.state(), done.attempts[0].failure_code.as_str());
        assert_eq!(
            ended,
            (TaskState::TimedOut, "user_input_timeout"),
            "{wire:?}"
        );
        assert_eq!(
            stage.wait_for_closed_input(&task).await.outcome(),
            InputOutcome::Expired
        );
        let late = [
            "answer",
            &input.input_id,
            "--task",
            &task.task_id,
            "--allow",
        ];
        let late = stage.run_command(&late).await;
        assert_eq!(late.code, Some(1), "{late:?}");

        let (task, _) = stage
            .submit_spec_until_asked(task_with_input_timeout(agent, OnInputTimeout::Park))
            .await;
        stage
            .client
            .wait_for_state(&task.task_id, TaskState::NeedsAttention)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_attempt_takes_its_questions_with_it() {
    let stage = start_fixture().await;
    for (wire, _) in SHELL_AGENTS {
        let (task, input) = stage.submit_until_asked(wire).await;
        stage.client.cancel(&task.task_id).await;
        stage
            .client
            .watch(&task.task_id)
            .await
            .collect_to_end()
            .await;
        let done = stage.client.get(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Canceled, "{wire:?}: {done:?}");
        assert_eq!(
            stage.wait_for_closed_input(&task).await.outcome(),
            InputOutcome::Superseded
        );
        let late = [
            "answer",
            &input.input_id,
            "--task",
            &task.task_id,
            "--allow",
        ];
        let late = stage.run_command(&late).await;
        assert_eq!(late.code, Some(1), "{late:?}");
        assert!(stage.inbox_of_task(&task).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_the_task_answer_by_themselves_and_are_named() {
    let stage = start_fixture().await;
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
            let task = stage.client.submit(spec).await;
            stage
                .assert_completed_once(&task, result, &format!("{wire:?}"))
                .await;
            let input = stage.wait_for_closed_input(&task).await;
            assert_eq!(input.answered_by, "rule:1", "{wire:?}");
            assert_eq!(input.rule.as_ref(), rules.first(), "{wire:?}");
            let whole = stage.client.try_get_with_spec(&task.task_id).await.unwrap();
            assert_eq!(whole.spec.unwrap().permission_rules, rules);
        }
    }
    let line = "submit --agent a --prompt x --ask * --allow * --wait --on-input-timeout park --deadline user_input=200ms";
    let said = stage
        .run_command(&line.split(' ').collect::<Vec<_>>())
        .await;
    assert_eq!(said.code, Some(4), "asked, and nobody answered: {said:?}");
    assert!(said.stderr.contains("baton inbox --task"), "{said:?}");
}
