//! One child that writes without end, with a reader that takes 1 KB a second and one that has stopped reading: daemon and relay stay
//! small, the other attempts' heartbeats stay on time, and what was not stored is recorded to the byte.
//!
//! `BATON_FLOOD_MIB=1024 cargo test -p baton-tests --test timing flood -- --nocapture` makes the long run.

use std::fs;
use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{
    CutReason, GetDaemonRequest, ReadOutputRequest, ReadOutputResponse, Role, TaskSpec, TaskState,
};
use baton_tests::{
    DaemonProcess, RelayProcess, TestClient, command_task, wait_until_marked_gone, wait_within,
};
use tokio::task::JoinSet;
use tonic::Streaming;

use crate::{BATON, STANDIN, widened_limit_ms};

const MIB: u64 = 1 << 20;
/// More than an attempt may store, so that there is something to cut.
const SHORT_RUN_MIB: u64 = 96;
const STORED_MAX: u64 = 64 * MIB;
const DAEMON_MEMORY_MAX: u64 = 100 * MIB;
const RELAY_MEMORY_MAX: u64 = 200 * MIB;
const SLOW_BYTES_PER_SECOND: u64 = 1024;
/// A third of the shortest lease, by which heartbeats go.
const LEASE_MS: u64 = 6_000;
const HEARTBEAT_MS: u64 = LEASE_MS / 3;
const OTHER_ATTEMPTS: usize = 3;
/// Between two looks at when the relay last heard the daemon.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn flood_bytes() -> u64 {
    let mib = std::env::var("BATON_FLOOD_MIB").map_or(SHORT_RUN_MIB, |mib| {
        mib.parse().expect("BATON_FLOOD_MIB is a number")
    });
    mib * MIB
}

fn task_with_short_lease(words: &[&str], mark: &str) -> TaskSpec {
    TaskSpec {
        lease_ttl_ms: Some(LEASE_MS),
        ..command_task(STANDIN, words, mark)
    }
}

/// The most memory that a process ever had resident, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("the kernel tells a peak") * 1024
}

async fn follow_output(client: &TestClient, task: &str) -> Streaming<ReadOutputResponse> {
    let request = ReadOutputRequest {
        task_id: task.to_owned(),
        follow: true,
        ..ReadOutputRequest::default()
    };
    // A connection of its own: a reader that stops must not be able to stop its neighbours by way of a shared one.
    let own = TestClient::new(client.url(), client.token_secret());
    let opened = own.tasks().read_output(request).await;
    opened.expect("output can be read").into_inner()
}

async fn read_slowly(mut stream: Streaming<ReadOutputResponse>) {
    while let Ok(Some(message)) = stream.message().await {
        if let Some(Item::Chunk(chunk)) = message.item {
            // What a slow reader does, and not how this test waits.
            let seconds = Duration::from_secs(chunk.data.len() as u64 / SLOW_BYTES_PER_SECOND);
            let clock = Clock::boot();
            clock.sleep_until(clock.now().after(seconds)).await;
        }
    }
}

/// What a reader got: bytes, and bytes that it was told not to expect.
#[derive(Debug, Default)]
struct ReceivedOutput {
    bytes: u64,
    cut_bytes: u64,
    cut_reasons: Vec<CutReason>,
}

async fn read_to_end(mut stream: Streaming<ReadOutputResponse>) -> ReceivedOutput {
    let (mut received, mut at) = (ReceivedOutput::default(), 0);
    loop {
        let message = wait_within("the next piece of output", stream.message()).await;
        let message = message
            .expect("output goes on")
            .expect("output says its end");
        match message.item {
            Some(Item::Chunk(chunk)) => {
                assert_eq!(chunk.offset, at, "output has no gap");
                at = chunk.end_offset;
                received.bytes += chunk.data.len() as u64;
            }
            Some(Item::Cut(cut)) => {
                assert_eq!(cut.offset, at, "a cut begins where the bytes end");
                at += cut.length;
                received.cut_bytes += cut.length;
                received.cut_reasons.push(cut.reason());
            }
            Some(Item::End(end)) => {
                assert_eq!(end.offset, at, "the end is where the last piece ends");
                return received;
            }
            // It only says that the stream lives.
            None => {}
        }
    }
}

