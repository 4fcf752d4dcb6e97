//! What is finished goes by age and by size, oldest first; what is not stays, whatever it weighs.
//!
//! `BATON_RETENTION_MIB=1024 cargo test -p baton-tests --test e2e ten_times_as_much -- --nocapture` makes the long run: that
//! limit, ten times as much submitted, as fast as it is taken, and the figures printed.

use std::path::Path;
use std::time::Duration;

use baton_proto::v1::{CounterValue, RelayInfoResponse, SubmitRequest, Task, TaskSpec, TaskState};
use baton_relay::config::RetentionConfig;
use baton_tests::{Client, Relay, code_of, for_agent, within};
use tonic::Code;

const MIB: u64 = 1 << 20;
const LOOK: Duration = Duration::from_millis(20);

fn with_prompt(agent: &str, bytes: usize, mark: u64) -> TaskSpec {
    let mut prompt = format!("{mark:016x}");
    // Bytes that differ, or two tasks would share a body.
    while prompt.len() < bytes {
        let next = mark
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(prompt.len() as u32 % 63);
        prompt.push_str(&format!("{next:016x}"));
    }
    TaskSpec {
        prompt,
        ..for_agent(agent)
    }
}

/// What a directory's files hold, as far as they can be seen: they come and go while we look.
fn bytes_under(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).map(|all| all.flatten().collect::<Vec<_>>());
    let size = |entry: &std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_under(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.unwrap_or_default().iter().map(size).sum()
}

fn data_bytes(relay: &Relay) -> u64 {
    let parts = ["store", "output", "bodies"];
    parts
        .iter()
        .map(|part| bytes_under(&relay.data().join(part)))
        .sum()
}

