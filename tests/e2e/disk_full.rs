//! The worker's disk is full: a state with a name, and nobody dies of it.

use std::fs;

use baton_proto::v1::{AttemptState, DaemonState, Role, TaskEventKind, TaskState};
use baton_tests::{RelayProcess, SmallDisk, command, marked_gone, poll_until};

use crate::BATON;

/// More than the 64 MiB that must be free before work is taken.
const MEBIBYTES: u32 = 96;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_a_full_disk_fails_what_it_cannot_store_and_works_on_when_there_is_room() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.make_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let worker = SmallDisk::start(BATON, dir.path(), (client.url(), &secret), MEBIBYTES).await;
    let Some(mut worker) = worker else { return };
    let go_on = dir.path().join("go-on");
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; while echo more; do sleep 0.05; done",
        go_on.display()
    );
    let task = client
        .submit(command("sh", &["-c", &script], "disk-full"))
        .await;
    let mut watch = client.watch(&task.task_id).await;
    watch
        .until("output", |event| event.state() == AttemptState::Streaming)
        .await;

    worker.room.fill();
    fs::write(&go_on, "").unwrap();
    let end = watch.until_kind(TaskEventKind::Ended).await;
    assert_eq!(
        (end.state(), end.failure_code.as_str()),
        (AttemptState::Failed, "worker_disk_full")
    );
    watch.until_state(TaskState::Failed).await;
    let output = client.output(&task.task_id).await;
    assert!(output.starts_with(b"begun\n"), "{output:?}");
    marked_gone("disk-full").await;

    // The daemon is there and says that it takes nothing: the next task is not even offered until there is room.
    client.until_daemon("small", DaemonState::Sick).await;
    let next = client.submit(command("echo", &["done"], "disk-full")).await;
    worker.room.free();
    client
        .until_state(&next.task_id, TaskState::Completed)
        .await;
    assert_eq!(client.get(&next.task_id).await.attempt_count, 1);
    assert_eq!(client.output(&next.task_id).await, b"done\n");
    poll_until("all directories of attempts to go", || {
        let left = fs::read_dir(worker.room.path("attempts")).ok()?.count();
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(worker.daemon.terminate().await.code(), Some(0));
}
