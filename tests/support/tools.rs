//! `baton mcp` as a process, and a client of the Model Context Protocol that talks to it: the library's own, which knows
//! nothing of Baton.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, CallToolResponse, Tool};
use rmcp::service::{RoleClient, RunningService, ServiceError};
use rustix::process::Signal;
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::census::variable_of;
use crate::lifetimes::signal;
use crate::patience::{poll_until, within};
use crate::processes::Baton;

#[derive(Debug)]
pub struct Tools {
    client: RunningService<RoleClient, ()>,
    child: Child,
}

/// What an attempt's agent was handed, as its environment shows it.
#[derive(Clone, Debug)]
pub struct Handed {
    pub socket: String,
    pub capability: String,
}

impl Handed {
    /// Once the agent runs.
    pub async fn to(attempt_id: &str) -> Self {
        let variable = |name| variable_of(attempt_id, name);
        poll_until("the agent to have its tools", || {
            Some(Self {
                socket: variable("BATON_TOOLS_SOCKET")?,
                capability: variable("BATON_CAPABILITY")?,
            })
        })
        .await
    }
}

/// What a tool answered.
#[derive(Clone, Debug)]
pub struct Told {
    pub refused: bool,
    pub said: Value,
}

impl Told {
    /// One member of a refusal.
    pub fn error(&self, name: &str) -> &str {
        assert!(self.refused, "{self:?}");
        self.said["error"][name].as_str().unwrap_or_default()
    }

    pub fn granted(self) -> Value {
        assert!(!self.refused, "{self:?}");
        self.said
    }
}

impl Tools {
    /// With the token and the address that are in this directory.
    pub async fn start(baton: Baton, data: &Path, arguments: &[&str]) -> Self {
        let mut command = baton.command(data);
        command.arg("mcp").args(arguments);
        Self::run(command).await
    }

    /// As if the agent had started it.
    pub async fn inside(baton: Baton, data: &Path, handed: &Handed) -> Self {
        let mut command = baton.command(data);
        command
            .arg("mcp")
            .env("BATON_TOOLS_SOCKET", &handed.socket)
            .env("BATON_CAPABILITY", &handed.capability);
        Self::run(command).await
    }

    pub async fn run(mut command: Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("the executable can be started");
        let stdout = child.stdout.take().expect("it is a pipe");
        let stdin = child.stdin.take().expect("it is a pipe");
        let client = within("the server's greeting", ().serve((stdout, stdin))).await;
        Self {
            client: client.expect("it speaks the protocol"),
            child,
        }
    }

    pub fn instructions(&self) -> String {
        let server = self.client.peer_info().expect("it has greeted");
        server.instructions.clone().unwrap_or_default()
    }

    pub async fn list(&self) -> BTreeMap<String, Tool> {
        let tools = within("the tools", self.client.list_all_tools()).await;
        let tools = tools.expect("tools are listed").into_iter();
        tools.map(|tool| (tool.name.to_string(), tool)).collect()
    }

    pub async fn call(&self, name: &str, arguments: Value) -> Told {
        let told = self.try_call(name, arguments).await;
        told.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub async fn try_call(&self, name: &str, arguments: Value) -> Result<Told, ServiceError> {
        let Value::Object(arguments) = arguments else {
            panic!("arguments are an object");
        };
        let call = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
        let answer = within(name, self.client.call_tool_once(call)).await?;
        let CallToolResponse::Complete(result) = answer else {
            panic!("{name} asks for more: {answer:?}");
        };
        Ok(Told {
            refused: result.is_error == Some(true),
            said: result.structured_content.unwrap_or_default(),
        })
    }

    /// Sends it a signal, with its stdin still open.
    pub fn signal(&self, kind: Signal) {
        let pid = self.child.id().expect("it has not been waited for");
        signal(pid, kind);
    }

    /// The same to one that has nothing to do, and waits until it has heard: its thread has woken up and sleeps again.
    pub async fn signal_taken(&self, kind: Signal) {
        let pid = self.child.id().expect("it has not been waited for");
        let before = naps(pid).expect("it runs");
        signal(pid, kind);
        poll_until("the signal to be heard", || {
            naps(pid).filter(|naps| *naps > before)
        })
        .await;
    }

    /// Waits for it, with its stdin still open.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = within("the server to end", self.child.wait()).await;
        ended.expect("it can be waited for")
    }

    /// Closes its stdin and waits for it; true when it ended well.
    pub async fn close(self) -> bool {
        let Self { client, mut child } = self;
        drop(within("the client to end", client.cancel()).await);
        let ended = within("the server to end", child.wait()).await;
        ended.expect("it can be waited for").success()
    }
}

/// How often the process's first thread went to sleep by itself.
fn naps(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}
