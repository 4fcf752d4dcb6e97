//! Goals that outlive attempts: a task blocks on one machine, is resumed a day later with an
//! answer, and finishes on another. Also progress updates and the redaction of credentials.

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    AttemptState, AttentionCause, BlockDraft, BlockTaskRequest, Checkpoint, CheckpointDraft,
    CheckpointKind, Evidence, FailedItem, GetBlockedRequest, ListBlockedRequest,
    ListCheckpointsRequest, ProgressUpdate, ResumeAnswer, ResumeTaskRequest, Role, TaskSpec,
    TaskState, UpdateProgressRequest,
};
use baton_tests::{
    EmbeddedRelay, LeaseAgent, RelayProcess, ScriptedAttempt, ScriptedDaemon, TestClient,
    TestClock, agent_scope_spec, agent_task, error_code, hello, receipt, wait_within,
};
use tonic::Code;

use crate::BATON;

const DAY: Duration = Duration::from_secs(24 * 3600);
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

async fn list_checkpoints(client: &TestClient, task_id: &str) -> Vec<Checkpoint> {
    let request = ListCheckpointsRequest {
        task_id: task_id.to_owned(),
        ..ListCheckpointsRequest::default()
    };
    let listed = wait_within("checkpoints", client.tasks().list_checkpoints(request)).await;
    listed.expect("a known task").into_inner().checkpoints
}

async fn list_blocked(client: &TestClient) -> Vec<String> {
    let request = ListBlockedRequest::default();
    let listed = wait_within("parked tasks", client.tasks().list_blocked(request)).await;
    let tasks = listed.expect("the list is allowed").into_inner().tasks;
    tasks.into_iter().map(|task| task.task_id).collect()
}

/// Sends progress and a checkpoint, then blocks the task.
async fn progress_and_block(daemon: &mut ScriptedDaemon) -> ScriptedAttempt {
    let mut attempt = daemon.start_next_attempt().await;
    attempt.send(Body::Progress(progress_item("first"))).await;
    let checkpoint = CheckpointDraft {
        summary: "begun".to_owned(),
        ..CheckpointDraft::default()
    };
    attempt.send(Body::Checkpoint(checkpoint)).await;
    attempt.send(block_body("no access")).await;
    daemon.wait_until_acked(&attempt).await;
    attempt.send(Body::Receipt(receipt())).await;
    daemon.wait_until_acked(&attempt).await;
    attempt
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_blocked_on_one_machine_resumes_a_day_later_on_another() {
    let clock = TestClock::new();
    let mut relay = RelayProcess::start(clock.apply_to(BATON)).await;
    let client = relay.admin().clone();
    let first = client.client_of_tenant("", Role::Daemon).await;
    let second = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&first, hello(&["goal"])).await;
    let task = client.submit(agent_task("goal")).await;
    let attempt = progress_and_block(&mut daemon).await;
    assert_eq!(
        list_blocked(&client).await,
        std::slice::from_ref(&task.task_id)
    );
    let parked = client.get(&task.task_id).await;
    assert_eq!(parked.state(), TaskState::NeedsAttention);
    let attention = parked.attention.clone().unwrap();
    assert_eq!(attention.cause(), AttentionCause::Blocked);
    assert_eq!(
        (&*attention.reason, &*attention.resume_hint),
        ("no access", "a key")
    );
    drop(daemon);
    relay.kill().await;
    clock.advance_suspended(DAY);
    relay.start_again().await;
    let request = GetBlockedRequest {
        task_id: task.task_id.clone(),
    };
    let blocked_task = client
        .tasks()
        .get_blocked(request)
        .await
        .unwrap()
        .into_inner();
    let row = blocked_task.blocked.unwrap();
    let newest = blocked_task.checkpoint.unwrap();
    assert!(row.age_ms >= 24 * 3_600_000, "{} ms", row.age_ms);
    assert_eq!((newest.number, newest.kind()), (2, CheckpointKind::Blocked));

    let mut other = ScriptedDaemon::connect(&second, hello(&["goal"])).await;
    let resume = ResumeTaskRequest {
        task_id: task.task_id.clone(),
        reason: "access is there".to_owned(),
        instructions: "use the blue key".to_owned(),
        answers: vec![ResumeAnswer {
            question: "which key?".to_owned(),
            answer: "blue".to_owned(),
        }],
        attempt_id: attempt.id().to_owned(),
    };
    client.tasks().resume(resume.clone()).await.unwrap();
    let late = client.tasks().resume(resume).await.unwrap_err();
    assert_eq!(
        (late.code(), &*error_code(&late)),
        (Code::Aborted, "handed_off")
    );
    assert!(
        late.message().contains("resumed or picked up this task"),
        "{late:?}"
    );
    assert!(list_blocked(&client).await.is_empty());
    let mut next = other.start_next_attempt().await;
    let resume = next.dispatch.resume.clone().unwrap();
    assert_eq!(resume.previous_attempt_id, attempt.id());
    assert_eq!(resume.answers[0].answer, "blue");
    assert_eq!(resume.checkpoint.unwrap().cursor, "page 3");
    next.complete("done").await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    assert_two_attempts(&client, &task.task_id, attempt.id()).await;
}

