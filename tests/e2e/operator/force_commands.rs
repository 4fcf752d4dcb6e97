//! Operator commands with real executables. An acknowledged command survives kill -9, is
//! recorded with operator and reason, and never lets two attempts of one task run at the same
//! time.

use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    AttemptState, BulkForceRequest, ForceVerb, PauseRequest, Role, Task, TaskEvent, TaskEventKind,
    TaskState, pause_request,
};
use baton_tests::{
    CommandOutput, DaemonProcess, EmbeddedRelay, RelayProcess, ScriptedDaemon, TaskWatch,
    TestClient, agent_task, command_task, error_code, hello, marked_processes,
    wait_until_marked_gone, wait_within,
};
use tempfile::TempDir;
use tonic::Code;

use crate::{BATON, STANDIN};

const UNKNOWN_ID: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";

pub(crate) async fn run_baton(relay: &RelayProcess, arguments: &[&str]) -> CommandOutput {
    BATON.run(relay.data(), arguments).await
}

/// Kills the relay with SIGKILL and restarts it.
async fn kill_and_restart(relay: &mut RelayProcess) {
    relay.kill().await;
    relay.start_again().await;
}

async fn audit_events(client: &TestClient, task_id: &str) -> Vec<TaskEvent> {
    let request = baton_proto::v1::WatchTaskRequest {
        task_id: task_id.to_owned(),
        from_revision: 0,
        history_only: true,
    };
    let mut stream = wait_within("a watch", client.tasks().watch(request))
        .await
        .expect("the task can be watched")
        .into_inner();
    let mut events = Vec::new();
    while let Some(message) = wait_within("history", stream.message())
        .await
        .expect("the watch continues")
    {
        if let Some(Item::Event(event)) = message.item
            && event.kind() == TaskEventKind::Forced
        {
            events.push(event);
        }
    }
    events
}

async fn assert_one_audit(client: &TestClient, task: &Task, detail: &str, reason: &str) {
    let events = audit_events(client, &task.task_id).await;
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!(events[0].detail, detail);
    assert_eq!(events[0].reason, reason);
    assert!(!events[0].principal.is_empty());
}

