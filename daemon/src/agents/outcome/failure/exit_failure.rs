//! What the end of a process means, by its exit and its last lines on standard error.

use super::{FailureClass, TurnFailure, class_of_text};
use crate::agents::adapter::agent_event::AgentExit;

/// The failure of a process that ended without a message about the end of its turn.
pub(crate) fn exit_failure(exit: AgentExit, resuming: bool, stderr: &str) -> TurnFailure {
    let last = last_lines(stderr);
    let last_line = last.last().copied().unwrap_or_default();
    match exit {
        AgentExit::Code(0) => TurnFailure::new(
            FailureClass::NoResult,
            "the agent ended with exit code 0 and without a result",
        ),
        AgentExit::Code(code) => {
            let class = class_of_stderr(&last, resuming);
            let message =
                format!("the agent ended with exit code {code} and without a result: {last_line}");
            TurnFailure::new(class, message.trim_end_matches(": "))
        }
        AgentExit::Signal(signal) => TurnFailure::new(
            FailureClass::AgentExit,
            format!("the agent was ended by signal {signal}"),
        ),
    }
}

/// A program prints the reason for its end last. Earlier lines are noise: warnings and the
/// output of tools.
const LAST_LINES: usize = 4;

fn last_lines(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].to_vec()
}

fn class_of_stderr(last: &[&str], resuming: bool) -> FailureClass {
    const UNKNOWN: [&str; 4] = [
        "no conversation found",
        "no rollout found",
        "thread/resume",
        "--resume",
    ];
    let text = last.join("\n").to_lowercase();
    // For any other file the message would name it.
    let no_directory = text
        .lines()
        .any(|line| line == "error: no such file or directory (os error 2)");
    if resuming && UNKNOWN.iter().any(|phrase| text.contains(phrase)) {
        FailureClass::ResumeFailed
    } else if no_directory || text.contains("not inside a trusted directory") {
        FailureClass::BadCwd
    } else {
        match class_of_text(&text) {
            Some(class @ (FailureClass::ProviderAuth | FailureClass::ProviderQuota)) => class,
            Some(_) | None => FailureClass::AgentExit,
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::codes;

    use super::*;

    #[test]
    fn exit_0_without_a_result_is_never_a_success() {
        let failure = exit_failure(AgentExit::Code(0), false, "all good");
        assert_eq!(failure.code(), codes::NO_RESULT);
        let failure = exit_failure(
            AgentExit::Code(1),
            true,
            "Error: no rollout found for x\n\n",
        );
        assert_eq!(failure.code(), codes::RESUME_FAILED);
        assert!(failure.message.ends_with("no rollout found for x"));
        let failure = exit_failure(AgentExit::Code(1), false, "");
        assert_eq!(
            failure.message,
            "the agent ended with exit code 1 and without a result"
        );
        let failure = exit_failure(AgentExit::Signal(9), true, "no rollout found");
        assert_eq!(failure.code(), codes::AGENT_EXIT);
        assert!(!failure.user_message().is_empty());
    }

    #[test]
    fn only_the_last_lines_of_stderr_determine_the_class() {
        let class = |stderr: &str| exit_failure(AgentExit::Code(1), false, stderr).class;
        let noise = "WARN rate limit of the cache\nread credential helper\n\n";
        let after = "a\nb\nc\nd\n";
        assert_eq!(class(&format!("{noise}{after}")), FailureClass::AgentExit);
        assert_eq!(
            class("Error: Invalid credentials"),
            FailureClass::ProviderAuth
        );
        assert_eq!(
            class("Error: No such file or directory (os error 2)\n"),
            FailureClass::BadCwd
        );
        let other = "cannot read a.json: No such file or directory (os error 2)";
        assert_eq!(class(other), FailureClass::AgentExit);
    }
}
