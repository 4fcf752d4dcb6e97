//! How each kind of agent is started, and how a task's options reach it. An unsupported option
//! is reported before a process exists.

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

/// What a task requests. An empty option leaves the agent's own configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaunchRequest {
    pub(crate) prompt: String,
    /// Absolute path.
    pub(crate) cwd: String,
    /// The agent's own id of the conversation to resume.
    pub(crate) resume: Option<String>,
    pub(crate) model: String,
    pub(crate) effort: String,
    pub(crate) permission_mode: String,
    pub(crate) instructions: String,
    pub(crate) context: Vec<ContextFile>,
    /// Usage of the conversation so far, if known.
    pub(crate) used_before: Option<TokenCounts>,
    /// Baton's own tools, if the task requests them.
    pub(crate) tools: Option<ToolServer>,
}

/// A tool server that the agent starts itself. It contains no secret, because the agent's
/// command line is visible to other processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToolServer {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
}

/// The server's name in the agents' configuration.
pub(crate) const TOOL_SERVER_NAME: &str = "baton";

/// A file or folder that the agent should look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContextFile {
    /// Relative to the working directory.
    pub(crate) path: String,
    pub(crate) name: String,
}

/// Arguments after the operator's own, and the translator for the agent's output.
#[derive(Clone, Debug)]
pub(crate) struct AgentLaunch {
    pub(crate) args: Vec<String>,
    pub(crate) translator: AgentTranslator,
}

