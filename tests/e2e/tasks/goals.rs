//! Progress of tasks: concurrent updates, and the redaction of credentials. Blocks and hand-offs
//! are in `full_scenario`.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    BlockDraft, CheckpointDraft, Evidence, FailedItem, ProgressUpdate, ResumeTaskRequest, Role,
    TaskSpec, TaskState, UpdateProgressRequest,
};
use baton_tests::{
    EmbeddedRelay, LeaseAgent, RelayProcess, ScriptedDaemon, agent_scope_spec, agent_task,
    error_code, hello, receipt, wait_within,
};

use crate::BATON;
use crate::secret_search::files_below;
const UPDATE_COUNT: usize = 500;

fn block_body(reason: &str) -> Body {
    Body::Block(BlockDraft {
        reason: reason.to_owned(),
        resume_hint: "a key".to_owned(),
        checkpoint: Some(CheckpointDraft {
            summary: "half of it".to_owned(),
            cursor: "page 3".to_owned(),
            ..CheckpointDraft::default()
        }),
    })
}

fn progress_item(name: &str) -> ProgressUpdate {
    ProgressUpdate {
        completed_items: vec![name.to_owned()],
        ..ProgressUpdate::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_progress_updates_all_count_and_survive_a_restart() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin().clone();
    let task = client.submit(agent_task("nobody")).await;
    let mut updates = tokio::task::JoinSet::new();
    for number in 0..UPDATE_COUNT + 100 {
        let (client, task_id) = (client.clone(), task.task_id.clone());
        updates.spawn(async move {
            let request = UpdateProgressRequest {
                task_id,
                update: Some(progress_item(&format!("item {number}"))),
            };
            wait_within("an update", client.tasks().update_progress(request)).await
        });
    }
    while let Some(done) = updates.join_next().await {
        done.unwrap().expect("every update is accepted");
    }
    let relay = relay.restart().await;
    let client = relay.admin().clone();
    let progress = client.get(&task.task_id).await.progress.unwrap();
    assert_eq!(progress.completed_items.len(), 500);
    assert_eq!(progress.completed_items_truncated, 100);
    client.cancel(&task.task_id).await;
    let request = UpdateProgressRequest {
        task_id: task.task_id.clone(),
        update: Some(progress_item("late")),
    };
    let refused = client.tasks().update_progress(request).await.unwrap_err();
    assert_eq!(error_code(&refused), "already_finished");
}

const SECRET_CANARIES: [&str; 4] = [
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJlLWNhbmFyeQ",
    "AKIACANARYCANARY0001",
    "Bearer canary-bearer-0123456789",
    "password=canary-hunter2",
];
const RETAINED_TEXT: &str = "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
                     trace 4bf92f3577b34da6a3ce929d0e0e4736 input_tokens=1234";

#[tokio::test(flavor = "multi_thread")]
async fn credentials_in_progress_texts_reach_no_store_and_no_export() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["goal"])).await;
    let text = format!("{} {RETAINED_TEXT}", SECRET_CANARIES.join(" and "));
    let spec = TaskSpec {
        goal: text.clone(),
        success_criteria: vec![text.clone()],
        ..agent_task("goal")
    };
    let task = client.submit(spec).await;
    let mut attempt = daemon.start_next_attempt().await;
    let evidence = Evidence {
        kind: "log".to_owned(),
        r#ref: text.clone(),
        summary: text.clone(),
    };
    let update = ProgressUpdate {
        summary: Some(text.clone()),
        completed_items: vec![text.clone()],
        failed_items: vec![FailedItem {
            item: format!("failed {text}"),
            reason: text.clone(),
        }],
        cursor: Some(text.clone()),
        evidence: vec![evidence],
    };
    attempt.send(Body::Progress(update)).await;
    attempt.send(block_body(&text)).await;
    daemon.wait_until_acked(&attempt).await;
    attempt.send(Body::Receipt(receipt())).await;
    daemon.wait_until_acked(&attempt).await;
    let resume = ResumeTaskRequest {
        task_id: task.task_id.clone(),
        reason: text.clone(),
        ..ResumeTaskRequest::default()
    };
    client.tasks().resume(resume).await.unwrap();
    let mut next = daemon.start_next_attempt().await;
    next.send(Body::Error(baton_proto::v1::TaskError {
        failure_code: "provider_auth".to_owned(),
        message: text.clone(),
        user_message: text.clone(),
        receipt: Some(receipt()),
        ..baton_proto::v1::TaskError::default()
    }))
    .await;
    client
        .wait_for_state(&task.task_id, TaskState::Failed)
        .await;
    let agent = LeaseAgent::new(&client, "ada", "any").await;
    let lease = agent
        .start(agent_scope_spec("any"), "k")
        .await
        .expect("the task starts");
    agent
        .fail(&lease, &text)
        .await
        .expect("the failure is accepted");
    let stored = client.get(&task.task_id).await;
    let progress = stored.progress.unwrap();
    for text in [
        &stored.goal,
        &progress.completed_items[0],
        &progress.evidence[0].summary,
    ] {
        assert!(text.contains(RETAINED_TEXT), "{text}");
    }
    assert_no_canary_left(relay).await;
}

/// Checks that no canary is in an export or in the data directory.
async fn assert_no_canary_left(mut relay: RelayProcess) {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("all.export");
    let name = out.display().to_string();
    let made = BATON.run(relay.data(), &["export", "--out", &name]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    relay.terminate().await;
    let mut files = files_below(dir.path());
    files.extend(files_below(relay.data()));
    assert!(files.len() > 3, "only {} files", files.len());
    for (path, bytes) in files {
        for canary in [
            "canary-bearer",
            "canary-hunter2",
            "AKIACANARY",
            "c2lnbmF0dXJl",
        ] {
            let found = bytes
                .windows(canary.len())
                .any(|part| part == canary.as_bytes());
            assert!(!found, "{canary} is in {path}");
        }
    }
}
