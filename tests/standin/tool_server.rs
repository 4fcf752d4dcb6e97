//! The tool server that a daemon configured for this agent, and a client for it. The server is
//! started for each call, with an environment without the agent's variables, as some of the
//! real programs do.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::text_at;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct McpToolServer {
    program: String,
    args: Vec<String>,
}

/// From Claude Code's arguments, or from Codex's.
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

/// From a message of the protocol.
pub(crate) fn server_from_message(server: &Value) -> Option<McpToolServer> {
    Some(McpToolServer {
        program: server.get("command")?.as_str()?.to_owned(),
        args: serde_json::from_value(server.get("args")?.clone()).ok()?,
    })
}

impl McpToolServer {
    /// Returns the error code, or `ok`.
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
        let mut stdin = child.stdin.take()?;
        let mut stdout_lines = BufReader::new(child.stdout.take()?).lines();
        let client = json!({"name": "standin", "version": "0"});
        let hello =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let call = json!({"name": tool, "arguments": arguments});
        let mut answer = None;
        for (id, method, params) in [(1, "initialize", hello), (2, "tools/call", call)] {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            writeln!(stdin, "{request}").ok()?;
            let mut messages = stdout_lines.by_ref().map_while(Result::ok);
            answer = messages.find_map(|line| {
                let message: Value = serde_json::from_str(&line).ok()?;
                (message["id"] == json!(id)).then_some(message)
            });
            if id == 1 {
                let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
                writeln!(stdin, "{ready}").ok()?;
            }
        }
        drop(stdin);
        child.wait().ok()?;
        answer
    }
}
