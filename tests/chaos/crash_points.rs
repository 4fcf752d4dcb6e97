//! Kills the relay before each write, rename and sync of one commit and of one start, in turn.
//! After each kill a clean start must succeed and find all acknowledged data.
//! `BATON_CHAOS_POINTS=all` runs every point, otherwise a sample runs.

use std::collections::BTreeSet;

use baton_history::{CallOutcome, ClientOperation, Observation};
use baton_tests::copy_directory;
use tempfile::TempDir;

use crate::chaos_run::{ChaosRun, now_ms};
use crate::host_support;
use crate::traced_relay::{
    RelayStart, TENANT, TracedRelay, cancel_open_and_record, counted_changes, single_call_client,
    start_traced_relay, start_untraced_relay,
};

/// Number of points in a short run.
const SAMPLED_POINTS: usize = 6;
/// An upper bound of the changes of a commit or a start.
const CHANGES_MAX: u64 = 2_000;

/// A data directory with tasks, as a killed relay left it.
struct StoppedRelayData {
    dir: TempDir,
    token: String,
    tasks: Vec<String>,
}

impl StoppedRelayData {
    async fn create() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("a directory can be created");
        let relay = match start_traced_relay(dir, "", &[], false).await {
            RelayStart::Listening(relay) => *relay,
            RelayStart::Exited(_, status) => panic!("the first start failed: {status}"),
        };
        let token = std::fs::read_to_string(relay.dir.path().join("data/admin.token"));
        let token = token
            .expect("the first start creates a token")
            .trim()
            .to_owned();
        let admin = relay.client.with_token(&token);
        let mut tasks = Vec::new();
        for _ in 0..8 {
            tasks.push(
                admin
                    .submit(baton_tests::agent_task("nobody"))
                    .await
                    .task_id,
            );
        }
        let dir = relay.kill().await;
        Self { dir, token, tasks }
    }

    fn copy_to_temporary(&self) -> TempDir {
        let copied = tempfile::tempdir().expect("a temporary directory can be made");
        copy_directory(self.dir.path(), copied.path());
        copied
    }
}

/// All numbers up to the bound, or a sample: the first ones, and others spread over the known
/// range.
fn kill_points(all: u64) -> Vec<u64> {
    if std::env::var("BATON_CHAOS_POINTS").is_ok_and(|points| points == "all") {
        return (1..CHANGES_MAX).collect();
    }
    let mut some: BTreeSet<u64> = [1, 2].into();
    while some.len() < SAMPLED_POINTS.min(usize::try_from(all).unwrap_or(SAMPLED_POINTS)) {
        some.insert(rand::random_range(1..=all));
    }
    some.into_iter().collect()
}

/// One commit of each kind, and a stop that leaves nothing in memory.
async fn run_commits_traced(
    stopped: &StoppedRelayData,
    run: &ChaosRun,
    tracer_action: &[&str],
) -> TempDir {
    let relay = match start_traced_relay(
        stopped.copy_to_temporary(),
        &stopped.token,
        tracer_action,
        true,
    )
    .await
    {
        RelayStart::Listening(relay) => *relay,
        RelayStart::Exited(_, status) => {
            panic!("the relay must not end before the tracer is armed: {status}")
        }
    };
    let client = single_call_client(run, &relay.client);
    relay.arm_tracer().await;
    let (submitted, _) = client.submit_once("nobody", "at a crash point").await;
    let canceled = client.cancel_once(&stopped.tasks[0]).await;
    finish_relay(
        relay,
        submitted == CallOutcome::Ok && canceled == CallOutcome::Ok,
    )
    .await
}

async fn finish_relay(mut relay: TracedRelay, alive: bool) -> TempDir {
    if alive && !relay.has_ended() {
        return relay.stop().await;
    }
    relay.wait_for_exit().await
}

async fn run_start_traced(stopped: &StoppedRelayData, tracer_action: &[&str]) -> TempDir {
    match start_traced_relay(
        stopped.copy_to_temporary(),
        &stopped.token,
        tracer_action,
        false,
    )
    .await
    {
        RelayStart::Listening(relay) => finish_relay(*relay, true).await,
        RelayStart::Exited(dir, _) => dir,
    }
}

/// Calls that were acknowledged before the copy was made.
fn record_acknowledged(stopped: &StoppedRelayData, run: &ChaosRun) {
    let view = run
        .recorder
        .participant_log("before")
        .expect("a file can be created");
    for (call, task) in (0..).zip(&stopped.tasks) {
        let request = Observation::Call {
            call,
            op: ClientOperation::Submit,
            tenant: TENANT.to_owned(),
            task: None,
            key: None,
            body: None,
        };
        let answer = Observation::Answer {
            call,
            outcome: CallOutcome::Ok,
            task: Some(task.clone()),
            revision: None,
            state: None,
            code: None,
            already: false,
        };
        for observation in [request, answer] {
            view.record(now_ms(), observation)
                .expect("the history can be written");
        }
    }
}

async fn assert_recovers(stopped: &StoppedRelayData, run: ChaosRun, dir: TempDir) {
    record_acknowledged(stopped, &run);
    let relay = start_untraced_relay(dir, &stopped.token).await;
    cancel_open_and_record(&run, &relay.client).await;
    let dir = relay.stop().await;
    run.finish_quietly();
    // A second start has nothing left to repair.
    start_untraced_relay(dir, &stopped.token).await.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_at_any_change_of_a_commit_loses_nothing() {
    if !host_support::can_trace() {
        return;
    }
    let stopped = StoppedRelayData::create().await;
    let run = ChaosRun::new("commit-whole");
    let all = counted_changes(run_commits_traced(&stopped, &run, &["count"]).await.path());
    run.discard_history();
    assert!(
        all >= 8,
        "two commits and a stop are expected to make more than {all} changes"
    );
    let mut killed = 0;
    for point in kill_points(all) {
        let run = ChaosRun::new(&format!("commit-{point}"));
        let dir = run_commits_traced(&stopped, &run, &["kill", &point.to_string()]).await;
        let past_last_change = counted_changes(dir.path()) < point;
        assert_recovers(&stopped, run, dir).await;
        if past_last_change {
            break;
        }
        killed += 1;
    }
    println!(
        "killed at {killed} of about {all} changes of a commit: nothing acknowledged was lost"
    );
    assert!(killed >= SAMPLED_POINTS / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_at_any_change_of_its_start_starts_again() {
    if !host_support::can_trace() {
        return;
    }
    let stopped = StoppedRelayData::create().await;
    let all = counted_changes(run_start_traced(&stopped, &["count"]).await.path());
    assert!(
        all >= 8,
        "a start and a stop are expected to make more than {all} changes"
    );
    let mut killed = 0;
    for point in kill_points(all) {
        let dir = run_start_traced(&stopped, &["kill", &point.to_string()]).await;
        let past_last_change = counted_changes(dir.path()) < point;
        assert_recovers(&stopped, ChaosRun::new(&format!("start-{point}")), dir).await;
        if past_last_change {
            break;
        }
        killed += 1;
    }
    println!(
        "killed at {killed} of about {all} changes of a start and stop: each next start found all data"
    );
    assert!(killed >= SAMPLED_POINTS / 2);
}
