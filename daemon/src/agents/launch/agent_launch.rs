//! How each kind is started, and how what a task asks for reaches it. An option that it cannot take is named before a
//! process exists.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::agents::adapter::acp;
use crate::agents::adapter::acp::AcpAdapter;
use crate::agents::adapter::claude::ClaudeAdapter;
use crate::agents::adapter::codex;
use crate::agents::adapter::codex::{CodexAppServer, CodexExec};
use crate::agents::adapter::translator::{AgentAdapter, AgentTranslator};
use crate::agents::adapter::turn_state::truncate;
use crate::agents::outcome::turn_usage::TokenCounts;
use crate::config::AgentWire;

/// What a task asks for. Empty means: as the agent is set up.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaunchRequest {
    pub(crate) prompt: String,
    /// Absolute.
    pub(crate) cwd: String,
    /// The agent's own id of a conversation to go on with.
    pub(crate) resume: Option<String>,
    pub(crate) model: String,
    pub(crate) effort: String,
    pub(crate) permission_mode: String,
    pub(crate) instructions: String,
    pub(crate) context: Vec<ContextFile>,
    /// What the conversation had used before, where that is known.
    pub(crate) used_before: Option<TokenCounts>,
    /// Baton's own tools, where the task asks for them.
    pub(crate) tools: Option<ToolServer>,
}

/// A server of tools that the agent starts itself. Nothing in it is secret: whoever may see the agent's command line sees
/// this too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToolServer {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
}

/// What agents call the server.
pub(crate) const TOOL_SERVER_NAME: &str = "baton";

/// A file or folder that the agent should look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContextFile {
    /// Relative to the working directory.
    pub(crate) path: String,
    pub(crate) name: String,
}

/// Arguments after the operator's own, and who reads what comes.
#[derive(Clone, Debug)]
pub(crate) struct AgentLaunch {
    pub(crate) args: Vec<String>,
    pub(crate) translator: AgentTranslator,
}

/// Names the option that this kind cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this agent cannot take {option} {value:?}; it takes {takes}")]
pub(crate) struct UnsupportedOption {
    pub(crate) option: &'static str,
    value: String,
    takes: String,
}

const CLAUDE_MODES: [&str; 6] = [
    "default",
    "acceptEdits",
    "bypassPermissions",
    "plan",
    "dontAsk",
    "auto",
];

const CODEX_SANDBOXES: [&str; 3] = ["read-only", "workspace-write", "danger-full-access"];

/// What Linux takes as one argument, with the NUL behind it.
const MAX_ARGUMENT_BYTES: usize = 128 * 1024;

impl AgentWire {
    pub(crate) fn launch(self, wanted: &LaunchRequest) -> Result<AgentLaunch, UnsupportedOption> {
        let launch = match self {
            Self::Claude => launch_claude(wanted),
            Self::CodexAppServer => launch_app_server(wanted),
            Self::CodexExec => launch_exec(wanted),
            Self::Acp => Ok(launch_acp(wanted)),
        }?;
        match launch
            .args
            .iter()
            .find(|arg| arg.len() >= MAX_ARGUMENT_BYTES)
        {
            Some(arg) => Err(argument_too_long(wanted, arg)),
            None => Ok(launch),
        }
    }
}

/// The system would refuse to start anything with it.
fn argument_too_long(wanted: &LaunchRequest, arg: &str) -> UnsupportedOption {
    let options = [
        ("instructions", wanted.instructions.len()),
        ("model", wanted.model.len()),
        ("effort", wanted.effort.len()),
        (
            "agent_session_id",
            wanted.resume.as_ref().map_or(0, String::len),
        ),
    ];
    let longest = options.into_iter().max_by_key(|(_, length)| *length);
    UnsupportedOption {
        option: longest.map_or("instructions", |(option, _)| option),
        value: format!("{}…", truncate(arg, 64)),
        takes: format!("it on its command line, with less than {MAX_ARGUMENT_BYTES} bytes"),
    }
}

fn launch_claude(wanted: &LaunchRequest) -> Result<AgentLaunch, UnsupportedOption> {
    check_one_of("permission_mode", &wanted.permission_mode, &CLAUDE_MODES)?;
    let fixed = "-p --output-format stream-json --input-format stream-json --verbose \
                 --include-partial-messages --permission-prompt-tool stdio";
    let mut args: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    for (flag, value) in [
        ("--model", wanted.model.as_str()),
        ("--effort", wanted.effort.as_str()),
        ("--permission-mode", wanted.permission_mode.as_str()),
        ("--append-system-prompt", wanted.instructions.as_str()),
        ("--resume", wanted.resume.as_deref().unwrap_or_default()),
    ] {
        if !value.is_empty() {
            // Joined, so that no value is ever taken for a flag.
            args.push(format!("{flag}={value}"));
        }
    }
    if let Some(tools) = &wanted.tools {
        let server = json!({"type": "stdio", "command": tools.program, "args": tools.args});
        let config = json!({"mcpServers": {TOOL_SERVER_NAME: server}});
        args.push(format!("--mcp-config={config}"));
        // The task asked for them, so nobody has to be asked again.
        args.push(format!("--allowedTools=mcp__{TOOL_SERVER_NAME}"));
    }
    let wire = AgentAdapter::Claude(ClaudeAdapter::new(wanted.resume.is_some()));
    let translator = AgentTranslator::new(wire, prompt_with_context(wanted));
    Ok(AgentLaunch { args, translator })
}

