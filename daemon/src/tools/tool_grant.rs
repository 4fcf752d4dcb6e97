//! Tool access of one attempt: the agent gets the server's command line and the secret, the
//! daemon keeps what it needs to answer calls.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use baton_proto::v1::{Dispatch, ResumeContext};
use baton_proto::worker::AttemptTools;
use bytes::Bytes;

use super::{CAPABILITY_VARIABLE, Capability, CapabilityHash, SOCKET_FILE, SOCKET_VARIABLE};

/// The tool server that agents of this daemon can start.
#[derive(Clone, Debug)]
pub(crate) struct ToolServerSettings {
    /// An executable with the subcommand `mcp`.
    program: PathBuf,
    /// Socket on which the daemon answers its calls.
    socket: PathBuf,
}

/// Tool access as one attempt's agent gets it.
#[derive(Clone, Debug)]
pub(crate) struct AgentToolAccess {
    pub(crate) program: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) capability: Capability,
}

/// Tool access as the daemon keeps it.
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
            // An agent has another working directory, so a relative path would not work there.
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
    /// Variables for the agent's environment. They are put there on purpose; the agent gets no
    /// other variable of the daemon.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        [
            (SOCKET_VARIABLE.into(), self.socket.clone().into()),
            (CAPABILITY_VARIABLE.into(), self.capability.secret().into()),
        ]
    }
}

impl ToolGrant {
    pub(crate) fn new(access: &AgentToolAccess, dispatch: &Dispatch) -> Self {
        Self {
            hash: access.capability.hash(),
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

/// The path of this executable, for agents to start. If the file was replaced since, its path
/// is still returned, without the kernel's suffix.
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
    fn a_tool_grant_survives_a_daemon_restart() {
        let dispatch = Dispatch {
            goal: "the goal".to_owned(),
            resume: Some(ResumeContext {
                resume_reason: "answered".to_owned(),
                ..ResumeContext::default()
            }),
            ..Dispatch::default()
        };
        let settings = ToolServerSettings::new(Path::new("/bin/false"), Path::new("/data"));
        let grant = ToolGrant::new(&settings.grant_access("attempt"), &dispatch);
        assert_eq!(ToolGrant::from_disk(grant.to_disk()), Some(grant));
    }
}
