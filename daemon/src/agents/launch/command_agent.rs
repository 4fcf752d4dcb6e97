//! Agents of kind `command`: any program, run without a shell and with the prompt on its stdin.
//! Exit code 0 is success; anything else is a failure.

use std::ffi::OsString;
use std::path::PathBuf;

use baton_proto::TraceParent;
use baton_proto::v1::{AgentOptions, AttemptRef, Dispatch, RejectCode};

use crate::agents::DispatchRefusal;
use crate::config::AgentConfig;
use crate::process::{ChildSpec, ProcessOwner, check_variable_name, child_environment};

/// A command supports no options.
pub(crate) fn check_options(dispatch: &Dispatch) -> Result<(), DispatchRefusal> {
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
        return Err(DispatchRefusal::new(RejectCode::UnsupportedOption, message));
    }
    Ok(())
}

pub(crate) fn child_spec(
    config: &AgentConfig,
    attempt: &AttemptRef,
    dispatch: &Dispatch,
    daemon_id: &str,
    cwd: PathBuf,
) -> Result<ChildSpec, DispatchRefusal> {
    check_variables(config, dispatch)?;
    let (program, args) = command_line(config, dispatch)?;
    let owner = ProcessOwner {
        attempt_id: &attempt.attempt_id,
        daemon_id,
        traceparent: TraceParent::parse(&attempt.traceparent),
    };
    let configured = match config {
        AgentConfig::AnyCommand => None,
        AgentConfig::Command { env, .. } | AgentConfig::Coding { env, .. } => Some(env),
    };
    // The operator's variables come after the task's, so they take precedence.
    let variables = dispatch.env.iter().chain(configured.into_iter().flatten());
    let variables = variables.map(|(name, value)| (name.as_str(), value.as_str()));
    Ok(ChildSpec {
        program,
        args,
        cwd,
        environment: child_environment(std::env::vars_os(), variables, &owner),
        control_group: None,
    })
}

/// A variable can determine what a program loads and where it sends data. So an agent that the
/// operator configured accepts only variables that the operator allowed. Baton's own variables
/// cannot be set and are always ignored.
fn check_variables(config: &AgentConfig, dispatch: &Dispatch) -> Result<(), DispatchRefusal> {
    let mut names = dispatch.env.keys();
    let refused =
        names.find(|name| check_variable_name(name).is_ok() && !config.allows_task_variable(name));
    refused.map_or(Ok(()), |name| {
        let message = format!(
            "the agent does not accept the variable {name} from tasks; its operator can allow it with task_env in daemon.toml"
        );
        Err(DispatchRefusal::new(RejectCode::UnsupportedOption, message))
    })
}

fn command_line(
    config: &AgentConfig,
    dispatch: &Dispatch,
) -> Result<(OsString, Vec<OsString>), DispatchRefusal> {
    let argv = dispatch
        .command
        .as_ref()
        .map_or(&[][..], |command| &command.argv);
    if argv.iter().any(|arg| arg.contains('\0')) {
        return Err(DispatchRefusal::new(
            RejectCode::Invalid,
            "a command line cannot contain NUL",
        ));
    }
    let mut task_args = argv.iter().map(OsString::from);
    match config {
        AgentConfig::AnyCommand => match task_args.next() {
            Some(program) if !program.is_empty() => Ok((program, task_args.collect())),
            Some(_) | None => Err(DispatchRefusal::new(
                RejectCode::Invalid,
                "the dispatch names no program to run",
            )),
        },
        AgentConfig::Command { program, args, .. } | AgentConfig::Coding { program, args, .. } => {
            Ok((
                program.clone(),
                args.iter().cloned().chain(task_args).collect(),
            ))
        }
    }
}
