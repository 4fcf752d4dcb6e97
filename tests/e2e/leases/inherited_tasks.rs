//! Data that lost its newest changes: what the relay inherited waits, because it may still run somewhere.

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
/// Of a daemon that ran something before the loss; it does not offer the other.
const EARLIER_AGENT: &str = "earlier";
/// More than the largest lease and its grace.
const INHERITED_WAIT: Duration = Duration::from_secs(25 * 60 * 60);

/// A relay whose newest changes were lost and the loss accepted.
struct InheritedFixture {
    relay: RelayProcess,
    client: TestClient,
    link: TestClient,
    /// Queued when the copy was made that is the data now.
    waiting: Task,
    /// What ran at that time, and the daemon that had it.
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
    let kept = tempfile::tempdir().expect("a temporary directory can be made");
    let sled = relay.data().join("store/sled");
    copy_directory(&sled, kept.path());

    relay.start_again().await;
    client.submit(agent_task(AGENT)).await;
    relay.terminate().await;
    fs::remove_dir_all(&sled).expect("the store is there");
    copy_directory(kept.path(), &sled);
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

/// The daemon of before comes back with what it ran.
async fn reconnect_earlier_daemon(world: &InheritedFixture) -> (ScriptedDaemon, Vec<Settlement>) {
    let active = ScriptedDaemon::list_as_running(&[&world.running]);
    let hello = baton_proto::v1::Hello {
        active,
        agents: hello(&[AGENT]).agents,
        ..world.hello.clone()
    };
    let daemon = ScriptedDaemon::connect(&world.link, hello).await;
    let settlements = daemon.welcome.settlements.clone();
    (daemon, settlements)
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_accepted_loss_inherited_tasks_wait_for_an_operators_word() {
    let world = start_fixture(BATON).await;
    let (mut daemon, settlements) = reconnect_earlier_daemon(&world).await;
    assert!(
        matches!(
            settlements[0].decision,
            Some(Decision::Kill(kill)) if kill.code() == FenceCode::StaleIncarnation
        ),
        "what ran before speaks for nothing any more: {settlements:?}"
    );
    let (client, waiting) = (world.client.clone(), world.waiting.task_id.clone());
    // A new task is not held: it passes the one that waits.
    let fresh = client.submit(agent_task(AGENT)).await;
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(attempt.attempt_ref.task_id, fresh.task_id);
    attempt.complete("").await;
    client
        .wait_for_state(&fresh.task_id, TaskState::Completed)
        .await;

    let held = client.get(&waiting).await;
    assert_eq!(
        (held.state(), held.waits_for()),
        (TaskState::Queued, WaitsFor::Inheritance)
    );
    let data = world.relay.data();
    let listed = BATON.run(data, &["tasks"]).await;
    let line = listed.stdout.lines().find(|line| line.contains(&waiting));
    let line = line.unwrap_or_else(|| panic!("{listed:?}"));
    assert!(line.contains("inheritance, 1d"), "and until when: {line}");
    let shown = BATON.run(data, &["show", &waiting]).await;
    assert!(shown.stdout.contains("release-inherited"), "{shown:?}");

    let speechless = BATON.run(data, &["release-inherited"]).await;
    assert_eq!(speechless.code, Some(2), "{speechless:?}");
    let blank = BATON
        .run(data, &["release-inherited", "--reason", " "])
        .await;
    assert_eq!(blank.code, Some(2), "{blank:?}");
    assert_eq!(
        client.get(&waiting).await.waits_for(),
        WaitsFor::Inheritance
    );

    let word = ["release-inherited", "--reason", "the old machines are off"];
    let said = BATON.run(data, &word).await;
    assert_eq!(
        (said.code, said.stdout.trim()),
        (Some(0), "released 2"),
        "{said:?}"
    );
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(attempt.attempt_ref.task_id, waiting);
    attempt.complete("at last").await;
    client.wait_for_state(&waiting, TaskState::Completed).await;
    let again = BATON.run(data, &word).await;
    assert_eq!(again.stdout.trim(), "released 0", "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_accepted_loss_inherited_tasks_wait_for_the_largest_lease_over_restarts() {
    let clock = TestClock::new();
    let mut world = start_fixture(clock.apply_to(BATON)).await;
    let waiting = world.waiting.task_id.clone();
    world.relay.kill().await;
    world.relay.start_again().await;
    let client = world.client.clone();
    assert_eq!(
        client.get(&waiting).await.waits_for(),
        WaitsFor::Inheritance,
        "a second start remembers"
    );
    let mut daemon = ScriptedDaemon::connect(&world.link, hello(&[AGENT])).await;
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
        "its queue deadline of a day stood still"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_admin_of_all_tenants_gives_the_word_and_only_with_a_reason() {
    let relay = baton_tests::EmbeddedRelay::start().await;
    let admin = relay.admin();
    let ask = async |client: &TestClient, reason: &str| {
        let request = ReleaseInheritedRequest {
            reason: reason.to_owned(),
        };
        let mut operator = client.operator();
        wait_within("an answer", operator.release_inherited(request)).await
    };
    let operator = admin.client_of_tenant("", Role::Operator).await;
    let of_one = admin.client_of_tenant("acme", Role::Admin).await;
    for client in [&operator, &of_one] {
        let refused = ask(client, "off").await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    }
    let refused = ask(admin, "").await.unwrap_err();
    assert_eq!(
        (refused.code(), error_code(&refused).as_str()),
        (Code::InvalidArgument, "missing")
    );
    let nothing = ask(admin, "off").await.unwrap().into_inner();
    assert_eq!(nothing.released, 0, "nothing is held");
}
