//! A data directory that lost its newest changes. The tasks it still has are inherited: they
//! wait, because an attempt of them may still run on some machine.

use std::fs;
use std::time::Duration;

use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    FenceCode, ReleaseInheritedRequest, Role, Settlement, Task, TaskState, WaitsFor,
};
use baton_tests::{
    BatonExecutable, RelayProcess, ScriptedAttempt, ScriptedDaemon, TestClient, TestClock,
    agent_task, copy_directory, error_code, hello, wait_within,
};
use tonic::Code;

use crate::BATON;

const AGENT: &str = "inherited";
/// The agent of the daemon that ran an attempt before the loss. That daemon does not offer
/// `AGENT`.
const EARLIER_AGENT: &str = "earlier";
/// Longer than the largest lease with its grace.
const INHERITED_WAIT: Duration = Duration::from_secs(25 * 60 * 60);

/// A relay that was started with `--accept-loss` on a store without its newest changes.
struct InheritedFixture {
    relay: RelayProcess,
    client: TestClient,
    link: TestClient,
    /// Queued in the older copy of the store that the relay now runs on.
    waiting: Task,
    /// The attempt that ran when the copy was made, with the Hello of its daemon.
    running: ScriptedAttempt,
    hello: baton_proto::v1::Hello,
}

async fn start_fixture(baton: BatonExecutable) -> InheritedFixture {
    let mut relay = RelayProcess::start(baton).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[EARLIER_AGENT])).await;
    client.submit(agent_task(EARLIER_AGENT)).await;
    let running = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&running).await;
    let hello = daemon.hello.clone();
    drop(daemon);
    let waiting = client.submit(agent_task(AGENT)).await;
    relay.terminate().await;
    let older_copy = tempfile::tempdir().expect("a temporary directory can be made");
    let sled = relay.data().join("store/sled");
    copy_directory(&sled, older_copy.path());

    relay.start_again().await;
    client.submit(agent_task(AGENT)).await;
    relay.terminate().await;
    fs::remove_dir_all(&sled).expect("the store exists");
    copy_directory(older_copy.path(), &sled);
    let refused = relay.try_start_again().await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("--accept-loss"), "{refused:?}");
    relay.start_again_with(&["--accept-loss"]).await;
    InheritedFixture {
        relay,
        client,
        link,
        waiting,
        running,
        hello,
    }
}

/// Reconnects the daemon from before the loss, which lists its attempt as running.
async fn reconnect_earlier_daemon(fixture: &InheritedFixture) -> (ScriptedDaemon, Vec<Settlement>) {
    let active = ScriptedDaemon::list_as_running(&[&fixture.running]);
    let hello = baton_proto::v1::Hello {
        active,
        agents: hello(&[AGENT]).agents,
        ..fixture.hello.clone()
    };
    let daemon = ScriptedDaemon::connect(&fixture.link, hello).await;
    let settlements = daemon.welcome.settlements.clone();
    (daemon, settlements)
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_accepted_loss_inherited_tasks_wait_for_release() {
    let fixture = start_fixture(BATON).await;
    let (mut daemon, settlements) = reconnect_earlier_daemon(&fixture).await;
    assert!(
        matches!(
            settlements[0].decision,
            Some(Decision::Kill(kill)) if kill.code() == FenceCode::StaleIncarnation
        ),
        "the attempt from before the loss is fenced: {settlements:?}"
    );
    let (client, waiting) = (fixture.client.clone(), fixture.waiting.task_id.clone());
    // A new task is dispatched at once, before the inherited one.
    let fresh = client.submit(agent_task(AGENT)).await;
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(attempt.attempt_ref.task_id, fresh.task_id);
    attempt.complete("").await;
    client
        .wait_for_state(&fresh.task_id, TaskState::Completed)
        .await;

    let inherited = client.get(&waiting).await;
    assert_eq!(
        (inherited.state(), inherited.waits_for()),
        (TaskState::Queued, WaitsFor::Inheritance)
    );
    let data = fixture.relay.data();
    let listed = BATON.run(data, &["tasks"]).await;
    let line = listed.stdout.lines().find(|line| line.contains(&waiting));
    let line = line.unwrap_or_else(|| panic!("{listed:?}"));
    assert!(
        line.contains("inheritance, at most 1d"),
        "the list shows how long the task waits: {line}"
    );
    let shown = BATON.run(data, &["show", &waiting]).await;
    assert!(shown.stdout.contains("release-inherited"), "{shown:?}");

    let without_reason = BATON.run(data, &["release-inherited"]).await;
    assert_eq!(without_reason.code, Some(2), "{without_reason:?}");
    let blank = BATON
        .run(data, &["release-inherited", "--reason", " "])
        .await;
    assert_eq!(blank.code, Some(2), "{blank:?}");
    assert_eq!(
        client.get(&waiting).await.waits_for(),
        WaitsFor::Inheritance
    );

    let release = ["release-inherited", "--reason", "the old machines are off"];
    let released = BATON.run(data, &release).await;
    assert_eq!(
        (released.code, released.stdout.trim()),
        (Some(0), "released 2"),
        "{released:?}"
    );
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(attempt.attempt_ref.task_id, waiting);
    attempt.complete("at last").await;
    client.wait_for_state(&waiting, TaskState::Completed).await;
    let again = BATON.run(data, &release).await;
    assert_eq!(again.stdout.trim(), "released 0", "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_accepted_loss_inherited_tasks_wait_out_the_largest_lease() {
    let clock = TestClock::new();
    let mut fixture = start_fixture(clock.apply_to(BATON)).await;
    let waiting = fixture.waiting.task_id.clone();
    fixture.relay.kill().await;
    fixture.relay.start_again().await;
    let client = fixture.client.clone();
    assert_eq!(
        client.get(&waiting).await.waits_for(),
        WaitsFor::Inheritance,
        "a second start keeps the wait"
    );
    let mut daemon = ScriptedDaemon::connect(&fixture.link, hello(&[AGENT])).await;
    let fresh = client.submit(agent_task(AGENT)).await;
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(attempt.attempt_ref.task_id, fresh.task_id);
    attempt.complete("").await;
    client
        .wait_for_state(&fresh.task_id, TaskState::Completed)
        .await;
    clock.advance_suspended(INHERITED_WAIT);
    let attempt = daemon.next_dispatch().await;
    assert_eq!(
        attempt.attempt_ref.task_id, waiting,
        "the queue deadline of a day did not run while the task was inherited"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_inherited_tasks_needs_an_admin_of_all_tenants_and_a_reason() {
    let relay = baton_tests::EmbeddedRelay::start().await;
    let admin = relay.admin();
    let release = async |client: &TestClient, reason: &str| {
        let request = ReleaseInheritedRequest {
            reason: reason.to_owned(),
        };
        let mut operator = client.operator();
        wait_within("an answer", operator.release_inherited(request)).await
    };
    let operator = admin.client_of_tenant("", Role::Operator).await;
    let admin_of_one_tenant = admin.client_of_tenant("acme", Role::Admin).await;
    for client in [&operator, &admin_of_one_tenant] {
        let refused = release(client, "off").await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    }
    let refused = release(admin, "").await.unwrap_err();
    assert_eq!(
        (refused.code(), error_code(&refused).as_str()),
        (Code::InvalidArgument, "missing")
    );
    let nothing = release(admin, "off").await.unwrap().into_inner();
    assert_eq!(nothing.released, 0, "no task is inherited");
}
