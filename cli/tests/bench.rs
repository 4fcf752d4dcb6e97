//! Every bench in its smallest form: that its counts agree, its report is whole, and it does not rot. No figure is judged here.

use std::process::{Command, Output};

use serde_json::Value;

fn run_bench(words: &[&str]) -> Output {
    let data = tempfile::tempdir().expect("a temporary directory");
    Command::new(env!("CARGO_BIN_EXE_baton"))
        .arg("bench")
        .args(words)
        .env_clear()
        .env("HOME", data.path())
        .env("TMPDIR", data.path())
        .current_dir(data.path())
        .output()
        .expect("the executable runs")
}

/// A run whose checks all held, with as many phases as it should have.
fn run_report(words: &[&str], phases: usize) -> Value {
    let run = run_bench(&[words, &["--json"]].concat());
    let said = String::from_utf8_lossy(&run.stderr);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|error| {
        panic!("{words:?}: stdout is one JSON object ({error}), stderr: {said}")
    });
    assert_eq!(run.status.code(), Some(0), "{words:?}: {report}, {said}");
    let checks = report["checks"].as_array().expect("checks");
    assert!(!checks.is_empty(), "{words:?} checked nothing");
    assert!(checks.iter().all(|check| check["held"] == true), "{report}");
    assert_eq!(
        report["phases"].as_array().map(Vec::len),
        Some(phases),
        "{report}"
    );
    assert!(report["machine"]["cores"].as_u64() > Some(0), "{report}");
    assert_eq!(report["machine"]["fdatasync"]["on"], true);
    report
}

#[test]
fn tasks_are_counted_on_both_sides() {
    let unary = run_report(
        &[
            "tasks",
            "--seconds",
            "1",
            "--connections",
            "2",
            "--in-flight",
            "4",
            "--rate",
            "100",
        ],
        3,
    );
    assert!(
        unary["phases"][0]["tasksPerSecond"].as_f64() > Some(0.0),
        "{unary}"
    );
    assert!(
        unary["phases"][1]["submit"]["p99Ms"].as_f64() > Some(0.0),
        "{unary}"
    );
    assert!(
        unary["phases"][2]["diskBytesPerTask"].as_u64() > Some(0),
        "{unary}"
    );
    let batched = run_report(
        &[
            "tasks",
            "--seconds",
            "1",
            "--connections",
            "2",
            "--batch",
            "10",
            "--rate",
            "100",
        ],
        3,
    );
    assert_eq!(batched["settings"]["batch"], 10);
}

#[test]
fn output_reaches_every_watcher_whole() {
    let words = [
        "--writers",
        "2",
        "--watchers",
        "2",
        "--lines",
        "4000",
        "--rounds",
        "2",
    ];
    let output = run_report(&[&["output"][..], &words].concat(), 2);
    // Whole chunks of 256 lines.
    assert_eq!(output["phases"][1]["lines"], 2 * 4096);
}

#[test]
fn a_small_storm_loses_no_lease() {
    let storm = run_report(&["storm", "--daemons", "40", "--holders", "4"], 2);
    assert_eq!(storm["phases"][1]["holderBack"]["count"], 4);
    assert_eq!(storm["phases"][1]["idleBack"]["count"], 36);
}

#[test]
fn a_killed_relay_is_timed_back() {
    let words = [
        "--finished",
        "300",
        "--live",
        "200",
        "--rate",
        "100",
        "--seconds",
        "1",
    ];
    let recover = run_report(&[&["recover"][..], &words].concat(), 4);
    assert!(
        recover["phases"][3]["liveTasks"].as_u64() >= Some(200),
        "{recover}"
    );
}

#[test]
fn events_reach_every_watcher_once() {
    let words = [
        "--tasks",
        "4",
        "--watchers",
        "3",
        "--calls",
        "3",
        "--every",
        "10ms",
    ];
    let watch = run_report(&[&["watch"][..], &words].concat(), 2);
    assert_eq!(watch["phases"][0]["events"], 4 * 3 * 3 * 2);
}

#[test]
fn a_table_names_the_machine_and_what_held() {
    let run = run_bench(&["watch", "--tasks", "1", "--watchers", "1", "--calls", "1"]);
    let said = String::from_utf8_lossy(&run.stdout);
    for word in [
        "machine: ",
        "fdatasync: on",
        "settings: ",
        "DELIVERY P99",
        "held: ",
    ] {
        assert!(said.contains(word), "{word:?} is missing: {said}");
    }
}

#[test]
fn two_builds_are_compared_in_turn() {
    let own = env!("CARGO_BIN_EXE_baton");
    let words = ["watch", "--tasks", "1", "--watchers", "1", "--calls", "1"];
    let run = run_bench(
        &[
            &["compare", "--a", own, "--b", own, "--rounds", "1"][..],
            &words,
        ]
        .concat(),
    );
    let said = String::from_utf8_lossy(&run.stdout);
    assert_eq!(
        run.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    assert!(said.contains("alone.delivery.p99Ms"), "{said}");
}
