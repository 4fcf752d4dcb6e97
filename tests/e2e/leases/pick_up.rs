//! Parked work that changes hands among agents: one of many gets it, and nothing of a lease leaks.

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
async fn of_fifty_pick_ups_at_once_one_wins_and_the_list_never_shows_it_again() {
    let relay = EmbeddedRelay::start().await;
    let admin = relay.admin();
    let mut crowd = Vec::new();
    for n in 0..CALLER_COUNT {
        crowd.push(LeaseAgent::new(admin, &format!("agent-{n}"), SCOPE).await);
    }
    let rounds = test_rounds(3);
    for round in 0..rounds {
        let first = &crowd[round % CALLER_COUNT];
        let key = format!("round {round}");
        let lease = first
            .start(agent_scope_spec(SCOPE), &key)
            .await
            .expect("it starts");
        first.block(&lease, "which way?").await.expect("it blocks");
        assert_eq!(
            list_blocked(admin).await,
            std::slice::from_ref(&lease.task_id)
        );

        let seen = &lease.attempt_id;
        let calls = crowd
            .iter()
            .map(|agent| agent.pick_up(&lease.task_id, seen));
        let outcomes = join_all(calls).await;
        let won: Vec<usize> = (0..CALLER_COUNT).filter(|n| outcomes[*n].is_ok()).collect();
        assert_eq!(won.len(), 1, "exactly one wins");
        assert!(list_blocked(admin).await.is_empty());
        for status in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            let detail = unpack_error_detail(status).expect("a refusal has a detail");
            assert_eq!(
                (status.code(), &*detail.code),
                (Code::Aborted, "handed_off")
            );
            assert_eq!(detail.holder, crowd[won[0]].name);
        }
        let winner = outcomes.into_iter().find_map(Result::ok).expect("one won");
        let done = crowd[won[0]]
            .complete(&winner, "done")
            .await
            .expect("it holds it");
        assert_eq!(
            (done.state(), done.attempt_count),
            (TaskState::Completed, 2)
        );
        assert_eq!(done.attempts[0].state(), AttemptState::HandedOff);
        assert_eq!(done.attempts[0].handed_off_to, crowd[won[0]].name);
        assert!(list_blocked(admin).await.is_empty());
    }
    println!("{rounds} rounds of {CALLER_COUNT} pick-ups, one winner in each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blank_reason_is_refused_before_anything_is_looked_up() {
    let relay = EmbeddedRelay::start().await;
    let agent = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let lease = agent
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("it starts");
    let foreign = LeaseAgent::of_tenant(relay.admin(), "theirs", "mallory", SCOPE).await;
    let mut unknown = lease.clone();
    unknown.lease_ref.task_id = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10".to_owned();
    let mut forged = lease.clone();
    forged.lease_ref.token.as_mut().expect("it has one").value = vec![0; 32].into();
    let before = relay.admin().commit_seq().await;
    for (who, named) in [(&agent, &unknown), (&agent, &forged), (&foreign, &lease)] {
        let refusals = [
            who.block(named, " \t ").await.expect_err("a block"),
            who.fail(named, " \n").await.expect_err("a failure"),
            who.checkpoint(named, "  ")
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
    agent.block(&lease, "which way?").await.expect("it blocks");
}

/// Every file beneath a directory that holds one of these.
fn files_with_secrets(dir: &Path, secrets: &[Vec<u8>]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).expect("the directory is there") {
        let path = entry.expect("it can be listed").path();
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

/// A whole story: started, renewed, written about, blocked, picked up, given back, claimed and completed.
async fn run_lease_scenario(relay: &EmbeddedRelay) -> Vec<GrantedLease> {
    let ada = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let bob = LeaseAgent::new(relay.admin(), "bob", SCOPE).await;
    let first = ada
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("it starts");
    ada.renew(&first).await.expect("it holds it");
    ada.checkpoint(&first, "half way").await.expect("it may");
    ada.progress(&first, "the first half")
        .await
        .expect("it may");
    ada.block(&first, "which way?").await.expect("it blocks");
    let second = bob.pick_up(&first.task_id, "").await.expect("it is free");
    bob.release(&second, "no time").await.expect("it holds it");
    let third = ada
        .claim(&first.task_id)
        .await
        .expect("it waits")
        .expect("it was named");
    let done = ada.complete(&third, "done").await.expect("it holds it");
    let progress = relay.admin().get(&done.task_id).await.progress;
    let progress = progress.expect("it outlives its attempts");
    assert_eq!(progress.completed_items, ["the first half"]);
    vec![first, second, third]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_lease_token_is_nowhere_but_in_its_holders_hand() {
    let relay = EmbeddedRelay::start().await;
    let leases = run_lease_scenario(&relay).await;
    let secrets: Vec<Vec<u8>> = leases
        .iter()
        .flat_map(GrantedLease::token_spellings)
        .collect();
    let shown = relay.admin().try_get_with_spec(&leases[0].task_id).await;
    let shown = format!("{:?}", shown.expect("it is there"));
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
    assert!(events.contains("PickedUp"), "the story was seen");
    let data = relay.data_directory();
    assert_eq!(files_with_secrets(&data, &secrets), BTreeSet::new());
    let known = leases[0].task_id.parse::<uuid::Uuid>().expect("an id");
    let looked = files_with_secrets(&data, &[known.as_bytes().to_vec()]);
    assert!(!looked.is_empty(), "the search finds what is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_to_an_agent_survives_a_kill_of_the_relay() {
    let mut relay = RelayProcess::start(BATON).await;
    let ada = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let bob = LeaseAgent::new(relay.admin(), "bob", SCOPE).await;
    let first = ada
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("it starts");
    kill_and_restart(&mut relay).await;
    ada.renew(&first).await.expect("the claim survived");
    ada.checkpoint(&first, "half way").await.expect("it may");
    kill_and_restart(&mut relay).await;
    ada.progress(&first, "the first half")
        .await
        .expect("it may");
    kill_and_restart(&mut relay).await;
    let parked = ada.block(&first, "which way?").await.expect("it blocks");
    assert_eq!(parked.state(), TaskState::NeedsAttention);
    kill_and_restart(&mut relay).await;
    let second = bob.pick_up(&first.task_id, &first.attempt_id).await;
    let second = second.expect("it is parked");
    kill_and_restart(&mut relay).await;
    bob.release(&second, "no time")
        .await
        .expect("the pick-up survived");
    kill_and_restart(&mut relay).await;
    let third = ada.claim(&first.task_id).await.expect("it waits");
    let third = third.expect("it was named");
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
    let progress = task.progress.expect("it outlives its attempts");
    assert_eq!(
        (progress.completed_items.len(), progress.checkpoint_count),
        (1, 2)
    );
}

async fn kill_and_restart(relay: &mut RelayProcess) {
    relay.kill().await;
    relay.start_again().await;
}
