//! Runs the executable against a real relay and daemon, started with `baton up` in a temporary
//! directory.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

struct LocalBaton {
    child: Child,
    data: TempDir,
}

impl LocalBaton {
    fn start() -> Self {
        let data = tempfile::tempdir().expect("a temporary directory");
        let mut child = Command::new(env!("CARGO_BIN_EXE_baton"))
            .args(["up", "--listen", "127.0.0.1:0", "--data"])
            .arg(data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the executable runs");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut output = String::new();
        while !output.contains("baton is up") {
            let read = stderr.read_line(&mut output).expect("readable");
            assert_ne!(read, 0, "it ended: {output}");
        }
        // The rest is read as well, because a full pipe would block the process.
        std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
        Self { child, data }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command
            .args(args)
            .env("BATON_DATA", self.data.path())
            .stdin(Stdio::null());
        for name in ["BATON_RELAY", "BATON_TOKEN_FILE", "TRACEPARENT"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the executable runs")
    }

    /// Runs a command that must exit with `code`, and returns its stdout.
    fn expect_exit(&self, code: i32, args: &[&str]) -> String {
        let run = self.run(args);
        let (out, err) = (text(&run.stdout), text(&run.stderr));
        assert_eq!(run.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        out
    }

    fn expect_json(&self, code: i32, args: &[&str]) -> Value {
        let out = self.expect_exit(code, args);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}: {out}"))
    }
}

impl Drop for LocalBaton {
    fn drop(&mut self) {
        send_signal(&self.child, rustix::process::Signal::TERM);
        drop(self.child.wait());
    }
}

fn send_signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    let sent = rustix::process::kill_process(pid, signal);
    sent.expect("the child still exists");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_demo_shows_a_whole_task_and_leaves_no_files() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let run = Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(["up", "--demo", "--exit"])
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .env_remove("XDG_DATA_HOME")
        .env_remove("BATON_DATA")
        .env_remove("BATON_LISTEN")
        .stdin(Stdio::null())
        .output()
        .expect("the executable runs");
    let out = text(&run.stdout);
    assert_eq!(run.status.code(), Some(0), "{out}\n{}", text(&run.stderr));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("task "), "{out}");
    assert!(
        out.contains("step 3 of 3") && out.contains("the prompt was: hello from Baton"),
        "{out}"
    );
    assert_eq!(lines.last(), Some(&"completed"), "{out}");
    let left: Vec<_> = std::fs::read_dir(home.path()).expect("readable").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn submit_wait_exits_with_the_code_of_the_task_and_prints_one_json_object() {
    let up = LocalBaton::start();
    let done = up.expect_json(
        0,
        &[
            "submit", "--agent", "command", "--json", "--wait", "--", "sh", "-c", "echo hi",
        ],
    );
    assert_eq!(done["state"], "completed");
    let attempt = &done["attempts"][0];
    assert_eq!(
        (&attempt["attemptNumber"], &attempt["state"]),
        (&1.into(), &"completed".into())
    );
    assert_eq!(attempt["endedBy"], "daemon");
    let id = done["taskId"].as_str().expect("an id");
    assert_eq!(up.expect_exit(0, &["output", id]), "hi\n");
    assert_eq!(
        up.expect_exit(
            0,
            &["submit", "--follow", "--", "sh", "-c", "echo a; echo b"]
        ),
        "a\nb\n"
    );

    let failed = up.expect_json(
        1,
        &[
            "submit",
            "--json",
            "--wait",
            "--max-attempts",
            "1",
            "--",
            "sh",
            "-c",
            "exit 3",
        ],
    );
    assert_eq!(
        (&failed["state"], &failed["attempts"][0]["failureCode"]),
        (&"failed".into(), &"agent_exit".into())
    );
    let parked = up.expect_json(
        4,
        &[
            "submit",
            "--json",
            "--wait",
            "--capability",
            "wings",
            "--deadline",
            "queue=1s",
            "--",
            "true",
        ],
    );
    assert_eq!(parked["attention"]["cause"], "starved");
}

#[test]
fn watch_prints_one_event_per_line_and_exits_with_3_after_a_cancel() {
    let up = LocalBaton::start();
    let id = up.expect_exit(
        0,
        &["submit", "--", "sh", "-c", "echo ready; exec sleep 600"],
    );
    let id = id.trim();
    let mut watch = up
        .command(&["watch", id, "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut canceled = false;
    for line in BufReader::new(watch.stdout.take().expect("piped")).lines() {
        let event: Value = serde_json::from_str(&line.expect("text")).expect("one object per line");
        assert_eq!(event["taskId"], id);
        if !event["attemptId"].as_str().expect("text").is_empty() {
            for field in ["phase", "state", "observedAt", "deadlineAt"] {
                assert!(event.get(field).is_some(), "{field} in {event}");
            }
        }
        if event["state"] == "streaming" && !canceled {
            canceled = true;
            up.expect_exit(0, &["cancel", id, "--reason", "enough"]);
        }
    }
    assert!(canceled, "no streaming event was seen");
    assert_eq!(watch.wait().expect("ends").code(), Some(3));
    assert_eq!(
        up.expect_json(0, &["show", id, "--json"])["state"],
        "canceled"
    );
    assert!(
        up.expect_exit(0, &["cancel", id]).contains("canceled"),
        "a second cancel changes nothing"
    );
}

#[test]
fn ctrl_c_detaches_and_prints_the_watch_command() {
    let up = LocalBaton::start();
    let mut follow = up
        .command(&[
            "submit",
            "--follow",
            "--",
            "sh",
            "-c",
            "echo ready; exec sleep 600",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut line = String::new();
    BufReader::new(follow.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("readable");
    assert_eq!(line, "ready\n");
    send_signal(&follow, rustix::process::Signal::INT);
    let end = follow.wait_with_output().expect("ends");
    assert_eq!(end.status.code(), Some(130));
    let stderr = text(&end.stderr);
    let id = stderr
        .lines()
        .find_map(|line| line.strip_prefix("task "))
        .expect("a line with the task id");
    assert!(stderr.contains(&format!("baton watch {id}")), "{stderr}");
    assert_eq!(
        up.expect_json(0, &["show", id, "--json"])["state"],
        "running"
    );
    up.expect_exit(0, &["cancel", id]);
}

#[test]
fn lists_and_profiles_work_without_connection_flags() {
    let up = LocalBaton::start();
    up.expect_exit(
        0,
        &["profile", "put", "patient", "--deadline", "stream_idle=10m"],
    );
    let listed = up.expect_json(0, &["profile", "list", "--json"]);
    assert_eq!(listed["profiles"][0]["profile"]["streamIdleMs"], 600_000);
    let id = up.expect_exit(
        0,
        &[
            "submit",
            "--profile",
            "patient",
            "--note",
            "team=core",
            "--",
            "true",
        ],
    );
    let id = id.trim();
    let task = up.expect_json(0, &["show", id, "--json"]);
    assert_eq!(task["profileName"], "patient");
    assert_eq!(task["effectiveProfile"]["streamIdleMs"], 600_000);
    assert!(up.expect_exit(0, &["show", id]).contains("stream_idle=10m"));
    assert!(
        up.expect_exit(0, &["tasks", "--note", "team=core"])
            .contains(id)
    );
    let none = up.expect_json(0, &["tasks", "--note", "team=other", "--json"]);
    assert_eq!(none["tasks"], Value::Array(Vec::new()));
    up.expect_exit(0, &["profile", "rm", "patient"]);
    up.expect_exit(1, &["profile", "rm", "patient"]);
    assert_eq!(
        up.expect_json(0, &["daemons", "--json"])["daemons"][0]["state"],
        "online"
    );
    let unknown = up.run(&["show", "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        text(&unknown.stderr).contains("try: "),
        "{}",
        text(&unknown.stderr)
    );
}

#[test]
fn a_token_has_the_rights_of_its_role_until_it_is_revoked() {
    let up = LocalBaton::start();
    let file = up.data.path().join("reader.token");
    let file = file.to_str().expect("UTF-8");
    up.expect_exit(
        0,
        &[
            "token",
            "create",
            "--role",
            "read-only",
            "--name",
            "reader",
            "--out",
            file,
        ],
    );
    up.expect_exit(0, &["tasks", "--token-file", file]);
    up.expect_exit(1, &["submit", "--token-file", file, "--", "true"]);
    let listed = up.expect_json(0, &["token", "list", "--json"]);
    let mut tokens = listed["tokens"].as_array().expect("a list").iter();
    let reader = tokens
        .find(|token| token["name"] == "reader")
        .expect("it is listed");
    up.expect_exit(
        0,
        &["token", "revoke", reader["tokenId"].as_str().expect("text")],
    );
    up.expect_exit(2, &["tasks", "--token-file", file]);
}