fn launch_app_server(wanted: &LaunchRequest) -> Result<AgentLaunch, UnsupportedOption> {
    check_one_of("permission_mode", &wanted.permission_mode, &CODEX_SANDBOXES)?;
    let opening = codex::CodexOpening {
        prompt: prompt_with_context(wanted),
        cwd: wanted.cwd.clone(),
        resume: wanted.resume.clone(),
        model: non_empty(&wanted.model),
        effort: non_empty(&wanted.effort),
        instructions: non_empty(&wanted.instructions),
        sandbox: non_empty(&wanted.permission_mode),
    };
    let wire = AgentAdapter::CodexAppServer(CodexAppServer::new(opening));
    let mut args = codex_tool_settings(wanted);
    args.push("app-server".to_owned());
    Ok(AgentLaunch {
        args,
        translator: AgentTranslator::new(wire, ""),
    })
}

fn launch_exec(wanted: &LaunchRequest) -> Result<AgentLaunch, UnsupportedOption> {
    check_one_of("permission_mode", &wanted.permission_mode, &CODEX_SANDBOXES)?;
    // Where it works is the operator's choice, and need not be a repository.
    let mut args = vec!["exec", "--json", "--skip-git-repo-check"];
    let sandbox =
        non_empty(&wanted.permission_mode).unwrap_or_else(|| "workspace-write".to_owned());
    args.extend(["--sandbox", &sandbox]);
    let model = non_empty(&wanted.model).map(|model| format!("--model={model}"));
    let setting = |name: &str, value: &str| {
        let value = non_empty(value).map(toml::Value::String);
        value.map(|value| format!("--config={name}={value}"))
    };
    let effort = setting("model_reasoning_effort", &wanted.effort);
    let instructions = setting("developer_instructions", &wanted.instructions);
    args.extend(
        [&model, &effort, &instructions]
            .into_iter()
            .flatten()
            .map(String::as_str),
    );
    let tools = codex_tool_settings(wanted);
    args.extend(tools.iter().map(String::as_str));
    if let Some(thread) = &wanted.resume {
        args.extend(["resume", thread]);
    }
    args.push("-");
    let args = args.into_iter().map(str::to_owned).collect();
    let exec = CodexExec::new(wanted.resume.clone(), wanted.used_before);
    let translator =
        AgentTranslator::new(AgentAdapter::CodexExec(exec), prompt_with_context(wanted));
    Ok(AgentLaunch { args, translator })
}

/// Settings for this run alone: nothing is written, and two runs cannot meet.
fn codex_tool_settings(wanted: &LaunchRequest) -> Vec<String> {
    let Some(tools) = &wanted.tools else {
        return Vec::new();
    };
    let args = tools.args.iter().cloned().map(toml::Value::String);
    let setting = |name: &str, value: toml::Value| {
        format!("--config=mcp_servers.{TOOL_SERVER_NAME}.{name}={value}")
    };
    vec![
        setting("command", toml::Value::String(tools.program.clone())),
        setting("args", toml::Value::Array(args.collect())),
    ]
}

/// Whether a session offers what is asked for is known when it is open; then, and before the prompt, it is refused.
fn launch_acp(wanted: &LaunchRequest) -> AgentLaunch {
    let link = |file: &ContextFile| acp::LinkedFile {
        uri: file_uri(&Path::new(&wanted.cwd).join(&file.path)),
        name: display_name(file).to_owned(),
    };
    let opening = acp::AcpOpening {
        prompt: wanted.prompt.clone(),
        cwd: wanted.cwd.clone(),
        resume: wanted.resume.clone(),
        model: non_empty(&wanted.model),
        effort: non_empty(&wanted.effort),
        mode: non_empty(&wanted.permission_mode),
        instructions: non_empty(&wanted.instructions),
        context: wanted.context.iter().map(link).collect(),
        tools: wanted.tools.clone(),
    };
    AgentLaunch {
        args: Vec::new(),
        translator: AgentTranslator::new(AgentAdapter::Acp(AcpAdapter::new(opening)), ""),
    }
}

