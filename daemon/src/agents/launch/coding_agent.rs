//! Plans a dispatch for a coding agent: the task's options in the agent's own form, and the
//! translator for its output.

use std::path::Path;

use baton_proto::v1::{AgentKind, AgentOptions, AttemptRef, Dispatch, RejectCode};

use super::agent_launch::{ContextFile, LaunchRequest, ToolServer};
use super::command_agent;
use crate::agents::DispatchRefusal;
use crate::agents::adapter::translator::AgentTranslator;
use crate::config::{AgentConfig, AgentWire};
use crate::process::ChildSpec;
use crate::shim::framing::LARGEST_MESSAGE;
use crate::storage::conversation_store::KnownConversation;
use crate::tools::AgentToolAccess;

/// Options that every kind of agent supports in its own way. Values are checked with each task.
pub(crate) const AGENT_OPTIONS: [&str; 5] = [
    "model",
    "effort",
    "permission_mode",
    "instructions",
    "context_refs",
];

pub(crate) fn agent_kind(wire: AgentWire) -> AgentKind {
    match wire {
        AgentWire::Claude => AgentKind::Claude,
        AgentWire::CodexAppServer | AgentWire::CodexExec => AgentKind::Codex,
        AgentWire::Acp => AgentKind::Acp,
    }
}

/// The agent and its working directory.
#[derive(Clone, Copy)]
pub(crate) struct CodingAgentContext<'a> {
    pub(crate) wire: AgentWire,
    pub(crate) config: &'a AgentConfig,
    pub(crate) daemon_id: &'a str,
    /// Absolute path.
    pub(crate) cwd: &'a Path,
    /// Set if the task requests tools.
    pub(crate) tool_access: Option<&'a AgentToolAccess>,
}

/// `known` is what this daemon has stored of the conversation.
pub(crate) fn plan_coding_agent(
    context: CodingAgentContext<'_>,
    attempt: &AttemptRef,
    dispatch: &Dispatch,
    known: Option<&KnownConversation>,
) -> Result<(ChildSpec, AgentTranslator), DispatchRefusal> {
    check_dispatch(dispatch)?;
    let cwd = context.cwd.to_owned();
    let mut child =
        command_agent::child_spec(context.config, attempt, dispatch, context.daemon_id, cwd)?;
    let request = LaunchRequest {
        tools: context.tool_access.map(tool_server),
        ..launch_request(dispatch, context.cwd, known)
    };
    check_size(&request)?;
    let launch = context
        .wire
        .launch(&request)
        .map_err(|error| DispatchRefusal::new(RejectCode::UnsupportedOption, error.to_string()))?;
    child.args.extend(launch.args.into_iter().map(Into::into));
    Ok((child, launch.translator))
}

fn check_dispatch(dispatch: &Dispatch) -> Result<(), DispatchRefusal> {
    let argv = dispatch.command.as_ref().map(|command| &command.argv);
    if argv.is_some_and(|argv| !argv.is_empty()) {
        let message = "a coding agent takes no command line; put the instructions into the prompt";
        return Err(DispatchRefusal::new(RejectCode::UnsupportedOption, message));
    }
    let options = dispatch.options.clone().unwrap_or_default();
    let texts = [
        &options.model,
        &options.effort,
        &options.permission_mode,
        &options.instructions,
        &dispatch.agent_session_id,
    ];
    if texts.iter().any(|text| text.contains('\0')) {
        return Err(DispatchRefusal::new(
            RejectCode::Invalid,
            "an option cannot contain NUL",
        ));
    }
    Ok(())
}

/// Bytes of a message besides the task's own texts: field names, ids, the directory.
const ENVELOPE_BYTES: usize = 64 * 1024;

/// A message is sent to the agent in one piece through the shim, which limits its size.
/// Measured as JSON, because most wires use it.
fn check_size(request: &LaunchRequest) -> Result<(), DispatchRefusal> {
    let as_json = |text: &String| serde_json::Value::from(text.as_str()).to_string().len();
    let files = request.context.iter();
    let files =
        files.map(|file| as_json(&file.path) + as_json(&file.name) + request.cwd.len() + 64);
    let length = as_json(&request.prompt) + as_json(&request.instructions) + files.sum::<usize>();
    let limit = LARGEST_MESSAGE - ENVELOPE_BYTES;
    if length <= limit {
        return Ok(());
    }
    let message = format!(
        "the prompt with its instructions and context has {length} bytes, but a message to an agent holds at most {limit}"
    );
    Err(DispatchRefusal::new(RejectCode::Invalid, message))
}

