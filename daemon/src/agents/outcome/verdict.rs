//! The verdict on an ended attempt, from how its process ended and what the agent reported
//! before.

use baton_proto::codes;
use baton_proto::worker::{Finish, FinishOutcome};

use super::failure::{self, FailureClass, TurnFailure};
use super::turn_usage::TurnUsage;
use crate::agents::adapter::agent_event::TurnOutcome;
use crate::attempt::{AgentSummary, AttemptEnding, EndCause};
use crate::deadlines::DeadlineKind;
use crate::process::ChildExit;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptVerdict {
    Complete(AttemptCompletion),
    Failed(AttemptFailure),
    /// The agent reports that the task should be canceled, with a reason.
    Withdrawn {
        reason: String,
        used: FinalAgentUsage,
    },
    /// Ended from outside; there is no result to report.
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptCompletion {
    pub(crate) result: String,
    pub(crate) used: FinalAgentUsage,
    /// The result had come, but the process hung and was killed.
    pub(crate) killed_after_result: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptFailure {
    pub(crate) code: String,
    /// For operators.
    pub(crate) message: String,
    pub(crate) user_message: String,
    pub(crate) deadline: Option<DeadlineKind>,
    /// `false` forbids another attempt.
    pub(crate) retryable: Option<bool>,
    pub(crate) used: FinalAgentUsage,
}

/// Usage and conversation that an agent reported; empty for a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FinalAgentUsage {
    pub(crate) usage: Option<TurnUsage>,
    pub(crate) conversation: String,
}

impl FinalAgentUsage {
    pub(crate) fn from_summary(summary: &AgentSummary) -> Self {
        Self {
            usage: match &summary.end {
                Some(end) => end.usage.clone(),
                None => summary.used_before.clone(),
            },
            conversation: summary.conversation.clone().unwrap_or_default(),
        }
    }
}

impl AttemptFailure {
    fn new(code: &str, message: String) -> Self {
        Self {
            code: code.to_owned(),
            user_message: message.clone(),
            message,
            ..Self::default()
        }
    }

    fn from_turn_failure(failure: &TurnFailure) -> Self {
        Self {
            user_message: failure.user_message().to_owned(),
            ..Self::new(failure.code(), failure.message.clone())
        }
    }
}

pub(crate) fn judge_ending(ending: &AttemptEnding) -> AttemptVerdict {
    let verdict = match &ending.agent_summary {
        Some(summary) => judge_coding_agent(ending, summary),
        None => judge_command(ending),
    };
    let Some(summary) = &ending.agent_summary else {
        return verdict;
    };
    let used = FinalAgentUsage::from_summary(summary);
    match verdict {
        AttemptVerdict::Complete(completion) => {
            AttemptVerdict::Complete(AttemptCompletion { used, ..completion })
        }
        AttemptVerdict::Failed(failure) => {
            AttemptVerdict::Failed(AttemptFailure { used, ..failure })
        }
        AttemptVerdict::Withdrawn { reason, .. } => AttemptVerdict::Withdrawn { reason, used },
        AttemptVerdict::Stopped => AttemptVerdict::Stopped,
    }
}

/// An end that the agent reported through its tools counts like a result: it overrides exit
/// codes, deadlines and the end of the lease, but never an order to stop.
pub(crate) fn judge_with_finish(ending: &AttemptEnding, finish: Option<&Finish>) -> AttemptVerdict {
    let (judged, cause) = (judge_ending(ending), &ending.cause);
    let by_itself = match cause {
        EndCause::Exited(_) | EndCause::Lingered | EndCause::Deadline(_) | EndCause::LeaseEnded => {
            true
        }
        EndCause::NotStarted { .. }
        | EndCause::WorkerDisk { .. }
        | EndCause::Stopped
        | EndCause::Lost
        | EndCause::NeverLaunched
        | EndCause::DaemonFault => false,
    };
    let Some(finish) = finish.filter(|_| by_itself) else {
        return judged;
    };
    let agent_result = match judged {
        AttemptVerdict::Complete(completion) => completion.result,
        AttemptVerdict::Failed(_) | AttemptVerdict::Withdrawn { .. } | AttemptVerdict::Stopped => {
            String::new()
        }
    };
    let used = ending
        .agent_summary
        .as_ref()
        .map(FinalAgentUsage::from_summary)
        .unwrap_or_default();
    let or = |text: &str, other: &str| (if text.is_empty() { other } else { text }).to_owned();
    match finish.outcome() {
        FinishOutcome::Unspecified | FinishOutcome::Completed => {
            AttemptVerdict::Complete(AttemptCompletion {
                result: or(&finish.result, &or(&agent_result, &finish.summary)),
                used,
                killed_after_result: !matches!(cause, EndCause::Exited(_)),
            })
        }
        FinishOutcome::Failed => AttemptVerdict::Failed(AttemptFailure {
            code: or(&finish.failure_code, codes::AGENT_REPORTED),
            message: finish.summary.clone(),
            user_message: or(&finish.result, &finish.summary),
            retryable: finish.retryable,
            deadline: None,
            used,
        }),
        FinishOutcome::Canceled => AttemptVerdict::Withdrawn {
            reason: finish.summary.clone(),
            used,
        },
    }
}

/// A result overrides a deadline and the end of the lease, but never an order to stop. Exit
/// codes decide nothing.
fn judge_coding_agent(ending: &AttemptEnding, summary: &AgentSummary) -> AttemptVerdict {
    let outcome = summary.end.as_ref().map(|end| &end.outcome);
    match (&ending.cause, outcome) {
        (
            EndCause::Exited(_) | EndCause::Lingered | EndCause::Deadline(_) | EndCause::LeaseEnded,
            Some(TurnOutcome::Result(result)),
        ) => AttemptVerdict::Complete(AttemptCompletion {
            result: result.clone(),
            killed_after_result: !matches!(ending.cause, EndCause::Exited(_)),
            used: FinalAgentUsage::default(),
        }),
        (EndCause::Exited(_) | EndCause::Lingered, Some(TurnOutcome::Failed(failure))) => {
            AttemptVerdict::Failed(AttemptFailure::from_turn_failure(failure))
        }
        (EndCause::Exited(_) | EndCause::Lingered, Some(TurnOutcome::Interrupted)) => {
            no_result("the agent's turn was interrupted, but not by this daemon")
        }
        (EndCause::Exited(_) | EndCause::Lingered, None) => {
            no_result("the agent's process is gone, and the end of its turn was not observed")
        }
        _ => judge_command(ending),
    }
}

fn no_result(message: &str) -> AttemptVerdict {
    let failure = TurnFailure::new(FailureClass::NoResult, message);
    AttemptVerdict::Failed(AttemptFailure::from_turn_failure(&failure))
}

fn judge_command(ending: &AttemptEnding) -> AttemptVerdict {
    let failed =
        |code: &str, message: String| AttemptVerdict::Failed(AttemptFailure::new(code, message));
    match &ending.cause {
        EndCause::Exited(ChildExit::Code(0)) => {
            AttemptVerdict::Complete(AttemptCompletion::default())
        }
        EndCause::Exited(exit) => {
            failed(codes::AGENT_EXIT, format!("the command ended with {exit}"))
        }
        EndCause::NotStarted { code, message } => {
            let user_message = failure::startup_user_message(code).unwrap_or(message);
            AttemptVerdict::Failed(AttemptFailure {
                user_message: user_message.to_owned(),
                ..AttemptFailure::new(code, message.clone())
            })
        }
        EndCause::Deadline(kind) => AttemptVerdict::Failed(AttemptFailure {
            deadline: Some(*kind),
            ..AttemptFailure::new(
                kind.failure_code(),
                format!("the {} deadline passed", kind.name()),
            )
        }),
        EndCause::WorkerDisk { message } => failed(codes::WORKER_DISK_FULL, message.clone()),
        // The cause of a stop is known where it was ordered. A lost attempt has no known
        // outcome, and one that never ran has nothing to report. A command never lingers.
        EndCause::Stopped
        | EndCause::LeaseEnded
        | EndCause::Lost
        | EndCause::NeverLaunched
        | EndCause::Lingered => AttemptVerdict::Stopped,
        EndCause::DaemonFault => failed(
            codes::SPAWN_FAILED,
            "the daemon failed while running this attempt and ended its processes; see its log"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::adapter::agent_event;
    use crate::process::TerminationOutcome;

    fn ending(cause: EndCause, outcome: Option<TurnOutcome>) -> AttemptEnding {
        let end = outcome.map(|outcome| agent_event::TurnEnding {
            outcome,
            usage: None,
        });
        AttemptEnding {
            cause,
            agent_summary: Some(AgentSummary {
                used_before: None,
                end,
                conversation: Some("c".to_owned()),
            }),
            ..AttemptEnding::daemon_fault(TerminationOutcome::default())
        }
    }

    #[test]
    fn a_result_is_a_success_however_the_process_ends() {
        let result = || Some(TurnOutcome::Result("done".to_owned()));
        for (cause, killed) in [
            (EndCause::Exited(ChildExit::Code(0)), false),
            (EndCause::Exited(ChildExit::Code(1)), false),
            (EndCause::Lingered, true),
            (EndCause::Deadline(DeadlineKind::Total), true),
            (EndCause::LeaseEnded, true),
        ] {
            match judge_ending(&ending(cause, result())) {
                AttemptVerdict::Complete(completion) => {
                    assert_eq!(completion.killed_after_result, killed);
                    assert_eq!(completion.used.conversation, "c");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            judge_ending(&ending(EndCause::Stopped, result())),
            AttemptVerdict::Stopped
        );
        assert_eq!(
            judge_ending(&ending(EndCause::Lost, result())),
            AttemptVerdict::Stopped
        );
    }

    #[test]
    fn a_reported_end_outweighs_how_the_process_ended() {
        let finish = |outcome: FinishOutcome| Finish {
            outcome: outcome.into(),
            summary: "why".to_owned(),
            ..Finish::default()
        };
        let verdict_on = |outcome, cause: EndCause| {
            let exit = ending(cause, None);
            judge_with_finish(&exit, Some(&finish(outcome)))
        };
        let late = || EndCause::Deadline(DeadlineKind::Total);
        let ends = [
            (EndCause::Exited(ChildExit::Code(7)), false),
            (late(), true),
            (EndCause::LeaseEnded, true),
        ];
        for (cause, killed) in ends {
            match verdict_on(FinishOutcome::Completed, cause) {
                AttemptVerdict::Complete(done) => {
                    assert_eq!(
                        (done.result.as_str(), done.killed_after_result),
                        ("why", killed)
                    );
                    assert_eq!(done.used.conversation, "c");
                }
                other => panic!("{other:?}"),
            }
        }
        match verdict_on(FinishOutcome::Failed, EndCause::Exited(ChildExit::Code(0))) {
            AttemptVerdict::Failed(failure) => assert_eq!(failure.code, codes::AGENT_REPORTED),
            other => panic!("{other:?}"),
        }
        let withdrawn = verdict_on(
            FinishOutcome::Canceled,
            EndCause::Exited(ChildExit::Code(0)),
        );
        match withdrawn {
            AttemptVerdict::Withdrawn { reason, used } => {
                assert_eq!((reason.as_str(), used.conversation.as_str()), ("why", "c"));
            }
            other => panic!("{other:?}"),
        }
        for cause in [EndCause::Stopped, EndCause::Lost] {
            assert_eq!(
                verdict_on(FinishOutcome::Completed, cause),
                AttemptVerdict::Stopped
            );
        }
    }

    #[test]
    fn a_missing_program_is_reported_to_operator_and_user() {
        let cause = EndCause::NotStarted {
            code: "provider_missing".to_owned(),
            message: "cannot start \"claude\"".to_owned(),
        };
        match judge_ending(&ending(cause, None)) {
            AttemptVerdict::Failed(failure) => {
                assert_eq!(failure.code, "provider_missing");
                assert!(failure.message.contains("claude"));
                assert!(failure.user_message.contains("not installed"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_a_result_exit_0_is_a_failure() {
        let failure = TurnFailure::new(FailureClass::NoResult, "nothing");
        let exited = ending(
            EndCause::Exited(ChildExit::Code(0)),
            Some(TurnOutcome::Failed(failure)),
        );
        assert!(
            matches!(judge_ending(&exited), AttemptVerdict::Failed(failure) if failure.code == "no_result")
        );
        let odd = ending(
            EndCause::Exited(ChildExit::Code(0)),
            Some(TurnOutcome::Interrupted),
        );
        assert!(
            matches!(judge_ending(&odd), AttemptVerdict::Failed(failure) if failure.code == "no_result")
        );
        let unseen = ending(EndCause::Exited(ChildExit::Unknown), None);
        assert!(
            matches!(judge_ending(&unseen), AttemptVerdict::Failed(failure) if failure.message.contains("not observed"))
        );
        let late = ending(EndCause::Deadline(DeadlineKind::StreamIdle), None);
        assert!(
            matches!(judge_ending(&late), AttemptVerdict::Failed(failure) if failure.deadline.is_some())
        );
    }
}
