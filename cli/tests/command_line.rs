//! Runs the executable as a script does, without a relay: help, version, usage errors, an
//! unreachable relay.

use std::process::{Command, Output};

fn run_baton(args: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a temporary directory");
    Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(args)
        .env_clear()
        .env("HOME", home.path())
        .output()
        .expect("the executable runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_and_version_are_printed_to_stdout() {
    let version = run_baton(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(
        text(&version.stdout).trim(),
        concat!("baton ", env!("CARGO_PKG_VERSION"))
    );
    let help = run_baton(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for command in [
        "up",
        "relay",
        "daemon",
        "health",
        "submit",
        "watch",
        "output",
        "tasks",
        "show",
        "cancel",
        "retry",
        "daemons",
        "info",
        "drain",
        "forget",
        "token",
        "profile",
        "export",
        "import",
        "verify",
        "bench",
        "inspect",
        "attempts",
        "force-release",
        "force-fail",
        "complete",
        "pause",
        "unpause",
        "scheduler",
        "disconnect",
    ] {
        assert!(
            text(&help.stdout).contains(&format!("\n  {command} ")),
            "{command} is listed"
        );
        let own = run_baton(&[command, "--help"]);
        assert_eq!(own.status.code(), Some(0), "{command} --help");
    }
}

/// Wrong command lines (split at blanks), and a text that the error must contain.
const WRONG_COMMAND_LINES: [(&str, &str); 11] = [
    ("", "Usage"),
    ("fly", "fly"),
    ("submit --deadline soon=1s -- true", "stream_idle"),
    ("submit --deadline queue=5 -- true", "30s"),
    ("submit --label nothing -- true", "KEY=VALUE"),
    (
        "submit --profile p --deadline queue=5s -- true",
        "--profile",
    ),
    ("submit --profile p --no-deadlines -- true", "--profile"),
    ("submit --when-unsafe panic -- true", "park"),
    ("submit --agent command", "after two dashes"),
    ("up --exit", "--demo"),
    ("watch", "TASK"),
];

#[test]
fn usage_errors_exit_with_2_and_name_the_mistake() {
    for (line, expected) in WRONG_COMMAND_LINES {
        let args: Vec<&str> = line.split_whitespace().collect();
        let run = run_baton(&args);
        let stderr = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
        assert!(run.stdout.is_empty(), "{line} prints no data");
    }
}

#[test]
fn an_unreachable_relay_exits_with_2_and_a_hint() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "btn_test\n").expect("writable");
    let token = token.to_str().expect("UTF-8");
    // Port 1 is reserved and nothing listens there.
    let run = run_baton(&[
        "tasks",
        "--relay",
        "http://127.0.0.1:1",
        "--token-file",
        token,
    ]);
    assert_eq!(run.status.code(), Some(2));
    let stderr = text(&run.stderr);
    assert!(
        stderr.contains("http://127.0.0.1:1") && stderr.contains("baton up"),
        "{stderr}"
    );
    assert!(run.stdout.is_empty());
}

#[test]
fn a_missing_token_exits_with_2_and_names_the_file() {
    let run = run_baton(&["tasks"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(
        text(&run.stderr).contains("admin.token"),
        "{}",
        text(&run.stderr)
    );
}
