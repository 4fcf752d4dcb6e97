//! One child that writes without end, with a reader of 1 KB a second and one that has stopped
//! reading: daemon and relay use little memory, the other attempts' heartbeats are on time, and
//! unstored output is recorded to the byte.
//!
//! `BATON_FLOOD_MIB=1024 cargo test -p baton-tests --test timing flood -- --nocapture` runs the
//! long version.

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
/// More than an attempt may store, so that output is cut.
const SHORT_RUN_MIB: u64 = 96;
const STORED_MAX: u64 = 64 * MIB;
const DAEMON_MEMORY_MAX: u64 = 100 * MIB;
const RELAY_MEMORY_MAX: u64 = 200 * MIB;
const SLOW_BYTES_PER_SECOND: u64 = 1024;
/// The heartbeat interval is a third of the shortest lease.
const LEASE_MS: u64 = 6_000;
const HEARTBEAT_MS: u64 = LEASE_MS / 3;
const OTHER_ATTEMPTS: usize = 3;
/// Interval for checks of the daemon's last heartbeat.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn flood_bytes() -> u64 {
    let mib = std::env::var("BATON_FLOOD_MIB").map_or(SHORT_RUN_MIB, |mib| {
        mib.parse().expect("BATON_FLOOD_MIB is a number")
    });
    mib * MIB
}

fn task_with_short_lease(arguments: &[&str], mark: &str) -> TaskSpec {
    TaskSpec {
        lease_ttl_ms: Some(LEASE_MS),
        ..command_task(STANDIN, arguments, mark)
    }
}

/// The peak resident memory of a process, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("the kernel reports a peak") * 1024
}

async fn follow_output(client: &TestClient, task: &str) -> Streaming<ReadOutputResponse> {
    let request = ReadOutputRequest {
        task_id: task.to_owned(),
        follow: true,
        ..ReadOutputRequest::default()
    };
    // A separate connection: a reader that stops must not stop others on a shared one.
    let own = TestClient::new(client.url(), client.token_secret());
    let opened = own.tasks().read_output(request).await;
    opened.expect("output can be read").into_inner()
}

async fn read_slowly(mut stream: Streaming<ReadOutputResponse>) {
    while let Ok(Some(message)) = stream.message().await {
        if let Some(Item::Chunk(chunk)) = message.item {
            // Simulates a slow reader; the test itself does not wait by sleeping.
            let seconds = Duration::from_secs(chunk.data.len() as u64 / SLOW_BYTES_PER_SECOND);
            let clock = Clock::boot();
            clock.sleep_until(clock.now().after(seconds)).await;
        }
    }
}

/// What a reader got: stored bytes and bytes reported as cut.
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
            .expect("the output stream does not fail")
            .expect("output ends with an end message");
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
            // An empty message only shows that the stream is alive.
            None => {}
        }
    }
}

/// The longest time between two heartbeats that the relay received, in milliseconds. Runs until
/// it is dropped.
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
        let heartbeat_at = shown.and_then(|daemon| daemon.last_heartbeat_at);
        let heartbeat_at =
            heartbeat_at.map(|at| at.seconds * 1000 + i64::from(at.nanos) / 1_000_000);
        if let (Some(before), Some(now)) = (last, heartbeat_at) {
            let silence = u64::try_from(now - before).unwrap_or(0);
            let mut longest = longest.lock().expect("no thread panics with the lock");
            *longest = silence.max(*longest);
        }
        last = heartbeat_at.or(last);
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
    assert!(peak < limit, "the {what} used {peak} bytes at its peak");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_flood_costs_little_memory_and_delays_no_heartbeat() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut daemon =
        DaemonProcess::start(BATON, dir.path(), "flooded", client.url(), &secret).await;
    let mut bystanders = Vec::new();
    for _ in 0..OTHER_ATTEMPTS {
        let arguments = ["tick", "1000000", "100"];
        let task = client
            .submit(task_with_short_lease(&arguments, "bystander"))
            .await
            .task_id;
        client.wait_for_state(&task, TaskState::Running).await;
        bystanders.push(task);
    }
    let total = flood_bytes();
    let arguments = ["nap", "500", "flood", &total.to_string()];
    let task = client
        .submit(task_with_short_lease(&arguments, "flood"))
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
    let silence = *longest.lock().expect("no thread panics with the lock");
    assert_all_is_accounted_for(&received, total);
    assert_memory_below("daemon", daemon.pid(), DAEMON_MEMORY_MAX);
    assert_memory_below("relay", relay.pid(), RELAY_MEMORY_MAX);
    println!("longest time between two heartbeats: {silence} ms");
    assert!(silence > 0, "heartbeats were seen");
    assert!(
        silence <= widened_limit_ms(HEARTBEAT_MS + 1_000),
        "two heartbeats were {silence} ms apart"
    );
    for task in &bystanders {
        let task = client.get(task).await;
        assert_eq!(task.state(), TaskState::Running, "{task:?}");
        assert_eq!(task.attempts.len(), 1, "no attempt was repeated");
    }
    drop((slow, stopped));
    daemon.terminate().await;
    relay.terminate().await;
    wait_until_marked_gone("bystander").await;
}
