//! Clocks that jump under real processes: a wall clock that is set decides nothing, and time asleep counts.

use std::path::Path;

use baton_proto::timestamp_to_ms;
use baton_proto::v1::{DaemonFrame, Role, TaskSpec, TaskState, daemon_frame};
use baton_tests::{
    BentClock, DaemonProcess, RelayProcess, Tap, Taped, command, marked_gone, poll_until, within,
};

use crate::{BATON, STANDIN};

const A_DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// Half of it: further off than any clock of this machine drifts within a test.
const FAR_MS: u64 = 12 * 60 * 60 * 1_000;

fn waits_for(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; echo finished",
        file.display()
    );
    TaskSpec {
        lease_ttl_ms: Some(5_000),
        ..command("sh", &["-c", &script], mark)
    }
}

/// When the daemon's newest heartbeat says it was sent, in wall milliseconds, and how many there were.
fn newest_beat(tap: &Tap) -> Option<(u64, usize)> {
    let beats: Vec<u64> = tap
        .frames()
        .iter()
        .filter_map(|frame| match frame {
            Taped::Up(up) => match up.as_ref() {
                DaemonFrame {
                    frame: Some(daemon_frame::Frame::Heartbeat(beat)),
                } => beat.sent_at.as_ref().map(timestamp_to_ms),
                DaemonFrame { .. } => None,
            },
            Taped::Down(_) => None,
        })
        .collect();
    beats.last().map(|at| (*at, beats.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_set_by_a_day_on_relay_or_daemon_ends_nothing() {
    let (relay_clock, worker_clock) = (BentClock::new(), BentClock::new());
    let mut relay = RelayProcess::start(relay_clock.bend(BATON)).await;
    let client = relay.admin().clone();
    let (_, secret) = client.make_token("", Role::Daemon).await;
    let tap = Tap::start(client.url()).await;
    let dir = tempfile::tempdir().unwrap();
    let worker = worker_clock.bend(BATON);
    let mut daemon = DaemonProcess::start(worker, dir.path(), "jumps", &tap.url(), &secret).await;
    let go_on = dir.path().join("go-on");
    let task = client.submit(waits_for(&go_on, "jumps")).await;
    client.until_state(&task.task_id, TaskState::Running).await;

    for jump in [A_DAY_MS, -2 * A_DAY_MS, A_DAY_MS] {
        let (before, _) = poll_until("a heartbeat", || newest_beat(&tap)).await;
        relay_clock.jump_wall(jump);
        worker_clock.jump_wall(jump);
        // Two heartbeats under the new time: the daemon has renewed by it, and the relay has looked at its timers.
        let (_, seen) = poll_until("a heartbeat of the new day", || {
            newest_beat(&tap).filter(|(at, _)| at.abs_diff(before) > FAR_MS)
        })
        .await;
        poll_until("the next heartbeat", || {
            newest_beat(&tap).filter(|(_, count)| *count > seen)
        })
        .await;
        let other = client.submit(command(STANDIN, &["env"], "jumps")).await;
        client
            .until_state(&other.task_id, TaskState::Completed)
            .await;
        let made = timestamp_to_ms(
            client
                .get(&other.task_id)
                .await
                .created_at
                .as_ref()
                .unwrap(),
        );
        let (now, _) = newest_beat(&tap).unwrap();
        assert!(
            made.abs_diff(now) < FAR_MS,
            "the relay is on the new day as well"
        );
        let seen = client.output(&other.task_id).await;
        assert!(!String::from_utf8_lossy(&seen).contains("BATON_TEST_CLOCK"));
        let running = client.get(&task.task_id).await;
        assert_eq!(
            (running.state(), running.attempts.len()),
            (TaskState::Running, 1)
        );
    }

    std::fs::write(&go_on, "").unwrap();
    client
        .until_state(&task.task_id, TaskState::Completed)
        .await;
    let done = client.get(&task.task_id).await;
    assert_eq!(done.attempts.len(), 1, "{done:?}");
    assert_eq!(client.output(&task.task_id).await, b"begun\nfinished\n");
    marked_gone("jumps").await;
    assert_eq!(daemon.terminate().await.code(), Some(0));
    within("the relay to stop", relay.terminate()).await;
}
