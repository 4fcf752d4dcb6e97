//! Tasks to submit. Only what a test is about should stand in the test.

use baton_proto::v1::{CommandSpec, TaskSpec};

use crate::census::{MARK, own};

/// A command for real daemons; its processes carry `mark`.
pub fn command(program: &str, arguments: &[&str], mark: &str) -> TaskSpec {
    let argv = std::iter::once(program).chain(arguments.iter().copied());
    TaskSpec {
        agent: "command".to_owned(),
        command: Some(CommandSpec {
            argv: argv.map(str::to_owned).collect(),
        }),
        env: [(MARK.to_owned(), own(mark))].into(),
        ..TaskSpec::default()
    }
}

/// Work for the scripted daemon that offers `agent`.
pub fn for_agent(agent: &str) -> TaskSpec {
    TaskSpec {
        agent: agent.to_owned(),
        prompt: "do it".to_owned(),
        ..TaskSpec::default()
    }
}
