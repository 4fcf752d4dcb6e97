//! `baton mcp` as a process, with the MCP library's own client, which is independent of Baton.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, CallToolResponse, Tool};
use rmcp::service::{RoleClient, RunningService, ServiceError};
use rustix::process::Signal;
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::host::process_census::attempt_variable;
use crate::host::process_lifetime::send_signal;
use crate::servers::server_processes::BatonExecutable;
use crate::wait::{poll_until, wait_within};

#[derive(Debug)]
pub struct McpClient {
    client: RunningService<RoleClient, ()>,
    child: Child,
}

/// Tool socket and capability of an attempt, from its agent's environment.
#[derive(Clone, Debug)]
pub struct AttemptToolAccess {
    pub socket: String,
    pub capability: String,
}

impl AttemptToolAccess {
    /// Waits until the agent runs.
    pub async fn wait_for_attempt(attempt_id: &str) -> Self {
        let variable = |name| attempt_variable(attempt_id, name);
        poll_until("the agent to have its tools", || {
            Some(Self {
                socket: variable("BATON_TOOLS_SOCKET")?,
                capability: variable("BATON_CAPABILITY")?,
            })
        })
        .await
    }
}

/// Result of a tool call.
#[derive(Clone, Debug)]
pub struct ToolAnswer {
    pub is_refused: bool,
    pub content: Value,
}

impl ToolAnswer {
    /// One field of an error result.
    pub fn error_field(&self, name: &str) -> &str {
        assert!(self.is_refused, "{self:?}");
        self.content["error"][name].as_str().unwrap_or_default()
    }

    pub fn into_content(self) -> Value {
        assert!(!self.is_refused, "{self:?}");
        self.content
    }
}

impl McpClient {
    /// Starts it with the token and the address in this directory.
    pub async fn start(baton: BatonExecutable, data: &Path, arguments: &[&str]) -> Self {
        let mut command = baton.command(data);
        command.arg("mcp").args(arguments);
        Self::start_command(command).await
    }

    /// Starts it as the attempt's agent would.
    pub async fn start_for_attempt(
        baton: BatonExecutable,
        data: &Path,
        access: &AttemptToolAccess,
    ) -> Self {
        let mut command = baton.command(data);
        command
            .arg("mcp")
            .env("BATON_TOOLS_SOCKET", &access.socket)
            .env("BATON_CAPABILITY", &access.capability);
        Self::start_command(command).await
    }

    pub async fn start_command(mut command: Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("the executable can be started");
        let stdout = child.stdout.take().expect("the stream is a pipe");
        let stdin = child.stdin.take().expect("the stream is a pipe");
        let client = wait_within("the server's initialize answer", ().serve((stdout, stdin))).await;
        Self {
            client: client.expect("the MCP handshake succeeds"),
            child,
        }
    }

    pub fn instructions(&self) -> String {
        let server = self.client.peer_info().expect("the handshake is complete");
        server.instructions.clone().unwrap_or_default()
    }

    pub async fn list_tools(&self) -> BTreeMap<String, Tool> {
        let tools = wait_within("the tools", self.client.list_all_tools()).await;
        let tools = tools.expect("tools are listed").into_iter();
        tools.map(|tool| (tool.name.to_string(), tool)).collect()
    }

    pub async fn call_tool(&self, name: &str, arguments: Value) -> ToolAnswer {
        let answer = self.try_call_tool(name, arguments).await;
        answer.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub async fn try_call_tool(
        &self,
        name: &str,
        arguments: Value,
    ) -> Result<ToolAnswer, ServiceError> {
        let Value::Object(arguments) = arguments else {
            panic!("arguments are an object");
        };
        let call = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
        let answer = wait_within(name, self.client.call_tool_once(call)).await?;
        let CallToolResponse::Complete(result) = answer else {
            panic!("{name} requests more input: {answer:?}");
        };
        Ok(ToolAnswer {
            is_refused: result.is_error == Some(true),
            content: result.structured_content.unwrap_or_default(),
        })
    }

    /// Sends a signal while its stdin stays open.
    pub fn send_signal(&self, kind: Signal) {
        let pid = self.child.id().expect("the process was not waited for yet");
        send_signal(pid, kind);
    }

    /// Sends a signal to an idle server and waits until it is handled: its thread has woken up
    /// and sleeps again.
    pub async fn send_signal_until_handled(&self, kind: Signal) {
        let pid = self.child.id().expect("the process was not waited for yet");
        let before = voluntary_context_switches(pid).expect("the process runs");
        send_signal(pid, kind);
        poll_until("the signal to be handled", || {
            voluntary_context_switches(pid).filter(|naps| *naps > before)
        })
        .await;
    }

    /// Waits for the exit while its stdin stays open.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        let ended = wait_within("the server to end", self.child.wait()).await;
        ended.expect("the process can be waited for")
    }

    /// Closes its stdin and waits for the exit. True if it exited with 0.
    pub async fn close(self) -> bool {
        let Self { client, mut child } = self;
        drop(wait_within("the client to end", client.cancel()).await);
        let ended = wait_within("the server to end", child.wait()).await;
        ended.expect("the process can be waited for").success()
    }
}

/// How often the process's first thread gave up the processor voluntarily.
fn voluntary_context_switches(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}
