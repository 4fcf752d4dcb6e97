//! What agents ask and people answer, as people do it: `baton inbox`, `baton answer`, rules of the task, nobody at all;
//! and with the relay, the daemon's link and the answering client killed in between.

use std::path::Path;

use baton_daemon::AgentWire;
use baton_proto::v1::{
    Input, InputOutcome, InputState, ListInputsRequest, OnInputTimeout, OutputKind,
    PermissionEffect, PermissionRule, Role, Task, TaskSpec, TaskState,
};
use baton_tests::{Client, DaemonProcess, Passing, RelayProcess, Said, Wire, for_agent, within};
use serde_json::Value;
use tempfile::TempDir;

use crate::BATON;
use crate::scripted_agents::{self, KINDS, named};

/// A relay and a daemon as processes, and an agent of each kind that asks before it does anything.
pub(crate) struct Stage {
    relay: RelayProcess,
    pub(crate) client: Client,
    _daemon: DaemonProcess,
    pub(crate) dir: TempDir,
}

pub(crate) async fn stage() -> Stage {
    let relay = RelayProcess::start(BATON).await;
    let url = relay.admin().url().to_owned();
    stage_at(relay, &url).await
}

/// The same with a daemon behind a wire that can break.
async fn stage_over_a_wire() -> (Stage, Wire) {
    let relay = RelayProcess::start(BATON).await;
    let wire = Wire::to(relay.admin().url()).await;
    let url = wire.url();
    (stage_at(relay, &url).await, wire)
}

async fn stage_at(relay: RelayProcess, url: &str) -> Stage {
    let client = relay.admin().clone();
    let (_, secret) = client.make_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("daemon.toml");
    std::fs::write(&file, config(dir.path())).expect("the file system is there");
    let more = ["--config", file.to_str().expect("paths of tests are text")];
    let daemon = DaemonProcess::start_with(BATON, dir.path(), "d", (url, &secret), &more).await;
    Stage {
        relay,
        client,
        _daemon: daemon,
        dir,
    }
}

fn config(dir: &Path) -> String {
    let agent = |(wire, script): &(AgentWire, &str)| {
        let (name, kind) = named(*wire);
        let path = dir.join(name);
        std::fs::write(&path, script).expect("the file system is there");
        format!("[agents.{name}]\nkind = \"{kind}\"\nprogram = \"sh\"\nargs = [{path:?}]\n")
    };
    KINDS.iter().map(agent).collect()
}

impl Stage {
    pub(crate) async fn run(&self, arguments: &[&str]) -> Said {
        BATON.run(self.relay.data(), arguments).await
    }

    /// What `baton inbox` shows of this task.
    async fn inbox(&self, task: &Task) -> Vec<Value> {
        let said = self
            .run(&["inbox", "--json", "--task", &task.task_id])
            .await;
        assert_eq!(said.code, Some(0), "{said:?}");
        let inputs = said.json()["inputs"].as_array().cloned();
        inputs.expect("one object with a list")
    }

    pub(crate) async fn asks(&self, wire: AgentWire) -> (Task, Input) {
        self.asks_with(for_agent(named(wire).0)).await
    }

    async fn asks_with(&self, spec: TaskSpec) -> (Task, Input) {
        let task = self.client.submit(spec).await;
        let input = scripted_agents::asked(&self.client, &task).await;
        (task, input)
    }

    /// It completed in one attempt, with this result, and the agent was told nothing more than once.
    pub(crate) async fn ends_once(&self, task: &Task, result: &str, what: &str) {
        self.client.watch(&task.task_id).await.to_end().await;
        let done = self.client.get(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Completed, "{what}: {done:?}");
        let told = (&done.result[..], done.attempts.len());
        assert_eq!(told, (result.as_bytes(), 1), "{what}");
        // The scripts repeat there whatever else they are told.
        let more = |chunk: &baton_proto::v1::OutputChunk| chunk.kind() == OutputKind::Stderr;
        let errors = scripted_agents::output(&self.client, task, more).await;
        assert_eq!(errors, "", "{what}");
    }

