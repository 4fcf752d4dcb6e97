//! Kind `command`: any program, run directly and without a shell, the prompt on its stdin. Exit 0 is its
//! result; anything else is a failure.

use std::ffi::OsString;
use std::path::Path;

use baton_proto::v1::{AgentOptions, AttemptRef, Dispatch, RejectCode};
use baton_proto::{TraceParent, codes};

use super::Refusal;
use crate::attempt::{Cause, Ending};
use crate::config::AgentConfig;
use crate::process::{ChildSpec, Exit, Owner, child_environment};
use crate::timers::DeadlineKind;

/// A command takes no options, and workspaces come with a later version.
pub(super) fn check(dispatch: &Dispatch) -> Result<(), Refusal> {
    let AgentOptions {
        model,
        effort,
        permission_mode,
        instructions,
        context_refs,
    } = dispatch.options.clone().unwrap_or_default();
    let given = [
        ("model", !model.is_empty()),
        ("effort", !effort.is_empty()),
        ("permission_mode", !permission_mode.is_empty()),
        ("instructions", !instructions.is_empty()),
        ("context_refs", !context_refs.is_empty()),
        ("agent_session_id", !dispatch.agent_session_id.is_empty()),
    ];
    if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
        let message = format!("a command takes no option {option}");
        return Err(Refusal::new(RejectCode::UnsupportedOption, message));
    }
    match &dispatch.workspace {
        Some(workspace) if !workspace.root.is_empty() => {
            let message = format!("this daemon has no workspace root {:?}", workspace.root);
            Err(Refusal::new(RejectCode::BadCwd, message))
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) fn child(
    config: &AgentConfig,
    attempt: &AttemptRef,
    dispatch: &Dispatch,
    daemon_id: &str,
    work_dir: &Path,
) -> Result<ChildSpec, Refusal> {
    let (program, args) = command_line(config, dispatch)?;
    let owner = Owner {
        attempt_id: &attempt.attempt_id,
        daemon_id,
        traceparent: TraceParent::parse(&attempt.traceparent),
    };
    let configured = match config {
        AgentConfig::AnyCommand => None,
        AgentConfig::Command { env, .. } => Some(env),
    };
    // The operator's variables come after the task's, and so win.
    let variables = dispatch.env.iter().chain(configured.into_iter().flatten());
    let variables = variables.map(|(name, value)| (name.as_str(), value.as_str()));
    Ok(ChildSpec {
        program,
        args,
        cwd: work_dir.join(&dispatch.cwd),
        environment: child_environment(std::env::vars_os(), variables, &owner),
    })
}

fn command_line(
    config: &AgentConfig,
    dispatch: &Dispatch,
) -> Result<(OsString, Vec<OsString>), Refusal> {
    let argv = dispatch
        .command
        .as_ref()
        .map_or(&[][..], |command| &command.argv);
    if argv.iter().any(|word| word.contains('\0')) {
        return Err(Refusal::new(
            RejectCode::Invalid,
            "a command line cannot hold NUL",
        ));
    }
    let mut words = argv.iter().map(OsString::from);
    match config {
        AgentConfig::AnyCommand => match words.next() {
            Some(program) if !program.is_empty() => Ok((program, words.collect())),
            Some(_) | None => Err(Refusal::new(
                RejectCode::Invalid,
                "the dispatch names no program to run",
            )),
        },
        AgentConfig::Command { program, args, .. } => {
            Ok((program.clone(), args.iter().cloned().chain(words).collect()))
        }
    }
}

/// Why a configured program cannot be run, as a failure code.
pub(super) fn problem(config: &AgentConfig) -> Option<&'static str> {
    match config {
        AgentConfig::AnyCommand => None,
        AgentConfig::Command { program, .. } => {
            let found = if Path::new(program).components().count() > 1 {
                Path::new(program).exists()
            } else {
                let path = std::env::var_os("PATH").unwrap_or_default();
                std::env::split_paths(&path).any(|dir| dir.join(program).exists())
            };
            (!found).then_some(codes::PROVIDER_MISSING)
        }
    }
}

/// What an ending means for the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Complete,
    Failed {
        code: String,
        message: String,
        deadline: Option<DeadlineKind>,
    },
    /// Ended from outside: there is no result to tell.
    Stopped,
}

pub(crate) fn judge(ending: &Ending) -> Verdict {
    let failed = |code: &str, message: String| Verdict::Failed {
        code: code.to_owned(),
        message,
        deadline: None,
    };
    match &ending.cause {
        Cause::Exited(Exit::Code(0)) => Verdict::Complete,
        Cause::Exited(exit) => failed(codes::AGENT_EXIT, format!("the command ended with {exit}")),
        Cause::NotStarted { code, message } => failed(code, message.clone()),
        Cause::Deadline(kind) => Verdict::Failed {
            code: kind.failure_code().to_owned(),
            message: format!("the {} deadline passed", kind.name()),
            deadline: Some(*kind),
        },
        Cause::Disk { message } => failed(codes::WORKER_DISK_FULL, message.clone()),
        // Whoever ended it knows what it means; of a lost one nobody does.
        Cause::Stopped | Cause::LeaseEnded | Cause::Lost => Verdict::Stopped,
        Cause::Broken => failed(
            codes::SPAWN_FAILED,
            "the daemon failed while it ran this attempt and ended its processes; see its log"
                .to_owned(),
        ),
    }
}