/// An option that this kind of agent does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this agent does not support {option} {value:?}; supported: {supported}")]
pub(crate) struct UnsupportedOption {
    pub(crate) option: &'static str,
    value: String,
    supported: String,
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

/// Longest argument that Linux accepts, including the NUL.
const MAX_ARGUMENT_BYTES: usize = 128 * 1024;

impl AgentWire {
    pub(crate) fn launch(self, request: &LaunchRequest) -> Result<AgentLaunch, UnsupportedOption> {
        let launch = match self {
            Self::Claude => launch_claude(request),
            Self::CodexAppServer => launch_app_server(request),
            Self::CodexExec => launch_exec(request),
            Self::Acp => Ok(launch_acp(request)),
        }?;
        match launch
            .args
            .iter()
            .find(|arg| arg.len() >= MAX_ARGUMENT_BYTES)
        {
            Some(arg) => Err(argument_too_long(request, arg)),
            None => Ok(launch),
        }
    }
}

/// Starting a process with this argument would fail.
fn argument_too_long(request: &LaunchRequest, arg: &str) -> UnsupportedOption {
    let options = [
        ("instructions", request.instructions.len()),
        ("model", request.model.len()),
        ("effort", request.effort.len()),
        (
            "agent_session_id",
            request.resume.as_ref().map_or(0, String::len),
        ),
    ];
    let longest = options.into_iter().max_by_key(|(_, length)| *length);
    UnsupportedOption {
        option: longest.map_or("instructions", |(option, _)| option),
        value: format!("{}…", truncate(arg, 64)),
        supported: format!("a command-line argument of less than {MAX_ARGUMENT_BYTES} bytes"),
    }
}

fn launch_claude(request: &LaunchRequest) -> Result<AgentLaunch, UnsupportedOption> {
    check_one_of("permission_mode", &request.permission_mode, &CLAUDE_MODES)?;
    let fixed = "-p --output-format stream-json --input-format stream-json --verbose \
                 --include-partial-messages --permission-prompt-tool stdio";
    let mut args: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    for (flag, value) in [
        ("--model", request.model.as_str()),
        ("--effort", request.effort.as_str()),
        ("--permission-mode", request.permission_mode.as_str()),
        ("--append-system-prompt", request.instructions.as_str()),
        ("--resume", request.resume.as_deref().unwrap_or_default()),
    ] {
        if !value.is_empty() {
            // Joined, so that a value is never parsed as a flag.
            args.push(format!("{flag}={value}"));
        }
    }
    if let Some(tools) = &request.tools {
        let server = json!({"type": "stdio", "command": tools.program, "args": tools.args});
        let config = json!({"mcpServers": {TOOL_SERVER_NAME: server}});
        args.push(format!("--mcp-config={config}"));
        // The task requested these tools, so they need no further permission.
        args.push(format!("--allowedTools=mcp__{TOOL_SERVER_NAME}"));
    }
    let wire = AgentAdapter::Claude(ClaudeAdapter::new(request.resume.is_some()));
    let translator = AgentTranslator::new(wire, prompt_with_context(request));
    Ok(AgentLaunch { args, translator })
}

fn launch_app_server(request: &LaunchRequest) -> Result<AgentLaunch, UnsupportedOption> {
    check_one_of(
        "permission_mode",
        &request.permission_mode,
        &CODEX_SANDBOXES,
    )?;
    let opening = codex::CodexOpening {
        prompt: prompt_with_context(request),
        cwd: request.cwd.clone(),
        resume: request.resume.clone(),
        model: non_empty(&request.model),
        effort: non_empty(&request.effort),
        instructions: non_empty(&request.instructions),
        sandbox: non_empty(&request.permission_mode),
    };
    let wire = AgentAdapter::CodexAppServer(CodexAppServer::new(opening));
    let mut args = codex_tool_settings(request);
    args.push("app-server".to_owned());
    Ok(AgentLaunch {
        args,
        translator: AgentTranslator::new(wire, ""),
    })
}

fn launch_exec(request: &LaunchRequest) -> Result<AgentLaunch, UnsupportedOption> {
    check_one_of(
        "permission_mode",
        &request.permission_mode,
        &CODEX_SANDBOXES,
    )?;
    // The operator chooses the directory, and it need not be a repository.
    let mut args = vec!["exec", "--json", "--skip-git-repo-check"];
    let sandbox =
        non_empty(&request.permission_mode).unwrap_or_else(|| "workspace-write".to_owned());
    args.extend(["--sandbox", &sandbox]);
    let model = non_empty(&request.model).map(|model| format!("--model={model}"));
    let setting = |name: &str, value: &str| {
        let value = non_empty(value).map(toml::Value::String);
        value.map(|value| format!("--config={name}={value}"))
    };
    let effort = setting("model_reasoning_effort", &request.effort);
    let instructions = setting("developer_instructions", &request.instructions);
    args.extend(
        [&model, &effort, &instructions]
            .into_iter()
            .flatten()
            .map(String::as_str),
    );
    let tools = codex_tool_settings(request);
    args.extend(tools.iter().map(String::as_str));
    if let Some(thread) = &request.resume {
        args.extend(["resume", thread]);
    }
    args.push("-");
    let args = args.into_iter().map(str::to_owned).collect();
    let exec = CodexExec::new(request.resume.clone(), request.used_before);
    let translator =
        AgentTranslator::new(AgentAdapter::CodexExec(exec), prompt_with_context(request));
    Ok(AgentLaunch { args, translator })
}

/// Settings for this run only: no file is written, so concurrent runs do not interfere.
fn codex_tool_settings(request: &LaunchRequest) -> Vec<String> {
    let Some(tools) = &request.tools else {
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

/// Whether a session supports the options is known once it is open. Then, before the prompt, an
/// unsupported option is refused.
fn launch_acp(request: &LaunchRequest) -> AgentLaunch {
    let link = |file: &ContextFile| acp::LinkedFile {
        uri: file_uri(&Path::new(&request.cwd).join(&file.path)),
        name: display_name(file).to_owned(),
    };
    let opening = acp::AcpOpening {
        prompt: request.prompt.clone(),
        cwd: request.cwd.clone(),
        resume: request.resume.clone(),
        model: non_empty(&request.model),
        effort: non_empty(&request.effort),
        mode: non_empty(&request.permission_mode),
        instructions: non_empty(&request.instructions),
        context: request.context.iter().map(link).collect(),
        tools: request.tools.clone(),
    };
    AgentLaunch {
        args: Vec::new(),
        translator: AgentTranslator::new(AgentAdapter::Acp(AcpAdapter::new(opening)), ""),
    }
}

/// Percent-encodes characters that are not allowed in a URI.
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
        supported: known.join(", "),
    })
}

