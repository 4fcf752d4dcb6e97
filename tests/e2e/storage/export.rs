//! Exports of a relay at work: what is in them, and that nothing but a whole one is taken.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use baton_proto::v1::{ExportRequest, Role, SubmitRequest, TaskSpec, TaskState, VerifyRequest};
use baton_relay::archive::{self, ArchiveReader, ImportOptions};
use baton_tests::{
    RelayProcess, ScriptedDaemon, TestClient, agent_task, error_code, hello, join_all, wait_within,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::BATON;

const AGENT: &str = "export";
const CLIENTS: usize = 4;
const DAEMONS: usize = 2;
/// Acknowledged before the export begins, of each client.
const TASKS_BEFORE_EXPORT: usize = 40;
/// Rounds of truncated and altered copies; `BATON_ALTERED` makes more.
const ALTERED_ROUNDS: usize = 150;

/// What a client was told, in order.
#[derive(Clone, Debug, Default)]
struct AcknowledgedWork {
    /// Per client: its tasks, each submitted after the one before was acknowledged.
    submitted: BTreeMap<usize, Vec<String>>,
    /// What each task that has completed has written.
    completed: BTreeMap<String, String>,
}

type SharedWork = Arc<Mutex<AcknowledgedWork>>;

fn with_work<T>(ledger: &SharedWork, look: impl FnOnce(&mut AcknowledgedWork) -> T) -> T {
    look(&mut ledger.lock().unwrap_or_else(PoisonError::into_inner))
}

fn numbered_task(number: usize) -> TaskSpec {
    // Now and then a prompt that is too long for its record.
    let prompt = if number.is_multiple_of(10) {
        format!("prompt {number} ").repeat(9_000)
    } else {
        format!("prompt {number}")
    };
    TaskSpec {
        prompt,
        ..agent_task(AGENT)
    }
}

/// Submits without pause, one after the other, until it is told to stop.
async fn submit_until_stopped(
    client: TestClient,
    number: usize,
    ledger: SharedWork,
    stop: CancellationToken,
) {
    for turn in 0.. {
        if stop.is_cancelled() {
            return;
        }
        let request = SubmitRequest {
            spec: Some(numbered_task(turn)),
            idempotency_key: format!("client-{number}-{turn}"),
            ..SubmitRequest::default()
        };
        let accepted = client.try_submit(request).await.expect("it is accepted");
        let task = accepted.task.expect("an accepted task is in the answer");
        with_work(&ledger, |ledger| {
            let own = ledger.submitted.entry(number).or_default();
            own.push(task.task_id);
        });
    }
}

/// Completes what it is offered; that a completion counts is known when it was acknowledged.
async fn complete_until_stopped(link: TestClient, ledger: SharedWork, stop: CancellationToken) {
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[AGENT])).await;
    while !stop.is_cancelled() {
        let mut attempt = daemon.start_next_attempt().await;
        let text = format!("output of {}\n", attempt.id()).repeat(20);
        attempt.send_output(&text).await;
        attempt.complete("done").await;
        daemon.wait_until_acked(&attempt).await;
        daemon.stop_renewing(&attempt);
        with_work(&ledger, |ledger| {
            ledger
                .completed
                .insert(attempt.attempt_ref.task_id.clone(), text);
        });
    }
}

async fn wait_for_work(
    ledger: &SharedWork,
    what: &str,
    mut look: impl FnMut(&AcknowledgedWork) -> bool,
) {
    baton_tests::poll_until(what, || {
        with_work(ledger, |ledger| look(ledger)).then_some(())
    })
    .await;
}

fn export_path(dir: &Path, name: &str) -> (PathBuf, String) {
    let path = dir.join(name);
    let text = path.display().to_string();
    (path, text)
}

/// Clients and daemons at work.
struct ExportLoad {
    work: SharedWork,
    stop: CancellationToken,
    running: Vec<AbortOnDropHandle<()>>,
}

impl ExportLoad {
    async fn start(admin: &TestClient) -> Self {
        let (ledger, stop) = (SharedWork::default(), CancellationToken::new());
        let link = admin.client_of_tenant("", Role::Daemon).await;
        let mut running = Vec::new();
        for number in 0..CLIENTS {
            let own =
                submit_until_stopped(admin.clone(), number, Arc::clone(&ledger), stop.clone());
            running.push(AbortOnDropHandle::new(tokio::spawn(own)));
        }
        for _ in 0..DAEMONS {
            let own = complete_until_stopped(link.clone(), Arc::clone(&ledger), stop.clone());
            running.push(AbortOnDropHandle::new(tokio::spawn(own)));
        }
        wait_for_work(&ledger, "work before the export", |ledger| {
            let enough = |own: &Vec<String>| own.len() >= TASKS_BEFORE_EXPORT;
            ledger.submitted.len() == CLIENTS
                && ledger.submitted.values().all(enough)
                && ledger.completed.len() >= TASKS_BEFORE_EXPORT
        })
        .await;
        Self {
            work: ledger,
            stop,
            running,
        }
    }

