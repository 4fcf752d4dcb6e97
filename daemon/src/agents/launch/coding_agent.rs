//! A dispatch for a coding agent: what the task asks for, in the agent's own words, and who will read what it says.

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

/// Options that every kind takes in its own way; what it makes of a value is checked with the task.
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

/// Which agent, and where it works.
#[derive(Clone, Copy)]
pub(crate) struct CodingAgentContext<'a> {
    pub(crate) wire: AgentWire,
    pub(crate) config: &'a AgentConfig,
    pub(crate) daemon_id: &'a str,
    /// Absolute.
    pub(crate) cwd: &'a Path,
    /// Where the task asks for tools.
    pub(crate) tool_access: Option<&'a AgentToolAccess>,
}

/// `known` is what this daemon kept of the conversation.
pub(crate) fn plan_coding_agent(
    desk: CodingAgentContext<'_>,
    attempt: &AttemptRef,
    dispatch: &Dispatch,
    known: Option<&KnownConversation>,
) -> Result<(ChildSpec, AgentTranslator), DispatchRefusal> {
    check_dispatch(dispatch)?;
    let cwd = desk.cwd.to_owned();
    let mut child = command_agent::child_spec(desk.config, attempt, dispatch, desk.daemon_id, cwd)?;
    let wanted = LaunchRequest {
        tools: desk.tool_access.map(tool_server),
        ..launch_request(dispatch, desk.cwd, known)
    };
    check_size(&wanted)?;
    let launch = desk
        .wire
        .launch(&wanted)
        .map_err(|error| DispatchRefusal::new(RejectCode::UnsupportedOption, error.to_string()))?;
    child.args.extend(launch.args.into_iter().map(Into::into));
    Ok((child, launch.translator))
}

fn check_dispatch(dispatch: &Dispatch) -> Result<(), DispatchRefusal> {
    let argv = dispatch.command.as_ref().map(|command| &command.argv);
    if argv.is_some_and(|argv| !argv.is_empty()) {
        let message = "a coding agent takes no command line; its prompt says what to do";
        return Err(DispatchRefusal::new(RejectCode::UnsupportedOption, message));
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
        return Err(DispatchRefusal::new(
            RejectCode::Invalid,
            "an option cannot hold NUL",
        ));
    }
    Ok(())
}

/// What a message to the agent has beside the task's own words: names of fields, ids, the directory.
const ENVELOPE_BYTES: usize = 64 * 1024;

/// A message goes to the agent whole, and through its keeper, who takes no longer ones. As JSON, since most wires carry
/// it so.
fn check_size(wanted: &LaunchRequest) -> Result<(), DispatchRefusal> {
    let as_json = |text: &String| serde_json::Value::from(text.as_str()).to_string().len();
    let files = wanted.context.iter();
    let files = files.map(|file| as_json(&file.path) + as_json(&file.name) + wanted.cwd.len() + 64);
    let length = as_json(&wanted.prompt) + as_json(&wanted.instructions) + files.sum::<usize>();
    let most = LARGEST_MESSAGE - ENVELOPE_BYTES;
    if length <= most {
        return Ok(());
    }
    let message = format!(
        "the prompt and what goes with it come to {length} bytes; an agent can be told {most} at once"
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
    let context = context_refs.into_iter().map(|file| ContextFile {
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
        context: context.collect(),
        used_before: same.and_then(|known| known.used),
        tools: None,
    }
}

fn tool_server(handed: &AgentToolAccess) -> ToolServer {
    ToolServer {
        program: handed.program.to_string_lossy().into_owned(),
        args: vec!["mcp".to_owned()],
    }
}

/// An earlier attempt of the same task knows best where it stood; else the turn before, as this daemon remembers it.
fn session_to_resume(dispatch: &Dispatch, known: Option<&KnownConversation>) -> Option<String> {
    let known = known.map(|known| &known.agent_session_id);
    let told = Some(&dispatch.agent_session_id).filter(|id| !id.is_empty());
    let resume = told.or(known).filter(|_| !dispatch.fresh_conversation);
    resume.cloned()
}

/// An agent that remembers nothing is told where the work stood.
fn prompt_with_checkpoint(dispatch: &Dispatch) -> String {
    let left = dispatch.resume.as_ref();
    let checkpoint = left.and_then(|resume| resume.checkpoint.as_ref());
    let Some(checkpoint) = checkpoint.filter(|left| !left.summary.trim().is_empty()) else {
        return dispatch.prompt.clone();
    };
    let cursor = match checkpoint.cursor.trim() {
        "" => String::new(),
        cursor => format!("\nGo on at: {cursor}"),
    };
    format!(
        "{}\n\nThis was begun before, and nothing else is known of it. It had come this far:\n{}{cursor}",
        dispatch.prompt, checkpoint.summary
    )
}

/// What whoever sent a parked task on has to say; also to an agent that remembers the rest.
fn resume_note(dispatch: &Dispatch) -> String {
    let Some(resume) = &dispatch.resume else {
        return String::new();
    };
    let mut words = String::new();
    if !resume.resume_reason.is_empty() {
        words += &format!("\n\nIt had stopped and may go on: {}", resume.resume_reason);
    }
    for given in &resume.answers {
        words += &match given.question.as_str() {
            "" => format!("\nAnswer: {}", given.answer),
            question => format!("\nQuestion: {question}\nAnswer: {}", given.answer),
        };
    }
    if !resume.instructions.is_empty() {
        words += &format!("\n\n{}", resume.instructions);
    }
    words
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
        let desk = CodingAgentContext {
            wire,
            config: &config,
            daemon_id: "d",
            cwd: Path::new("/work/sub"),
            tool_access: None,
        };
        plan_coding_agent(desk, &AttemptRef::default(), dispatch, None)
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

    #[test]
    fn a_prompt_that_no_message_holds_is_refused_before_anything_runs() {
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
    fn a_conversation_is_gone_on_with_where_it_is_known_unless_it_begins_anew() {
        let known = KnownConversation::example("remembered");
        let told = |id: &str, fresh| Dispatch {
            agent_session_id: id.to_owned(),
            fresh_conversation: fresh,
            ..Dispatch::default()
        };
        let resume =
            |dispatch: &Dispatch, known| session_to_resume(dispatch, known).unwrap_or_default();
        assert_eq!(resume(&told("own", false), Some(&known)), "own");
        assert_eq!(resume(&told("", false), Some(&known)), "remembered");
        assert_eq!(resume(&told("", false), None), "");
        assert_eq!(resume(&told("own", true), Some(&known)), "");
    }

    #[test]
    fn an_agent_that_begins_anew_is_told_where_the_work_stood() {
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
        let told = prompt(&dispatch);
        assert!(
            told.starts_with("Do it.\n") && told.contains("half done"),
            "{told}"
        );
        assert!(told.ends_with("Go on at: line 7"), "{told}");
        dispatch.agent_session_id = "s".to_owned();
        assert_eq!(prompt(&dispatch), "Do it.", "it remembers");
    }

    #[test]
    fn the_words_of_whoever_sent_it_on_reach_the_agent_whatever_it_remembers() {
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
            let told = launch_request(&dispatch, Path::new("/work"), None).prompt;
            assert!(told.starts_with("Do it.\n"), "{told}");
            assert!(told.contains("access is there"), "{told}");
            assert!(
                told.contains("Question: which key?\nAnswer: blue"),
                "{told}"
            );
            assert!(told.ends_with("Use the blue key."), "{told}");
        }
    }
}
