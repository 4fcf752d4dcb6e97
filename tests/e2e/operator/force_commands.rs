//! Operators' verbs over real executables: each survives kill -9 once it is acknowledged, is on record with who and why, and
//! two attempts of one task never run side by side.

use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    AttemptState, BulkForceRequest, ForceVerb, PauseRequest, ProgressUpdate, Role, Task, TaskEvent,
    TaskEventKind, TaskState, UpdateProgressRequest, pause_request,
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

/// kill -9 and a new start: what was acknowledged must be there.
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
        .expect("it can be watched")
        .into_inner();
    let mut found = Vec::new();
    while let Some(message) = wait_within("history", stream.message())
        .await
        .expect("a stream")
    {
        if let Some(Item::Event(event)) = message.item
            && event.kind() == TaskEventKind::Forced
        {
            found.push(event);
        }
    }
    found
}

async fn assert_one_audit(client: &TestClient, task: &Task, detail: &str, reason: &str) {
    let found = audit_events(client, &task.task_id).await;
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].detail, detail);
    assert_eq!(found[0].reason, reason);
    assert!(!found[0].principal.is_empty());
}

/// A daemon of real processes.
pub(crate) async fn start_worker(relay: &RelayProcess, dir: &TempDir, name: &str) -> DaemonProcess {
    let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
    let url = relay.admin().url().to_owned();
    DaemonProcess::start(BATON, &dir.path().join(name), name, &url, &secret).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_attempt_is_killed_before_its_successor_starts_though_the_relay_dies_meanwhile()
{
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
    watch
        .wait_for_event("output", |event| event.state() == AttemptState::Streaming)
        .await;
    let first = marked_processes("released");
    assert!(!first.is_empty());

    let reason = "the machine is slow";
    let said = run_baton(&relay, &["force-release", id, "--reason", reason]).await;
    assert_eq!(
        (said.code, said.stdout.trim()),
        (Some(0), "queued"),
        "{said:?}"
    );
    kill_and_restart(&mut relay).await;

    let mut watch = TaskWatch::open(&client, id, 0)
        .await
        .expect("it can be watched");
    watch
        .wait_for_event("its successor", |event| {
            event.attempt_number == 2 && event.state() == AttemptState::Streaming
        })
        .await;
    let second = marked_processes("released");
    assert!(
        first.iter().all(|pid| !second.contains(pid)),
        "both run: {first:?} and {second:?}"
    );
    let now = client.get(id).await;
    assert_eq!(now.attempts[0].state(), AttemptState::Released);
    assert_eq!(now.attempts[0].message, reason);
    let detail = "force_release attempt=streaming->released task=running->queued";
    assert_one_audit(&client, &now, detail, reason).await;

    let said = run_baton(&relay, &["force-fail", id, "--reason", "enough", "--json"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.stdout_json()["state"], "failed");
    kill_and_restart(&mut relay).await;
    wait_until_marked_gone("released").await;
    let failed = client.get(id).await;
    assert_eq!(failed.state(), TaskState::Failed);
    assert_eq!(failed.attempts[1].failure_code, "operator_forced");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_parked_is_completed_by_hand_and_what_failed_is_retried_each_for_good() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let mut spec = agent_task("nobody");
    spec.queue_ms = Some(50);
    let parked = client.submit(spec).await;
    let id = parked.task_id.as_str();
    client.wait_for_state(id, TaskState::NeedsAttention).await;
    let words = [
        "complete",
        id,
        "--reason",
        "done elsewhere",
        "--result",
        "42",
    ];
    let said = run_baton(&relay, &words).await;
    assert_eq!(
        (said.code, said.stdout.trim()),
        (Some(0), "completed"),
        "{said:?}"
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
    let said = run_baton(&relay, &["force-fail", id, "--reason", "wrong branch"]).await;
    assert_eq!(
        (said.code, said.stdout.trim()),
        (Some(0), "failed"),
        "{said:?}"
    );
    let refused = run_baton(&relay, &["retry", id, "--reason", "again"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--allow-unsafe"), "{refused:?}");
    let words = ["retry", id, "--reason", "again", "--allow-unsafe"];
    let said = run_baton(&relay, &words).await;
    assert_eq!(said.code, Some(0), "{said:?}");
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
async fn a_contract_is_overridden_only_by_word_and_that_is_on_record() {
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
    let words = ["complete", id, "--reason", "I saw it", "--override"];
    let said = run_baton(&relay, &words).await;
    assert_eq!(
        (said.code, said.stdout.trim()),
        (Some(0), "completed"),
        "{said:?}"
    );
    let found = audit_events(&client, id).await;
    assert!(
        found[0].detail.starts_with("complete_override "),
        "{found:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blank_reason_is_refused_before_any_look_up_at_every_verb_and_surface() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let known = client.submit(agent_task("nobody")).await;
    for verb in ["force-release", "force-fail", "complete", "retry", "pause"] {
        for id in [UNKNOWN_ID, known.task_id.as_str()] {
            let said = run_baton(&relay, &[verb, id, "--reason", " "]).await;
            assert_eq!(said.code, Some(2), "{verb} {id}: {said:?}");
            assert!(said.stderr.contains("reason"), "{said:?}");
        }
        let said = run_baton(&relay, &[verb, UNKNOWN_ID, "--reason", "because"]).await;
        assert_eq!(said.code, Some(1), "{verb}: {said:?}");
    }
    let request = BulkForceRequest {
        verb: ForceVerb::Fail.into(),
        task_ids: vec![UNKNOWN_ID.to_owned()],
        reason: " ".into(),
        ..BulkForceRequest::default()
    };
    let status = wait_within("bulk", client.operator().bulk_force(request)).await;
    let status = status.expect_err("no reason");
    assert_eq!(
        (status.code(), error_code(&status).as_str()),
        (Code::InvalidArgument, "blank")
    );
    assert_eq!(
        client.get(&known.task_id).await,
        known,
        "nothing was changed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_verb_on_many_tasks_has_a_result_for_each_and_one_refusal_spoils_no_other() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(client.submit(agent_task("nobody")).await.task_id);
    }
    client.cancel(&ids[1]).await;
    let mut words = vec!["force-fail", "--reason", "cleanup", "--json"];
    words.extend(ids.iter().map(String::as_str));
    words.push(UNKNOWN_ID);
    let said = run_baton(&relay, &words).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    let rows = said.stdout_json()["results"].clone();
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
    assert_eq!(error_code(&status.expect_err("51")), "too_many");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_eleventh_verb_within_a_minute_is_refused_with_a_code_that_says_when() {
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
    let status = status.expect_err("the limit");
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
async fn a_tenants_pause_holds_its_work_and_nobody_elses_and_survives_kill_9() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let theirs = client.client_of_tenant("theirs", Role::Operator).await;
    let said = run_baton(
        &relay,
        &["pause", "--tenant", "theirs", "--reason", "billing"],
    )
    .await;
    assert_eq!(said.code, Some(0), "{said:?}");
    kill_and_restart(&mut relay).await;
    let held = theirs.submit(agent_task("shared")).await;
    let free = client.submit(agent_task("shared")).await;
    let link = client.client_of_tenant("*", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["shared"])).await;
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(attempt.attempt_ref.task_id, free.task_id);
    attempt.complete("done").await;
    client
        .wait_for_state(&free.task_id, TaskState::Completed)
        .await;

    // An admin of all tenants looks at another tenant's task by name.
    let words = ["inspect", &held.task_id, "--in-tenant", "theirs", "--json"];
    let found = run_baton(&relay, &words).await;
    assert_eq!(found.code, Some(0), "{found:?}");
    let found = found.stdout_json();
    assert_eq!(found["nextAction"], "unpause_required");
    let next = found["nextActionText"].as_str().unwrap_or_default();
    assert!(
        next.contains("billing") && next.contains("--tenant theirs"),
        "{next}"
    );
    let listed = run_baton(&relay, &["tasks", "--in-tenant", "theirs", "--json"]).await;
    assert_eq!(
        listed.stdout_json()["tasks"][0]["taskId"],
        held.task_id.as_str()
    );
    let status = run_baton(&relay, &["scheduler", "--json"])
        .await
        .stdout_json();
    assert_eq!(status["pausedTenants"][0], "theirs");
    assert_eq!(status["pauseChanges"][0]["reason"], "billing");

    let said = run_baton(&relay, &["unpause", "--tenant", "theirs"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(
        daemon.start_next_attempt().await.attempt_ref.task_id,
        held.task_id
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_operator_pauses_its_own_tenant_only_and_reads_no_other() {
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
        assert_eq!(error_code(&refused.expect_err("foreign")), "foreign_tenant");
    }
    let mut request = tonic::Request::new(baton_proto::v1::ListTasksRequest::default());
    let theirs = "theirs".parse().unwrap();
    request.metadata_mut().insert("baton-tenant", theirs);
    let refused = wait_within("a list", ours.tasks().list(request)).await;
    assert_eq!(error_code(&refused.expect_err("foreign")), "foreign_tenant");
}

/// First and last revision of each item: an event, or events that are gone.
async fn covered_revisions(client: &TestClient, task_id: &str) -> Vec<(u64, u64)> {
    let request = baton_proto::v1::WatchTaskRequest {
        task_id: task_id.to_owned(),
        from_revision: 0,
        history_only: true,
    };
    let opened = wait_within("a watch", client.tasks().watch(request)).await;
    let mut stream = opened.expect("it can be watched").into_inner();
    let mut items = Vec::new();
    while let Some(message) = wait_within("history", stream.message())
        .await
        .expect("a stream")
    {
        items.extend(match message.item {
            Some(Item::Event(event)) => Some((event.revision, event.revision)),
            Some(Item::HistoryCut(cut)) => Some((cut.from_revision, cut.to_revision)),
            Some(Item::CaughtUp(_) | Item::Lagged(_)) | None => None,
        });
    }
    items
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_did_stays_in_a_long_history_and_the_rest_is_said_to_be_gone() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let task = client.submit(agent_task("nobody")).await;
    let pause = PauseRequest {
        target: Some(pause_request::Target::TaskId(task.task_id.clone())),
        reason: "wait for the key".to_owned(),
    };
    let paused = wait_within("a pause", client.operator().pause(pause)).await;
    paused.expect("it can be paused");
    for n in 0..300 {
        let update = UpdateProgressRequest {
            task_id: task.task_id.clone(),
            update: Some(ProgressUpdate {
                cursor: Some(n.to_string()),
                ..ProgressUpdate::default()
            }),
        };
        let updated = wait_within("an update", client.tasks().update_progress(update)).await;
        updated.expect("progress of an open task is taken");
    }
    assert_one_audit(
        client,
        &task,
        "pause attempt=queued->queued task=queued->pending",
        "wait for the key",
    )
    .await;
    let items = covered_revisions(client, &task.task_id).await;
    let newest = client.get(&task.task_id).await.revision;
    let mut next = 1;
    for (from, to) in &items {
        assert_eq!(*from, next, "{items:?}");
        next = to + 1;
    }
    assert_eq!(next, newest + 1);
    let cuts = items.iter().filter(|(from, to)| from < to).count();
    assert_eq!(cuts, 2, "before and behind the pause: {items:?}");
}
