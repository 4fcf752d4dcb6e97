//! What the end of an attempt means: by how its process ended, and by what an agent said before.

use baton_proto::codes;
use baton_proto::worker::{Finish, FinishOutcome};

use super::event::Outcome;
use super::failure::{self, Failure, FailureClass};
use super::usage::TurnUsage;
use crate::attempt::{Cause, Ending, Spoken};
use crate::process::Exit;
use crate::timers::DeadlineKind;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Complete(Completion),
    Failed(Failing),
    /// The agent found that the task is to be canceled, and says why.
    Withdrawn {
        why: String,
        used: Used,
    },
    /// Ended from outside: there is no result to tell.
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) result: String,
    pub(crate) used: Used,
    /// The result came, the process hung and was killed.
    pub(crate) killed_after_result: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failing {
    pub(crate) code: String,
    /// For operators.
    pub(crate) message: String,
    pub(crate) user_message: String,
    pub(crate) deadline: Option<DeadlineKind>,
    /// False forbids another attempt.
    pub(crate) retryable: Option<bool>,
    pub(crate) used: Used,
}

/// What an agent says about itself at its end; a command says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) usage: Option<TurnUsage>,
    pub(crate) conversation: String,
}

impl Used {
    pub(crate) fn of(spoken: &Spoken) -> Self {
        Self {
            usage: match &spoken.end {
                Some(end) => end.usage.clone(),
                None => spoken.used_before.clone(),
            },
            conversation: spoken.conversation.clone().unwrap_or_default(),
        }
    }
}

impl Failing {
    fn new(code: &str, message: String) -> Self {
        Self {
            code: code.to_owned(),
            user_message: message.clone(),
            message,
            ..Self::default()
        }
    }

    fn of_agent(failure: &Failure) -> Self {
        Self {
            user_message: failure.user_message().to_owned(),
            ..Self::new(failure.code(), failure.message.clone())
        }
    }
}

pub(crate) fn judge(ending: &Ending) -> Verdict {
    let verdict = match &ending.spoken {
        Some(spoken) => judge_agent(ending, spoken),
        None => judge_command(ending),
    };
    let Some(spoken) = &ending.spoken else {
        return verdict;
    };
    let used = Used::of(spoken);
    match verdict {
        Verdict::Complete(completion) => Verdict::Complete(Completion { used, ..completion }),
        Verdict::Failed(failing) => Verdict::Failed(Failing { used, ..failing }),
        Verdict::Withdrawn { why, .. } => Verdict::Withdrawn { why, used },
        Verdict::Stopped => Verdict::Stopped,
    }
}

/// What an agent said of its end through its tools counts as its result does: over exit codes, deadlines and the end of
/// the lease, never over an order to stop.
pub(crate) fn as_told(ending: &Ending, finish: Option<&Finish>) -> Verdict {
    let (judged, cause) = (judge(ending), &ending.cause);
    let by_itself = match cause {
        Cause::Exited(_) | Cause::Lingered | Cause::Deadline(_) | Cause::LeaseEnded => true,
        Cause::NotStarted { .. }
        | Cause::Disk { .. }
        | Cause::Stopped
        | Cause::Lost
        | Cause::NeverLaunched
        | Cause::Broken => false,
    };
    let Some(finish) = finish.filter(|_| by_itself) else {
        return judged;
    };
    let own_words = match judged {
        Verdict::Complete(completion) => completion.result,
        Verdict::Failed(_) | Verdict::Withdrawn { .. } | Verdict::Stopped => String::new(),
    };
    let used = ending.spoken.as_ref().map(Used::of).unwrap_or_default();
    let or = |text: &str, other: &str| (if text.is_empty() { other } else { text }).to_owned();
    match finish.outcome() {
        FinishOutcome::Unspecified | FinishOutcome::Completed => Verdict::Complete(Completion {
            result: or(&finish.result, &or(&own_words, &finish.summary)),
            used,
            killed_after_result: !matches!(cause, Cause::Exited(_)),
        }),
        FinishOutcome::Failed => Verdict::Failed(Failing {
            code: or(&finish.failure_code, codes::AGENT_REPORTED),
            message: finish.summary.clone(),
            user_message: or(&finish.result, &finish.summary),
            retryable: finish.retryable,
            deadline: None,
            used,
        }),
        FinishOutcome::Canceled => Verdict::Withdrawn {
            why: finish.summary.clone(),
            used,
        },
    }
}

/// A result wins over a deadline and over the end of the lease, never over an order to stop. Exit codes decide nothing.
fn judge_agent(ending: &Ending, spoken: &Spoken) -> Verdict {
    let outcome = spoken.end.as_ref().map(|end| &end.outcome);
    match (&ending.cause, outcome) {
        (
            Cause::Exited(_) | Cause::Lingered | Cause::Deadline(_) | Cause::LeaseEnded,
            Some(Outcome::Result(result)),
        ) => Verdict::Complete(Completion {
            result: result.clone(),
            killed_after_result: !matches!(ending.cause, Cause::Exited(_)),
            used: Used::default(),
        }),
        (Cause::Exited(_) | Cause::Lingered, Some(Outcome::Failed(failure))) => {
            Verdict::Failed(Failing::of_agent(failure))
        }
        (Cause::Exited(_) | Cause::Lingered, Some(Outcome::Interrupted)) => {
            without_result("the agent's turn was interrupted, and not by this daemon")
        }
        (Cause::Exited(_) | Cause::Lingered, None) => {
            without_result("the agent's process is gone, and nobody saw how its turn ended")
        }
        _ => judge_command(ending),
    }
}

fn without_result(message: &str) -> Verdict {
    let failure = Failure::new(FailureClass::NoResult, message);
    Verdict::Failed(Failing::of_agent(&failure))
}