fn launch_request(
    dispatch: &Dispatch,
    cwd: &Path,
    known: Option<&KnownConversation>,
) -> LaunchRequest {
    let AgentOptions {
        model,
        effort,
        permission_mode,
        instructions,
        context_refs,
    } = dispatch.options.clone().unwrap_or_default();
    let resume = session_to_resume(dispatch, known);
    let same = known.filter(|known| Some(&known.agent_session_id) == resume.as_ref());
    let files = context_refs.into_iter().map(|file| ContextFile {
        path: file.path,
        name: file.name,
    });
    LaunchRequest {
        prompt: match resume {
            Some(_) => dispatch.prompt.clone(),
            None => prompt_with_checkpoint(dispatch),
        } + &resume_note(dispatch),
        cwd: cwd.to_string_lossy().into_owned(),
        resume,
        model,
        effort,
        permission_mode,
        instructions,
        context: files.collect(),
        used_before: same.and_then(|known| known.used),
        tools: None,
    }
}

fn tool_server(access: &AgentToolAccess) -> ToolServer {
    ToolServer {
        program: access.program.to_string_lossy().into_owned(),
        args: vec!["mcp".to_owned()],
    }
}

/// An earlier attempt of the same task has the newest session; otherwise the previous turn's,
/// as stored by this daemon.
fn session_to_resume(dispatch: &Dispatch, known: Option<&KnownConversation>) -> Option<String> {
    let known = known.map(|known| &known.agent_session_id);
    let dispatched = Some(&dispatch.agent_session_id).filter(|id| !id.is_empty());
    let resume = dispatched
        .or(known)
        .filter(|_| !dispatch.fresh_conversation);
    resume.cloned()
}

/// Adds the last checkpoint for an agent that does not resume its conversation.
fn prompt_with_checkpoint(dispatch: &Dispatch) -> String {
    let resume = dispatch.resume.as_ref();
    let checkpoint = resume.and_then(|resume| resume.checkpoint.as_ref());
    let Some(checkpoint) = checkpoint.filter(|checkpoint| !checkpoint.summary.trim().is_empty())
    else {
        return dispatch.prompt.clone();
    };
    let cursor = match checkpoint.cursor.trim() {
        "" => String::new(),
        cursor => format!("\nContinue at: {cursor}"),
    };
    format!(
        "{}\n\nThis task was begun before, and the earlier conversation is not available. It had reached this point:\n{}{cursor}",
        dispatch.prompt, checkpoint.summary
    )
}

