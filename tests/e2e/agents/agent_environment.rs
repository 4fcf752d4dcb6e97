//! What an agent finds around it: nothing of the daemon's environment beyond the allow-list, no credential, no lease token,
//! no open descriptor of anybody; and whether the machine takes work at all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use baton_proto::v1::{DaemonState, Role, TaskSpec, TaskState};
use baton_tests::{
    DaemonProcess, EmbeddedDaemon, EmbeddedRelay, RelayProcess, agent_task, command_task,
};

use crate::BATON;

/// Set where the daemon is started, and seen by nobody else.
const MACHINE_SECRET: &str = "a-secret-of-the-machine";
/// Opens a descriptor that is passed on and sets variables, then becomes the daemon.
const DAEMON_WRAPPER: [&str; 3] = [
    "sh",
    "-c",
    "exec 7</etc/passwd; export API_KEY=a-secret-of-the-machine BATON_SECRET=a-secret-of-the-machine \
     LC_ALL=C LANG=C SHELL=/bin/sh; exec \"$0\" \"$@\"",
];

/// Writes down its environment, its descriptors and its command line. A shell keeps what it redirects open for itself, so
/// another one looks at its descriptors. Whatever it is told after that it ignores.
fn dump_script(to: &Path) -> String {
    let to = to.display();
    format!(
        "cat /proc/$$/environ > '{to}.env'; cat /proc/$$/cmdline > '{to}.line'; \
         sh -c 'ls /proc/$PPID/fd > \"$0\"' '{to}.fds'; cat /proc/$PPID/environ > '{to}.shim'"
    )
}

/// Every kind of agent, each writing down what it finds.
const AGENT_KINDS: [&str; 5] = ["fixed", "claude", "codex", "exec", "acp"];

fn agent_config(dir: &Path, name: &str) -> String {
    let (kind, more) = match name {
        "fixed" => ("command", ""),
        "exec" => ("codex", "protocol = \"exec\"\n"),
        kind => (kind, ""),
    };
    let dump = dump_script(&dir.join(name)).replace('"', "\\\"");
    format!(
        "[agents.{name}]\nkind = \"{kind}\"\nprogram = \"sh\"\nargs = [\"-c\", \"{dump}\", \"agent\"]\n{more}\
         env = {{ GIVEN = \"by the operator\" }}\ntask_env = [\"ASKED\"]\n"
    )
}

fn read_variables(path: &str) -> BTreeMap<String, String> {
    let bytes = std::fs::read(path).expect("it was written");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_any_kind_finds_nothing_around_it_but_what_it_is_given() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, token) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let text: String = AGENT_KINDS
        .map(|name| agent_config(dir.path(), name))
        .concat();
    let config = dir.path().join("daemon.toml");
    std::fs::write(&config, text).expect("a file can be written");
    let config = config.display().to_string();
    let more = ["--config", &*config];
    let there = (client.url(), &*token);
    let _daemon = DaemonProcess::start_with_prefix(
        BATON,
        dir.path(),
        "worker",
        there,
        &DAEMON_WRAPPER,
        &more,
    )
    .await;

    let any = dump_script(&dir.path().join("any"));
    let mut tasks = vec![("any", command_task("sh", &["-c", &any], "surroundings"))];
    tasks.extend(AGENT_KINDS.map(|name| (name, agent_task(name))));
    for (name, mut spec) in tasks {
        spec.env
            .insert("ASKED".to_owned(), "by the task".to_owned());
        spec.env
            .insert("BATON_TOKEN".to_owned(), "by the task".to_owned());
        let task = client.submit(spec).await;
        client.watch(&task.task_id).await.collect_to_end().await;
        // An agent that says nothing is tried again, and writes again.
        let attempts = client.get(&task.task_id).await.attempts;
        let attempts: Vec<String> = attempts.into_iter().map(|a| a.attempt_id).collect();
        assert_environment(
            dir.path(),
            name,
            &attempts,
            &[MACHINE_SECRET, &token, client.token_secret()],
        );
    }
}

/// What an agent found, by what it wrote down.
fn assert_environment(dir: &Path, name: &str, attempts: &[String], secrets: &[&str]) {
    let allowed: BTreeSet<&str> = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "LANG",
        "LANGUAGE",
        "TMPDIR",
        "LC_ALL",
        "BATON_ATTEMPT_ID",
        "BATON_DAEMON_ID",
        "TRACEPARENT",
        "GIVEN",
        "ASKED",
        baton_tests::MARKER_VARIABLE,
    ]
    .into();
    let place = dir.join(name).display().to_string();
    let found = read_variables(&format!("{place}.env"));
    let beyond: Vec<_> = found
        .keys()
        .filter(|name| !allowed.contains(name.as_str()))
        .collect();
    assert!(beyond.is_empty(), "{name}: {beyond:?}");
    assert_eq!(found["ASKED"], "by the task", "{name}");
    assert_eq!(found["LC_ALL"], "C", "{name}");
    assert_eq!(found.contains_key("GIVEN"), name != "any", "{name}");
    assert!(attempts.contains(&found["BATON_ATTEMPT_ID"]), "{name}");
    let fds = std::fs::read_to_string(format!("{place}.fds")).expect("it was written");
    let fds: Vec<&str> = fds.split_whitespace().collect();
    assert_eq!(fds, ["0", "1", "2"], "{name}");
    // The shim holds the lease token in memory, and nothing of it can be read from outside.
    let shim = read_variables(&format!("{place}.shim"));
    assert!(
        shim.keys()
            .all(|name| name.starts_with("BATON_") || name.starts_with("MIMALLOC_")),
        "{shim:?}"
    );
    for part in ["env", "line", "shim"] {
        let bytes = std::fs::read(format!("{place}.{part}")).expect("it was written");
        let seen = String::from_utf8_lossy(&bytes);
        for secret in secrets {
            assert!(!seen.contains(*secret), "{name}: {part}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn below_the_memory_floor_no_work_is_taken_and_no_task_pays_for_it() {
    let relay = EmbeddedRelay::start().await;
    let (client, token) = (relay.admin().clone(), relay.daemon_token().await);
    let low = EmbeddedDaemon::start_with(relay.url(), &token, |config| {
        // More than any machine has.
        config.limits.memory_floor_percent = 101;
    })
    .await;
    client
        .wait_for_daemon_state(&low.id(), DaemonState::Sick)
        .await;
    let task = client
        .submit(TaskSpec {
            ..command_task("true", &[], "floor")
        })
        .await;
    assert_eq!(client.get(&task.task_id).await.state(), TaskState::Queued);
    let _fine = EmbeddedDaemon::start(relay.url(), &token).await;
    client.watch(&task.task_id).await.collect_to_end().await;
    let task = client.get(&task.task_id).await;
    assert_eq!(task.state(), TaskState::Completed);
    assert!(
        task.attempts
            .iter()
            .all(|attempt| attempt.failure_code.is_empty() || attempt.failure_code == "low_memory")
    );
}
