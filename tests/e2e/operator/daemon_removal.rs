//! Offline daemons that an operator removes with `baton forget`. The removal stays on record
//! with its reason.

use baton_proto::v1::Role;
use baton_tests::{RelayProcess, ScriptedDaemon, agent_task, hello};

use crate::BATON;

const AGENT: &str = "forgotten";

#[tokio::test(flavor = "multi_thread")]
async fn forgetting_an_offline_daemon_records_the_operator() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[AGENT])).await;
    let id = daemon.welcome.daemon_id.clone();
    let forget = ["forget", &id, "--reason", "the machine was scrapped"];

    let refused = BATON.run(relay.data(), &forget).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("stop the daemon"), "{refused:?}");
    let task = client.submit(agent_task(AGENT)).await;
    let mut attempt = daemon.start_next_attempt().await;
    // A scripted daemon does not resend unacknowledged frames, so wait for the ack.
    daemon.wait_until_acked(&attempt).await;
    let returning = daemon.hello.clone();
    attempt.detach_stream();
    drop(daemon);
    client.wait_until_offline(&id).await;
    let refused = BATON.run(relay.data(), &forget).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("holds leases"), "{refused:?}");

    // The daemon reconnects to finish its attempt and then disconnects for good.
    let mut daemon =
        ScriptedDaemon::reconnect_with_finished(&link, returning.clone(), &mut attempt).await;
    attempt.complete("").await;
    daemon.wait_until_acked(&attempt).await;
    drop((daemon, attempt));
    client.wait_until_offline(&id).await;
    let forgotten = BATON.run(relay.data(), &forget).await;
    assert_eq!(
        (forgotten.code, forgotten.stdout),
        (Some(0), format!("forgot {id}\n"))
    );
    let refused = BATON.run(relay.data(), &forget).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");

    relay.terminate().await;
    relay.start_again().await;
    let listed = BATON
        .run(relay.data(), &["daemons", "--forgotten", "--json"])
        .await;
    let listed = listed.stdout_json();
    assert!(
        listed
            .get("daemons")
            .is_none_or(|list| list.as_array().unwrap().is_empty())
    );
    let audit = &listed["forgotten"][0];
    assert_eq!(audit["daemonId"], id.as_str());
    assert_eq!(audit["reason"], "the machine was scrapped");
    assert!(!audit["by"].as_str().unwrap().is_empty(), "{audit}");
    let shown = BATON.run(relay.data(), &["daemons", "--forgotten"]).await;
    assert!(shown.stdout.contains("scrapped"), "{shown:?}");
    assert_eq!(client.get(&task.task_id).await.task_id, task.task_id);

    // A forgotten daemon that connects again gets a new id.
    let returned = ScriptedDaemon::connect(&link, returning).await;
    assert_ne!(returned.welcome.daemon_id, id);
}
