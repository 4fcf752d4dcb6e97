//! Exports of a running relay: their content, and that only a complete export is accepted.

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
/// Tasks of each client that are acknowledged before the export starts.
const TASKS_BEFORE_EXPORT: usize = 40;
/// Rounds of truncated and altered copies. `BATON_ALTERED` sets another number.
const ALTERED_ROUNDS: usize = 150;

/// Acknowledged submissions and completions.
#[derive(Clone, Debug, Default)]
struct AcknowledgedWork {
    /// The tasks of each client, each submitted after the previous one was acknowledged.
    submitted: BTreeMap<usize, Vec<String>>,
    /// The output of each completed task.
    completed: BTreeMap<String, String>,
}

type SharedWork = Arc<Mutex<AcknowledgedWork>>;

fn with_work<T>(work: &SharedWork, visit: impl FnOnce(&mut AcknowledgedWork) -> T) -> T {
    visit(&mut work.lock().unwrap_or_else(PoisonError::into_inner))
}

fn numbered_task(number: usize) -> TaskSpec {
    // Every tenth prompt is too long for its record and is stored as a body file.
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

/// Submits tasks one after the other until `stop` is canceled.
async fn submit_until_stopped(
    client: TestClient,
    number: usize,
    work: SharedWork,
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
        let accepted = client
            .try_submit(request)
            .await
            .expect("the submission is accepted");
        let task = accepted.task.expect("an accepted task is in the answer");
        with_work(&work, |work| {
            let own_tasks = work.submitted.entry(number).or_default();
            own_tasks.push(task.task_id);
        });
    }
}

/// Completes every dispatched task. A completion is recorded here once it is acknowledged.
async fn complete_until_stopped(link: TestClient, work: SharedWork, stop: CancellationToken) {
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[AGENT])).await;
    while !stop.is_cancelled() {
        let mut attempt = daemon.start_next_attempt().await;
        let text = format!("output of {}\n", attempt.id()).repeat(20);
        attempt.send_output(&text).await;
        attempt.complete("done").await;
        daemon.wait_until_acked(&attempt).await;
        daemon.stop_renewing(&attempt);
        with_work(&work, |work| {
            work.completed
                .insert(attempt.attempt_ref.task_id.clone(), text);
        });
    }
}

async fn wait_for_work(
    work: &SharedWork,
    what: &str,
    mut visit: impl FnMut(&AcknowledgedWork) -> bool,
) {
    baton_tests::poll_until(what, || with_work(work, |work| visit(work)).then_some(())).await;
}

fn export_path(dir: &Path, name: &str) -> (PathBuf, String) {
    let path = dir.join(name);
    let text = path.display().to_string();
    (path, text)
}

/// Clients and daemons that produce load.
struct ExportLoad {
    work: SharedWork,
    stop: CancellationToken,
    running: Vec<AbortOnDropHandle<()>>,
}

impl ExportLoad {
    async fn start(admin: &TestClient) -> Self {
        let (work, stop) = (SharedWork::default(), CancellationToken::new());
        let link = admin.client_of_tenant("", Role::Daemon).await;
        let mut running = Vec::new();
        for number in 0..CLIENTS {
            let load = submit_until_stopped(admin.clone(), number, Arc::clone(&work), stop.clone());
            running.push(AbortOnDropHandle::new(tokio::spawn(load)));
        }
        for _ in 0..DAEMONS {
            let load = complete_until_stopped(link.clone(), Arc::clone(&work), stop.clone());
            running.push(AbortOnDropHandle::new(tokio::spawn(load)));
        }
        wait_for_work(&work, "work before the export", |work| {
            let enough = |tasks: &Vec<String>| tasks.len() >= TASKS_BEFORE_EXPORT;
            work.submitted.len() == CLIENTS
                && work.submitted.values().all(enough)
                && work.completed.len() >= TASKS_BEFORE_EXPORT
        })
        .await;
        Self {
            work,
            stop,
            running,
        }
    }

    fn snapshot(&self) -> AcknowledgedWork {
        with_work(&self.work, |work| work.clone())
    }

    fn stop(self) {
        self.stop.cancel();
        drop(self.running);
    }
}

