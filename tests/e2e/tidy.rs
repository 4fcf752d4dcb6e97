//! Rules about the source code.

use std::path::{Path, PathBuf};

/// The maximum length of a source file.
const LINES_MAX: usize = 500;

pub(crate) fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate is in the workspace")
}

/// Every Rust file of the workspace with its text.
fn source_files(under: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    collect_source_files(&workspace_root().join(under), &mut found);
    found
}

fn collect_source_files(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
    let entries = std::fs::read_dir(directory).expect("a directory of the workspace");
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.ends_with("target") {
            collect_source_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            found.push((path, text));
        }
    }
}

pub(crate) fn all_sources() -> Vec<(PathBuf, String)> {
    ["shared", "proto", "relay", "daemon", "cli", "tests"]
        .into_iter()
        .flat_map(source_files)
        .collect()
}

/// Lines outside comments that contain any of the words.
fn lines_with_words(text: &str, words: &[&str]) -> Vec<String> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.filter(|line| words.iter().any(|word| line.contains(word)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_core_crates_have_no_io_dependencies_and_read_no_clock() {
    for core in ["relay/core", "daemon/core"] {
        let manifest =
            std::fs::read_to_string(workspace_root().join(core).join("Cargo.toml")).unwrap();
        let (_, after) = manifest.split_once("[dependencies]").unwrap();
        let dependencies = after.split("\n[").next().unwrap();
        let outside = [
            "tokio", "tonic", "sled", "prost", "baton-", "rand", "rustix", "libc",
        ];
        for forbidden in outside {
            // Rules shared by all crates, without I/O: the completion contract and the detection
            // of secrets.
            let shared = ["baton-validation.", "baton-redaction."];
            let others = dependencies
                .lines()
                .filter(|line| !shared.iter().any(|crate_name| line.starts_with(crate_name)));
            let named = others.into_iter().any(|line| line.starts_with(forbidden));
            assert!(!named, "{core} depends on {forbidden}");
        }
        for (path, text) in source_files(&format!("{core}/src")) {
            let found = lines_with_words(&text, &["Instant::now", "SystemTime", "clock_gettime"]);
            assert!(found.is_empty(), "{}: {found:?}", path.display());
        }
    }
}

#[test]
fn files_are_short_and_begin_with_a_module_comment() {
    for (path, text) in all_sources() {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", path.display());
        assert!(
            text.starts_with("//!"),
            "{} has no module comment at its beginning",
            path.display()
        );
    }
}

#[test]
fn only_one_file_builds_statuses_and_no_channel_is_unbounded() {
    let builders: Vec<String> = [
        "new",
        "with_details",
        "invalid_argument",
        "not_found",
        "internal",
        "unavailable",
        "unimplemented",
        "permission_denied",
        "unauthenticated",
        "resource_exhausted",
        "aborted",
        "failed_precondition",
        "already_exists",
        "deadline_exceeded",
        "out_of_range",
        "data_loss",
        "cancelled",
        "unknown",
    ]
    .iter()
    .map(|name| format!("Status::{name}("))
    .collect();
    let builders: Vec<&str> = builders.iter().map(String::as_str).collect();
    for (path, text) in source_files("relay/src") {
        let is_test = path.ends_with("tests.rs") || path.iter().any(|part| part == "tests");
        if !path.ends_with("api/error/status.rs") && !is_test {
            let found = lines_with_words(&text, &builders);
            assert!(
                found.is_empty(),
                "{} builds a Status: {found:?}",
                path.display()
            );
        }
    }
    let unbounded = ["unbounded", "_channel("].concat();
    for (path, text) in all_sources() {
        let found = lines_with_words(&text, &[&unbounded]);
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
}

#[test]
fn only_the_test_executable_has_a_settable_clock() {
    let variable = ["BATON", "_TEST_CLOCK"].concat();
    for under in ["proto", "relay", "daemon", "cli"] {
        for (path, text) in source_files(under) {
            assert!(!text.contains(&variable), "{}", path.display());
        }
    }
    let main = std::fs::read_to_string(workspace_root().join("cli/src/main.rs")).unwrap();
    assert!(main.contains("baton_cli::main()") && !main.contains("main_with"));
}

#[test]
fn no_test_waits_by_sleeping() {
    let sleep = ["sleep", "("].concat();
    // The load generator is no test: it paces its load by time.
    let load_generator = workspace_root().join("tests/bench");
    let sources = source_files("tests").into_iter();
    for (path, text) in sources.filter(|(path, _)| !path.starts_with(&load_generator)) {
        let found = lines_with_words(&text, &[&sleep]);
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
}