/// Names of files have characters that addresses have not.
fn file_uri(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    let encoded = bytes.map(|byte| match plain(*byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    format!("file://{}", encoded.collect::<String>())
}

fn non_empty(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

fn check_one_of(
    option: &'static str,
    value: &str,
    known: &[&str],
) -> Result<(), UnsupportedOption> {
    if value.is_empty() || known.contains(&value) {
        return Ok(());
    }
    Err(UnsupportedOption {
        option,
        value: value.to_owned(),
        takes: known.join(", "),
    })
}

fn display_name(file: &ContextFile) -> &str {
    if file.name.is_empty() {
        &file.path
    } else {
        &file.name
    }
}

/// Files go by name only; the agent reads them where they are.
fn prompt_with_context(wanted: &LaunchRequest) -> String {
    if wanted.context.is_empty() {
        return wanted.prompt.clone();
    }
    let files = wanted.context.iter().map(|file| match file.name.as_str() {
        "" => format!("- {}", file.path),
        name => format!("- {} ({name})", file.path),
    });
    let files = files.collect::<Vec<_>>().join("\n");
    format!(
        "{}\n\nLook at these files and folders:\n{files}",
        wanted.prompt
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> LaunchRequest {
        LaunchRequest {
            prompt: "do it".to_owned(),
            cwd: "/work".to_owned(),
            resume: Some("abc".to_owned()),
            model: "m".to_owned(),
            effort: "high".to_owned(),
            instructions: "say \"yes\"".to_owned(),
            context: vec![ContextFile {
                path: "a/b".to_owned(),
                name: String::new(),
            }],
            ..LaunchRequest::default()
        }
    }

    #[test]
    fn options_reach_each_kind_in_its_own_way() {
        let mut claude = AgentWire::Claude.launch(&wanted()).unwrap();
        for arg in [
            "--model=m",
            "--effort=high",
            "--resume=abc",
            "--permission-prompt-tool",
        ] {
            assert!(claude.args.iter().any(|given| given == arg), "{arg}");
        }
        let opening = String::from_utf8(claude.translator.first_message().bytes).unwrap();
        assert!(
            opening.contains("- a/b") && opening.ends_with("}\n"),
            "{opening}"
        );

        let mut exec = AgentWire::CodexExec.launch(&wanted()).unwrap();
        let expected = [
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--sandbox",
            "workspace-write",
            "--model=m",
            "--config=model_reasoning_effort=\"high\"",
            "--config=developer_instructions='say \"yes\"'",
            "resume",
            "abc",
            "-",
        ];
        assert_eq!(exec.args, expected);
        let opening = exec.translator.first_message();
        assert!(opening.last, "its stdin is closed behind the prompt");
    }

    #[test]
    fn files_are_linked_by_addresses() {
        assert_eq!(
            file_uri(Path::new("/work/a b/50%#é?.txt")),
            "file:///work/a%20b/50%25%23%C3%A9%3F.txt"
        );
    }

    #[test]
    fn what_no_command_line_takes_is_refused_by_name() {
        let wanted = LaunchRequest {
            instructions: "x".repeat(MAX_ARGUMENT_BYTES),
            ..wanted()
        };
        for kind in [AgentWire::Claude, AgentWire::CodexExec] {
            let error = kind.launch(&wanted).unwrap_err();
            assert_eq!(error.option, "instructions");
            let words = error.to_string();
            assert!(words.contains("131072") && words.len() < 300, "{words}");
        }
        for kind in [AgentWire::CodexAppServer, AgentWire::Acp] {
            assert!(kind.launch(&wanted).is_ok(), "they read it from stdin");
        }
    }

    #[test]
    fn tools_reach_each_kind_by_its_own_configuration() {
        let wanted = LaunchRequest {
            tools: Some(ToolServer {
                program: "/opt/a \"b\"/baton".to_owned(),
                args: vec!["mcp".to_owned()],
            }),
            ..wanted()
        };
        let claude = AgentWire::Claude.launch(&wanted).unwrap();
        let config = claude
            .args
            .iter()
            .find_map(|arg| arg.strip_prefix("--mcp-config="));
        let config: serde_json::Value = serde_json::from_str(config.unwrap()).unwrap();
        assert_eq!(
            config["mcpServers"]["baton"]["command"],
            "/opt/a \"b\"/baton"
        );
        assert!(
            claude
                .args
                .contains(&"--allowedTools=mcp__baton".to_owned())
        );
        for kind in [AgentWire::CodexExec, AgentWire::CodexAppServer] {
            let args = kind.launch(&wanted).unwrap().args;
            let command = r#"--config=mcp_servers.baton.command='/opt/a "b"/baton'"#;
            for arg in [command, r#"--config=mcp_servers.baton.args=["mcp"]"#] {
                assert!(args.iter().any(|given| given == arg), "{arg} in {args:?}");
            }
        }
        let bare = AgentWire::Claude
            .launch(&LaunchRequest {
                tools: None,
                ..wanted
            })
            .unwrap();
        assert!(!bare.args.iter().any(|arg| arg.contains("mcp")));
    }

    #[test]
    fn an_option_that_a_kind_cannot_take_is_named_before_anything_runs() {
        let wanted = LaunchRequest {
            permission_mode: "yolo".to_owned(),
            ..wanted()
        };
        for kind in [
            AgentWire::Claude,
            AgentWire::CodexAppServer,
            AgentWire::CodexExec,
        ] {
            let error = kind.launch(&wanted).unwrap_err();
            assert_eq!(error.option, "permission_mode");
            assert!(error.to_string().contains("yolo"), "{error}");
        }
        assert!(
            AgentWire::Acp.launch(&wanted).is_ok(),
            "the session decides"
        );
    }
}
