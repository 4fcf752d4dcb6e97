//! BulkForce: one verb on many tasks.

use baton_proto::v1;
use baton_proto::v1::bulk_force_result::Result as RowResult;

use super::{RelayFixture, get_request, in_time, spec, submission};

#[tokio::test]
async fn a_bulk_cancel_cancels_each_task_and_can_be_repeated() {
    let relay = RelayFixture::new().await;
    let (_, operator) = relay.create_token("acme", v1::Role::Operator).await;
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let task = relay.submit(&operator, submission(spec())).await.task;
        tasks.push(task.unwrap().task_id);
    }
    let cancel = v1::BulkForceRequest {
        verb: v1::ForceVerb::Cancel.into(),
        task_ids: tasks.clone(),
        reason: "the wrong branch".into(),
        ..Default::default()
    };
    for _ in 0..11 {
        let done = relay.operator(&operator).bulk_force(cancel.clone()).await;
        for row in done.unwrap().into_inner().results {
            let Some(RowResult::Task(task)) = row.result else {
                panic!("{row:?}");
            };
            assert_eq!(task.state(), v1::TaskState::Canceled);
        }
    }
    for task in tasks {
        let task = relay
            .tasks(&operator)
            .get(get_request(&task))
            .await
            .unwrap();
        let cancel = task.into_inner().task.unwrap().cancel.unwrap();
        let shown = (cancel.by.as_str(), cancel.reason.as_str());
        assert_eq!(shown, ("acme Operator", "the wrong branch"));
    }
    in_time("stop", relay.relay.stop()).await.unwrap();
}
