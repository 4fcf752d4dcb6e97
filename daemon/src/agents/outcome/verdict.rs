//! What the end of an attempt means: by how its process ended, and by what an agent said before.

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
    /// The agent found that the task is to be canceled, and says why.
    Withdrawn {
        reason: String,
        used: FinalAgentUsage,
    },
    /// Ended from outside: there is no result to tell.
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptCompletion {
    pub(crate) result: String,
    pub(crate) used: FinalAgentUsage,
    /// The result came, the process hung and was killed.
    pub(crate) killed_after_result: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptFailure {
    pub(crate) code: String,
    /// For operators.
    pub(crate) message: String,
    pub(crate) user_message: String,
    pub(crate) deadline: Option<DeadlineKind>,
    /// False forbids another attempt.
    pub(crate) retryable: Option<bool>,
    pub(crate) used: FinalAgentUsage,
}

/// What an agent says about itself at its end; a command says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FinalAgentUsage {
    pub(crate) usage: Option<TurnUsage>,
    pub(crate) conversation: String,
}

impl FinalAgentUsage {
    pub(crate) fn from_summary(spoken: &AgentSummary) -> Self {
        Self {
            usage: match &spoken.end {
                Some(end) => end.usage.clone(),
                None => spoken.used_before.clone(),
            },
            conversation: spoken.conversation.clone().unwrap_or_default(),
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
        Some(spoken) => judge_coding_agent(ending, spoken),
        None => judge_command(ending),
    };
    let Some(spoken) = &ending.agent_summary else {
        return verdict;
    };
    let used = FinalAgentUsage::from_summary(spoken);
    match verdict {
        AttemptVerdict::Complete(completion) => {
            AttemptVerdict::Complete(AttemptCompletion { used, ..completion })
        }
        AttemptVerdict::Failed(failing) => {
            AttemptVerdict::Failed(AttemptFailure { used, ..failing })
        }
        AttemptVerdict::Withdrawn { reason: why, .. } => {
            AttemptVerdict::Withdrawn { reason: why, used }
        }
        AttemptVerdict::Stopped => AttemptVerdict::Stopped,
    }
}

/// What an agent said of its end through its tools counts as its result does: over exit codes, deadlines and the end of
/// the lease, never over an order to stop.
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
    let own_words = match judged {
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
                result: or(&finish.result, &or(&own_words, &finish.summary)),
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

/// A result wins over a deadline and over the end of the lease, never over an order to stop. Exit codes decide nothing.
fn judge_coding_agent(ending: &AttemptEnding, spoken: &AgentSummary) -> AttemptVerdict {
    let outcome = spoken.end.as_ref().map(|end| &end.outcome);
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
            no_result("the agent's turn was interrupted, and not by this daemon")
        }
        (EndCause::Exited(_) | EndCause::Lingered, None) => {
            no_result("the agent's process is gone, and nobody saw how its turn ended")
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
            let words = failure::startup_user_message(code).unwrap_or(message);
            AttemptVerdict::Failed(AttemptFailure {
                user_message: words.to_owned(),
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
        // Whoever ended it knows what it means; of a lost one nobody does, and of one that never ran there is nothing to
        // tell. A command never lingers.
        EndCause::Stopped
        | EndCause::LeaseEnded
        | EndCause::Lost
        | EndCause::NeverLaunched
        | EndCause::Lingered => AttemptVerdict::Stopped,
        EndCause::DaemonFault => failed(
            codes::SPAWN_FAILED,
            "the daemon failed while it ran this attempt and ended its processes; see its log"
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
    fn a_result_is_a_success_whatever_the_process_did_after_it() {
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
    fn what_an_agent_said_of_its_end_outweighs_how_its_process_ended() {
        let finish = |outcome: FinishOutcome| Finish {
            outcome: outcome.into(),
            summary: "why".to_owned(),
            ..Finish::default()
        };
        let told = |outcome, cause: EndCause| {
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
            match told(FinishOutcome::Completed, cause) {
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
        match told(FinishOutcome::Failed, EndCause::Exited(ChildExit::Code(0))) {
            AttemptVerdict::Failed(failing) => assert_eq!(failing.code, codes::AGENT_REPORTED),
            other => panic!("{other:?}"),
        }
        let withdrawn = told(
            FinishOutcome::Canceled,
            EndCause::Exited(ChildExit::Code(0)),
        );
        match withdrawn {
            AttemptVerdict::Withdrawn { reason: why, used } => {
                assert_eq!((why.as_str(), used.conversation.as_str()), ("why", "c"));
            }
            other => panic!("{other:?}"),
        }
        for cause in [EndCause::Stopped, EndCause::Lost] {
            assert_eq!(
                told(FinishOutcome::Completed, cause),
                AttemptVerdict::Stopped
            );
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_told_to_its_operator_and_to_its_user() {
        let cause = EndCause::NotStarted {
            code: "provider_missing".to_owned(),
            message: "cannot start \"claude\"".to_owned(),
        };
        match judge_ending(&ending(cause, None)) {
            AttemptVerdict::Failed(failing) => {
                assert_eq!(failing.code, "provider_missing");
                assert!(failing.message.contains("claude"));
                assert!(failing.user_message.contains("not installed"));
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
            matches!(judge_ending(&exited), AttemptVerdict::Failed(failing) if failing.code == "no_result")
        );
        let odd = ending(
            EndCause::Exited(ChildExit::Code(0)),
            Some(TurnOutcome::Interrupted),
        );
        assert!(
            matches!(judge_ending(&odd), AttemptVerdict::Failed(failing) if failing.code == "no_result")
        );
        let unseen = ending(EndCause::Exited(ChildExit::Unknown), None);
        assert!(
            matches!(judge_ending(&unseen), AttemptVerdict::Failed(failing) if failing.message.contains("nobody saw"))
        );
        let late = ending(EndCause::Deadline(DeadlineKind::StreamIdle), None);
        assert!(
            matches!(judge_ending(&late), AttemptVerdict::Failed(failing) if failing.deadline.is_some())
        );
    }
}
