//! What is damaged is not written over: progress is not begun anew, and a key makes no second task.

use baton_proto::v1::{ProgressUpdate, SubmitRequest, TaskState, UpdateProgressRequest};
use baton_relay::store::{Change, Key};
use baton_tests::{Client, RelayProcess, code_of, for_agent, within};
use sha2::{Digest, Sha256};
use tonic::{Code, Status};
use uuid::Uuid;

use super::damaged_records::{tamper, tenant};
use crate::BATON;

fn keyed() -> SubmitRequest {
    SubmitRequest {
        spec: Some(for_agent("nobody")),
        idempotency_key: "once".to_owned(),
        ..SubmitRequest::default()
    }
}

async fn update(client: &Client, task_id: &str, item: &str) -> Result<(), Status> {
    let request = UpdateProgressRequest {
        task_id: task_id.to_owned(),
        update: Some(ProgressUpdate {
            completed_items: vec![item.to_owned()],
            ..ProgressUpdate::default()
        }),
    };
    let updated = within("an update", client.tasks().update_progress(request)).await;
    updated.map(drop)
}

fn is_damage<T: std::fmt::Debug>(outcome: Result<T, Status>) {
    let status = outcome.expect_err("it cannot be known");
    assert_eq!(status.code(), Code::DataLoss, "{status:?}");
    assert_eq!(code_of(&status), "unreadable_record");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_progress_is_not_begun_anew_and_a_damaged_key_makes_no_second_task() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let submitted = within("a submit", client.tasks().submit(keyed())).await;
    let task = submitted.unwrap().into_inner().task.unwrap();
    update(&client, &task.task_id, "first").await.unwrap();
    relay.terminate().await;
    let id: Uuid = task.task_id.parse().unwrap();
    let progress = Key::Progress {
        tenant: tenant(),
        task: id,
    };
    let key = Key::Idempotency {
        tenant: tenant(),
        digest: Sha256::digest(b"once").into(),
    };
    tamper(relay.data(), |_| {
        let broken = |key| Change::Put(key, b"of another world".to_vec());
        vec![broken(progress), broken(key)]
    });
    relay.revive().await;
    for item in ["second", "third"] {
        is_damage(update(&client, &task.task_id, item).await);
        is_damage(within("a submit", client.tasks().submit(keyed())).await);
    }
    assert!(client.info().await.unreadable_records >= 2);
    // It can still be handed on and ended.
    let block = baton_proto::v1::BlockTaskRequest {
        task_id: task.task_id.clone(),
        reason: "its progress is damaged".to_owned(),
        ..Default::default()
    };
    let blocked = within("a block", client.tasks().block(block)).await;
    let blocked = blocked.unwrap().into_inner().task.unwrap();
    assert_eq!(blocked.state(), TaskState::NeedsAttention);
}
