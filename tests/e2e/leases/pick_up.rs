//! Parked tasks that agents pick up: one of many concurrent callers gets the lease, and no lease
//! token leaks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use baton_proto::unpack_error_detail;
use baton_proto::v1::{AttemptState, ListBlockedRequest, TaskState};
use baton_tests::{
    EmbeddedRelay, GrantedLease, LeaseAgent, RelayProcess, TestClient, agent_scope_spec,
    error_code, join_all, test_rounds, wait_within,
};
use tonic::Code;

use crate::BATON;

const SCOPE: &str = "reviewers";
const CALLER_COUNT: usize = 50;

async fn list_blocked(client: &TestClient) -> Vec<String> {
    let request = ListBlockedRequest {
        agent_scope: SCOPE.to_owned(),
        ..ListBlockedRequest::default()
    };
    let mut tasks = client.tasks();
    let answer = wait_within("a list", tasks.list_blocked(request)).await;
    let rows = answer.expect("a list is never refused").into_inner().tasks;
    rows.into_iter().map(|row| row.task_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_fifty_concurrent_pick_ups_wins_and_the_task_leaves_the_list() {
    let relay = EmbeddedRelay::start().await;
    let admin = relay.admin();
    let mut agents = Vec::new();
    for n in 0..CALLER_COUNT {
        agents.push(LeaseAgent::new(admin, &format!("agent-{n}"), SCOPE).await);
    }
    let rounds = test_rounds(3);
    for round in 0..rounds {
        let first = &agents[round % CALLER_COUNT];
        let key = format!("round {round}");
        let lease = first
            .start(agent_scope_spec(SCOPE), &key)
            .await
            .expect("the task starts");
        first
            .block(&lease, "which way?")
            .await
            .expect("the block is accepted");
        assert_eq!(
            list_blocked(admin).await,
            std::slice::from_ref(&lease.task_id)
        );

        let seen = &lease.attempt_id;
        let calls = agents
            .iter()
            .map(|agent| agent.pick_up(&lease.task_id, seen));
        let outcomes = join_all(calls).await;
        let won: Vec<usize> = (0..CALLER_COUNT).filter(|n| outcomes[*n].is_ok()).collect();
        assert_eq!(won.len(), 1, "exactly one pick-up wins");
        assert!(list_blocked(admin).await.is_empty());
        for status in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            let detail = unpack_error_detail(status).expect("a refusal has a detail");
            assert_eq!(
                (status.code(), &*detail.code),
                (Code::Aborted, "handed_off")
            );
            assert_eq!(detail.holder, agents[won[0]].name);
        }
        let winner = outcomes
            .into_iter()
            .find_map(Result::ok)
            .expect("one pick-up won");
        let done = agents[won[0]]
            .complete(&winner, "done")
            .await
            .expect("the agent has the lease");
        assert_eq!(
            (done.state(), done.attempt_count),
            (TaskState::Completed, 2)
        );
        assert_eq!(done.attempts[0].state(), AttemptState::HandedOff);
        assert_eq!(done.attempts[0].handed_off_to, agents[won[0]].name);
        assert!(list_blocked(admin).await.is_empty());
    }
    println!("{rounds} rounds of {CALLER_COUNT} pick-ups, one winner in each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blank_reason_is_refused_before_any_lookup() {
    let relay = EmbeddedRelay::start().await;
    let agent = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let lease = agent
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("the task starts");
    let foreign = LeaseAgent::of_tenant(relay.admin(), "theirs", "mallory", SCOPE).await;
    let mut unknown = lease.clone();
    unknown.lease_ref.task_id = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10".to_owned();
    let mut forged = lease.clone();
    forged
        .lease_ref
        .token
        .as_mut()
        .expect("the lease has a token")
        .value = vec![0; 32].into();
    let before = relay.admin().commit_seq().await;
    for (caller, wrong_lease) in [(&agent, &unknown), (&agent, &forged), (&foreign, &lease)] {
        let refusals = [
            caller
                .block(wrong_lease, " \t ")
                .await
                .expect_err("a block"),
            caller
                .fail(wrong_lease, " \n")
                .await
                .expect_err("a failure"),
            caller
                .checkpoint(wrong_lease, "  ")
                .await
                .map(|_| ())
                .expect_err("a checkpoint"),
        ];
        for status in refusals {
            assert_eq!(
                (status.code(), &*error_code(&status)),
                (Code::InvalidArgument, "blank")
            );
        }
    }
    assert_eq!(relay.admin().commit_seq().await, before);
    agent
        .block(&lease, "which way?")
        .await
        .expect("the block is accepted");
}

/// The files below a directory that contain one of these secrets.
fn files_with_secrets(dir: &Path, secrets: &[Vec<u8>]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).expect("the directory exists") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            found.extend(files_with_secrets(&path, secrets));
        } else if let Ok(bytes) = fs::read(&path)
            && secrets.iter().any(|secret| contains_bytes(&bytes, secret))
        {
            found.insert(path.display().to_string());
        }
    }
    found
}

