//! Concurrent resumes of one parked task.

use baton_proto::v1;

use super::{RelayFixture, in_time, machine_code, spec, submission};

impl RelayFixture {
    async fn block(&self, token: &str, task: &str) {
        let block = v1::BlockTaskRequest {
            task_id: task.into(),
            reason: "which branch?".into(),
            ..Default::default()
        };
        self.tasks(token).block(block).await.unwrap();
    }

    async fn resume(&self, token: &str, task: &str, seen: &str) -> Result<String, tonic::Status> {
        let resume = v1::ResumeTaskRequest {
            task_id: task.into(),
            attempt_id: seen.into(),
            reason: "the main one".into(),
            ..Default::default()
        };
        let resumed = self.tasks(token).resume(resume).await?;
        Ok(resumed.into_inner().attempt_id)
    }
}

#[tokio::test]
async fn a_late_resume_is_refused_with_the_name_of_the_first_resumer() {
    let relay = RelayFixture::new().await;
    let (_, first) = relay.create_token("acme", v1::Role::Submitter).await;
    let (_, second) = relay.create_token("acme", v1::Role::Operator).await;
    let (_, late) = relay.create_token("acme", v1::Role::Admin).await;
    let task = relay.submit(&first, submission(spec())).await.task.unwrap();
    let (id, one) = (task.task_id, task.attempts[0].attempt_id.clone());
    relay.block(&first, &id).await;
    let two = relay.resume(&first, &id, &one).await.unwrap();
    relay.block(&first, &id).await;
    relay.resume(&second, &id, &two).await.unwrap();
    for (seen, by) in [(&one, "acme Submitter"), (&two, "acme Operator")] {
        let refused = relay.resume(&late, &id, seen).await.unwrap_err();
        assert_eq!(machine_code(&refused), "handed_off");
        assert!(refused.message().contains(by), "{refused:?}");
    }
    in_time("stop", relay.relay.stop()).await.unwrap();
}
