//! The renames with which a start completes an import, interrupted after each of them.

use std::fs;
use std::path::Path;

use super::super::import_directory::{
    DATA_PARTS, IMPORTED, IMPORTING, incoming_dir, settle_import,
};

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A relay's directory with a complete import beside its data.
fn with_import(data: &Path) {
    for part in DATA_PARTS {
        write(&data.join(part).join("what"), "old");
        write(&incoming_dir(data).join(part).join("what"), "new");
    }
    write(&data.join("admin.token"), "kept");
    write(&incoming_dir(data).join(IMPORTED), "the-new-one\n");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_start_completes_an_import_after_a_crash_at_any_rename() {
    let before = "before-import-the-new-one";
    // Two renames for each part, then one for the marker.
    for steps in 0..=DATA_PARTS.len() * 2 + 1 {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        with_import(data);
        fs::create_dir(data.join(before)).unwrap();
        let parts = DATA_PARTS.iter().flat_map(|part| {
            [
                (data.join(part), data.join(before).join(part)),
                (incoming_dir(data).join(part), data.join(part)),
            ]
        });
        let marker = (incoming_dir(data).join(IMPORTED), data.join(IMPORTED));
        for (from, to) in parts.chain([marker]).take(steps) {
            fs::rename(from, to).unwrap();
        }
        for _ in 0..2 {
            settle_import(data).unwrap();
            for part in DATA_PARTS {
                assert_eq!(read(&data.join(part).join("what")), "new", "{steps} {part}");
                let old = data.join(before).join(part).join("what");
                assert_eq!(read(&old), "old", "{steps} {part}");
            }
            assert!(!incoming_dir(data).exists(), "{steps}");
            assert_eq!(read(&data.join("admin.token")), "kept");
            assert_eq!(read(&data.join(IMPORTED)), "the-new-one\n");
        }
    }
}

#[test]
fn an_incomplete_import_is_removed_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    with_import(data);
    fs::rename(
        incoming_dir(data).join(IMPORTED),
        incoming_dir(data).join(IMPORTING),
    )
    .unwrap();
    settle_import(data).unwrap();
    assert!(!incoming_dir(data).exists());
    for part in DATA_PARTS {
        assert_eq!(read(&data.join(part).join("what")), "old");
    }
    write(&data.join(IMPORTING), "");
    let refusal = settle_import(data).expect_err("the import is unfinished");
    assert!(refusal.to_string().contains("baton import"), "{refusal}");
    assert!(
        data.join("store").exists(),
        "a refusal must not remove data"
    );
}
