//! The directories of older schemas, and the answers that are expected from them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use baton_tests::{TestClock, copy_directory};
use serde_json::Value;
use tempfile::TempDir;

/// Beside the data: the answers that clients got before the relay was killed.
pub(crate) const EXPECTED_FILE: &str = "known.json";
/// The length of each file: trailing zeros are not stored.
pub(crate) const LENGTHS_FILE: &str = "lengths.json";

pub(crate) fn schema_directory(schema: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("migration/schema-{schema}"))
}

/// A copy of the directory, as the relay left it.
pub(crate) fn copy_schema_data(schema: u16) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    copy_directory(&schema_directory(schema).join("data"), dir.path());
    for (file, len) in read_json(schema, LENGTHS_FILE)
        .as_object()
        .expect("an object")
    {
        let path = dir.path().join(file);
        let file = File::options().write(true).open(path);
        let len = len.as_u64().expect("a number");
        file.and_then(|file| file.set_len(len))
            .expect("a file of the directory");
    }
    dir
}

pub(crate) fn read_json(schema: u16, name: &str) -> Value {
    let text = fs::read(schema_directory(schema).join(name)).expect("the file is beside the data");
    serde_json::from_slice(&text).expect("the file is JSON")
}

/// A clock one hour after the recording, so that retention removes nothing.
pub(crate) fn clock_after_recording(known: &Value) -> TestClock {
    let made_ms = known["made_at_ms"].as_i64().expect("a number");
    let now_ms = baton_relay::clock::RelayClock::system()
        .now()
        .wall
        .0
        .cast_signed();
    let clock = TestClock::new();
    clock.jump_wall(made_ms + 3_600_000 - now_ms);
    clock
}