fn contains_bytes(bytes: &[u8], secret: &[u8]) -> bool {
    bytes.windows(secret.len()).any(|window| window == secret)
}

/// A task that is started, renewed, checkpointed, blocked, picked up, released, claimed and
/// completed.
async fn run_lease_scenario(relay: &EmbeddedRelay) -> Vec<GrantedLease> {
    let ada = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let bob = LeaseAgent::new(relay.admin(), "bob", SCOPE).await;
    let first = ada
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("the task starts");
    ada.renew(&first).await.expect("the agent has the lease");
    ada.checkpoint(&first, "half way")
        .await
        .expect("the call is allowed");
    ada.progress(&first, "the first half")
        .await
        .expect("the call is allowed");
    ada.block(&first, "which way?")
        .await
        .expect("the block is accepted");
    let second = bob
        .pick_up(&first.task_id, "")
        .await
        .expect("the task is parked");
    bob.release(&second, "no time")
        .await
        .expect("the agent has the lease");
    let third = ada
        .claim(&first.task_id)
        .await
        .expect("the task waits")
        .expect("the claimed task is granted");
    let done = ada
        .complete(&third, "done")
        .await
        .expect("the agent has the lease");
    let progress = relay.admin().get(&done.task_id).await.progress;
    let progress = progress.expect("progress outlives its attempts");
    assert_eq!(progress.completed_items, ["the first half"]);
    vec![first, second, third]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_lease_token_is_stored_and_shown_nowhere() {
    let relay = EmbeddedRelay::start().await;
    let leases = run_lease_scenario(&relay).await;
    let secrets: Vec<Vec<u8>> = leases
        .iter()
        .flat_map(GrantedLease::token_spellings)
        .collect();
    let shown = relay.admin().try_get_with_spec(&leases[0].task_id).await;
    let shown = format!("{:?}", shown.expect("the task exists"));
    let events = relay
        .admin()
        .watch(&leases[0].task_id)
        .await
        .collect_to_end()
        .await;
    let events = format!("{events:?}");
    for secret in &secrets {
        assert!(
            !contains_bytes(shown.as_bytes(), secret) && !contains_bytes(events.as_bytes(), secret)
        );
    }
    assert!(
        events.contains("PickedUp"),
        "the events include the pick-up"
    );
    let data = relay.data_directory();
    assert_eq!(files_with_secrets(&data, &secrets), BTreeSet::new());
    let task_uuid = leases[0].task_id.parse::<uuid::Uuid>().expect("an id");
    let files_with_task = files_with_secrets(&data, &[task_uuid.as_bytes().to_vec()]);
    assert!(
        !files_with_task.is_empty(),
        "the search finds a value that is stored"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_agent_calls_survive_a_relay_kill() {
    let mut relay = RelayProcess::start(BATON).await;
    let ada = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let bob = LeaseAgent::new(relay.admin(), "bob", SCOPE).await;
    let first = ada
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("the task starts");
    kill_and_restart(&mut relay).await;
    ada.renew(&first).await.expect("the claim survived");
    ada.checkpoint(&first, "half way")
        .await
        .expect("the call is allowed");
    kill_and_restart(&mut relay).await;
    ada.progress(&first, "the first half")
        .await
        .expect("the call is allowed");
    kill_and_restart(&mut relay).await;
    let parked = ada
        .block(&first, "which way?")
        .await
        .expect("the block is accepted");
    assert_eq!(parked.state(), TaskState::NeedsAttention);
    kill_and_restart(&mut relay).await;
    let second = bob.pick_up(&first.task_id, &first.attempt_id).await;
    let second = second.expect("the task is parked");
    kill_and_restart(&mut relay).await;
    bob.release(&second, "no time")
        .await
        .expect("the pick-up survived");
    kill_and_restart(&mut relay).await;
    let third = ada.claim(&first.task_id).await.expect("the task waits");
    let third = third.expect("the claimed task is granted");
    kill_and_restart(&mut relay).await;
    ada.complete(&third, "done")
        .await
        .expect("the claim survived");
    kill_and_restart(&mut relay).await;
    let task = relay.admin().get(&first.task_id).await;
    assert_eq!(
        (task.state(), task.attempt_count),
        (TaskState::Completed, 3)
    );
    let progress = task.progress.expect("progress outlives its attempts");
    assert_eq!(
        (progress.completed_items.len(), progress.checkpoint_count),
        (1, 2)
    );
}

async fn kill_and_restart(relay: &mut RelayProcess) {
    relay.kill().await;
    relay.start_again().await;
}
