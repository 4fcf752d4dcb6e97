//! Imports: into a new directory, into a running relay, interrupted, and the state of inherited
//! tasks.

use std::path::Path;

use baton_proto::v1::import_request::Item;
use baton_proto::v1::read_output_response::Item as OutputItem;
use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    FenceCode, Hello, ImportRequest, ReleaseInheritedRequest, Role, Task, TaskState, WaitsFor,
};
use baton_tests::{
    BatonExecutable, CommandOutput, RelayProcess, ScriptedAttempt, ScriptedDaemon, TestClient,
    agent_task, error_code, hello, join_all, poll_until, wait_within,
};
use tempfile::TempDir;

use crate::BATON;

const AGENT: &str = "import";
/// Offered only by the daemon that runs an attempt before the export.
const EARLIER_AGENT: &str = "earlier";
/// A relay with a queued and a running task, and its export.
struct ExportedRelay {
    relay: RelayProcess,
    link: TestClient,
    waiting: Task,
    running: ScriptedAttempt,
    hello: Hello,
    dir: TempDir,
    file: String,
}

async fn export_relay(baton: BatonExecutable) -> ExportedRelay {
    let relay = RelayProcess::start(baton).await;
    let client = relay.admin().clone();
    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon = ScriptedDaemon::connect(&link, hello(&[EARLIER_AGENT])).await;
    client.submit(agent_task(EARLIER_AGENT)).await;
    let mut running = daemon.start_next_attempt().await;
    running.send_output("before the export\n").await;
    daemon.wait_until_acked(&running).await;
    let waiting = client.submit(agent_task(AGENT)).await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let file = dir.path().join("backup").display().to_string();
    let made = baton.run(relay.data(), &["export", "--out", &file]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    ExportedRelay {
        link,
        waiting,
        running,
        hello: daemon.hello.clone(),
        relay,
        dir,
        file,
    }
}

/// Starts a relay on the imported data, after the old one was killed.
async fn start_on_imported_data(
    baton: BatonExecutable,
    origin: &mut ExportedRelay,
) -> RelayProcess {
    origin.relay.kill().await;
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let output = run_import(baton, &origin.file, home.path()).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stderr.contains("release-inherited"), "{output:?}");
    RelayProcess::start_on(baton, home, &[]).await
}

async fn run_import(baton: BatonExecutable, file: &str, data: &Path) -> CommandOutput {
    baton.run(data, &["import", file, "--json"]).await
}

