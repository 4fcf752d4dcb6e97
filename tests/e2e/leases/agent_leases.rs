//! Agents that hold leases themselves: which agent gets one, whose calls are accepted, and what
//! survives a restart.

use std::time::Duration;

use baton_proto::unpack_error_detail;
use baton_proto::v1::{
    AttemptState, EndedBy, ListTasksRequest, TaskEvent, TaskEventKind, TaskState, WaitsFor,
};
use baton_tests::{
    EmbeddedRelay, GrantedLease, LeaseAgent, agent_scope_spec, error_code, join_all,
    with_retry_on_loss,
};
use tonic::{Code, Status};

const SCOPE: &str = "reviewers";
/// The shortest lease that the relay grants.
const SHORTEST_LEASE: Duration = Duration::from_secs(5);

fn refusal_codes<T: std::fmt::Debug>(outcome: Result<T, Status>) -> (Code, String) {
    let status = outcome.expect_err("the call is refused");
    (status.code(), error_code(&status))
}

fn expected_codes(code: Code, machine: &str) -> (Code, String) {
    (code, machine.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_starts_claims_renews_and_completes_without_any_daemon() {
    let relay = EmbeddedRelay::start().await;
    let agent = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let lease = agent
        .start(agent_scope_spec(SCOPE), "k1")
        .await
        .expect("the task starts");
    let shown = relay.admin().get(&lease.task_id).await;
    assert_eq!(shown.state(), TaskState::Running);
    assert_eq!(shown.attempts[0].agent_holder, "ada");
    assert_eq!(shown.attempts[0].daemon_id, "");
    let renewed = agent.renew(&lease).await.expect("the agent has the lease");
    assert_eq!(
        (renewed.granted_ms, renewed.cancel_requested),
        (30_000, false)
    );
    let done = agent
        .complete(&lease, "all good")
        .await
        .expect("the completion is accepted");
    assert_eq!(
        (done.state(), &done.result[..]),
        (TaskState::Completed, &b"all good"[..])
    );
    assert_eq!(done.attempts[0].ended_by(), EndedBy::Agent);
    let again = agent.complete(&lease, "all good").await;
    assert_eq!(
        again
            .expect("a repeated completion gets the same answer")
            .state(),
        TaskState::Completed
    );

    let task = relay.admin().submit(agent_scope_spec(SCOPE)).await;
    assert_eq!(task.waits_for(), WaitsFor::Agent);
    let lease = agent
        .claim("")
        .await
        .expect("the claim is allowed")
        .expect("a task waits");
    assert_eq!(lease.task_id, task.task_id);
    assert!(
        agent
            .claim("")
            .await
            .expect("the claim is allowed")
            .is_none()
    );
    let back = agent
        .release(&lease, "no time")
        .await
        .expect("the release is accepted");
    assert_eq!((back.state(), back.attempt_count), (TaskState::Queued, 2));
    let lease = agent
        .claim(&task.task_id)
        .await
        .unwrap()
        .expect("the task waits");
    let failed = agent
        .fail(&lease, "it cannot be done")
        .await
        .expect("the failure is accepted");
    assert_eq!(failed.state(), TaskState::Failed);
    assert_eq!(failed.attempts[1].failure_code, "agent_reported");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_fifty_concurrent_claims_wins_and_the_rest_learn_the_holder() {
    let relay = EmbeddedRelay::start().await;
    let mut agents = Vec::new();
    for n in 0..10 {
        agents.push(LeaseAgent::new(relay.admin(), &format!("agent-{n}"), SCOPE).await);
    }
    let task = relay.admin().submit(agent_scope_spec(SCOPE)).await.task_id;
    let claims = (0..50).map(|n| agents[n % agents.len()].claim(&task));
    let outcomes = join_all(claims).await;
    let won = outcomes
        .iter()
        .position(Result::is_ok)
        .expect("one claim wins");
    let winner = agents[won % agents.len()].name.clone();
    let losers: Vec<Status> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(losers.len(), 49);
    for status in losers {
        let detail = unpack_error_detail(&status).expect("a refusal has a detail");
        assert_eq!(
            (status.code(), &*detail.code),
            (Code::Aborted, "already_taken")
        );
        assert_eq!(detail.holder, winner);
    }
    assert_eq!(relay.admin().get(&task).await.attempts.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_never_hold_one_task_and_a_late_completion_is_fenced() {
    let relay = EmbeddedRelay::start().await;
    let first = LeaseAgent::new(relay.admin(), "first", SCOPE).await;
    let second = LeaseAgent::new(relay.admin(), "second", SCOPE).await;
    let spec = with_retry_on_loss(agent_scope_spec(SCOPE), SHORTEST_LEASE);
    let task = relay.admin().submit(spec).await.task_id;
    let first_lease = first.claim(&task).await.unwrap().expect("the task waits");
    let taken = second.claim(&task).await;
    assert_eq!(
        refusal_codes(taken),
        expected_codes(Code::Aborted, "already_taken")
    );

    let mut watch = relay.admin().watch(&task).await;
    let waits_again =
        |event: &TaskEvent| event.kind() == TaskEventKind::Queued && event.attempt_number == 2;
    watch
        .wait_for_event("the second attempt to wait", waits_again)
        .await;
    let late = first.complete(&first_lease, "too late").await;
    assert_eq!(
        refusal_codes(late),
        expected_codes(Code::FailedPrecondition, "lease_expired")
    );
    let second_lease = second
        .claim("")
        .await
        .unwrap()
        .expect("the task waits again");
    assert_eq!(second_lease.task_id, task);
    let late = first.renew(&first_lease).await;
    assert_eq!(
        refusal_codes(late),
        expected_codes(Code::FailedPrecondition, "lease_expired")
    );
    let done = second
        .complete(&second_lease, "mine")
        .await
        .expect("the second agent has the lease");
    assert_eq!(&done.result[..], b"mine");
    assert_eq!(done.attempts[0].state(), AttemptState::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_and_unknown_leases_look_alike_and_change_nothing() {
    let relay = EmbeddedRelay::start().await;
    let admin = relay.admin();
    let agent = LeaseAgent::new(admin, "ada", SCOPE).await;
    let lease = agent
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("the task starts");
    let same_scope = LeaseAgent::new(admin, "eve", SCOPE).await;
    let other_scope = LeaseAgent::new(admin, "oscar", "writers").await;
    let other_tenant = LeaseAgent::of_tenant(admin, "theirs", "mallory", SCOPE).await;
    let waiting = admin.submit(agent_scope_spec(SCOPE)).await.task_id;
    let before = admin.commit_seq().await;

    for stranger in [&same_scope, &other_scope] {
        for refusal in refusals_of_every_call(stranger, &lease).await {
            assert_eq!(refusal, expected_codes(Code::NotFound, "unknown_attempt"));
        }
    }
    for refusal in refusals_of_every_call(&other_tenant, &lease).await {
        assert_eq!(refusal, expected_codes(Code::NotFound, "unknown_task"));
    }
    let mut forged = lease.clone();
    let token = forged
        .lease_ref
        .token
        .as_mut()
        .expect("the lease has a token");
    token.value = vec![7; 32].into();
    for refusal in refusals_of_every_call(&agent, &forged).await {
        assert_eq!(refusal, expected_codes(Code::PermissionDenied, "bad_proof"));
    }
    let own = agent.client.get(&lease.task_id).await;
    assert_eq!(own.task_id, lease.task_id, "the holder may read its task");
    for stranger in [&other_scope, &other_tenant] {
        let read = stranger.client.try_get(&lease.task_id).await;
        assert_eq!(
            refusal_codes(read),
            expected_codes(Code::NotFound, "unknown_task")
        );
        let mut tasks = stranger.client.tasks();
        let listed = tasks.list(ListTasksRequest::default()).await;
        assert!(
            listed
                .expect("the request is allowed")
                .into_inner()
                .tasks
                .is_empty()
        );
        let claimed = stranger.claim(&waiting).await;
        assert_eq!(
            refusal_codes(claimed),
            expected_codes(Code::NotFound, "unknown_task")
        );
        assert!(
            stranger
                .claim("")
                .await
                .expect("the request is allowed")
                .is_none()
        );
    }
    assert_bad_starts_refused(&agent).await;
    assert_eq!(admin.commit_seq().await, before, "nothing was written");
    agent
        .complete(&lease, "done")
        .await
        .expect("the agent still has its lease");
}

/// A start without a key, and one for a scope that is not the agent's.
async fn assert_bad_starts_refused(agent: &LeaseAgent) {
    for (spec, key, code) in [
        (agent_scope_spec(SCOPE), "", "missing"),
        (agent_scope_spec("writers"), "k2", "conflicting_fields"),
    ] {
        let refused = agent.start(spec, key).await;
        assert_eq!(
            refusal_codes(refused),
            expected_codes(Code::InvalidArgument, code)
        );
    }
}

/// The codes with which every call under this lease is refused.
async fn refusals_of_every_call(agent: &LeaseAgent, lease: &GrantedLease) -> Vec<(Code, String)> {
    vec![
        refusal_codes(agent.renew(lease).await),
        refusal_codes(agent.release(lease, "").await),
        refusal_codes(agent.complete(lease, "").await),
        refusal_codes(agent.fail(lease, "no").await),
        refusal_codes(agent.cancel(lease, "").await),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_returned_by_renew_and_confirmed_by_the_agent() {
    let relay = EmbeddedRelay::start().await;
    let agent = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let lease = agent
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("the task starts");
    relay.admin().cancel(&lease.task_id).await;
    let renewed_after_cancel = agent.renew(&lease).await.expect("the renewal is answered");
    assert!(renewed_after_cancel.cancel_requested && renewed_after_cancel.granted_ms <= 30_000);
    let result = agent.complete(&lease, "done").await;
    assert_eq!(
        refusal_codes(result),
        expected_codes(Code::FailedPrecondition, "being_canceled")
    );
    let canceled = agent
        .cancel(&lease, "stopped")
        .await
        .expect("the cancel is confirmed");
    assert_eq!(canceled.state(), TaskState::Canceled);
    let cancel = canceled.cancel.expect("the cancel is shown");
    assert!(cancel.delivered_at.is_some() && cancel.confirmed_at.is_some());
}
