//! The environment of an agent: only allow-listed variables of the daemon, no credential, no
//! lease token and no inherited descriptor. Also the memory floor below which a daemon takes no
//! work.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use baton_proto::v1::{DaemonState, Role, TaskSpec, TaskState};
use baton_tests::{
    DaemonProcess, EmbeddedDaemon, EmbeddedRelay, RelayProcess, agent_task, command_task,
};

use crate::BATON;

/// Set in the daemon's environment. No agent may see it.
const MACHINE_SECRET: &str = "a-secret-of-the-machine";
/// Opens an inheritable descriptor, sets variables and then execs the daemon.
const DAEMON_WRAPPER: [&str; 3] = [
    "sh",
    "-c",
    "exec 7</etc/passwd; export API_KEY=a-secret-of-the-machine BATON_SECRET=a-secret-of-the-machine \
     LC_ALL=C LANG=C SHELL=/bin/sh; exec \"$0\" \"$@\"",
];

/// A script that dumps its environment, descriptors and command line, and ignores its input. A
/// shell keeps redirected descriptors open for itself, so another shell lists them.
fn dump_script(to: &Path) -> String {
    let to = to.display();
    format!(
        "cat /proc/$$/environ > '{to}.env'; cat /proc/$$/cmdline > '{to}.line'; \
         sh -c 'ls /proc/$PPID/fd > \"$0\"' '{to}.fds'; cat /proc/$PPID/environ > '{to}.shim'"
    )
}

/// Every agent kind; each runs the dump script.
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
    let bytes = std::fs::read(path).expect("the agent wrote its dump");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_agent_kind_gets_only_the_allowed_environment() {
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
    let link = (client.url(), &*token);
    let _daemon =
        DaemonProcess::start_with_prefix(BATON, dir.path(), "worker", link, &DAEMON_WRAPPER, &more)
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
        // An agent that prints nothing is retried, so the dump may be from any attempt.
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

/// Checks the dump of one agent.
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
    let dump = dir.join(name).display().to_string();
    let variables = read_variables(&format!("{dump}.env"));
    let unexpected: Vec<_> = variables
        .keys()
        .filter(|name| !allowed.contains(name.as_str()))
        .collect();
    assert!(unexpected.is_empty(), "{name}: {unexpected:?}");
    assert_eq!(variables["ASKED"], "by the task", "{name}");
    assert_eq!(variables["LC_ALL"], "C", "{name}");
    assert_eq!(variables.contains_key("GIVEN"), name != "any", "{name}");
    assert!(attempts.contains(&variables["BATON_ATTEMPT_ID"]), "{name}");
    let fds = std::fs::read_to_string(format!("{dump}.fds")).expect("the agent wrote its dump");
    let fds: Vec<&str> = fds.split_whitespace().collect();
    assert_eq!(fds, ["0", "1", "2"], "{name}");
    // The shim keeps the lease token only in memory, so its environment must not contain it.
    let shim = read_variables(&format!("{dump}.shim"));
    assert!(
        shim.keys()
            .all(|name| name.starts_with("BATON_") || name.starts_with("MIMALLOC_")),
        "{shim:?}"
    );
    for part in ["env", "line", "shim"] {
        let bytes = std::fs::read(format!("{dump}.{part}")).expect("the agent wrote its dump");
        let seen = String::from_utf8_lossy(&bytes);
        for secret in secrets {
            assert!(!seen.contains(*secret), "{name}: {part}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_below_the_memory_floor_gets_no_work_and_fails_no_task() {
    let relay = EmbeddedRelay::start().await;
    let (client, token) = (relay.admin().clone(), relay.daemon_token().await);
    let low = EmbeddedDaemon::start_with(relay.url(), &token, |config| {
        // More than any machine can have free.
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
    let _healthy = EmbeddedDaemon::start(relay.url(), &token).await;
    let task = client.wait_for_end(&task.task_id).await;
    assert_eq!(task.state(), TaskState::Completed);
    assert!(
        task.attempts
            .iter()
            .all(|attempt| attempt.failure_code.is_empty() || attempt.failure_code == "low_memory")
    );
}
