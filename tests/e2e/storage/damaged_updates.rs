//! Damaged records are not overwritten: damaged progress is not replaced by new progress, and a
//! damaged idempotency key creates no second task.

use baton_proto::v1::{ProgressUpdate, SubmitRequest, TaskState, UpdateProgressRequest};
use baton_relay::store::{RecordKey, StoreChange};
use baton_tests::{RelayProcess, TestClient, agent_task, error_code, wait_within};
use sha2::{Digest, Sha256};
use tonic::{Code, Status};
use uuid::Uuid;

use super::damaged_records::{change_stopped_store, default_tenant};
use crate::BATON;

fn keyed_request() -> SubmitRequest {
    SubmitRequest {
        spec: Some(agent_task("nobody")),
        idempotency_key: "once".to_owned(),
        ..SubmitRequest::default()
    }
}

async fn update_progress(client: &TestClient, task_id: &str, item: &str) -> Result<(), Status> {
    let request = UpdateProgressRequest {
        task_id: task_id.to_owned(),
        update: Some(ProgressUpdate {
            completed_items: vec![item.to_owned()],
            ..ProgressUpdate::default()
        }),
    };
    let updated = wait_within("an update", client.tasks().update_progress(request)).await;
    updated.map(drop)
}

fn assert_damage_error<T: std::fmt::Debug>(outcome: Result<T, Status>) {
    let status = outcome.expect_err("the stored value is unreadable");
    assert_eq!(status.code(), Code::DataLoss, "{status:?}");
    assert_eq!(error_code(&status), "unreadable_record");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_progress_and_keys_are_not_overwritten() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let submitted = wait_within("a submit", client.tasks().submit(keyed_request())).await;
    let task = submitted.unwrap().into_inner().task.unwrap();
    update_progress(&client, &task.task_id, "first")
        .await
        .unwrap();
    relay.terminate().await;
    let id: Uuid = task.task_id.parse().unwrap();
    let progress = RecordKey::Progress {
        tenant: default_tenant(),
        task: id,
    };
    let key = RecordKey::Idempotency {
        tenant: default_tenant(),
        digest: Sha256::digest(b"once").into(),
    };
    change_stopped_store(relay.data(), |_| {
        let broken = |key| StoreChange::Put(key, b"not a valid record".to_vec());
        vec![broken(progress), broken(key)]
    });
    relay.start_again().await;
    for item in ["second", "third"] {
        assert_damage_error(update_progress(&client, &task.task_id, item).await);
        assert_damage_error(wait_within("a submit", client.tasks().submit(keyed_request())).await);
    }
    assert!(client.relay_info().await.unreadable_records >= 2);
    // The task can still be blocked and ended.
    let block = baton_proto::v1::BlockTaskRequest {
        task_id: task.task_id.clone(),
        reason: "its progress is damaged".to_owned(),
        ..Default::default()
    };
    let blocked = wait_within("a block", client.tasks().block(block)).await;
    let blocked = blocked.unwrap().into_inner().task.unwrap();
    assert_eq!(blocked.state(), TaskState::NeedsAttention);
}
