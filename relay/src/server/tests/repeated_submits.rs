//! A repeated submission returns its task, even if its profile or daemon was deleted since.

use baton_proto::v1;
use baton_proto::v1::agents_client::AgentsClient;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::fleet_client::FleetClient;
use baton_proto::v1::submit_many_result::Result as RowResult;
use tonic::Code;

use super::single_attempt_daemon::SingleAttemptDaemon;
use super::{RelayFixture, get_request, in_time, refusal_code, spec, submission};

fn submit_with_key(key: &str, spec: v1::TaskSpec) -> v1::SubmitRequest {
    v1::SubmitRequest {
        idempotency_key: key.into(),
        ..submission(spec)
    }
}

fn with_profile() -> v1::TaskSpec {
    v1::TaskSpec {
        profile_name: "patient".into(),
        ..spec()
    }
}

impl RelayFixture {
    async fn put_profile(&self, token: &str) {
        let profile = v1::PutProfileRequest {
            name: "patient".into(),
            profile: Some(v1::DeadlineProfile::default()),
        };
        self.operator(token).put_profile(profile).await.unwrap();
    }

    async fn delete_profile(&self, token: &str) {
        let name = "patient".into();
        let delete = v1::DeleteProfileRequest { name };
        self.operator(token).delete_profile(delete).await.unwrap();
    }
}

#[tokio::test]
async fn a_submission_is_repeatable_after_its_profile_is_deleted() {
    let relay = RelayFixture::new().await;
    relay.put_profile(&relay.admin).await;
    let request = submit_with_key("k1", with_profile());
    let first = relay.submit(&relay.admin, request.clone()).await;
    relay.delete_profile(&relay.admin).await;

    let again = relay.submit(&relay.admin, request.clone()).await;
    assert!(again.existed && !first.existed);
    assert_eq!(again.task, first.task);
    let tasks = vec![request, submit_with_key("k2", with_profile())];
    let many = v1::SubmitManyRequest { tasks };
    let answered = relay.tasks(&relay.admin).submit_many(many).await.unwrap();
    let rows = answered.into_inner().results.into_iter();
    let rows: Vec<_> = rows.map(|row| row.result.unwrap()).collect();
    let [known, fresh] = &rows[..] else {
        panic!("two rows");
    };
    assert!(matches!(known, RowResult::Accepted(known) if known.task == first.task));
    assert!(matches!(fresh, RowResult::Error(fault) if fault.code == "unknown_profile"));

    let other = v1::TaskSpec {
        goal: "another".into(),
        ..with_profile()
    };
    let other = relay
        .tasks(&relay.admin)
        .submit(submit_with_key("k1", other))
        .await;
    let conflict = (Code::AlreadyExists, "idempotency_conflict".to_owned());
    assert_eq!(refusal_code(other), conflict);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_submission_is_repeatable_after_its_daemon_is_forgotten() {
    let relay = RelayFixture::new().await;
    let (_, token) = relay.create_token("*", v1::Role::Daemon).await;
    let work = relay.submit(&relay.admin, submission(spec())).await;
    let work = work.task.unwrap().task_id;
    let mut daemon = SingleAttemptDaemon::connect_and_accept(&relay, &token).await;
    let target = v1::Placement {
        daemon: "scripted".into(),
        ..Default::default()
    };
    let request = submit_with_key(
        "k1",
        v1::TaskSpec {
            placement: Some(target),
            // The daemon does not have this agent, so the task stays queued.
            agent: "claude".into(),
            prompt: "review it".into(),
            ..v1::TaskSpec::default()
        },
    );
    let first = relay.submit(&relay.admin, request.clone()).await;
    daemon.send(Body::Started(v1::TaskStarted::default())).await;
    daemon.complete(0).await;
    let done: i32 = v1::TaskState::Completed.into();
    in_time("end of the work", async {
        let mut tasks = relay.tasks(&relay.admin);
        let mut state = 0;
        while state != done {
            let shown = tasks.get(get_request(&work)).await.unwrap();
            state = shown.into_inner().task.unwrap().state;
        }
    })
    .await;
    drop(daemon);
    let mut fleet = FleetClient::new(relay.token_channel(&relay.admin));
    let forget = v1::ForgetDaemonRequest {
        daemon: "scripted".into(),
        reason: "it was sold".into(),
    };
    in_time("daemon to be forgotten", async {
        while fleet.forget_daemon(forget.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let again = relay.submit(&relay.admin, request.clone()).await;
    let id = |answer: &v1::SubmitResponse| answer.task.clone().unwrap().task_id;
    assert!(again.existed);
    assert_eq!(id(&again), id(&first));
    let fresh = v1::SubmitRequest {
        idempotency_key: "k2".into(),
        ..request
    };
    let fresh = relay.tasks(&relay.admin).submit(fresh).await;
    assert_eq!(
        refusal_code(fresh),
        (Code::NotFound, "unknown_daemon".to_owned())
    );
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_repeated_start_returns_its_lease_after_its_profile_is_deleted() {
    let relay = RelayFixture::new().await;
    let (_, admin) = relay.create_token("acme", v1::Role::Admin).await;
    let (_, agent) = relay.create_token("acme", v1::Role::Agent).await;
    relay.put_profile(&admin).await;
    let start = v1::StartRequest {
        spec: Some(v1::TaskSpec {
            agent: String::new(),
            prompt: "review it".into(),
            command: None,
            ..with_profile()
        }),
        idempotency_key: "k1".into(),
        request_id: "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a11".into(),
        ..Default::default()
    };
    let mut agents = AgentsClient::new(relay.token_channel(&agent));
    let first = agents.start(start.clone()).await.unwrap().into_inner();
    relay.delete_profile(&admin).await;
    let again = agents.start(start.clone()).await.unwrap().into_inner();
    let lease_ref = |answer: v1::StartResponse| answer.grant.unwrap().r#ref;
    assert_eq!(lease_ref(again), lease_ref(first));
    let fresh = v1::StartRequest {
        idempotency_key: "k2".into(),
        request_id: "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a12".into(),
        ..start
    };
    let fresh = agents.start(fresh).await;
    assert_eq!(
        refusal_code(fresh),
        (Code::NotFound, "unknown_profile".to_owned())
    );
    in_time("stop", relay.relay.stop()).await.unwrap();
}