/// Starts a daemon process.
pub(crate) async fn start_worker(relay: &RelayProcess, dir: &TempDir, name: &str) -> DaemonProcess {
    let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
    let url = relay.admin().url().to_owned();
    DaemonProcess::start(BATON, &dir.path().join(name), name, &url, &secret).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_attempt_is_dead_before_its_successor_despite_a_relay_kill() {
    let mut relay = RelayProcess::start(BATON).await;
    let dir = tempfile::tempdir().expect("a directory");
    let (_one, _two) = (
        start_worker(&relay, &dir, "one").await,
        start_worker(&relay, &dir, "two").await,
    );
    let client = relay.admin().clone();
    let task = client
        .submit(command_task(STANDIN, &["print", "1", "pause"], "released"))
        .await;
    let id = task.task_id.as_str();
    let mut watch = client.watch(id).await;
    watch.wait_for_output().await;
    let first = marked_processes("released");
    assert!(!first.is_empty());

    let reason = "the machine is slow";
    let output = run_baton(&relay, &["force-release", id, "--reason", reason]).await;
    assert_eq!(
        (output.code, output.stdout.trim()),
        (Some(0), "queued"),
        "{output:?}"
    );
    kill_and_restart(&mut relay).await;

    let mut watch = TaskWatch::open(&client, id, 0)
        .await
        .expect("the task can be watched");
    watch
        .wait_for_event("the successor's output", |event| {
            event.attempt_number == 2 && event.state() == AttemptState::Streaming
        })
        .await;
    let second = marked_processes("released");
    assert!(
        first.iter().all(|pid| !second.contains(pid)),
        "both attempts run: {first:?} and {second:?}"
    );
    let now = client.get(id).await;
    assert_eq!(now.attempts[0].state(), AttemptState::Released);
    assert_eq!(now.attempts[0].message, reason);
    let detail = "force_release attempt=streaming->released task=running->queued";
    assert_one_audit(&client, &now, detail, reason).await;

    let output = run_baton(&relay, &["force-fail", id, "--reason", "enough", "--json"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(output.stdout_json()["state"], "failed");
    kill_and_restart(&mut relay).await;
    wait_until_marked_gone("released").await;
    let failed = client.get(id).await;
    assert_eq!(failed.state(), TaskState::Failed);
    assert_eq!(failed.attempts[1].failure_code, "operator_forced");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_complete_a_parked_task_and_retry_a_failed_one_durably() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let mut spec = agent_task("nobody");
    spec.queue_ms = Some(50);
    let parked = client.submit(spec).await;
    let id = parked.task_id.as_str();
    client.wait_for_state(id, TaskState::NeedsAttention).await;
    let arguments = [
        "complete",
        id,
        "--reason",
        "done elsewhere",
        "--result",
        "42",
    ];
    let output = run_baton(&relay, &arguments).await;
    assert_eq!(
        (output.code, output.stdout.trim()),
        (Some(0), "completed"),
        "{output:?}"
    );
    kill_and_restart(&mut relay).await;
    let done = client.get(id).await;
    assert_eq!(
        (done.state(), &done.result[..]),
        (TaskState::Completed, &b"42"[..])
    );
    let detail = "complete attempt=parked->completed task=needs_attention->completed";
    assert_one_audit(&client, &done, detail, "done elsewhere").await;

    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["scripted"])).await;
    let task = client.submit(agent_task("scripted")).await;
    let id = task.task_id.as_str();
    let _attempt = daemon.start_next_attempt().await;
    let output = run_baton(&relay, &["force-fail", id, "--reason", "wrong branch"]).await;
    assert_eq!(
        (output.code, output.stdout.trim()),
        (Some(0), "failed"),
        "{output:?}"
    );
    let refused = run_baton(&relay, &["retry", id, "--reason", "again"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--allow-unsafe"), "{refused:?}");
    let arguments = ["retry", id, "--reason", "again", "--allow-unsafe"];
    let output = run_baton(&relay, &arguments).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    kill_and_restart(&mut relay).await;
    let again = client.get(id).await;
    assert_eq!(
        (again.state(), again.attempts.len()),
        (TaskState::Queued, 2)
    );
    let verbs = audit_events(&client, id).await;
    let verbs: Vec<&str> = verbs
        .iter()
        .filter_map(|event| event.detail.split(' ').next())
        .collect();
    assert_eq!(verbs, ["force_fail", "retry"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contract_is_overridden_only_with_the_flag_and_audited() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["scripted"])).await;
    let mut spec = agent_task("scripted");
    spec.contract = Some(baton_proto::v1::CompletionContract {
        required_artifacts: vec![baton_proto::v1::RequiredArtifact {
            path: "report.md".into(),
            ..Default::default()
        }],
        ..Default::default()
    });
    let task = client.submit(spec).await;
    let id = task.task_id.as_str();
    let _attempt = daemon.start_next_attempt().await;
    let refused = run_baton(&relay, &["complete", id, "--reason", "I saw it"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--override"), "{refused:?}");
    let arguments = ["complete", id, "--reason", "I saw it", "--override"];
    let output = run_baton(&relay, &arguments).await;
    assert_eq!(
        (output.code, output.stdout.trim()),
        (Some(0), "completed"),
        "{output:?}"
    );
    let events = audit_events(&client, id).await;
    assert!(
        events[0].detail.starts_with("complete_override "),
        "{events:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_command_reports_each_task_and_continues_after_a_refusal() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(client.submit(agent_task("nobody")).await.task_id);
    }
    client.cancel(&ids[1]).await;
    let mut arguments = vec!["force-fail", "--reason", "cleanup", "--json"];
    arguments.extend(ids.iter().map(String::as_str));
    arguments.push(UNKNOWN_ID);
    let output = run_baton(&relay, &arguments).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    let rows = output.stdout_json()["results"].clone();
    let codes: Vec<_> = (0..4)
        .map(|n| {
            let row = &rows[n];
            let code = row["error"]["code"].as_str();
            code.or(row["task"]["state"].as_str()).map(str::to_owned)
        })
        .collect();
    let codes: Vec<&str> = codes.iter().flatten().map(String::as_str).collect();
    assert_eq!(
        codes,
        ["failed", "already_finished", "failed", "unknown_task"]
    );
    let many: Vec<String> = (0..51).map(|n| format!("{UNKNOWN_ID}{n}")).collect();
    let request = BulkForceRequest {
        verb: ForceVerb::Fail.into(),
        task_ids: many,
        reason: "too many".into(),
        allow_unsafe: false,
    };
    let status = wait_within("bulk", client.operator().bulk_force(request)).await;
    assert_eq!(
        error_code(&status.expect_err("51 tasks are refused")),
        "too_many"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_eleventh_operator_command_within_a_minute_is_rate_limited() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let task = client.submit(agent_task("nobody")).await;
    let pause = || PauseRequest {
        target: Some(pause_request::Target::TaskId(task.task_id.clone())),
        reason: "again".into(),
    };
    for _ in 0..10 {
        wait_within("a pause", client.operator().pause(pause()))
            .await
            .expect("within the limit");
    }
    let status = wait_within("a pause", client.operator().pause(pause())).await;
    let status = status.expect_err("the limit is reached");
    assert_eq!(
        (status.code(), error_code(&status).as_str()),
        (Code::ResourceExhausted, "rate_limited")
    );
    let other = client.client_of_tenant("default", Role::Operator).await;
    wait_within("a pause", other.operator().pause(pause()))
        .await
        .expect("another credential has its own limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_pause_stops_only_its_work_and_survives_a_relay_kill() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let other_tenant = client.client_of_tenant("theirs", Role::Operator).await;
    let output = run_baton(
        &relay,
        &["pause", "--tenant", "theirs", "--reason", "billing"],
    )
    .await;
    assert_eq!(output.code, Some(0), "{output:?}");
    kill_and_restart(&mut relay).await;
    let paused = other_tenant.submit(agent_task("shared")).await;
    let free = client.submit(agent_task("shared")).await;
    let link = client.client_of_tenant("*", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["shared"])).await;
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(attempt.attempt_ref.task_id, free.task_id);
    attempt.complete("done").await;
    client
        .wait_for_state(&free.task_id, TaskState::Completed)
        .await;

    // An admin of all tenants inspects another tenant's task with --in-tenant.
    let arguments = [
        "inspect",
        &paused.task_id,
        "--in-tenant",
        "theirs",
        "--json",
    ];
    let events = run_baton(&relay, &arguments).await;
    assert_eq!(events.code, Some(0), "{events:?}");
    let events = events.stdout_json();
    assert_eq!(events["nextAction"], "unpause_required");
    let next = events["nextActionText"].as_str().unwrap_or_default();
    assert!(
        next.contains("billing") && next.contains("--tenant theirs"),
        "{next}"
    );
    let listed = run_baton(&relay, &["tasks", "--in-tenant", "theirs", "--json"]).await;
    assert_eq!(
        listed.stdout_json()["tasks"][0]["taskId"],
        paused.task_id.as_str()
    );
    let status = run_baton(&relay, &["scheduler", "--json"])
        .await
        .stdout_json();
    assert_eq!(status["pausedTenants"][0], "theirs");
    assert_eq!(status["pauseChanges"][0]["reason"], "billing");

    let output = run_baton(&relay, &["unpause", "--tenant", "theirs"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(
        daemon.start_next_attempt().await.attempt_ref.task_id,
        paused.task_id
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_operator_pauses_and_reads_only_its_own_tenant() {
    let relay = EmbeddedRelay::start().await;
    let ours = relay.admin().client_of_tenant("ours", Role::Operator).await;
    let pause = |target| PauseRequest {
        target: Some(target),
        reason: "look".into(),
    };
    let own = pause(pause_request::Target::Tenant("ours".into()));
    wait_within("a pause", ours.operator().pause(own))
        .await
        .unwrap();
    for target in [
        pause_request::Target::Tenant("theirs".into()),
        pause_request::Target::Scheduler(true),
    ] {
        let refused = wait_within("a pause", ours.operator().pause(pause(target))).await;
        assert_eq!(
            error_code(&refused.expect_err("another tenant is refused")),
            "foreign_tenant"
        );
    }
    let mut request = tonic::Request::new(baton_proto::v1::ListTasksRequest::default());
    let other_tenant = "theirs".parse().unwrap();
    request.metadata_mut().insert("baton-tenant", other_tenant);
    let refused = wait_within("a list", ours.tasks().list(request)).await;
    assert_eq!(
        error_code(&refused.expect_err("another tenant is refused")),
        "foreign_tenant"
    );
}
