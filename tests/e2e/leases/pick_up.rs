//! Parked tasks that agents pick up: one of many concurrent callers gets the lease, and every
//! acknowledged call survives a kill of the relay.

use baton_proto::unpack_error_detail;
use baton_proto::v1::{AttemptState, ListBlockedRequest, TaskState};
use baton_tests::{
    EmbeddedRelay, LeaseAgent, RelayProcess, TestClient, agent_scope_spec, join_all, test_rounds,
    wait_within,
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