/// The longest time between two heartbeats of the daemon that the relay heard, in milliseconds. Runs until it is dropped.
async fn measure_longest_heartbeat_gap(
    client: TestClient,
    daemon: &'static str,
    longest: &std::sync::Mutex<u64>,
) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    let mut last = None;
    loop {
        ticks.tick().await;
        let request = GetDaemonRequest {
            daemon: daemon.to_owned(),
        };
        let shown = client.fleet().get_daemon(request).await;
        let shown = shown.expect("the daemon is known").into_inner().daemon;
        let heard = shown.and_then(|daemon| daemon.last_heartbeat_at);
        let heard = heard.map(|at| at.seconds * 1000 + i64::from(at.nanos) / 1_000_000);
        if let (Some(before), Some(now)) = (last, heard) {
            let silence = u64::try_from(now - before).unwrap_or(0);
            let mut longest = longest.lock().expect("nobody panics with it");
            *longest = silence.max(*longest);
        }
        last = heard.or(last);
    }
}

fn assert_all_is_accounted_for(received: &ReceivedOutput, total: u64) {
    let ReceivedOutput {
        bytes,
        cut_bytes: cut,
        cut_reasons: reasons,
    } = received;
    println!(
        "{total} bytes of output: {bytes} stored, {cut} cut, by {:?}",
        reasons.first()
    );
    assert_eq!(
        bytes + cut,
        total,
        "every byte is stored or recorded as cut"
    );
    assert!(*bytes <= STORED_MAX && *cut > 0, "{received:?}");
}

fn assert_memory_below(what: &str, pid: u32, limit: u64) {
    let peak = peak_memory(pid);
    println!("{what}: {} MiB resident at most", peak / MIB);
    assert!(peak < limit, "the {what} had {peak} bytes resident");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_output_leaves_both_servers_small_and_everybody_else_alone() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut daemon =
        DaemonProcess::start(BATON, dir.path(), "flooded", client.url(), &secret).await;
    let mut bystanders = Vec::new();
    for _ in 0..OTHER_ATTEMPTS {
        let words = ["tick", "1000000", "100"];
        let task = client
            .submit(task_with_short_lease(&words, "bystander"))
            .await
            .task_id;
        client.wait_for_state(&task, TaskState::Running).await;
        bystanders.push(task);
    }
    let total = flood_bytes();
    let words = ["nap", "500", "flood", &total.to_string()];
    let task = client
        .submit(task_with_short_lease(&words, "flood"))
        .await
        .task_id;
    client.wait_for_state(&task, TaskState::Running).await;
    let mut slow = JoinSet::new();
    slow.spawn(read_slowly(follow_output(&client, &task).await));
    let stopped = follow_output(&client, &task).await;
    let healthy = follow_output(&client, &task).await;

    let longest = std::sync::Mutex::new(0);
    let received = tokio::select! {
        received = read_to_end(healthy) => received,
        () = measure_longest_heartbeat_gap(client.clone(), "flooded", &longest) => unreachable!("it never ends"),
    };
    client.wait_for_state(&task, TaskState::Completed).await;
    let silence = *longest.lock().expect("nobody panics with it");
    assert_all_is_accounted_for(&received, total);
    assert_memory_below("daemon", daemon.pid(), DAEMON_MEMORY_MAX);
    assert_memory_below("relay", relay.pid(), RELAY_MEMORY_MAX);
    println!("longest time between two heartbeats: {silence} ms");
    assert!(silence > 0, "heartbeats were seen");
    assert!(
        silence <= widened_limit_ms(HEARTBEAT_MS + 1_000),
        "a heartbeat came after {silence} ms"
    );
    for task in &bystanders {
        let task = client.get(task).await;
        assert_eq!(task.state(), TaskState::Running, "{task:?}");
        assert_eq!(task.attempts.len(), 1, "nothing was done again");
    }
    drop((slow, stopped));
    daemon.terminate().await;
    relay.terminate().await;
    wait_until_marked_gone("bystander").await;
}