async fn assert_two_attempts(client: &TestClient, task_id: &str, first: &str) {
    let task = client.get(task_id).await;
    let states: Vec<AttemptState> = task.attempts.iter().map(|one| one.state()).collect();
    assert_eq!(states, [AttemptState::HandedOff, AttemptState::Completed]);
    assert_eq!(task.attempts[0].attempt_id, first);
    assert_eq!(
        task.attempts[0].successor_attempt_id,
        task.attempts[1].attempt_id
    );
    assert!(!task.attempts[0].handed_off_to.is_empty());
    let trace = |parent: &str| parent.split('-').nth(1).unwrap_or_default().to_owned();
    let whole = trace(&task.traceparent);
    assert!(
        task.attempts
            .iter()
            .all(|one| trace(&one.traceparent) == whole)
    );
    let progress = task.progress.expect("the task shows its progress");
    assert_eq!(progress.completed_items, ["first"]);
    assert_eq!(
        (&*progress.summary, &*progress.cursor),
        ("half of it", "page 3")
    );
    let numbers: Vec<u64> = list_checkpoints(client, task_id)
        .await
        .iter()
        .map(|one| one.number)
        .collect();
    assert_eq!(numbers, [2, 1]);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_blank_reason_is_refused_before_any_lookup() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let own = client.submit(agent_task("nobody")).await.task_id;
    let other = client.client_of_tenant("other", Role::Submitter).await;
    let foreign = other.submit(agent_task("nobody")).await.task_id;
    let unknown = uuid::Uuid::now_v7().to_string();
    let before = client.commit_seq().await;
    for task_id in [&own, &foreign, &unknown, &"no id".to_owned()] {
        for reason in ["", " \t\n"] {
            let block = BlockTaskRequest {
                task_id: task_id.clone(),
                reason: reason.to_owned(),
                ..BlockTaskRequest::default()
            };
            let resume = ResumeTaskRequest {
                task_id: task_id.clone(),
                reason: reason.to_owned(),
                ..ResumeTaskRequest::default()
            };
            let refused = [
                client.tasks().block(block).await.unwrap_err(),
                client.tasks().resume(resume).await.unwrap_err(),
            ];
            for status in refused {
                assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
                assert!(status.message().contains("reason"), "{status:?}");
            }
        }
    }
    assert_eq!(client.commit_seq().await, before, "nothing was committed");
    for verb in ["block", "resume"] {
        let output = BATON
            .run(relay.data(), &[verb, &unknown, "--reason", " "])
            .await;
        assert_eq!(output.code, Some(2), "{output:?}");
        assert!(output.stderr.contains("reason"), "{output:?}");
    }
}

fn files_below(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, into);
        } else {
            into.push(path);
        }
    }
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
    let mut files = vec![out];
    files_below(relay.data(), &mut files);
    assert!(files.len() > 3, "{files:?}");
    for file in files {
        let bytes = std::fs::read(&file).expect("a file");
        for canary in [
            "canary-bearer",
            "canary-hunter2",
            "AKIACANARY",
            "c2lnbmF0dXJl",
        ] {
            let found = bytes
                .windows(canary.len())
                .any(|part| part == canary.as_bytes());
            assert!(!found, "{canary} is in {}", file.display());
        }
    }
}
