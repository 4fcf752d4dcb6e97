//! Default task specifications, so that a test only contains the fields it is about.

use std::path::Path;
use std::time::Duration;

use baton_proto::v1::{CommandSpec, RetryPolicy, TaskSpec, WhenUnsafe};

use crate::host::process_census::{MARKER_VARIABLE, process_marker};

/// A command for real daemons; its processes have the marker `mark`.
pub fn command_task(program: &str, arguments: &[&str], mark: &str) -> TaskSpec {
    let argv = std::iter::once(program).chain(arguments.iter().copied());
    TaskSpec {
        agent: "command".to_owned(),
        command: Some(CommandSpec {
            argv: argv.map(str::to_owned).collect(),
        }),
        env: [(MARKER_VARIABLE.to_owned(), process_marker(mark))].into(),
        ..TaskSpec::default()
    }
}

/// A task for the scripted daemon that offers `agent`.
pub fn agent_task(agent: &str) -> TaskSpec {
    TaskSpec {
        agent: agent.to_owned(),
        prompt: "do it".to_owned(),
        ..TaskSpec::default()
    }
}

/// With a lease of this length, and a retry immediately after any loss.
pub fn with_retry_on_loss(spec: TaskSpec, lease: Duration) -> TaskSpec {
    TaskSpec {
        lease_ttl_ms: Some(u64::try_from(lease.as_millis()).expect("a short lease")),
        retry: Some(RetryPolicy {
            when_unsafe: WhenUnsafe::Retry.into(),
            backoff_initial_ms: Some(10),
            ..RetryPolicy::default()
        }),
        ..spec
    }
}

/// Prints `begun`, and `finished` when the file exists.
pub fn task_until_file(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; echo finished",
        file.display()
    );
    command_task("sh", &["-c", &script], mark)
}

/// Prints numbered lines until the file exists, then repeats the last number.
pub fn counting_task(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "i=0; until [ -e {} ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo last $i",
        file.display()
    );
    command_task("sh", &["-c", &script], mark)
}

/// Checks that the output of a counting task has every line once and in order, and returns the
/// number of lines.
pub fn assert_counted_lines(output: &[u8]) -> usize {
    let text = String::from_utf8_lossy(output);
    let count = text.lines().count().saturating_sub(1);
    let lines: String = (1..=count).map(|line| format!("line {line}\n")).collect();
    assert!(text == format!("{lines}last {count}\n"), "{text}");
    count
}