/// Checks that everything acknowledged before the export is present and unchanged, and that of
/// the later tasks each client's are a prefix.
async fn check_prefix(client: &TestClient, before: &AcknowledgedWork, after: &AcknowledgedWork) {
    for (number, acknowledged) in &before.submitted {
        let mut missing = false;
        for (turn, task) in after.submitted[number].iter().enumerate() {
            let found = client.try_get_with_spec(task).await;
            if turn < acknowledged.len() {
                let found = found.as_ref().expect("acknowledged before the export");
                let asked = found.spec.as_ref().expect("a task has its specification");
                assert_eq!(asked.prompt, numbered_task(turn).prompt);
            }
            assert!(
                !(missing && found.is_ok()),
                "task {turn} of client {number} exists, but an earlier one is missing"
            );
            missing |= found.is_err();
        }
    }
    for (task, text) in &before.completed {
        let found = client.get(task).await;
        assert_eq!(found.state(), TaskState::Completed, "{found:?}");
        assert_eq!(client.read_output_to_end(task).await, text.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_under_load_is_a_consistent_prefix_usable_by_another_relay() {
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
        "there was load during the export"
    );
    let live = BATON.run(relay.data(), &["verify", "--json"]).await;
    assert_eq!(
        live.code,
        Some(0),
        "verify of a busy relay found problems: {live:?}"
    );
    load.stop();

    let checked = BATON.run(dir.path(), &["verify", &name, "--json"]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let home = tempfile::tempdir().unwrap();
    let imported = BATON.run(home.path(), &["import", &name, "--json"]).await;
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let offline = BATON.run(home.path(), &["verify", "--json"]).await;
    assert_eq!(offline.code, Some(0), "{offline:?}");
    assert_eq!(
        imported.stdout_json()["tasks"],
        offline.stdout_json()["summary"]["tasks"]
    );

    let other_relay = RelayProcess::start_on(BATON, home, &[]).await;
    let client = other_relay.admin();
    check_prefix(client, &before, &after).await;
    let (same, other) = (admin.relay_info().await, client.relay_info().await);
    assert_ne!(same.incarnation, other.incarnation);
    assert_eq!(other.unreadable_records, 0);
    // Token hashes are part of the export, so old tokens still work.
    let old = client.with_token(admin.token_secret());
    old.get(&before.submitted[&0][0]).await;
}

/// A small export with records, bodies and output.
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
    let mut reader = ArchiveReader::open(bytes).expect("a complete export");
    let mut ends = vec![
        0,
        8,
        usize::try_from(reader.position()).expect("a small file"),
    ];
    while let Some(_item) = reader.next_item().expect("a complete export") {
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
        assert!(
            error.to_string().contains("byte"),
            "the error has no position: {error}"
        );
        assert!(!target.exists(), "{what}: the target directory was created");
    };
    let ends = frame_boundaries(&whole);
    assert!(ends.len() > 12, "only {} frames", ends.len());
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
        // Exit code 1 of verify means findings, so a cut export has another code.
        (vec!["verify", &bad_name], 4),
    ] {
        let output = BATON.run(dir.path(), &arguments).await;
        assert_eq!(output.code, Some(code), "{output:?}");
        assert!(output.stderr.contains("cut short"), "{output:?}");
        assert!(output.stderr.contains("try:"), "{output:?}");
    }
    let missing = dir.path().join("missing").display().to_string();
    for arguments in [
        vec!["import", &missing, "--data", &target_name],
        vec!["verify", &missing],
    ] {
        let output = BATON.run(dir.path(), &arguments).await;
        assert_eq!(output.code, Some(2), "{output:?}");
        assert!(output.stderr.contains("try:"), "{output:?}");
    }
    assert!(!target.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_has_no_secrets_and_needs_an_admin_of_all_tenants() {
    let dir = tempfile::tempdir().unwrap();
    let relay = RelayProcess::start(BATON).await;
    let admin = relay.admin();
    let link = admin.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[AGENT])).await;
    admin.submit(agent_task(AGENT)).await;
    let attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;
    // The secret part of a token follows its id.
    let secret_part = |token: &str| token.splitn(3, '_').nth(2).unwrap().as_bytes().to_vec();
    let secrets = [
        secret_part(admin.token_secret()),
        secret_part(link.token_secret()),
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
            "an export overwrites no existing file: {again:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_export_delays_only_other_exports() {
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
        error_code(&busy.expect_err("another export is running")),
        "transfer_busy"
    );
    let task = admin.submit(agent_task(AGENT)).await;
    assert_eq!(admin.get(&task.task_id).await.task_id, task.task_id);
    drop(stuck);
    let wait_for_slot = async {
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
    wait_within(
        "the export slot of the disconnected client to be free",
        wait_for_slot,
    )
    .await;
}
