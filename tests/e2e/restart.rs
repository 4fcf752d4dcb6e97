//! The relay goes away and comes back: what runs goes on, and nothing is run again.

use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{Role, TaskState};
use baton_tests::{
    DaemonProcess, RelayProcess, ScriptedDaemon, command, for_agent, hello, marked_gone, poll_until,
};

use crate::{BATON, STANDIN};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_comes_back_and_the_same_attempts_complete() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, scripted_secret) = client.make_token("", Role::Daemon).await;
    let (_, real_secret) = client.make_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let mut real =
        DaemonProcess::start(BATON, dir.path(), "real", client.url(), &real_secret).await;
    let link = client.with_token(&scripted_secret);
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["scripted"])).await;

    let go_on = dir.path().join("go-on");
    let runs = dir.path().join("runs");
    let wait_for_file = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; echo finished",
        go_on.display()
    );
    let counted = format!(
        "echo $BATON_ATTEMPT_ID >> {}; {wait_for_file}",
        runs.display()
    );
    let real_task = client
        .submit(command("sh", &["-c", &counted], "restart"))
        .await;
    let scripted_task = client.submit(for_agent("scripted")).await;
    let offered_task = client.submit(for_agent("scripted")).await;
    let mut attempt = daemon.running().await;
    attempt.say("before ").await;
    daemon.acked(&attempt).await;
    let mut offered = daemon.offered().await;
    poll_until("the child to run", || runs.exists().then_some(())).await;

    relay.kill().await;
    relay.revive().await;

    let mut daemon = daemon
        .reconnect(&link, &mut [&mut attempt, &mut offered])
        .await;
    for settlement in &daemon.welcome.settlements {
        let kept = matches!(settlement.decision, Some(Decision::Keep(_)));
        assert!(kept, "{settlement:?}");
    }
    assert_eq!(daemon.welcome.settlements.len(), 2);
    attempt.say("after").await;
    attempt.complete("kept").await;
    // After a restart an offered attempt counts as confirmed.
    offered.accept().await;
    offered.started().await;
    offered.complete("also kept").await;
    std::fs::write(&go_on, "").unwrap();
    for task in [&real_task, &scripted_task, &offered_task] {
        client
            .watch(&task.task_id)
            .await
            .until_state(TaskState::Completed)
            .await;
        assert_eq!(
            client.get(&task.task_id).await.attempts.len(),
            1,
            "nothing was run again"
        );
    }
    let done = client.get(&scripted_task.task_id).await;
    assert_eq!(done.attempts[0].attempt_id, attempt.id());
    assert_eq!(done.result.as_ref(), b"kept");
    assert_eq!(client.output(&scripted_task.task_id).await, b"before after");
    let lines = std::fs::read_to_string(&runs).unwrap();
    assert_eq!(lines.lines().count(), 1, "the child ran once: {lines}");
    assert_eq!(
        client.output(&real_task.task_id).await,
        b"begun\nfinished\n"
    );
    marked_gone("restart").await;
    assert!(
        daemon
            .unexpected()
            .iter()
            .all(|frame| !format!("{frame:?}").contains("Rejected"))
    );

    assert_eq!(
        real.terminate().await.code(),
        Some(0),
        "a drained daemon ends cleanly"
    );
    assert_eq!(
        relay.terminate().await.code(),
        Some(0),
        "a stopped relay ends cleanly"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_daemon_gives_back_or_finishes_its_work_and_a_killed_one_leaves_no_process() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.make_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = DaemonProcess::start(BATON, dir.path(), "one", client.url(), &secret).await;
    let task = client
        .submit(command(
            STANDIN,
            &["print", "1", "orphan", "pause"],
            "kill9",
        ))
        .await;
    let mut watch = client.watch(&task.task_id).await;
    watch
        .until("output", |event| {
            event.state() == baton_proto::v1::AttemptState::Streaming
        })
        .await;
    daemon.kill().await;
    // The child dies with the daemon; what escaped it is swept when the daemon starts again.
    let mut daemon = DaemonProcess::start(BATON, dir.path(), "one", client.url(), &secret).await;
    marked_gone("kill9").await;
    watch.until_state(TaskState::NeedsAttention).await;
    assert_eq!(daemon.terminate().await.code(), Some(0));
}
