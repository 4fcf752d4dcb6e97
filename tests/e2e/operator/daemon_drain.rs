//! Operator commands on daemons: they need a reason and stay on record.

use baton_proto::v1::Role;
use baton_proto::v1::relay_frame::Frame;
use baton_tests::{RelayProcess, ScriptedDaemon, hello};
use serde_json::{Value, json};

use crate::BATON;

/// The changes of this daemon, newest first: operation, reason, state before and after.
async fn daemon_changes(relay: &RelayProcess, id: &str) -> Vec<Value> {
    let arguments = ["daemons", "--changes", "--json"];
    let listed = BATON.run(relay.data(), &arguments).await.stdout_json();
    let changes = listed["changes"]
        .as_array()
        .expect("a list of changes")
        .iter();
    let change = |change: &Value| {
        assert_eq!(change["daemonId"], id);
        assert!(
            !change["by"]
                .as_str()
                .expect("the operator's name")
                .is_empty()
        );
        json!([
            change["operation"],
            change["reason"],
            change["before"],
            change["after"]
        ])
    };
    changes.map(change).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_shows_operator_and_reason_and_survives_a_restart() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["work"])).await;
    let id = daemon.welcome.daemon_id.clone();
    let refused = BATON.run(relay.data(), &["drain", &id]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let drain = ["drain", &id, "--reason", "a new disk"];
    let drained = BATON.run(relay.data(), &drain).await;
    assert_eq!(
        (drained.code, &*drained.stdout),
        (Some(0), "draining\n"),
        "{drained:?}"
    );
    daemon
        .expect_frame("Drain", |frame| {
            matches!(frame.frame, Some(Frame::Drain(_))).then_some(())
        })
        .await;
    let shown = BATON.run(relay.data(), &["daemons"]).await;
    assert!(shown.stdout.contains("a new disk"), "{shown:?}");
    let undo = ["drain", &id, "--undo", "--reason", "it is in"];
    assert_eq!(BATON.run(relay.data(), &undo).await.code, Some(0));
    let shown = BATON.run(relay.data(), &["daemons"]).await;
    assert!(!shown.stdout.contains("a new disk"), "{shown:?}");
    let disconnect = ["disconnect", &id, "--reason", "a look"];
    assert_eq!(BATON.run(relay.data(), &disconnect).await.code, Some(0));
    drop(daemon);
    relay.terminate().await;
    relay.start_again().await;
    let changes = daemon_changes(&relay, &id).await;
    let daemon_state =
        |drained: bool, connected: bool| json!({"drained": drained, "connected": connected});
    assert_eq!(
        changes,
        [
            json!([
                "disconnect",
                "a look",
                daemon_state(false, true),
                daemon_state(false, false)
            ]),
            json!([
                "undrain",
                "it is in",
                daemon_state(true, true),
                daemon_state(false, true)
            ]),
            json!([
                "drain",
                "a new disk",
                daemon_state(false, true),
                daemon_state(true, true)
            ]),
        ]
    );
    let shown = BATON.run(relay.data(), &["daemons", "--changes"]).await;
    let line = "connected -> connected, drained";
    assert!(shown.stdout.contains(line), "{shown:?}");
}
