//! The server of tools that a daemon handed to this agent, and a client for it: started anew for each call, with an environment
//! that holds nothing of the agent's, as some of the real programs do it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::text_at;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct McpToolServer {
    program: String,
    args: Vec<String>,
}

/// As Claude Code takes it, or as Codex does.
pub(crate) fn server_from_arguments(arguments: &[String]) -> Option<McpToolServer> {
    let value = |prefix: &str| arguments.iter().find_map(|word| word.strip_prefix(prefix));
    if let Some(config) = value("--mcp-config=") {
        let config: Value = serde_json::from_str(config).ok()?;
        return server_from_message(config.pointer("/mcpServers/baton")?);
    }
    let program = value("--config=mcp_servers.baton.command=")?;
    let args = value("--config=mcp_servers.baton.args=")?;
    Some(McpToolServer {
        program: program.trim_matches(['"', '\'']).to_owned(),
        args: serde_json::from_str(args).ok()?,
    })
}

/// As a message of a wire names it.
pub(crate) fn server_from_message(server: &Value) -> Option<McpToolServer> {
    Some(McpToolServer {
        program: server.get("command")?.as_str()?.to_owned(),
        args: serde_json::from_value(server.get("args")?.clone()).ok()?,
    })
}

impl McpToolServer {
    /// The code of a refusal, or `ok`.
    pub(crate) fn call_tool(&self, tool: &str, arguments: &str) -> String {
        let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
        match self.call_in_new_process(tool, &arguments) {
            Some(answer) if answer.pointer("/result/isError") == Some(&Value::Bool(true)) => {
                text_at(&answer, "/result/structuredContent/error/code").to_owned()
            }
            Some(answer) if answer.get("result").is_some() => "ok".to_owned(),
            Some(answer) => answer.to_string(),
            None => "no answer".to_owned(),
        }
    }

    fn call_in_new_process(&self, tool: &str, arguments: &Value) -> Option<Value> {
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut said = child.stdin.take()?;
        let mut heard = BufReader::new(child.stdout.take()?).lines();
        let client = json!({"name": "standin", "version": "0"});
        let hello =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let call = json!({"name": tool, "arguments": arguments});
        let mut answer = None;
        for (id, method, params) in [(1, "initialize", hello), (2, "tools/call", call)] {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            writeln!(said, "{request}").ok()?;
            let mut messages = heard.by_ref().map_while(Result::ok);
            answer = messages.find_map(|line| {
                let message: Value = serde_json::from_str(&line).ok()?;
                (message["id"] == json!(id)).then_some(message)
            });
            if id == 1 {
                let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
                writeln!(said, "{ready}").ok()?;
            }
        }
        drop(said);
        child.wait().ok()?;
        answer
    }
}
