//! Default task specifications, so that a test only contains the fields it is about.

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