fn display_name(file: &ContextFile) -> &str {
    if file.name.is_empty() {
        &file.path
    } else {
        &file.name
    }
}

/// Adds the names of the context files; the agent reads them itself.
fn prompt_with_context(request: &LaunchRequest) -> String {
    if request.context.is_empty() {
        return request.prompt.clone();
    }
    let files = request.context.iter().map(|file| match file.name.as_str() {
        "" => format!("- {}", file.path),
        name => format!("- {} ({name})", file.path),
    });
    let files = files.collect::<Vec<_>>().join("\n");
    format!(
        "{}\n\nLook at these files and folders:\n{files}",
        request.prompt
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> LaunchRequest {
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
    fn options_reach_each_kind_of_agent_in_its_own_form() {
        let mut claude = AgentWire::Claude.launch(&request()).unwrap();
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

        let mut exec = AgentWire::CodexExec.launch(&request()).unwrap();
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
        assert!(opening.last, "stdin is closed after the prompt");
    }

    #[test]
    fn context_files_are_linked_by_uri() {
        assert_eq!(
            file_uri(Path::new("/work/a b/50%#é?.txt")),
            "file:///work/a%20b/50%25%23%C3%A9%3F.txt"
        );
    }

    #[test]
    fn an_argument_too_long_for_the_command_line_is_refused_by_name() {
        let request = LaunchRequest {
            instructions: "x".repeat(MAX_ARGUMENT_BYTES),
            ..request()
        };
        for kind in [AgentWire::Claude, AgentWire::CodexExec] {
            let error = kind.launch(&request).unwrap_err();
            assert_eq!(error.option, "instructions");
            let message = error.to_string();
            assert!(
                message.contains("131072") && message.len() < 300,
                "{message}"
            );
        }
        for kind in [AgentWire::CodexAppServer, AgentWire::Acp] {
            assert!(
                kind.launch(&request).is_ok(),
                "these kinds get the instructions on stdin"
            );
        }
    }

    #[test]
    fn tools_reach_each_kind_by_its_own_configuration() {
        let request = LaunchRequest {
            tools: Some(ToolServer {
                program: "/opt/a \"b\"/baton".to_owned(),
                args: vec!["mcp".to_owned()],
            }),
            ..request()
        };
        let claude = AgentWire::Claude.launch(&request).unwrap();
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
            let args = kind.launch(&request).unwrap().args;
            let command = r#"--config=mcp_servers.baton.command='/opt/a "b"/baton'"#;
            for arg in [command, r#"--config=mcp_servers.baton.args=["mcp"]"#] {
                assert!(args.iter().any(|given| given == arg), "{arg} in {args:?}");
            }
        }
        let bare = AgentWire::Claude
            .launch(&LaunchRequest {
                tools: None,
                ..request
            })
            .unwrap();
        assert!(!bare.args.iter().any(|arg| arg.contains("mcp")));
    }

    #[test]
    fn an_unsupported_option_is_named_before_the_launch() {
        let request = LaunchRequest {
            permission_mode: "yolo".to_owned(),
            ..request()
        };
        for kind in [
            AgentWire::Claude,
            AgentWire::CodexAppServer,
            AgentWire::CodexExec,
        ] {
            let error = kind.launch(&request).unwrap_err();
            assert_eq!(error.option, "permission_mode");
            assert!(error.to_string().contains("yolo"), "{error}");
        }
        assert!(
            AgentWire::Acp.launch(&request).is_ok(),
            "the session decides about the option"
        );
    }
}
