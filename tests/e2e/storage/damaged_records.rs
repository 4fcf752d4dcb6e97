//! Undecodable or contradictory records in a relay's store. They are reported and never treated
//! as absent.

use std::path::Path;

use baton_proto::v1::{ListTasksRequest, Role, TaskState};
use baton_relay::store::{KeyText, RecordKey, Store, StoreChange, StoreConfig};
use baton_tests::{RelayProcess, ScriptedDaemon, agent_task, hello};
use uuid::Uuid;

use crate::BATON;

const AGENT: &str = "damage";

/// Changes the store of a stopped relay.
pub(crate) fn change_stopped_store(data: &Path, changes: impl FnOnce(&Store) -> Vec<StoreChange>) {
    let config = StoreConfig::new(data.join("store"), Uuid::now_v7());
    let mut opened = Store::open(config).expect("the store opens");
    let changes = changes(&opened.store);
    opened
        .journal
        .append(changes)
        .expect("the change is stored");
    opened.journal.close().expect("the store closes");
}

pub(crate) fn default_tenant() -> KeyText {
    KeyText::new("default").expect("a valid name")
}

#[tokio::test(flavor = "multi_thread")]
async fn undecodable_records_are_reported_and_stop_neither_start_nor_list() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (good, bad) = (
        client.submit(agent_task(AGENT)).await,
        client.submit(agent_task(AGENT)).await,
    );
    relay.terminate().await;
    let task = bad.task_id.parse::<Uuid>().unwrap();
    change_stopped_store(relay.data(), |_| {
        let key = RecordKey::Live {
            tenant: default_tenant(),
            task,
        };
        vec![StoreChange::Put(key, b"not a valid record".to_vec())]
    });
    relay.start_again().await;
    assert_eq!(client.relay_info().await.unreadable_records, 1);
    assert_eq!(client.get(&good.task_id).await.task_id, good.task_id);
    assert!(client.try_get(&bad.task_id).await.is_err());
    let request = ListTasksRequest::default();
    let page = client.tasks().list(request).await.unwrap().into_inner();
    assert_eq!((page.tasks.len(), page.skipped), (1, 1));
    assert_eq!(
        client.relay_info().await.unreadable_records,
        1,
        "each damaged record counts once"
    );
    for _ in 0..2 {
        let output = BATON.run(relay.data(), &["verify"]).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(
            output.stdout.contains("undecodable default/live/"),
            "{output:?}"
        );
        assert!(output.stdout.contains("1 findings"), "{output:?}");
        // The second round runs without the relay.
        if output.stderr.is_empty() {
            relay.terminate().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_reports_contradictory_records() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let mut daemon = ScriptedDaemon::connect(
        &client.client_of_tenant("", Role::Daemon).await,
        hello(&[AGENT]),
    )
    .await;
    let (doubled, orphan, lost) = (
        client.submit(agent_task("nobody")).await,
        client.submit(agent_task("nobody")).await,
        client.submit(agent_task("nobody")).await,
    );
    let finished = client.submit(agent_task(AGENT)).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.complete("").await;
    daemon.wait_until_acked(&attempt).await;
    relay.terminate().await;
    let id = |task: &baton_proto::v1::Task| task.task_id.parse::<Uuid>().unwrap();
    let live = |task| RecordKey::Live {
        tenant: default_tenant(),
        task,
    };
    let done = |task| RecordKey::Done {
        tenant: default_tenant(),
        task,
    };
    let spec = |task| RecordKey::Spec {
        tenant: default_tenant(),
        task,
    };
    change_stopped_store(relay.data(), |store| {
        let body = store.get(&done(id(&finished))).unwrap().unwrap().to_vec();
        vec![
            StoreChange::Put(done(id(&doubled)), body),
            StoreChange::Delete(spec(id(&orphan))),
            StoreChange::Delete(live(id(&lost))),
        ]
    });
    let output = BATON.run(relay.data(), &["verify", "--json"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    for (task, finding) in [
        (&doubled, "open and finished"),
        (&orphan, "specification is missing"),
        (&lost, "has no task record"),
    ] {
        let reported = output
            .stdout
            .lines()
            .any(|line| line.contains(&task.task_id) && line.contains(finding));
        assert!(reported, "{finding}: {output:?}");
    }
    assert!(
        !output
            .stdout
            .contains(&format!("task/{}", finished.task_id)),
        "{output:?}"
    );
    relay.start_again().await;
    let live = BATON.run(relay.data(), &["verify", "--json"]).await;
    assert_eq!(live.code, Some(1), "{live:?}");
}

/// The fence, the pauses and the scheduler's switch are stored records that stop dispatch. If
/// such a record is unreadable, dispatch must stay stopped.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_pause_or_fence_still_stops_dispatch() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let before = client.submit(agent_task(AGENT)).await;
    relay.terminate().await;
    let control = |name: &str| RecordKey::Control {
        tenant: None,
        name: KeyText::new(name).unwrap(),
    };
    change_stopped_store(relay.data(), |_| {
        let names = [
            "scheduler",
            "pauses",
            "fence/019a0000-0000-7000-8000-000000000001",
        ];
        let broken = |name: &str| StoreChange::Put(control(name), b"not a valid record".to_vec());
        names.map(broken).to_vec()
    });
    relay.start_again().await;
    assert_eq!(client.relay_info().await.unreadable_records, 3);
    let daemon = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&daemon, hello(&[AGENT])).await;
    let output = BATON.run(relay.data(), &["scheduler"]).await;
    assert!(output.stdout.contains("cannot be read"), "{output:?}");
    let unpause = ["unpause", "--scheduler", "--reason", "nothing was paused"];
    assert_eq!(BATON.run(relay.data(), &unpause).await.code, Some(0));
    // Older tasks wait for the longest possible lease; new tasks do not.
    let after = client.submit(agent_task(AGENT)).await;
    assert_eq!(
        daemon.start_next_attempt().await.attempt_ref.task_id,
        after.task_id
    );
    let waiting = client.get(&before.task_id).await;
    assert_eq!(waiting.state(), TaskState::Queued);
    // All three records were replaced or removed.
    relay.terminate().await;
    let output = BATON.run(relay.data(), &["verify"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_with_an_unreadable_record_keeps_its_id_and_attempts() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let token = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&token, hello(&[AGENT])).await;
    let task = client.submit(agent_task(AGENT)).await;
    let attempt = daemon.start_next_attempt().await;
    let id = daemon.hello.daemon_id.clone();
    relay.terminate().await;
    change_stopped_store(relay.data(), |_| {
        let key = RecordKey::Daemon {
            tenant: default_tenant(),
            daemon: id.parse().unwrap(),
        };
        vec![StoreChange::Put(key, b"not a valid record".to_vec())]
    });
    relay.start_again().await;
    let mut again = hello(&[AGENT]);
    again.daemon_id = id.clone();
    again.active = ScriptedDaemon::list_as_running(&[&attempt]);
    let daemon = ScriptedDaemon::connect(&token, again).await;
    assert_eq!(daemon.hello.daemon_id, id);
    assert_eq!(client.get(&task.task_id).await.state(), TaskState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_profile_is_reported_and_not_treated_as_absent() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let put = ["profile", "put", "slow", "--deadline", "first_event=30s"];
    assert_eq!(BATON.run(relay.data(), &put).await.code, Some(0));
    relay.terminate().await;
    change_stopped_store(relay.data(), |_| {
        let key = RecordKey::Profile {
            tenant: default_tenant(),
            name: KeyText::new("slow").unwrap(),
        };
        vec![StoreChange::Put(key, b"not a valid record".to_vec())]
    });
    relay.start_again().await;
    let submit = ["submit", "--profile", "slow", "--", "true"];
    let output = BATON.run(relay.data(), &submit).await;
    assert!(output.stderr.contains("[unreadable_record]"), "{output:?}");
    assert_eq!(client.relay_info().await.unreadable_records, 1);
    assert_eq!(BATON.run(relay.data(), &put).await.code, Some(0));
    assert_eq!(BATON.run(relay.data(), &submit).await.code, Some(0));
}
