//! The daemon's disk is full: it reports a state for that and keeps running.

use std::fs;

use baton_proto::v1::{AttemptState, DaemonState, Role, TaskEventKind, TaskState};
use baton_tests::{
    RelayProcess, SmallDiskDaemon, command_task, poll_until, wait_until_marked_gone,
};

use crate::BATON;

/// More than the 64 MiB of free space that a daemon needs to accept work.
const DISK_MEBIBYTES: u32 = 96;

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_with_a_full_disk_fails_its_attempt_and_recovers() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let worker =
        SmallDiskDaemon::start(BATON, dir.path(), (client.url(), &secret), DISK_MEBIBYTES).await;
    let Some(mut worker) = worker else { return };
    let go_on = dir.path().join("go-on");
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; while echo more; do sleep 0.05; done",
        go_on.display()
    );
    let task = client
        .submit(command_task("sh", &["-c", &script], "disk-full"))
        .await;
    let mut watch = client.watch(&task.task_id).await;
    watch.wait_for_output().await;

    worker.disk_space.fill_disk();
    fs::write(&go_on, "").unwrap();
    let end = watch.wait_for_kind(TaskEventKind::Ended).await;
    assert_eq!(
        (end.state(), end.failure_code.as_str()),
        (AttemptState::Failed, "worker_disk_full")
    );
    watch.wait_for_state(TaskState::Failed).await;
    let output = client.read_output_to_end(&task.task_id).await;
    assert!(output.starts_with(b"begun\n"), "{output:?}");
    wait_until_marked_gone("disk-full").await;

    // The daemon stays connected and reports that it takes no work, so the next task is not
    // offered until there is space.
    client
        .wait_for_daemon_state("small", DaemonState::Sick)
        .await;
    let next = client
        .submit(command_task("echo", &["done"], "disk-full"))
        .await;
    worker.disk_space.remove_filler();
    client
        .wait_for_state(&next.task_id, TaskState::Completed)
        .await;
    assert_eq!(client.get(&next.task_id).await.attempt_count, 1);
    assert_eq!(client.read_output_to_end(&next.task_id).await, b"done\n");
    poll_until("all attempt directories to be removed", || {
        let left = fs::read_dir(worker.disk_space.path("attempts"))
            .ok()?
            .count();
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(worker.daemon.terminate().await.code(), Some(0));
}
