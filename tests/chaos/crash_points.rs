//! Killed at every instant that matters: before each write, rename and sync of one commit and of one start, in turn. After each there is a clean start, and
//! everything that was acknowledged is there. All of them: `BATON_CHAOS_POINTS=all`; else a sample.

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

/// Points in a short run.
const SAMPLED_POINTS: usize = 6;
/// No commit and no start makes so many changes.
const CHANGES_MAX: u64 = 2_000;

/// A directory with something in it, as a relay left it that was killed.
struct StoppedRelayData {
    dir: TempDir,
    token: String,
    tasks: Vec<String>,
}

impl StoppedRelayData {
    async fn create() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("a directory can be made");
        let relay = match start_traced_relay(dir, "", &[], false).await {
            RelayStart::Listening(relay) => *relay,
            RelayStart::Exited(_, status) => panic!("a first start: {status}"),
        };
        let token = std::fs::read_to_string(relay.dir.path().join("data/admin.token"));
        let token = token
            .expect("a first start makes a token")
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

/// All numbers up to the end, or some of them: the first ones, and others that are spread over what is known to be there.
fn kill_points(all: u64) -> Vec<u64> {
    if std::env::var("BATON_CHAOS_POINTS").is_ok_and(|word| word == "all") {
        return (1..CHANGES_MAX).collect();
    }
    let mut some: BTreeSet<u64> = [1, 2].into();
    while some.len() < SAMPLED_POINTS.min(usize::try_from(all).unwrap_or(SAMPLED_POINTS)) {
        some.insert(rand::random_range(1..=all));
    }
    some.into_iter().collect()
}

/// One commit of each kind, and a stop that leaves nothing in memory. How many changes it made, if it came to its end.
async fn run_commits_traced(sound: &StoppedRelayData, run: &ChaosRun, deed: &[&str]) -> TempDir {
    let relay = match start_traced_relay(sound.copy_to_temporary(), &sound.token, deed, true).await
    {
        RelayStart::Listening(relay) => *relay,
        RelayStart::Exited(_, status) => {
            panic!("nothing was to happen before it is told: {status}")
        }
    };
    let asker = single_call_client(run, &relay.client);
    relay.arm_tracer().await;
    let (submitted, _) = asker.submit_once("nobody", "at a crash point").await;
    let canceled = asker.cancel_once(&sound.tasks[0]).await;
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

async fn run_start_traced(sound: &StoppedRelayData, deed: &[&str]) -> TempDir {
    match start_traced_relay(sound.copy_to_temporary(), &sound.token, deed, false).await {
        RelayStart::Listening(relay) => finish_relay(*relay, true).await,
        RelayStart::Exited(dir, _) => dir,
    }
}

/// What was acknowledged before the copy was made.
fn record_acknowledged(sound: &StoppedRelayData, run: &ChaosRun) {
    let view = run
        .recorder
        .participant_log("before")
        .expect("a file can be made");
    for (call, task) in (0..).zip(&sound.tasks) {
        let asked = Observation::Call {
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
        for saw in [asked, answer] {
            view.record(now_ms(), saw)
                .expect("the history can be written");
        }
    }
}

async fn assert_recovers(sound: &StoppedRelayData, run: ChaosRun, dir: TempDir) {
    record_acknowledged(sound, &run);
    let relay = start_untraced_relay(dir, &sound.token).await;
    cancel_open_and_record(&run, &relay.client).await;
    let dir = relay.stop().await;
    run.finish_quietly();
    // A second start has nothing left to mend.
    start_untraced_relay(dir, &sound.token).await.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_at_any_change_of_a_commit_loses_nothing() {
    if !host_support::can_trace() {
        return;
    }
    let sound = StoppedRelayData::create().await;
    let run = ChaosRun::new("commit-whole");
    let all = counted_changes(run_commits_traced(&sound, &run, &["count"]).await.path());
    run.discard_history();
    assert!(
        all >= 8,
        "two commits and a stop are more than {all} changes"
    );
    let mut killed = 0;
    for point in kill_points(all) {
        let run = ChaosRun::new(&format!("commit-{point}"));
        let dir = run_commits_traced(&sound, &run, &["kill", &point.to_string()]).await;
        let over = counted_changes(dir.path()) < point;
        assert_recovers(&sound, run, dir).await;
        if over {
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
    let sound = StoppedRelayData::create().await;
    let all = counted_changes(run_start_traced(&sound, &["count"]).await.path());
    assert!(all >= 8, "a start and a stop are more than {all} changes");
    let mut killed = 0;
    for point in kill_points(all) {
        let dir = run_start_traced(&sound, &["kill", &point.to_string()]).await;
        let over = counted_changes(dir.path()) < point;
        assert_recovers(&sound, ChaosRun::new(&format!("start-{point}")), dir).await;
        if over {
            break;
        }
        killed += 1;
    }
    println!(
        "killed at {killed} of about {all} changes of a start and stop: each next start found everything"
    );
    assert!(killed >= SAMPLED_POINTS / 2);
}