/// Notes from the person who resumed a parked task. An agent that resumes its conversation gets
/// them too.
fn resume_note(dispatch: &Dispatch) -> String {
    let Some(resume) = &dispatch.resume else {
        return String::new();
    };
    let mut note = String::new();
    if !resume.resume_reason.is_empty() {
        note += &format!(
            "\n\nThe task was parked and may continue: {}",
            resume.resume_reason
        );
    }
    for given in &resume.answers {
        note += &match given.question.as_str() {
            "" => format!("\nAnswer: {}", given.answer),
            question => format!("\nQuestion: {question}\nAnswer: {}", given.answer),
        };
    }
    if !resume.instructions.is_empty() {
        note += &format!("\n\n{}", resume.instructions);
    }
    note
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use baton_proto::v1::{Checkpoint, ResumeAnswer, ResumeContext};

    use super::*;

    fn planned(
        wire: AgentWire,
        dispatch: &Dispatch,
    ) -> Result<(ChildSpec, AgentTranslator), DispatchRefusal> {
        let config = AgentConfig::Coding {
            wire,
            program: "agent".into(),
            args: vec!["--own".into()],
            env: BTreeMap::from([("KEY".to_owned(), "value".to_owned())]),
            task_env: Vec::new(),
        };
        let context = CodingAgentContext {
            wire,
            config: &config,
            daemon_id: "d",
            cwd: Path::new("/work/sub"),
            tool_access: None,
        };
        plan_coding_agent(context, &AttemptRef::default(), dispatch, None)
    }

    #[test]
    fn the_operators_arguments_come_first() {
        let dispatch = Dispatch {
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
    fn a_dispatch_with_an_unsupported_option_is_refused() {
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

    #[test]
    fn a_prompt_too_long_for_one_message_is_refused() {
        let dispatch = |length| Dispatch {
            prompt: "\n".repeat(length),
            ..Dispatch::default()
        };
        for wire in [AgentWire::Claude, AgentWire::CodexExec, AgentWire::Acp] {
            let refusal = planned(wire, &dispatch(LARGEST_MESSAGE / 2)).unwrap_err();
            assert_eq!(refusal.code, RejectCode::Invalid);
            assert!(refusal.message.contains("2097152"), "{}", refusal.message);
            let (_, mut translator) =
                planned(wire, &dispatch(LARGEST_MESSAGE / 2 - ENVELOPE_BYTES)).unwrap();
            assert!(translator.first_message().bytes.len() < LARGEST_MESSAGE);
        }
    }

    #[test]
    fn a_known_conversation_is_resumed_unless_a_new_one_is_requested() {
        let known = KnownConversation::example("remembered");
        let dispatch = |id: &str, fresh| Dispatch {
            agent_session_id: id.to_owned(),
            fresh_conversation: fresh,
            ..Dispatch::default()
        };
        let resume =
            |dispatch: &Dispatch, known| session_to_resume(dispatch, known).unwrap_or_default();
        assert_eq!(resume(&dispatch("own", false), Some(&known)), "own");
        assert_eq!(resume(&dispatch("", false), Some(&known)), "remembered");
        assert_eq!(resume(&dispatch("", false), None), "");
        assert_eq!(resume(&dispatch("own", true), Some(&known)), "");
    }

    #[test]
    fn a_new_conversation_gets_the_last_checkpoint() {
        let checkpoint = Checkpoint {
            summary: "half done".to_owned(),
            cursor: "line 7".to_owned(),
            ..Checkpoint::default()
        };
        let mut dispatch = Dispatch {
            prompt: "Do it.".to_owned(),
            resume: Some(ResumeContext {
                checkpoint: Some(checkpoint),
                ..ResumeContext::default()
            }),
            ..Dispatch::default()
        };
        let prompt =
            |dispatch: &Dispatch| launch_request(dispatch, Path::new("/work"), None).prompt;
        let text = prompt(&dispatch);
        assert!(
            text.starts_with("Do it.\n") && text.contains("half done"),
            "{text}"
        );
        assert!(text.ends_with("Continue at: line 7"), "{text}");
        dispatch.agent_session_id = "s".to_owned();
        assert_eq!(
            prompt(&dispatch),
            "Do it.",
            "a resumed conversation needs no checkpoint"
        );
    }

    #[test]
    fn resume_notes_reach_new_and_resumed_conversations() {
        let resume = ResumeContext {
            resume_reason: "access is there".to_owned(),
            instructions: "Use the blue key.".to_owned(),
            answers: vec![ResumeAnswer {
                question: "which key?".to_owned(),
                answer: "blue".to_owned(),
            }],
            ..ResumeContext::default()
        };
        for agent_session_id in ["", "s"] {
            let dispatch = Dispatch {
                prompt: "Do it.".to_owned(),
                agent_session_id: agent_session_id.to_owned(),
                resume: Some(resume.clone()),
                ..Dispatch::default()
            };
            let prompt = launch_request(&dispatch, Path::new("/work"), None).prompt;
            assert!(prompt.starts_with("Do it.\n"), "{prompt}");
            assert!(prompt.contains("access is there"), "{prompt}");
            assert!(
                prompt.contains("Question: which key?\nAnswer: blue"),
                "{prompt}"
            );
            assert!(prompt.ends_with("Use the blue key."), "{prompt}");
        }
    }
}