    fn snapshot(&self) -> AcknowledgedWork {
        with_work(&self.work, |ledger| ledger.clone())
    }

    fn stop(self) {
        self.stop.cancel();
        drop(self.running);
    }
}

/// Everything that was acknowledged before is there and as it was; of what came later, each client's beginning.
async fn check_prefix(there: &TestClient, before: &AcknowledgedWork, after: &AcknowledgedWork) {
    for (number, told) in &before.submitted {
        let mut missing = false;
        for (turn, task) in after.submitted[number].iter().enumerate() {
            let found = there.try_get_with_spec(task).await;
            if turn < told.len() {
                let found = found.as_ref().expect("acknowledged before the export");
                let asked = found.spec.as_ref().expect("a task has its specification");
                assert_eq!(asked.prompt, numbered_task(turn).prompt);
            }
            assert!(
                !(missing && found.is_ok()),
                "{turn} of client {number} is there and one before it is not"
            );
            missing |= found.is_err();
        }
    }
    for (task, text) in &before.completed {
        let found = there.get(task).await;
        assert_eq!(found.state(), TaskState::Completed, "{found:?}");
        assert_eq!(there.read_output_to_end(task).await, text.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_under_load_is_a_consistent_prefix_that_another_relay_goes_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let relay = RelayProcess::start(BATON).await;
    let admin = relay.admin().clone();
    let load = ExportLoad::start(&admin).await;
    let before = load.snapshot();
    let (_, name) = export_path(dir.path(), "backup");
    let export = ["export", "--out", &name, "--json"];
    let made = BATON.run(relay.data(), &export).await;
    let after = load.snapshot();
    assert_eq!(made.code, Some(0), "{made:?}");
    let made = made.stdout_json();
    assert_eq!(
        (made["skipped"].as_u64(), made["missingBodies"].as_u64()),
        (Some(0), Some(0))
    );
    let grew = |number: &usize| after.submitted[number].len() > before.submitted[number].len();
    assert!(
        before.submitted.keys().any(grew),
        "there was load meanwhile"
    );
    let live = BATON.run(relay.data(), &["verify", "--json"]).await;
    assert_eq!(live.code, Some(0), "a busy relay is whole: {live:?}");
    load.stop();

    let checked = BATON.run(dir.path(), &["verify", &name, "--json"]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let home = tempfile::tempdir().unwrap();
    let taken = BATON.run(home.path(), &["import", &name, "--json"]).await;
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let offline = BATON.run(home.path(), &["verify", "--json"]).await;
    assert_eq!(offline.code, Some(0), "{offline:?}");
    assert_eq!(
        taken.stdout_json()["tasks"],
        offline.stdout_json()["summary"]["tasks"]
    );

    let elsewhere = RelayProcess::start_on(BATON, home, &[]).await;
    let there = elsewhere.admin();
    check_prefix(there, &before, &after).await;
    let (same, other) = (admin.relay_info().await, there.relay_info().await);
    assert_ne!(same.incarnation, other.incarnation);
    assert_eq!(other.unreadable_records, 0);
    // Tokens came with it, as hashes: who had one has it still.
    let old = there.with_token(admin.token_secret());
    old.get(&before.submitted[&0][0]).await;
}

/// A small export with every kind of thing in it.
async fn small_export(dir: &Path) -> PathBuf {
    let relay = RelayProcess::start(BATON).await;
    let admin = relay.admin();
    let link = admin.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[AGENT])).await;
    for number in [0, 1, 2] {
        admin.submit(numbered_task(number)).await;
    }
    for _ in 0..2 {
        let mut attempt = daemon.start_next_attempt().await;
        attempt.send_output("a line\n").await;
        attempt.complete("").await;
        daemon.wait_until_acked(&attempt).await;
    }
    let (file, name) = export_path(dir, "small");
    let made = BATON.run(relay.data(), &["export", "--out", &name]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    file
}

/// Where each frame of an export ends.
fn frame_boundaries(bytes: &[u8]) -> Vec<usize> {
    let mut reader = ArchiveReader::open(bytes).expect("a whole export");
    let mut ends = vec![
        0,
        8,
        usize::try_from(reader.position()).expect("a small file"),
    ];
    while let Some(_item) = reader.next_item().expect("a whole export") {
        ends.push(usize::try_from(reader.position()).expect("a small file"));
    }
    ends
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_or_altered_export_is_always_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(small_export(dir.path()).await).unwrap();
    let (bad, bad_name) = export_path(dir.path(), "bad");
    let (target, target_name) = export_path(dir.path(), "target");
    let refused = |bytes: &[u8], what: &str| {
        std::fs::write(&bad, bytes).unwrap();
        let options = ImportOptions {
            accept_loss: true,
            now_ms: 1,
        };
        let import = archive::import_file(&bad, &target, options, &mut |_| true);
        let error = import.expect_err(what);
        assert!(error.to_string().contains("byte"), "it says where: {error}");
        assert!(!target.exists(), "{what}: the directory was touched");
    };
    let ends = frame_boundaries(&whole);
    assert!(ends.len() > 12, "many frames, not {}", ends.len());
    for end in ends.iter().filter(|end| **end < whole.len()) {
        refused(&whole[..*end], &format!("cut at {end}"));
    }
    let rounds =
        std::env::var("BATON_ALTERED").map_or(ALTERED_ROUNDS, |text| text.parse().unwrap());
    for _ in 0..rounds {
        let mut bytes = whole.clone();
        let at = rand::random_range(0..bytes.len());
        bytes[at] ^= rand::random_range(1..=255_u8);
        refused(&bytes, &format!("altered at {at}"));
        let cut = rand::random_range(0..whole.len());
        refused(&whole[..cut], &format!("cut at {cut}"));
    }
    std::fs::write(&bad, &whole[..whole.len() - 1]).unwrap();
    for (arguments, code) in [
        (vec!["import", &bad_name, "--data", &target_name], 1),
        // Told from findings, which end with 1.
        (vec!["verify", &bad_name], 4),
    ] {
        let said = BATON.run(dir.path(), &arguments).await;
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.stderr.contains("cut short"), "{said:?}");
        assert!(said.stderr.contains("try:"), "{said:?}");
    }
    let missing = dir.path().join("missing").display().to_string();
    for arguments in [
        vec!["import", &missing, "--data", &target_name],
        vec!["verify", &missing],
    ] {
        let said = BATON.run(dir.path(), &arguments).await;
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains("try:"), "{said:?}");
    }
    assert!(!target.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_holds_no_secret_and_only_an_administrator_of_all_tenants_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let relay = RelayProcess::start(BATON).await;
    let admin = relay.admin();
    let link = admin.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[AGENT])).await;
    admin.submit(agent_task(AGENT)).await;
    let attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;
    // The secret half of a token stands behind its id.
    let half = |token: &str| token.splitn(3, '_').nth(2).unwrap().as_bytes().to_vec();
    let secrets = [
        half(admin.token_secret()),
        half(link.token_secret()),
        attempt.token().value.to_vec(),
    ];
    let one_tenant = admin.client_of_tenant("acme", Role::Admin).await;
    let refused = one_tenant.operator().export(ExportRequest::default()).await;
    assert_eq!(
        error_code(&refused.expect_err("another tenant's data")),
        "foreign_tenant"
    );
    for (name, flags) in [("with", vec![]), ("without", vec!["--without-tokens"])] {
        let (file, name) = export_path(dir.path(), name);
        let mut arguments = vec!["export", "--out", &name];
        arguments.extend(flags);
        let made = BATON.run(relay.data(), &arguments).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let bytes = std::fs::read(&file).unwrap();
        for secret in &secrets {
            assert!(secret.len() >= 32, "a secret is long");
            let found = bytes.windows(secret.len()).any(|window| window == secret);
            assert!(!found, "a secret is in the export");
        }
        let again = BATON.run(relay.data(), &arguments).await;
        assert_eq!(
            again.code,
            Some(2),
            "an export replaces nothing unasked: {again:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_export_holds_up_nobody_but_other_exports() {
    let relay = RelayProcess::start(BATON).await;
    let admin = relay.admin().clone();
    let tasks = (0..60).map(|_| admin.submit(numbered_task(0)));
    join_all(tasks).await;
    let stuck = wait_within("the export to begin", async {
        admin.operator().export(ExportRequest::default()).await
    });
    let stuck = stuck.await.expect("the export begins").into_inner();
    let busy = admin.operator().verify(VerifyRequest::default()).await;
    assert_eq!(
        error_code(&busy.expect_err("one at a time")),
        "transfer_busy"
    );
    let task = admin.submit(agent_task(AGENT)).await;
    assert_eq!(admin.get(&task.task_id).await.task_id, task.task_id);
    drop(stuck);
    let free = async {
        let mut ticks = tokio::time::interval(std::time::Duration::from_millis(50));
        loop {
            ticks.tick().await;
            if admin
                .operator()
                .verify(VerifyRequest::default())
                .await
                .is_ok()
            {
                return;
            }
        }
    };
    wait_within("a client that left to make room", free).await;
}
