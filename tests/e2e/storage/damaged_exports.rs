//! An export of data that lost something: whoever makes, checks or imports it is told, and looking changes no file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use baton_tests::{RelayProcess, agent_task, copy_directory};

use crate::BATON;

/// The bytes of every file below a directory.
fn file_contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(file_contents(&path));
        } else {
            let bytes = fs::read(&path).expect("a file");
            found.insert(path, bytes);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_a_directory_that_lost_something_says_so_to_everybody_who_uses_it() {
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
    // As if the disk had forgotten what it promised to keep.
    fs::remove_dir_all(&sled).unwrap();
    copy_directory(older.path(), &sled);
    let parts = ["store", "output", "bodies"].map(|part| relay.data().join(part));
    let before = parts.each_ref().map(|part| file_contents(part));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("saved").display().to_string();
    let lost = "acknowledged changes are missing";
    let said = BATON.run(relay.data(), &["verify"]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stdout.contains(lost), "{said:?}");
    let made = BATON
        .run(relay.data(), &["export", "--out", &file, "--json"])
        .await;
    assert_eq!(made.code, Some(4), "{made:?}");
    assert!(made.stderr.contains("NOT WHOLE"), "{made:?}");
    assert!(made.stderr.contains(lost), "{made:?}");
    let missing = made.stdout_json()["missing"].to_string();
    assert!(missing.contains(lost), "{made:?}");
    let refused = relay.try_start_again().await;
    assert!(refused.stderr.contains(lost), "{refused:?}");
    assert!(
        parts.each_ref().map(|part| file_contents(part)) == before,
        "looking and a refused start change no file"
    );

    let said = BATON.run(dir.path(), &["verify", &file]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stdout.contains(lost), "{said:?}");
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("new").display().to_string();
    let import = ["import", &file, "--data", &target];
    let refused = BATON.run(home.path(), &import).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains(lost), "{refused:?}");
    assert!(refused.stderr.contains("--accept-loss"), "{refused:?}");
    assert!(!Path::new(&target).exists(), "nothing was made");
    let taken = BATON
        .run(home.path(), &[&import[..], &["--accept-loss"]].concat())
        .await;
    assert_eq!(taken.code, Some(0), "{taken:?}");
    assert!(taken.stderr.contains(lost), "{taken:?}");
    assert!(taken.stdout.contains("imported 1 tasks"), "{taken:?}");

    // A running relay is asked the same question before anything is sent to it.
    let other = RelayProcess::start(BATON).await;
    let refused = BATON.run(other.data(), &["import", &file]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--accept-loss"), "{refused:?}");
}