/// Reconnects the daemon from before the import, with its credential and its running attempt.
async fn reconnect_earlier_daemon(origin: &ExportedRelay, relay: &RelayProcess) -> ScriptedDaemon {
    let link = TestClient::new(relay.admin().url(), origin.link.token_secret());
    let hello = Hello {
        active: ScriptedDaemon::list_as_running(&[&origin.running]),
        agents: hello(&[AGENT]).agents,
        ..origin.hello.clone()
    };
    ScriptedDaemon::connect(&link, hello).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_import_frames_are_fenced_and_tasks_wait_for_release() {
    let mut origin = export_relay(BATON).await;
    let relay = start_on_imported_data(BATON, &mut origin).await;
    let (client, waiting) = (relay.admin().clone(), origin.waiting.task_id.clone());
    let mut daemon = reconnect_earlier_daemon(&origin, &relay).await;
    let settled = &daemon.welcome.settlements;
    let killed = |decision: &Option<Decision>| matches!(decision, Some(Decision::Kill(kill)) if kill.code() == FenceCode::StaleIncarnation);
    assert!(killed(&settled[0].decision), "{settled:?}");

    // A late frame of the old attempt has no effect.
    let (before, task) = (
        client.commit_seq().await,
        origin.running.attempt_ref.task_id.clone(),
    );
    let state = client.get(&task).await.state();
    let mut late = origin.running.clone();
    daemon.send_frames_of(&mut late);
    late.complete("from the past").await;
    let fresh = client.submit(agent_task(AGENT)).await;
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(
        attempt.attempt_ref.task_id, fresh.task_id,
        "a new task does not wait"
    );
    attempt.complete("").await;
    client
        .wait_for_state(&fresh.task_id, TaskState::Completed)
        .await;
    assert_eq!(client.get(&task).await.state(), state);
    assert!(client.commit_seq().await > before);

    let inherited = client.get(&waiting).await;
    assert_eq!(inherited.state(), TaskState::Queued, "{inherited:?}");
    assert_eq!(
        inherited.waits_for(),
        WaitsFor::Inheritance,
        "{inherited:?}"
    );
    let release = ReleaseInheritedRequest {
        reason: "the old machines are off".to_owned(),
    };
    let released = client.operator().release_inherited(release).await.unwrap();
    assert!(released.into_inner().released >= 1);
    let mut attempt = daemon.start_next_attempt().await;
    assert_eq!(attempt.attempt_ref.task_id, waiting);
    attempt.complete("").await;
    client.wait_for_state(&waiting, TaskState::Completed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_running_relay_accepts_an_import_and_restarts_with_it() {
    let origin = export_relay(BATON).await;
    let relay = RelayProcess::start(BATON).await;
    let (admin, before) = (relay.admin().clone(), relay.admin().relay_info().await);
    let own = admin.client_of_tenant("", Role::Operator).await;

    // Bad uploads are refused, and the relay stays unchanged.
    let whole = std::fs::read(&origin.file).unwrap();
    for (bytes, hash_of, code) in [
        (&whole[..whole.len() / 2], &whole[..], "export_altered"),
        (
            &whole[..whole.len() / 2],
            &whole[..whole.len() / 2],
            "export_cut_short",
        ),
        (
            &b"no export at all"[..],
            &b"no export at all"[..],
            "not_an_export",
        ),
    ] {
        assert_eq!(upload_import(&admin, bytes, Some(hash_of)).await, code);
    }
    assert_eq!(
        upload_import(&admin, &whole, None).await,
        "export_cut_short"
    );
    assert_eq!(admin.relay_info().await.incarnation, before.incarnation);
    assert!(
        !relay.data().join("incoming").exists(),
        "no uploaded file is left"
    );

    let output = run_import(BATON, &origin.file, relay.data()).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let after = own.relay_info().await;
    assert_eq!(
        output.stdout_json()["incarnation"],
        after.incarnation.as_str()
    );
    assert_ne!(after.incarnation, before.incarnation);
    let task = admin.get(&origin.waiting.task_id).await;
    assert_eq!(task.waits_for(), WaitsFor::Inheritance, "{task:?}");
    let ran = &origin.running.attempt_ref.task_id;
    assert_eq!(stored_output(&admin, ran).await, b"before the export\n");
    let verified = BATON.run(relay.data(), &["verify"]).await;
    assert_eq!(verified.code, Some(0), "{verified:?}");

    let again = run_import(BATON, &origin.file, relay.data()).await;
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("relay_not_empty"), "{again:?}");
    admin.get(&origin.waiting.task_id).await;
}

async fn stored_output(client: &TestClient, task: &str) -> Vec<u8> {
    let items = client.read_stored_output(task).await.into_iter();
    let chunks = items.filter_map(|item| match item {
        OutputItem::Chunk(chunk) => Some(chunk.data),
        OutputItem::Cut(_) | OutputItem::End(_) => None,
    });
    chunks.flatten().collect()
}

/// Uploads bytes as an import with the hash of `hash_of`, and returns the code of the refusal.
async fn upload_import(client: &TestClient, bytes: &[u8], hash_of: Option<&[u8]>) -> String {
    use sha2::{Digest, Sha256};
    let chunks = bytes
        .chunks(100_000)
        .map(|chunk| Item::Chunk(chunk.to_vec().into()));
    let hash = hash_of.map(|bytes| Item::Sha256(Sha256::digest(bytes).to_vec().into()));
    let requests: Vec<ImportRequest> = chunks
        .chain(hash)
        .map(|item| ImportRequest { item: Some(item) })
        .collect();
    let refused = async {
        let mut operator = client.operator();
        let mut answers = operator
            .import(tokio_stream::iter(requests))
            .await?
            .into_inner();
        while answers.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    };
    error_code(
        &wait_within("a refusal", refused)
            .await
            .expect_err("the upload is refused"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_import_leaves_a_directory_that_is_refused_until_imported_again() {
    let origin = export_relay(BATON).await;
    let client = origin.relay.admin();
    join_all((0..200).map(|_| client.submit(agent_task(AGENT)))).await;
    let file = origin.dir.path().join("large").display().to_string();
    let made = BATON
        .run(origin.relay.data(), &["export", "--out", &file])
        .await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("new");
    let text = data.display().to_string();
    // On a fast machine the import may finish before the kill, so try again.
    for _ in 0..20 {
        let mut command = BATON.command(home.path());
        let mut importing = command
            .args(["import", &file, "--data", &text])
            .spawn()
            .unwrap();
        poll_until("the import to begin", || {
            let begun = data.join("importing").exists() || data.join("imported").exists();
            begun.then_some(())
        })
        .await;
        importing.kill().await.unwrap();
        if data.join("importing").exists() {
            break;
        }
        std::fs::remove_dir_all(&data).unwrap();
    }
    assert!(
        data.join("importing").exists(),
        "no import was killed before its end"
    );
    let refused = BATON
        .run(
            home.path(),
            &["relay", "--data", &text, "--listen", "127.0.0.1:0"],
        )
        .await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("baton import"), "{refused:?}");

    let repeated = BATON
        .run(home.path(), &["import", &file, "--data", &text])
        .await;
    assert_eq!(repeated.code, Some(0), "{repeated:?}");
    let verified = BATON
        .run(home.path(), &["verify", "--data", &text, "--json"])
        .await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
    assert_eq!(verified.stdout_json()["summary"]["tasks"], 202);
    let twice = BATON
        .run(home.path(), &["import", &file, "--data", &text])
        .await;
    assert_eq!(
        twice.code,
        Some(2),
        "an import into a directory with data is refused: {twice:?}"
    );
}
