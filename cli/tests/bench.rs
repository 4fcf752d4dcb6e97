//! Runs every bench in its smallest form: its counts must agree and its report must be complete.
//! No figure is judged.

use std::process::{Command, Output};

use serde_json::Value;

fn run_bench(arguments: &[&str]) -> Output {
    let data = tempfile::tempdir().expect("a temporary directory");
    Command::new(env!("CARGO_BIN_EXE_baton"))
        .arg("bench")
        .args(arguments)
        .env_clear()
        .env("HOME", data.path())
        .env("TMPDIR", data.path())
        .current_dir(data.path())
        .output()
        .expect("the executable runs")
}

/// The report of a run whose checks all passed, with the expected number of phases.
fn run_report(arguments: &[&str], phases: usize) -> Value {
    let run = run_bench(&[arguments, &["--json"]].concat());
    let stderr = String::from_utf8_lossy(&run.stderr);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|error| {
        panic!("{arguments:?}: stdout is not one JSON object ({error}), stderr: {stderr}")
    });
    assert_eq!(
        run.status.code(),
        Some(0),
        "{arguments:?}: {report}, {stderr}"
    );
    let checks = report["checks"].as_array().expect("checks");
    assert!(!checks.is_empty(), "{arguments:?} has no checks");
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
fn every_watcher_receives_all_output() {
    let flags = [
        "--writers",
        "2",
        "--watchers",
        "2",
        "--lines",
        "4000",
        "--rounds",
        "2",
    ];
    let output = run_report(&[&["output"][..], &flags].concat(), 2);
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
fn the_restart_of_a_killed_relay_is_measured() {
    let flags = [
        "--finished",
        "300",
        "--live",
        "200",
        "--rate",
        "100",
        "--seconds",
        "1",
    ];
    let recover = run_report(&[&["recover"][..], &flags].concat(), 4);
    assert!(
        recover["phases"][3]["liveTasks"].as_u64() >= Some(200),
        "{recover}"
    );
}

#[test]
fn every_watcher_receives_every_event_once() {
    let flags = [
        "--tasks",
        "4",
        "--watchers",
        "3",
        "--calls",
        "3",
        "--every",
        "10ms",
    ];
    let watch = run_report(&[&["watch"][..], &flags].concat(), 2);
    assert_eq!(watch["phases"][0]["events"], 4 * 3 * 3 * 2);
}

#[test]
fn a_table_shows_the_machine_and_the_checks() {
    let run = run_bench(&["watch", "--tasks", "1", "--watchers", "1", "--calls", "1"]);
    let stdout = String::from_utf8_lossy(&run.stdout);
    for part in [
        "machine: ",
        "fdatasync: on",
        "settings: ",
        "DELIVERY P99",
        "held: ",
    ] {
        assert!(stdout.contains(part), "{part:?} is missing: {stdout}");
    }
}

#[test]
fn two_builds_are_compared_in_alternating_runs() {
    let own = env!("CARGO_BIN_EXE_baton");
    let flags = ["watch", "--tasks", "1", "--watchers", "1", "--calls", "1"];
    let run = run_bench(
        &[
            &["compare", "--a", own, "--b", own, "--rounds", "1"][..],
            &flags,
        ]
        .concat(),
    );
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert_eq!(
        run.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    assert!(stdout.contains("alone.delivery.p99Ms"), "{stdout}");
}
