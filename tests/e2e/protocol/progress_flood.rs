//! A daemon that sends progress updates faster than they can be stored delays only itself.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{ProgressUpdate, Role, TaskState};
use baton_tests::{EmbeddedRelay, ScriptedAttempt, ScriptedDaemon, agent_task, hello};

const UPDATE_COUNT: usize = 1_500;

/// Every update stores the whole progress record, so a long list makes all later updates
/// expensive.
fn long_list_update() -> Body {
    let item = |n: usize| format!("{n} {}", "x".repeat(1_000));
    Body::Progress(ProgressUpdate {
        completed_items: (0..180).map(item).collect(),
        ..ProgressUpdate::default()
    })
}

fn cursor_update(n: usize) -> Body {
    Body::Progress(ProgressUpdate {
        cursor: Some(format!("line {n}")),
        ..ProgressUpdate::default()
    })
}

/// The newest control_seq of this attempt that the relay has acknowledged.
fn newest_ack(daemon: &mut ScriptedDaemon, attempt: &ScriptedAttempt) -> u64 {
    let frames = daemon.collect_unread_frames();
    let acks = frames.iter().filter_map(|frame| match &frame.frame {
        Some(Frame::Ack(ack)) => Some(ack),
        Some(_) | None => None,
    });
    let entries = acks.flat_map(|ack| &ack.entries);
    let own_entries = entries.filter(|entry| entry.attempt_id == attempt.id());
    own_entries
        .map(|entry| entry.control_seq)
        .max()
        .unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_updates_slows_only_its_own_daemon_and_loses_nothing() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin().clone();
    let busy = client.client_of_tenant("", Role::Daemon).await;
    let other = client.client_of_tenant("", Role::Daemon).await;
    let mut flooding = ScriptedDaemon::connect(&busy, hello(&["flood"])).await;
    let flooded = client.submit(agent_task("flood")).await;
    let mut flood = flooding.start_next_attempt().await;
    flood.send(long_list_update()).await;
    flooding.wait_until_acked(&flood).await;
    for n in 0..UPDATE_COUNT {
        flood.send(cursor_update(n)).await;
    }
    // While the updates are queued, another daemon starts and completes a task.
    let mut daemon = ScriptedDaemon::connect(&other, hello(&["calm"])).await;
    let task = client.submit(agent_task("calm")).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.complete("done").await;
    daemon.wait_until_acked(&attempt).await;
    let acked = newest_ack(&mut flooding, &flood);
    assert_eq!(
        client.get(&task.task_id).await.state(),
        TaskState::Completed
    );
    assert!(
        acked < flood.control_seq - UPDATE_COUNT as u64 / 2,
        "the other daemon waited until {acked} of {} frames were stored",
        flood.control_seq
    );
    flooding.wait_until_acked(&flood).await;
    flood.complete("flooded").await;
    flooding.wait_until_acked(&flood).await;
    let seen = client.get(&flooded.task_id).await;
    assert_eq!(seen.state(), TaskState::Completed);
    let progress = seen.progress.expect("progress is stored");
    assert_eq!(progress.cursor, format!("line {}", UPDATE_COUNT - 1));
    assert_eq!(progress.completed_items.len(), 180);
}
