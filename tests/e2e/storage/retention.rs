//! Retention: finished tasks are removed by age and size, oldest first; open tasks are never
//! removed.
//!
//! `BATON_RETENTION_MIB=1024 cargo test -p baton-tests --test e2e ten_times_as_much --
//! --nocapture` makes the long run with that limit, submits ten times as much at full speed, and
//! prints the sizes.

use std::path::Path;
use std::time::Duration;

use baton_proto::v1::{CounterValue, RelayInfoResponse, SubmitRequest, Task, TaskSpec, TaskState};
use baton_relay::config::RetentionConfig;
use baton_tests::{EmbeddedRelay, TestClient, agent_task, error_code, wait_within};
use tonic::Code;

const MIB: u64 = 1 << 20;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

fn task_with_prompt(agent: &str, bytes: usize, mark: u64) -> TaskSpec {
    let mut prompt = format!("{mark:016x}");
    // The bytes must differ, or two tasks would share a body.
    while prompt.len() < bytes {
        let next = mark
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(prompt.len() as u32 % 63);
        prompt.push_str(&format!("{next:016x}"));
    }
    TaskSpec {
        prompt,
        ..agent_task(agent)
    }
}

/// The size of all files below a directory. Files that vanish during the walk count as zero.
fn bytes_under(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).map(|all| all.flatten().collect::<Vec<_>>());
    let size = |entry: &std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_under(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.unwrap_or_default().iter().map(size).sum()
}

fn data_bytes(relay: &EmbeddedRelay) -> u64 {
    let parts = ["store", "output", "bodies"];
    parts
        .iter()
        .map(|part| bytes_under(&relay.data_directory().join(part)))
        .sum()
}

async fn wait_until_gone(client: &TestClient, task: &Task) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within("a task to be removed", async {
        loop {
            ticks.tick().await;
            if let Err(status) = client.try_get(&task.task_id).await {
                assert_eq!(
                    (status.code(), error_code(&status).as_str()),
                    (Code::NotFound, "unknown_task")
                );
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_tasks_are_removed_by_age_and_open_ones_stay() {
    let relay = EmbeddedRelay::start_with(|config| {
        config.retention.max_age = Duration::from_secs(1);
    })
    .await;
    let client = relay.admin();
    let mut daemon = relay.start_scripted_daemon(&["works", "holds"]).await;
    let queued = client.submit(task_with_prompt("nobody", 100_000, 1)).await;
    let held = client.submit(agent_task("holds")).await;
    let mut holding = daemon.start_next_attempt().await;
    holding.send_output("still here\n").await;
    let request = || SubmitRequest {
        spec: Some(task_with_prompt("works", 200_000, 2)),
        idempotency_key: "nightly".to_owned(),
        ..SubmitRequest::default()
    };
    let done = client.try_submit(request()).await.unwrap().task.unwrap();
    let mut working = daemon.start_next_attempt().await;
    working.send_output("done soon\n").await;
    working.complete("made").await;
    client
        .wait_for_state(&done.task_id, TaskState::Completed)
        .await;
    wait_until_gone(client, &done).await;

    let again = client.try_submit(request()).await.unwrap();
    assert!(
        !again.existed,
        "the idempotency key was removed with its task"
    );
    let again = again.task.unwrap();
    assert_ne!(again.task_id, done.task_id);
    client.cancel(&again.task_id).await;
    wait_until_gone(client, &again).await;
    let bodies = relay.data_directory().join("bodies");
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within("the unreferenced body to be removed", async {
        while bytes_under(&bodies) > 110_000 {
            ticks.tick().await;
        }
    })
    .await;

    assert_eq!(client.get(&queued.task_id).await.state(), TaskState::Queued);
    holding.complete("at last").await;
    client
        .wait_for_state(&held.task_id, TaskState::Completed)
        .await;
}

/// The size limit and the time between two submissions. At full speed a relay reaches the small
/// limit in a few seconds, so the short run is slowed down.
fn run_length() -> (u64, Duration) {
    match std::env::var("BATON_RETENTION_MIB") {
        Ok(mib) => {
            let mib: u64 = mib.parse().expect("BATON_RETENTION_MIB is a number");
            (mib * MIB, Duration::from_micros(1))
        }
        Err(_) => (64 * MIB, Duration::from_millis(15)),
    }
}

fn removed_count(info: &RelayInfoResponse, reason: &str) -> u64 {
    let is_match = |counter: &&CounterValue| {
        (counter.name.as_str(), counter.reason.as_str()) == ("retention_removed", reason)
    };
    let found = info.counters.iter().find(is_match);
    found.map_or(0, |counter| counter.value)
}

/// Uses long prompts and output, so that sled's own file, whose size varies, is a small part of
/// the total.
#[tokio::test(flavor = "multi_thread")]
async fn data_stays_under_its_limit_while_ten_times_as_much_is_submitted() {
    const PROMPT_BYTES: usize = 320_000;
    const OUTPUT_BYTES: usize = 64_000;
    let (limit, pace) = run_length();
    let relay = EmbeddedRelay::start_with(move |config| {
        config.retention = RetentionConfig {
            max_output_bytes: limit / 8 * 3,
            min_age: Duration::ZERO,
            ..RetentionConfig::within(limit)
        };
    })
    .await;
    let client = relay.admin();
    let mut daemon = relay.start_scripted_daemon(&["works"]).await;
    let open = client
        .submit(task_with_prompt("works", PROMPT_BYTES, 0))
        .await;
    let mut oldest = daemon.start_next_attempt().await;
    let first = client
        .submit(task_with_prompt("nobody", PROMPT_BYTES, 1))
        .await;
    client.cancel(&first.task_id).await;
    let (mut submitted, mut largest, mut last) = (0, 0, first.clone());
    let mut pace = tokio::time::interval(pace);
    for number in 2.. {
        pace.tick().await;
        // Output keeps the attempt within its idle deadline in a long run.
        oldest.send_output("still here\n").await;
        last = client
            .submit(task_with_prompt("works", PROMPT_BYTES, number))
            .await;
        let mut attempt = daemon.start_next_attempt().await;
        for _ in 0..3 {
            attempt.send_output(&"o".repeat(OUTPUT_BYTES)).await;
        }
        attempt.complete("done").await;
        daemon.wait_until_acked(&attempt).await;
        submitted += (PROMPT_BYTES + 3 * OUTPUT_BYTES) as u64;
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
    assert!(
        largest > limit / 2,
        "the limit was never approached: {} MiB",
        largest / MIB
    );
    wait_until_gone(client, &first).await;
    assert_eq!(
        client.get(&last.task_id).await.state(),
        TaskState::Completed
    );
    for what in ["task", "body", "output_segment"] {
        let removed = removed_count(&client.relay_info().await, what);
        assert!(removed > 0, "the counter of removed {what}s is zero");
    }
    oldest.send_output("older than all of it\n").await;
    oldest.complete("done").await;
    client
        .wait_for_state(&open.task_id, TaskState::Completed)
        .await;
}
