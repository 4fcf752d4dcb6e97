//! Whoever tells of his work faster than it can be stored holds up nobody but himself.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{ProgressUpdate, Role, TaskState};
use baton_tests::{EmbeddedRelay, ScriptedAttempt, ScriptedDaemon, agent_task, hello};

const UPDATE_COUNT: usize = 1_500;

/// Each update stores what is known as a whole, so a long list makes all later ones heavy.
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

/// The newest frame of this attempt that its daemon was told is durable.
fn newest_ack(daemon: &mut ScriptedDaemon, attempt: &ScriptedAttempt) -> u64 {
    let frames = daemon.collect_unread_frames();
    let acks = frames.iter().filter_map(|frame| match &frame.frame {
        Some(Frame::Ack(ack)) => Some(ack),
        Some(_) | None => None,
    });
    let entries = acks.flat_map(|ack| &ack.entries);
    let own = entries.filter(|entry| entry.attempt_id == attempt.id());
    own.map(|entry| entry.control_seq).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_updates_holds_up_its_own_daemon_and_loses_nothing() {
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
    // All of them are on their way, and somebody else's work begins and ends.
    let mut daemon = ScriptedDaemon::connect(&other, hello(&["calm"])).await;
    let task = client.submit(agent_task("calm")).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.complete("done").await;
    daemon.wait_until_acked(&attempt).await;
    let told = newest_ack(&mut flooding, &flood);
    assert_eq!(
        client.get(&task.task_id).await.state(),
        TaskState::Completed
    );
    assert!(
        told < flood.control_seq - UPDATE_COUNT as u64 / 2,
        "the others waited for {told} of {} frames",
        flood.control_seq
    );
    flooding.wait_until_acked(&flood).await;
    flood.complete("flooded").await;
    flooding.wait_until_acked(&flood).await;
    let seen = client.get(&flooded.task_id).await;
    assert_eq!(seen.state(), TaskState::Completed);
    let progress = seen.progress.expect("it was told");
    assert_eq!(progress.cursor, format!("line {}", UPDATE_COUNT - 1));
    assert_eq!(progress.completed_items.len(), 180);
}
