//! An export of a data directory that lost changes. Export, verify and import report the loss,
//! and reading changes no file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use baton_tests::{RelayProcess, agent_task, copy_directory};

use crate::BATON;
use crate::secret_search::files_below;

/// The bytes of every file below a directory.
fn file_contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    assert!(dir.is_dir(), "{} exists", dir.display());
    files_below(dir).into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_export_is_reported_by_export_verify_and_import() {
    let mut relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    client.submit(agent_task("nobody")).await;
    relay.terminate().await;
    let older = tempfile::tempdir().unwrap();
    let sled = relay.data().join("store/sled");
    copy_directory(&sled, older.path());
    relay.start_again().await;
    client.submit(agent_task("nobody")).await;
    relay.terminate().await;
    // Replace the store by the older copy, as if the disk had lost synced writes.
    fs::remove_dir_all(&sled).unwrap();
    copy_directory(older.path(), &sled);
    let parts = ["store", "output", "bodies"].map(|part| relay.data().join(part));
    let before = parts.each_ref().map(|part| file_contents(part));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("saved").display().to_string();
    let loss_message = "acknowledged changes are missing";
    let output = BATON.run(relay.data(), &["verify"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stdout.contains(loss_message), "{output:?}");
    let made = BATON
        .run(relay.data(), &["export", "--out", &file, "--json"])
        .await;
    assert_eq!(made.code, Some(4), "{made:?}");
    assert!(made.stderr.contains("INCOMPLETE"), "{made:?}");
    assert!(made.stderr.contains(loss_message), "{made:?}");
    let missing = made.stdout_json()["missing"].to_string();
    assert!(missing.contains(loss_message), "{made:?}");
    let refused = relay.try_start_again().await;
    assert!(refused.stderr.contains(loss_message), "{refused:?}");
    assert!(
        parts.each_ref().map(|part| file_contents(part)) == before,
        "verify, export and a refused start must change no file"
    );

    let output = BATON.run(dir.path(), &["verify", &file]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stdout.contains(loss_message), "{output:?}");
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("new").display().to_string();
    let import = ["import", &file, "--data", &target];
    let refused = BATON.run(home.path(), &import).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains(loss_message), "{refused:?}");
    assert!(refused.stderr.contains("--accept-loss"), "{refused:?}");
    assert!(
        !Path::new(&target).exists(),
        "the target directory was created"
    );
    let imported = BATON
        .run(home.path(), &[&import[..], &["--accept-loss"]].concat())
        .await;
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert!(imported.stderr.contains(loss_message), "{imported:?}");
    assert!(imported.stdout.contains("imported 1 tasks"), "{imported:?}");

    // An import into a running relay is refused in the same way, before anything is sent.
    let other = RelayProcess::start(BATON).await;
    let refused = BATON.run(other.data(), &["import", &file]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--accept-loss"), "{refused:?}");
}
