//! A dispatch for a coding agent: what the task asks for, in the agent's own words, and who will read what it says.

use std::path::Path;

use baton_proto::v1::{AgentKind, AgentOptions, AttemptRef, Dispatch, RejectCode};

use super::launch::{ContextFile, Wanted};
use super::translator::Translator;
use super::{Refusal, command};
use crate::config::{AgentConfig, AgentWire};
use crate::process::ChildSpec;

/// Options that every kind takes in its own way; what it makes of a value is checked with the task.
pub(super) const OPTIONS: [&str; 5] = [
    "model",
    "effort",
    "permission_mode",
    "instructions",
    "context_refs",
];

pub(super) fn kind(wire: AgentWire) -> AgentKind {
    match wire {
        AgentWire::Claude => AgentKind::Claude,
        AgentWire::CodexAppServer | AgentWire::CodexExec => AgentKind::Codex,
        AgentWire::Acp => AgentKind::Acp,
    }
}

pub(super) fn plan(
    wire: AgentWire,
    config: &AgentConfig,
    attempt: &AttemptRef,
    dispatch: &Dispatch,
    daemon_id: &str,
    work_dir: &Path,
) -> Result<(ChildSpec, Translator), Refusal> {
    check(dispatch)?;
    command::check_workspace(dispatch)?;
    let mut child = command::child(config, attempt, dispatch, daemon_id, work_dir)?;
    let cwd = std::path::absolute(&child.cwd).unwrap_or_else(|_| child.cwd.clone());
    let wanted = wanted(dispatch, &cwd);
    let launch = wire
        .launch(&wanted)
        .map_err(|error| Refusal::new(RejectCode::UnsupportedOption, error.to_string()))?;
    child.args.extend(launch.args.into_iter().map(Into::into));
    child.cwd = cwd;
    Ok((child, launch.translator))
}

fn check(dispatch: &Dispatch) -> Result<(), Refusal> {
    let argv = dispatch.command.as_ref().map(|command| &command.argv);
    if argv.is_some_and(|argv| !argv.is_empty()) {
        let message = "a coding agent takes no command line; its prompt says what to do";
        return Err(Refusal::new(RejectCode::UnsupportedOption, message));
    }
    let options = dispatch.options.clone().unwrap_or_default();
    let words = [
        &options.model,
        &options.effort,
        &options.permission_mode,
        &options.instructions,
        &dispatch.agent_session_id,
    ];
    if words.iter().any(|word| word.contains('\0')) {
        return Err(Refusal::new(
            RejectCode::Invalid,
            "an option cannot hold NUL",
        ));
    }
    Ok(())
}

fn wanted(dispatch: &Dispatch, cwd: &Path) -> Wanted {
    let AgentOptions {
        model,
        effort,
        permission_mode,
        instructions,
        context_refs,
    } = dispatch.options.clone().unwrap_or_default();
    let resume = &dispatch.agent_session_id;
    let context = context_refs.into_iter().map(|file| ContextFile {
        path: file.path,
        name: file.name,
    });
    Wanted {
        prompt: dispatch.prompt.clone(),
        cwd: cwd.to_string_lossy().into_owned(),
        resume: (!resume.is_empty()).then(|| resume.clone()),
        model,
        effort,
        permission_mode,
        instructions,
        context: context.collect(),
        // Nobody keeps a conversation's totals yet.
        used_before: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn planned(wire: AgentWire, dispatch: &Dispatch) -> Result<(ChildSpec, Translator), Refusal> {
        let config = AgentConfig::Coding {
            wire,
            program: "agent".into(),
            args: vec!["--own".into()],
            env: BTreeMap::from([("KEY".to_owned(), "value".to_owned())]),
        };
        let attempt = AttemptRef::default();
        plan(wire, &config, &attempt, dispatch, "d", Path::new("/work"))
    }

    #[test]
    fn the_operators_arguments_come_first_and_the_directory_is_absolute() {
        let dispatch = Dispatch {
            cwd: "sub".to_owned(),
            agent_session_id: "s".to_owned(),
            ..Dispatch::default()
        };
        let (child, _) = planned(AgentWire::Claude, &dispatch).unwrap();
        assert_eq!(child.args[..2], ["--own", "-p"]);
        assert_eq!(child.args.last().unwrap(), "--resume=s");
        assert_eq!(child.cwd, Path::new("/work/sub"));
        assert_eq!(child.environment[std::ffi::OsStr::new("KEY")], "value");
    }

    #[test]
    fn what_an_agent_cannot_take_is_refused_before_anything_runs() {
        let options = AgentOptions {
            permission_mode: "yolo".to_owned(),
            ..AgentOptions::default()
        };
        let dispatch = Dispatch {
            options: Some(options),
            ..Dispatch::default()
        };
        let refusal = planned(AgentWire::CodexAppServer, &dispatch).unwrap_err();
        assert_eq!(refusal.code, RejectCode::UnsupportedOption);
        assert!(
            refusal.message.contains("permission_mode"),
            "{}",
            refusal.message
        );
        let dispatch = Dispatch {
            agent_session_id: "\0".to_owned(),
            ..Dispatch::default()
        };
        let refusal = planned(AgentWire::Acp, &dispatch).unwrap_err();
        assert_eq!(refusal.code, RejectCode::Invalid);
    }
}
