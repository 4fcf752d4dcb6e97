//! The relay is killed and restarted: running attempts continue, and no task is run twice.

use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{Role, TaskState};
use baton_tests::{RelayProcess, ScriptedDaemon, agent_task, hello};

use crate::BATON;

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_relay_keeps_running_and_offered_attempts() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["scripted"])).await;
    let running_task = client.submit(agent_task("scripted")).await;
    let mut running = daemon.start_next_attempt().await;
    running.send_output("before ").await;
    daemon.wait_until_acked(&running).await;
    let offered_task = client.submit(agent_task("scripted")).await;
    let mut offered = daemon.next_dispatch().await;

    relay.kill().await;
    relay.start_again().await;

    // The stored output is counted before the daemon reconnects and reports its end.
    let shown = client.get(&running_task.task_id).await;
    let shown = shown.attempts[0].output.expect("a view of the output");
    assert_eq!(shown.bytes, 7, "{shown:?}");
    let mut daemon = daemon
        .reconnect(&link, &mut [&mut running, &mut offered])
        .await;
    assert_eq!(daemon.welcome.settlements.len(), 2);
    for settlement in &daemon.welcome.settlements {
        assert!(
            matches!(settlement.decision, Some(Decision::Keep(_))),
            "{settlement:?}"
        );
    }
    running.send_output("after").await;
    running.complete("kept").await;
    // After a restart the relay treats an offered attempt as confirmed.
    offered.accept().await;
    offered.send_started().await;
    offered.complete("also kept").await;
    for (task, attempt) in [(&running_task, &running), (&offered_task, &offered)] {
        client
            .wait_for_state(&task.task_id, TaskState::Completed)
            .await;
        let done = client.get(&task.task_id).await;
        let attempts: Vec<&str> = done
            .attempts
            .iter()
            .map(|one| one.attempt_id.as_str())
            .collect();
        assert_eq!(attempts, [attempt.id()], "no second attempt was started");
    }
    assert_eq!(
        client.get(&running_task.task_id).await.result.as_ref(),
        b"kept"
    );
    assert_eq!(
        client.read_output_to_end(&running_task.task_id).await,
        b"before after"
    );
    let refused = daemon.collect_unread_frames();
    let refused = refused
        .iter()
        .find(|frame| matches!(frame.frame, Some(Frame::Rejected(_))));
    assert!(refused.is_none(), "{refused:?}");
}