async fn until_gone(client: &Client, task: &Task) {
    let mut ticks = tokio::time::interval(LOOK);
    within("a task to be removed", async {
        loop {
            ticks.tick().await;
            if let Err(status) = client.try_get(&task.task_id).await {
                assert_eq!(
                    (status.code(), code_of(&status).as_str()),
                    (Code::NotFound, "unknown_task")
                );
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_tasks_go_by_age_with_all_they_had_and_open_ones_stay() {
    let relay = Relay::start_with(|config| {
        config.retention.age = Duration::from_secs(1);
    })
    .await;
    let client = relay.admin();
    let mut daemon = relay.scripted(&["works", "holds"]).await;
    let queued = client.submit(with_prompt("nobody", 100_000, 1)).await;
    let held = client.submit(for_agent("holds")).await;
    let mut holding = daemon.running().await;
    holding.say("still here\n").await;
    let request = || SubmitRequest {
        spec: Some(with_prompt("works", 200_000, 2)),
        idempotency_key: "nightly".to_owned(),
        ..SubmitRequest::default()
    };
    let done = client.try_submit(request()).await.unwrap().task.unwrap();
    let mut working = daemon.running().await;
    working.say("done soon\n").await;
    working.complete("made").await;
    client
        .until_state(&done.task_id, TaskState::Completed)
        .await;
    until_gone(client, &done).await;

    let again = client.try_submit(request()).await.unwrap();
    assert!(!again.existed, "its key went with it");
    let again = again.task.unwrap();
    assert_ne!(again.task_id, done.task_id);
    client.cancel(&again.task_id).await;
    until_gone(client, &again).await;
    let bodies = relay.data().join("bodies");
    let mut ticks = tokio::time::interval(LOOK);
    within("the body that nobody wants to go", async {
        while bytes_under(&bodies) > 110_000 {
            ticks.tick().await;
        }
    })
    .await;

    assert_eq!(client.get(&queued.task_id).await.state(), TaskState::Queued);
    holding.complete("at last").await;
    client
        .until_state(&held.task_id, TaskState::Completed)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_a_refused_submission_goes() {
    let relay = Relay::start_with(|config| config.max_open = 1).await;
    let client = relay.admin();
    let kept = client.submit(with_prompt("nobody", 100_000, 1)).await;
    let bodies = relay.data().join("bodies");
    let size = bytes_under(&bodies);
    let refused = SubmitRequest {
        spec: Some(with_prompt("nobody", 100_000, 2)),
        ..SubmitRequest::default()
    };
    let refused = client.try_submit(refused).await.unwrap_err();
    assert_eq!(code_of(&refused), "queue_full");
    let mut ticks = tokio::time::interval(LOOK);
    within("the refused body to go", async {
        while bytes_under(&bodies) > size {
            ticks.tick().await;
        }
    })
    .await;
    assert_eq!(bytes_under(&bodies), size);
    assert_eq!(client.get(&kept.task_id).await.state(), TaskState::Queued);
}

/// The limit, and the time between two submissions: a small limit is a few seconds' work of a relay at full speed.
fn run_length() -> (u64, Duration) {
    match std::env::var("BATON_RETENTION_MIB") {
        Ok(mib) => {
            let mib: u64 = mib.parse().expect("BATON_RETENTION_MIB is a number");
            (mib * MIB, Duration::from_micros(1))
        }
        Err(_) => (64 * MIB, Duration::from_millis(15)),
    }
}

fn counted(info: &RelayInfoResponse, reason: &str) -> u64 {
    let of_it = |counter: &&CounterValue| {
        (counter.name.as_str(), counter.reason.as_str()) == ("retention_removed", reason)
    };
    let found = info.counters.iter().find(of_it);
    found.map_or(0, |counter| counter.value)
}

/// Long prompts and output, so that sled's own file, which needs some room to turn round in, is a small part of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_keeps_under_its_limit_while_ten_times_as_much_is_submitted() {
    const PROMPT: usize = 320_000;
    const SAID: usize = 64_000;
    let (limit, pace) = run_length();
    let relay = Relay::start_with(move |config| {
        config.retention = RetentionConfig {
            output_bytes: limit / 8 * 3,
            at_least: Duration::ZERO,
            ..RetentionConfig::within(limit)
        };
    })
    .await;
    let client = relay.admin();
    let mut daemon = relay.scripted(&["works"]).await;
    let open = client.submit(with_prompt("works", PROMPT, 0)).await;
    let mut oldest = daemon.running().await;
    let first = client.submit(with_prompt("nobody", PROMPT, 1)).await;
    client.cancel(&first.task_id).await;
    let (mut submitted, mut largest, mut last) = (0, 0, first.clone());
    let mut pace = tokio::time::interval(pace);
    for number in 2.. {
        pace.tick().await;
        // Or it would be ended for its silence in a long run.
        oldest.say("still here\n").await;
        last = client.submit(with_prompt("works", PROMPT, number)).await;
        let mut attempt = daemon.running().await;
        for _ in 0..3 {
            attempt.say(&"o".repeat(SAID)).await;
        }
        attempt.complete("done").await;
        daemon.acked(&attempt).await;
        submitted += (PROMPT + 3 * SAID) as u64;
        largest = largest.max(data_bytes(&relay));
        let (now, all) = (largest / MIB, submitted / MIB);
        assert!(largest <= limit, "{now} MiB on the disk after {all} MiB");
        if submitted >= 10 * limit {
            break;
        }
    }
    println!(
        "{} MiB at most under a limit of {} MiB, {} MiB submitted",
        largest / MIB,
        limit / MIB,
        submitted / MIB
    );
    assert!(largest > limit / 2, "it was filled: {} MiB", largest / MIB);
    until_gone(client, &first).await;
    assert_eq!(
        client.get(&last.task_id).await.state(),
        TaskState::Completed
    );
    for what in ["task", "body", "output_segment"] {
        let removed = counted(&client.info().await, what);
        assert!(removed > 0, "operators see that {what}s were removed");
    }
    oldest.say("older than all of it\n").await;
    oldest.complete("done").await;
    client
        .until_state(&open.task_id, TaskState::Completed)
        .await;
}