    async fn closed(&self, task: &Task) -> Input {
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
    let stage = stage().await;
    for (wire, _) in KINDS {
        for (flag, result) in [("--allow", "allowed"), ("--deny", "denied")] {
            let what = format!("{wire:?} {flag}");
            let (task, input) = stage.asks(wire).await;
            let listed = stage.inbox(&task).await;
            assert_eq!(listed[0]["inputId"], input.input_id, "{what}");
            let shown = stage.run(&["show", &task.task_id]).await;
            assert!(
                shown.stdout.contains("waits for an answer to:"),
                "{shown:?}"
            );
            assert!(shown.stdout.contains(r#""ls""#), "{what}: {shown:?}");

            let said = stage.run(&["answer", &input.input_id, flag]).await;
            assert_eq!(said.code, Some(0), "{what}: {said:?}");
            stage.ends_once(&task, result, &what).await;
            assert_eq!(stage.closed(&task).await.state(), InputState::Received);

            let again = ["answer", &input.input_id, "--task", &task.task_id, flag];
            let said = stage.run(&again).await;
            assert_eq!(said.code, Some(0), "{what}: the same again: {said:?}");
            let other = if flag == "--allow" {
                "--deny"
            } else {
                "--allow"
            };
            let other = ["answer", &input.input_id, "--task", &task.task_id, other];
            let said = stage.run(&other).await;
            assert_eq!(said.code, Some(1), "{what}: {said:?}");
            for word in [result, "has answered it at 20"] {
                assert!(said.stderr.contains(word), "{what}: {word} in {said:?}");
            }
            let unnamed = stage.run(&["answer", &input.input_id, other[4]]).await;
            assert_eq!(unnamed.stderr, said.stderr, "{what}: without --task");
            let gone = stage.run(&["answer", &task.task_id, flag]).await;
            assert_eq!(gone.code, Some(2), "{gone:?}");
            assert!(gone.stderr.contains("baton inbox"), "{gone:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_stays_when_the_relay_is_killed_before_and_after_the_answer() {
    let mut stage = stage().await;
    for (wire, _) in KINDS {
        let (task, input) = stage.asks(wire).await;
        stage.relay.kill().await;
        stage.relay.revive().await;
        stage.client = stage.relay.admin().clone();
        assert_eq!(
            stage.inbox(&task).await.len(),
            1,
            "{wire:?}: it is still asked"
        );
        scripted_agents::answer(&stage.client, &input, true).await;
        // What was answered OK is durable, and reaches the agent from the next life of the relay if it must.
        stage.relay.kill().await;
        stage.relay.revive().await;
        stage.client = stage.relay.admin().clone();
        stage
            .ends_once(&task, "allowed", &format!("{wire:?}"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_given_while_the_link_is_cut_is_delivered_once_when_it_is_back() {
    let (stage, link) = stage_over_a_wire().await;
    for (wire, _) in KINDS {
        let (task, input) = stage.asks(wire).await;
        link.let_pass(Passing::Nothing);
        link.cut();
        scripted_agents::answer(&stage.client, &input, true).await;
        link.let_pass(Passing::Both);
        link.cut();
        stage
            .ends_once(&task, "allowed", &format!("{wire:?}"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answering_client_that_is_killed_leaves_one_answer_or_none() {
    let stage = stage().await;
    for (wire, _) in KINDS {
        let (task, input) = stage.asks(wire).await;
        for _ in 0..3 {
            let mut command = BATON.command(stage.relay.data());
            let mut client = command
                .args(["answer", &input.input_id, "--allow"])
                .spawn()
                .unwrap();
            client.start_kill().unwrap();
            within("the killed client to be gone", client.wait())
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
        let said = stage.run(&again).await;
        assert_eq!(said.code, Some(0), "{wire:?}: {said:?}");
        stage
            .ends_once(&task, "allowed", &format!("{wire:?}"))
            .await;
    }
}

fn impatient(agent: &str, policy: OnInputTimeout) -> TaskSpec {
    let profile = baton_proto::v1::DeadlineProfile {
        user_input_ms: Some(200),
        ..Default::default()
    };
    TaskSpec {
        profile: Some(profile),
        on_input_timeout: policy.into(),
        ..for_agent(agent)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_answers_and_it_fails_goes_on_without_or_waits_for_a_person() {
    let stage = stage().await;
    for (wire, _) in KINDS {
        let agent = named(wire).0;
        let (task, _) = stage
            .asks_with(impatient(agent, OnInputTimeout::Deny))
            .await;
        stage.ends_once(&task, "denied", &format!("{wire:?}")).await;
        let input = stage.closed(&task).await;
        assert_eq!(input.outcome(), InputOutcome::Expired, "{wire:?}");

        let (task, input) = stage
            .asks_with(impatient(agent, OnInputTimeout::Fail))
            .await;
        stage.client.watch(&task.task_id).await.to_end().await;
        let done = stage.client.get(&task.task_id).await;
        let ended = (done.state(), done.attempts[0].failure_code.as_str());
        assert_eq!(
            ended,
            (TaskState::TimedOut, "user_input_timeout"),
            "{wire:?}"
        );
        assert_eq!(stage.closed(&task).await.outcome(), InputOutcome::Expired);
        let late = [
            "answer",
            &input.input_id,
            "--task",
            &task.task_id,
            "--allow",
        ];
        let late = stage.run(&late).await;
        assert_eq!(late.code, Some(1), "{late:?}");

        let (task, _) = stage
            .asks_with(impatient(agent, OnInputTimeout::Park))
            .await;
        stage
            .client
            .until_state(&task.task_id, TaskState::NeedsAttention)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_attempt_takes_its_questions_with_it() {
    let stage = stage().await;
    for (wire, _) in KINDS {
        let (task, input) = stage.asks(wire).await;
        stage.client.cancel(&task.task_id).await;
        stage.client.watch(&task.task_id).await.to_end().await;
        let done = stage.client.get(&task.task_id).await;
        assert_eq!(done.state(), TaskState::Canceled, "{wire:?}: {done:?}");
        assert_eq!(
            stage.closed(&task).await.outcome(),
            InputOutcome::Superseded
        );
        let late = [
            "answer",
            &input.input_id,
            "--task",
            &task.task_id,
            "--allow",
        ];
        let late = stage.run(&late).await;
        assert_eq!(late.code, Some(1), "{late:?}");
        assert!(stage.inbox(&task).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_the_task_answer_by_themselves_and_are_named() {
    let stage = stage().await;
    let rule = |effect: PermissionEffect, pattern: &str| PermissionRule {
        effect: effect.into(),
        tool: "*".to_owned(),
        pattern: pattern.to_owned(),
    };
    for (wire, _) in KINDS {
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
                ..for_agent(named(wire).0)
            };
            let task = stage.client.submit(spec).await;
            stage.ends_once(&task, result, &format!("{wire:?}")).await;
            let input = stage.closed(&task).await;
            assert_eq!(input.answered_by, "rule:1", "{wire:?}");
            assert_eq!(input.rule.as_ref(), rules.first(), "{wire:?}");
            let whole = stage.client.try_get_whole(&task.task_id).await.unwrap();
            assert_eq!(whole.spec.unwrap().permission_rules, rules);
        }
    }
    let line = "submit --agent a --prompt x --ask * --allow * --wait --on-input-timeout park --deadline user_input=200ms";
    let said = stage.run(&line.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(said.code, Some(4), "asked, and nobody answered: {said:?}");
    assert!(said.stderr.contains("baton inbox --task"), "{said:?}");
}