fn judge_command(ending: &Ending) -> Verdict {
    let failed = |code: &str, message: String| Verdict::Failed(Failing::new(code, message));
    match &ending.cause {
        Cause::Exited(Exit::Code(0)) => Verdict::Complete(Completion::default()),
        Cause::Exited(exit) => failed(codes::AGENT_EXIT, format!("the command ended with {exit}")),
        Cause::NotStarted { code, message } => {
            let words = failure::without_process(code).unwrap_or(message);
            Verdict::Failed(Failing {
                user_message: words.to_owned(),
                ..Failing::new(code, message.clone())
            })
        }
        Cause::Deadline(kind) => Verdict::Failed(Failing {
            deadline: Some(*kind),
            ..Failing::new(
                kind.failure_code(),
                format!("the {} deadline passed", kind.name()),
            )
        }),
        Cause::Disk { message } => failed(codes::WORKER_DISK_FULL, message.clone()),
        // Whoever ended it knows what it means; of a lost one nobody does, and of one that never ran there is nothing to
        // tell. A command never lingers.
        Cause::Stopped
        | Cause::LeaseEnded
        | Cause::Lost
        | Cause::NeverLaunched
        | Cause::Lingered => Verdict::Stopped,
        Cause::Broken => failed(
            codes::SPAWN_FAILED,
            "the daemon failed while it ran this attempt and ended its processes; see its log"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::event;
    use super::*;
    use crate::process::Cleared;

    fn ending(cause: Cause, outcome: Option<Outcome>) -> Ending {
        let end = outcome.map(|outcome| event::Ending {
            outcome,
            usage: None,
        });
        Ending {
            cause,
            spoken: Some(Spoken {
                used_before: None,
                end,
                conversation: Some("c".to_owned()),
            }),
            ..Ending::broken(Cleared::default())
        }
    }

    #[test]
    fn a_result_is_a_success_whatever_the_process_did_after_it() {
        let result = || Some(Outcome::Result("done".to_owned()));
        for (cause, killed) in [
            (Cause::Exited(Exit::Code(0)), false),
            (Cause::Exited(Exit::Code(1)), false),
            (Cause::Lingered, true),
            (Cause::Deadline(DeadlineKind::Total), true),
            (Cause::LeaseEnded, true),
        ] {
            match judge(&ending(cause, result())) {
                Verdict::Complete(completion) => {
                    assert_eq!(completion.killed_after_result, killed);
                    assert_eq!(completion.used.conversation, "c");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(judge(&ending(Cause::Stopped, result())), Verdict::Stopped);
        assert_eq!(judge(&ending(Cause::Lost, result())), Verdict::Stopped);
    }

    #[test]
    fn what_an_agent_said_of_its_end_outweighs_how_its_process_ended() {
        let finish = |outcome: FinishOutcome| Finish {
            outcome: outcome.into(),
            summary: "why".to_owned(),
            ..Finish::default()
        };
        let told = |outcome, cause: Cause| {
            let exit = ending(cause, None);
            as_told(&exit, Some(&finish(outcome)))
        };
        let late = || Cause::Deadline(DeadlineKind::Total);
        let ends = [
            (Cause::Exited(Exit::Code(7)), false),
            (late(), true),
            (Cause::LeaseEnded, true),
        ];
        for (cause, killed) in ends {
            match told(FinishOutcome::Completed, cause) {
                Verdict::Complete(done) => {
                    assert_eq!(
                        (done.result.as_str(), done.killed_after_result),
                        ("why", killed)
                    );
                    assert_eq!(done.used.conversation, "c");
                }
                other => panic!("{other:?}"),
            }
        }
        match told(FinishOutcome::Failed, Cause::Exited(Exit::Code(0))) {
            Verdict::Failed(failing) => assert_eq!(failing.code, codes::AGENT_REPORTED),
            other => panic!("{other:?}"),
        }
        let withdrawn = told(FinishOutcome::Canceled, Cause::Exited(Exit::Code(0)));
        match withdrawn {
            Verdict::Withdrawn { why, used } => {
                assert_eq!((why.as_str(), used.conversation.as_str()), ("why", "c"));
            }
            other => panic!("{other:?}"),
        }
        for cause in [Cause::Stopped, Cause::Lost] {
            assert_eq!(told(FinishOutcome::Completed, cause), Verdict::Stopped);
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_told_to_its_operator_and_to_its_user() {
        let cause = Cause::NotStarted {
            code: "provider_missing".to_owned(),
            message: "cannot start \"claude\"".to_owned(),
        };
        match judge(&ending(cause, None)) {
            Verdict::Failed(failing) => {
                assert_eq!(failing.code, "provider_missing");
                assert!(failing.message.contains("claude"));
                assert!(failing.user_message.contains("not installed"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_a_result_exit_0_is_a_failure() {
        let failure = Failure::new(FailureClass::NoResult, "nothing");
        let exited = ending(Cause::Exited(Exit::Code(0)), Some(Outcome::Failed(failure)));
        assert!(matches!(judge(&exited), Verdict::Failed(failing) if failing.code == "no_result"));
        let odd = ending(Cause::Exited(Exit::Code(0)), Some(Outcome::Interrupted));
        assert!(matches!(judge(&odd), Verdict::Failed(failing) if failing.code == "no_result"));
        let unseen = ending(Cause::Exited(Exit::Unseen), None);
        assert!(
            matches!(judge(&unseen), Verdict::Failed(failing) if failing.message.contains("nobody saw"))
        );
        let late = ending(Cause::Deadline(DeadlineKind::StreamIdle), None);
        assert!(matches!(judge(&late), Verdict::Failed(failing) if failing.deadline.is_some()));
    }
}
