//! What an attempt whose task asks for tools is given: to its agent the server's command line and the secret, to the daemon
//! what it needs to answer.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use baton_proto::v1::{Dispatch, ResumeContext};
use baton_proto::worker::AttemptTools;
use bytes::Bytes;

use super::{CAPABILITY_VARIABLE, Capability, CapabilityHash, SOCKET_FILE, SOCKET_VARIABLE};

/// The server that every agent of this daemon can be handed.
#[derive(Clone, Debug)]
pub(crate) struct ToolServerSettings {
    /// An executable that knows the command `mcp`.
    program: PathBuf,
    /// Where its calls are answered.
    socket: PathBuf,
}

/// For one attempt's agent.
#[derive(Clone, Debug)]
pub(crate) struct AgentToolAccess {
    pub(crate) program: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) capability: Capability,
}

/// What the daemon keeps of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolGrant {
    pub(crate) hash: CapabilityHash,
    pub(crate) goal: String,
    pub(crate) success_criteria: Vec<String>,
    pub(crate) resume: Option<ResumeContext>,
}

impl ToolServerSettings {
    pub(crate) fn new(program: &Path, data_dir: &Path) -> Self {
        let socket = data_dir.join(SOCKET_FILE);
        Self {
            program: program.to_owned(),
            // An agent works elsewhere, where a relative path would mean another place.
            socket: std::path::absolute(&socket).unwrap_or(socket),
        }
    }

    pub(crate) fn grant_access(&self, attempt_id: &str) -> AgentToolAccess {
        AgentToolAccess {
            program: self.program.clone(),
            socket: self.socket.clone(),
            capability: Capability::generate(attempt_id),
        }
    }
}

impl AgentToolAccess {
    /// For the agent's environment: by design, and nothing else of the daemon's is ever there.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        [
            (SOCKET_VARIABLE.into(), self.socket.clone().into()),
            (CAPABILITY_VARIABLE.into(), self.capability.secret().into()),
        ]
    }
}

impl ToolGrant {
    pub(crate) fn new(handed: &AgentToolAccess, dispatch: &Dispatch) -> Self {
        Self {
            hash: handed.capability.hash(),
            goal: dispatch.goal.clone(),
            success_criteria: dispatch.success_criteria.clone(),
            resume: dispatch.resume.clone(),
        }
    }

    pub(crate) fn to_disk(&self) -> AttemptTools {
        AttemptTools {
            capability_sha256: Bytes::copy_from_slice(self.hash.bytes()),
            goal: self.goal.clone(),
            success_criteria: self.success_criteria.clone(),
            resume: self.resume.clone(),
        }
    }

    pub(crate) fn from_disk(stored: AttemptTools) -> Option<Self> {
        Some(Self {
            hash: CapabilityHash::from_disk(&stored.capability_sha256)?,
            goal: stored.goal,
            success_criteria: stored.success_criteria,
            resume: stored.resume,
        })
    }
}

/// This very executable by its path, for agents to start. One that was replaced meanwhile is found where it was.
pub fn own_program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path
        .to_str()
        .and_then(|path| path.strip_suffix(" (deleted)"));
    Ok(replaced.map_or_else(|| path.clone(), PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_daemon_knows_why_the_task_was_sent_on() {
        let dispatch = Dispatch {
            goal: "the goal".to_owned(),
            resume: Some(ResumeContext {
                resume_reason: "answered".to_owned(),
                ..ResumeContext::default()
            }),
            ..Dispatch::default()
        };
        let tooling = ToolServerSettings::new(Path::new("/bin/false"), Path::new("/data"));
        let granted = ToolGrant::new(&tooling.grant_access("attempt"), &dispatch);
        assert_eq!(ToolGrant::from_disk(granted.to_disk()), Some(granted));
    }
}
