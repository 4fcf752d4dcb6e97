//! Coding agents for tests: the stand-in with each agent protocol. A task's prompt is the
//! script that the agent plays (see `standin/script.rs`). If the prompt must be something else,
//! the environment contains the script.

use std::collections::BTreeMap;
use std::path::Path;

use baton_daemon::{AgentConfig, AgentWire};
use baton_proto::v1::{RetryPolicy, TaskSpec};

/// Name of the agent, its protocol, and the stand-in's argument for that protocol.
pub const CODING_AGENTS: [(&str, AgentWire, &str); 4] = [
    ("claude", AgentWire::Claude, "claude"),
    ("codex", AgentWire::CodexAppServer, "app-server"),
    ("codex-exec", AgentWire::CodexExec, "exec"),
    ("acp", AgentWire::Acp, "acp"),
];

/// A script for an agent that needs it before it has a prompt.
const SCRIPT_VARIABLE: &str = "STANDIN_SCRIPT";

/// Agents that can ask for permissions and answers.
pub const ASKING_AGENTS: [&str; 3] = ["claude", "codex", "acp"];

/// Every coding agent, played by `program`. `env` is the operator's environment.
pub fn standin_agents(program: &Path, env: &[(&str, &str)]) -> BTreeMap<String, AgentConfig> {
    let env: BTreeMap<String, String> = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let agents = CODING_AGENTS.map(|(name, wire, protocol)| {
        let agent = AgentConfig::Coding {
            wire,
            program: program.into(),
            args: vec!["speak".into(), protocol.into()],
            env: env.clone(),
            task_env: vec![SCRIPT_VARIABLE.to_owned()],
        };
        (name.to_owned(), agent)
    });
    agents.into()
}

/// The same as a `daemon.toml`.
pub fn standin_agents_toml(program: &str, env: &[(&str, &str)]) -> String {
    let env: Vec<String> = env
        .iter()
        .map(|(name, value)| format!("{name} = {value:?}"))
        .collect();
    let env = env.join(", ");
    let agents = CODING_AGENTS.map(|(name, wire, protocol)| {
        let kind = match wire {
            AgentWire::Claude => "kind = \"claude\"",
            AgentWire::CodexAppServer => "kind = \"codex\"",
            AgentWire::CodexExec => "kind = \"codex\"\nprotocol = \"exec\"",
            AgentWire::Acp => "kind = \"acp\"",
        };
        let args = format!("args = [\"speak\", {protocol:?}]");
        let task_env = format!("task_env = [{SCRIPT_VARIABLE:?}]");
        format!(
            "[agents.{name}]\n{kind}\nprogram = {program:?}\n{args}\nenv = {{ {env} }}\n{task_env}\n"
        )
    });
    agents.join("\n")
}

/// A task whose prompt is the script. It has no retry, so its first end is final.
pub fn scripted_task(agent: &str, script: &str) -> TaskSpec {
    TaskSpec {
        agent: agent.to_owned(),
        prompt: script.to_owned(),
        retry: Some(RetryPolicy {
            max_attempts: Some(1),
            ..RetryPolicy::default()
        }),
        ..TaskSpec::default()
    }
}

/// A task whose agent has its script before it has a prompt.
pub fn scripted_task_with_prompt(agent: &str, script: &str, prompt: &str) -> TaskSpec {
    TaskSpec {
        prompt: prompt.to_owned(),
        env: [(SCRIPT_VARIABLE.to_owned(), script.to_owned())].into(),
        ..scripted_task(agent, "")
    }
}
