//! The exit codes of `baton`. Scripts depend on them, so only this file contains the numbers.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done: the request was carried out, and an awaited task is `completed` |
//! | 1 | the awaited task did not complete, the relay refused the request, or verify found damage |
//! | 2 | usage error, or the relay could not be reached |
//! | 3 | the awaited task was canceled |
//! | 4 | a person has to decide: the awaited task needs attention, or an export is incomplete or damaged |
//! | 130 | interrupted with Ctrl-C; the task itself continues |

use std::process::ExitCode;

use baton_proto::v1::TaskState;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandExit {
    Done,
    NotCompleted,
    Usage,
    Canceled,
    NeedsAttention,
    Interrupted,
}

impl CommandExit {
    pub const fn code(self) -> u8 {
        match self {
            CommandExit::Done => 0,
            CommandExit::NotCompleted => 1,
            CommandExit::Usage => 2,
            CommandExit::Canceled => 3,
            CommandExit::NeedsAttention => 4,
            CommandExit::Interrupted => 130,
        }
    }

    /// The exit code for an awaited task; `None` while it has not ended.
    pub fn for_task_state(state: TaskState) -> Option<CommandExit> {
        match state {
            TaskState::Unspecified
            | TaskState::Pending
            | TaskState::Queued
            | TaskState::Running => None,
            TaskState::NeedsAttention => Some(CommandExit::NeedsAttention),
            TaskState::Completed => Some(CommandExit::Done),
            TaskState::Canceled => Some(CommandExit::Canceled),
            TaskState::Failed | TaskState::TimedOut | TaskState::Lost => {
                Some(CommandExit::NotCompleted)
            }
        }
    }
}

impl From<CommandExit> for ExitCode {
    fn from(exit: CommandExit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_final_state_of_a_task_has_its_documented_code() {
        let code = |state| CommandExit::for_task_state(state).map(CommandExit::code);
        assert_eq!(code(TaskState::Completed), Some(0));
        for state in [TaskState::Failed, TaskState::TimedOut, TaskState::Lost] {
            assert_eq!(code(state), Some(1), "{state:?}");
        }
        assert_eq!(code(TaskState::Canceled), Some(3));
        assert_eq!(code(TaskState::NeedsAttention), Some(4));
        for state in [TaskState::Pending, TaskState::Queued, TaskState::Running] {
            assert_eq!(code(state), None, "{state:?}");
        }
    }
}
