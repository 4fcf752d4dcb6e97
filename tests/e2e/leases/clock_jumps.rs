//! Clocks that jump under real processes: a changed wall clock affects no lease and no timer.

use std::path::Path;
use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::timestamp_to_ms;
use baton_proto::v1::{
    DaemonFrame, ListTasksRequest, RetryPolicy, Role, TaskSpec, TaskState, daemon_frame,
};
use baton_tests::{
    DaemonProcess, FrameTap, RelayProcess, ScriptedDaemon, TappedFrame, TestClient, TestClock,
    agent_task, command_task, hello, poll_until, task_until_file, wait_until_marked_gone,
    wait_within,
};

use crate::{BATON, STANDIN};

const A_DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// Half a day: more than any clock of this machine drifts within a test.
const HALF_A_DAY_MS: u64 = 12 * 60 * 60 * 1_000;

/// The length of each of the three timers under test.
const TIMER_MS: u64 = 3_000;
const TIMER: Duration = Duration::from_millis(TIMER_MS);

/// The wall time in milliseconds of the daemon's newest heartbeat, and the number of heartbeats.
fn newest_heartbeat(tap: &FrameTap) -> Option<(u64, usize)> {
    let beats: Vec<u64> = tap
        .frames()
        .iter()
        .filter_map(|frame| match frame {
            TappedFrame::FromDaemon(up) => match up.as_ref() {
                DaemonFrame {
                    frame: Some(daemon_frame::Frame::Heartbeat(beat)),
                } => beat.sent_at.as_ref().map(timestamp_to_ms),
                DaemonFrame { .. } => None,
            },
            TappedFrame::FromRelay(_) => None,
        })
        .collect();
    beats.last().map(|at| (*at, beats.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_change_of_a_day_ends_no_attempt() {
    let (relay_clock, worker_clock) = (TestClock::new(), TestClock::new());
    let mut relay = RelayProcess::start(relay_clock.apply_to(BATON)).await;
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let tap = FrameTap::start(client.url()).await;
    let dir = tempfile::tempdir().unwrap();
    let worker = worker_clock.apply_to(BATON);
    let mut daemon = DaemonProcess::start(worker, dir.path(), "jumps", &tap.url(), &secret).await;
    let go_on = dir.path().join("go-on");
    let spec = TaskSpec {
        lease_ttl_ms: Some(5_000),
        ..task_until_file(&go_on, "jumps")
    };
    let task = client.submit(spec).await;
    client
        .wait_for_state(&task.task_id, TaskState::Running)
        .await;

    for jump in [A_DAY_MS, -2 * A_DAY_MS, A_DAY_MS] {
        let (before, _) = poll_until("a heartbeat", || newest_heartbeat(&tap)).await;
        relay_clock.jump_wall(jump);
        worker_clock.jump_wall(jump);
        // After two heartbeats with the new time the daemon has renewed its lease and the relay
        // has checked its timers.
        let (_, seen) = poll_until("a heartbeat with the new time", || {
            newest_heartbeat(&tap).filter(|(at, _)| at.abs_diff(before) > HALF_A_DAY_MS)
        })
        .await;
        poll_until("the next heartbeat", || {
            newest_heartbeat(&tap).filter(|(_, count)| *count > seen)
        })
        .await;
        let other = client
            .submit(command_task(STANDIN, &["env"], "jumps"))
            .await;
        client
            .wait_for_state(&other.task_id, TaskState::Completed)
            .await;
        let created_ms = timestamp_to_ms(
            client
                .get(&other.task_id)
                .await
                .created_at
                .as_ref()
                .unwrap(),
        );
        let (now, _) = newest_heartbeat(&tap).unwrap();
        assert!(
            created_ms.abs_diff(now) < HALF_A_DAY_MS,
            "the relay uses the new time as well"
        );
        let seen = client.read_output_to_end(&other.task_id).await;
        assert!(!String::from_utf8_lossy(&seen).contains("BATON_TEST_CLOCK"));
        let running = client.get(&task.task_id).await;
        assert_eq!(
            (running.state(), running.attempts.len()),
            (TaskState::Running, 1)
        );
    }

    std::fs::write(&go_on, "").unwrap();
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    let done = client.get(&task.task_id).await;
    assert_eq!(done.attempts.len(), 1, "{done:?}");
    assert_eq!(
        client.read_output_to_end(&task.task_id).await,
        b"begun\nfinished\n"
    );
    wait_until_marked_gone("jumps").await;
    assert_eq!(daemon.terminate().await.code(), Some(0));
    wait_within("the relay to stop", relay.terminate()).await;
}

/// Tasks for three timers: the deadline of a running attempt, the deadline of a queued task, and
/// the backoff before a retry.
fn timed_tasks(dir: &Path) -> [(TaskSpec, TaskState); 3] {
    let once = |policy| {
        Some(RetryPolicy {
            max_attempts: Some(1),
            ..policy
        })
    };
    let first_time = dir.join("first-time").display().to_string();
    let retried = RetryPolicy {
        // The jitter shortens the backoff by up to a fifth.
        backoff_initial_ms: Some(TIMER_MS * 3 / 2),
        ..RetryPolicy::default()
    };
    [
        (
            TaskSpec {
                total_ms: Some(TIMER_MS),
                retry: once(RetryPolicy::default()),
                ..command_task(STANDIN, &["pause"], "timed")
            },
            TaskState::TimedOut,
        ),
        (
            TaskSpec {
                queue_ms: Some(TIMER_MS),
                ..agent_task("no-such-agent")
            },
            TaskState::NeedsAttention,
        ),
        (
            TaskSpec {
                retry: Some(retried),
                ..command_task(STANDIN, &["fail-once", &first_time], "timed")
            },
            TaskState::Completed,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_change_of_a_day_fires_no_timer_early_or_late() {
    for jump in [A_DAY_MS, -A_DAY_MS] {
        let (relay_clock, worker_clock) = (TestClock::new(), TestClock::new());
        let relay = RelayProcess::start(relay_clock.apply_to(BATON)).await;
        let client = relay.admin();
        let (_, secret) = client.create_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().unwrap();
        let worker = worker_clock.apply_to(BATON);
        let _daemon =
            DaemonProcess::start(worker, dir.path(), "timed", client.url(), &secret).await;
        let clock = Clock::boot();
        let from = clock.now();
        let mut tasks = Vec::new();
        for (spec, end) in timed_tasks(dir.path()) {
            tasks.push((client.submit(spec).await.task_id, end));
        }
        poll_until("the child to fail once", || {
            dir.path().join("first-time").exists().then_some(())
        })
        .await;
        client.wait_for_state(&tasks[0].0, TaskState::Running).await;
        relay_clock.jump_wall(jump);
        worker_clock.jump_wall(jump);
        for (task, end) in tasks {
            client.wait_for_state(&task, end).await;
            let took = from.until(clock.now());
            assert!(took >= TIMER, "{end:?} after {took:?}, jumped by {jump} ms");
        }
        wait_until_marked_gone("timed").await;
    }
}

async fn list_task_ids(client: &TestClient) -> Vec<String> {
    let request = ListTasksRequest::default();
    let answer = wait_within("a list", client.tasks().list(request)).await;
    let tasks = answer.expect("tasks can be listed").into_inner().tasks;
    tasks.into_iter().map(|task| task.task_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_change_of_a_day_keeps_the_task_order_over_restarts() {
    let clock = TestClock::new();
    let mut relay = RelayProcess::start(clock.apply_to(BATON)).await;
    let client = relay.admin().clone();
    let mut submitted = Vec::new();
    for jump in [A_DAY_MS, -2 * A_DAY_MS, A_DAY_MS / 2] {
        for _ in 0..2 {
            submitted.push(client.submit(agent_task("ordered")).await.task_id);
        }
        // Cancel the newest task, so that the order does not depend on it.
        let ended = submitted.pop().unwrap();
        client.cancel(&ended).await;
        clock.jump_wall(jump);
        submitted.push(client.submit(agent_task("ordered")).await.task_id);
        relay.kill().await;
        relay.start_again().await;
    }
    submitted.push(client.submit(agent_task("ordered")).await.task_id);
    let newest_first: Vec<String> = list_task_ids(&client)
        .await
        .into_iter()
        .filter(|task| submitted.contains(task))
        .collect();
    assert!(newest_first.iter().rev().eq(&submitted), "{newest_first:?}");
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["ordered"])).await;
    for task in &submitted {
        let offered = daemon.next_dispatch().await;
        assert_eq!(
            offered.attempt_ref.task_id, *task,
            "tasks are dispatched in the order of submission"
        );
    }
}
