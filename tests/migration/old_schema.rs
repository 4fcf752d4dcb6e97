//! The current relay on data of an older schema.

use baton_proto::ShortName;
use baton_proto::v1::{DaemonState, ListDaemonsRequest, Role, SubmitRequest, TaskState};
use baton_tests::{RelayProcess, ScriptedDaemon, hello};

use crate::BATON;
use crate::schema_fixture::{EXPECTED_FILE, clock_after_recording, copy_schema_data, read_json};
use crate::schema_recorder::{keyed_task, list_tasks};

#[tokio::test(flavor = "multi_thread")]
async fn the_current_relay_serves_data_of_schema_1() {
    let known = read_json(1, EXPECTED_FILE);
    let clock = clock_after_recording(&known);
    let mut relay = RelayProcess::start_on(clock.apply_to(BATON), copy_schema_data(1), &[]).await;
    let client = relay.admin().clone();
    let expected = known["tasks"].as_object().expect("an object");
    let listed = list_tasks(&client).await;
    assert_eq!(listed.len(), expected.len());
    for task in &listed {
        let expected = &expected[&task.task_id];
        assert_eq!(task.state().short_name(), expected["state"], "{task:?}");
        let whole = client.try_get_with_spec(&task.task_id).await.unwrap();
        assert_eq!(whole.spec.unwrap().prompt, expected["prompt"]);
        if [TaskState::Completed, TaskState::Failed].contains(&task.state()) {
            let output = client.read_output_to_end(&task.task_id).await;
            assert_eq!(String::from_utf8(output).unwrap(), expected["output"]);
        }
    }
    assert_eq!(client.relay_info().await.unreadable_records, 0);
    let daemons = client
        .fleet()
        .list_daemons(ListDaemonsRequest::default())
        .await;
    let daemons = daemons.unwrap().into_inner().daemons;
    let drained = daemons
        .iter()
        .filter(|daemon| !daemon.drain_reason.is_empty());
    assert_eq!((daemons.len(), drained.count()), (3, 1), "{daemons:?}");
    assert!(
        daemons
            .iter()
            .all(|daemon| daemon.state() == DaemonState::Offline)
    );
    let verified = BATON.run(relay.data(), &["verify", "--json"]).await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
    relay.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_tasks_and_keys_of_schema_1_still_work() {
    let known = read_json(1, EXPECTED_FILE);
    let clock = clock_after_recording(&known);
    let relay = RelayProcess::start_on(clock.apply_to(BATON), copy_schema_data(1), &[]).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["waits"])).await;
    let mut attempt = daemon.start_next_attempt().await;
    let task = attempt.attempt_ref.task_id.clone();
    attempt.complete("").await;
    daemon.wait_until_acked(&attempt).await;
    client.wait_for_state(&task, TaskState::Completed).await;
    let again = SubmitRequest {
        spec: Some(keyed_task()),
        idempotency_key: "kept".to_owned(),
        ..SubmitRequest::default()
    };
    let same = client.try_submit(again).await.unwrap().task.unwrap();
    assert!(known["tasks"].get(&same.task_id).is_some(), "{same:?}");
}
