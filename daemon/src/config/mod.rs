//! The configuration of a daemon: flags become a [`DaemonConfig`], and `daemon.toml`
//! (`config_file`) names its agents, roots and limits. Checks values; reads only that file and
//! the roots in it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::clock::Clock;
use crate::shim::client::ShimProgram;
use crate::workspace::SharingMode;

mod config_errors;
mod config_file;
mod key_check;

pub use config_errors::list_config_errors;
pub use config_file::{FileConfig, read_config};
pub use key_check::{ConfigKeyError, ConfigKeyProblem};

/// The name of the agent that runs any command that a task brings. Off unless it is allowed.
pub const ANY_COMMAND_AGENT: &str = "command";

/// Where the kernel reports the id of the current boot.
pub const KERNEL_BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The longest lease extension that a relay grants.
pub const LEASE_EXTENSION_MAX: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// `http://host:port` or `https://host:port`.
    pub relay: String,
    /// Read for every connection, so that the token can be replaced in place.
    pub token_file: PathBuf,
    /// Certificate authority for https.
    pub ca_file: Option<PathBuf>,
    /// Contains the daemon's identity; one running daemon per directory.
    pub data_dir: PathBuf,
    pub name: String,
    /// Attempts at once, 1 to 4096.
    pub slots: u32,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    pub agents: BTreeMap<String, AgentConfig>,
    /// Directories that tasks can request by name.
    pub roots: BTreeMap<String, RootConfig>,
    /// Where a child runs when its task requests no workspace.
    pub work_dir: PathBuf,
    pub limits: ResourceLimits,
    /// From the order to stop to the exit of the daemon. Running attempts may finish in most of
    /// it.
    pub drain: Duration,
    /// How long attempts that outlast the drain may go on until the next daemon adopts them; at
    /// most [`LEASE_EXTENSION_MAX`]. Zero: they are killed.
    pub lease_extension: Duration,
    /// A TCP address for health checks, in addition to the Unix socket in the data directory.
    pub health: Option<SocketAddr>,
    /// The program that owns one attempt's child and outlives the daemon. See
    /// [`ShimProgram::own_executable`].
    pub shim: ShimProgram,
    /// The server of Baton's tools that agents get: an executable with the command `mcp`. See
    /// [`crate::tools::own_program`].
    pub tools_program: PathBuf,
    /// Where the id of the current boot is read. See [`KERNEL_BOOT_ID_FILE`].
    pub boot_id_file: PathBuf,
    /// Orphans of attempts become children of this process. Only for a process that has no
    /// other children.
    pub adopt_orphans: bool,
    pub clock: Clock,
}

/// A directory that tasks can request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootConfig {
    /// Absolute and without symbolic links.
    pub path: PathBuf,
    /// For tasks that request no mode.
    pub(crate) mode: SharingMode,
    pub retention: WorkspaceRetention,
    /// Where scratch directories and worktrees are created, if not in the data directory.
    pub made_in: Option<PathBuf>,
}

/// What happens to a scratch directory or a worktree after its attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceRetention {
    Always,
    /// It stays if something in it would be lost.
    #[default]
    Changed,
    Never,
}

impl WorkspaceRetention {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Changed => "changed",
            Self::Never => "never",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all = [Self::Always, Self::Changed, Self::Never];
        all.into_iter().find(|keep| keep.as_str() == text)
    }
}

/// What the machine and each attempt may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Below this share of available memory new work is refused. 0: never.
    pub memory_floor_percent: u32,
    /// For each attempt, where the system lets the daemon set it.
    pub attempt_memory_mib: Option<NonZeroU32>,
    pub attempt_processes: Option<NonZeroU32>,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            memory_floor_percent: 10,
            attempt_memory_mib: None,
            attempt_processes: None,
        }
    }
}

/// One agent that this daemon can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentConfig {
    /// The task brings the whole command line.
    AnyCommand,
    /// The operator chose the program; the task's arguments follow `args`.
    Command {
        program: OsString,
        args: Vec<OsString>,
        env: BTreeMap<String, String>,
        /// Variables that tasks may set. Others could make the program run anything, or send
        /// the operator's secrets anywhere.
        task_env: Vec<String>,
    },
    /// A coding agent with its own protocol.
    Coding {
        wire: AgentWire,
        program: OsString,
        args: Vec<OsString>,
        env: BTreeMap<String, String>,
        task_env: Vec<String>,
    },
}

impl AgentConfig {
    /// The program, and the environment that the operator configured. `None` when the task
    /// brings both.
    pub(crate) fn program(&self) -> Option<(&OsStr, &BTreeMap<String, String>)> {
        match self {
            Self::AnyCommand => None,
            Self::Command { program, env, .. } | Self::Coding { program, env, .. } => {
                Some((program, env))
            }
        }
    }

    /// Whether a task may set this variable. A task that brings the whole command line may set
    /// any.
    pub(crate) fn allows_task_variable(&self, name: &str) -> bool {
        match self {
            Self::AnyCommand => true,
            Self::Command { task_env, .. } | Self::Coding { task_env, .. } => {
                task_env.iter().any(|allowed| allowed == name)
            }
        }
    }
}

/// The protocol of a coding agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentWire {
    Claude,
    CodexAppServer,
    /// For versions of Codex without an app-server. It cannot ask for input.
    CodexExec,
    Acp,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} is not a valid daemon configuration: {source}")]
    Malformed {
        path: PathBuf,
        source: Box<toml::de::Error>,
    },
    #[error("{}, {fault}", path.display())]
    Key {
        path: PathBuf,
        fault: ConfigKeyError,
    },
    #[error(
        "the root {name:?} cannot be used: {}: {source}; it must be a directory that exists",
        path.display()
    )]
    Root {
        name: String,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the name of a root must have 1 to 128 bytes, unlike {0:?}")]
    RootName(String),
    #[error("a daemon can have at most 64 roots, not {0}")]
    TooManyRoots(usize),
    #[error("the agent name {0:?} is reserved for --allow-command; choose another name")]
    ReservedName(String),
    #[error("slots must be 1 to 4096, not {0}")]
    Slots(u32),
    #[error(
        "a lease extension lasts at most ten minutes, not {0:?}; attempts of a daemon that is away longer are lost"
    )]
    LeaseExtension(Duration),
}

impl DaemonConfig {
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=4096).contains(&self.slots) {
            return Err(ConfigError::Slots(self.slots));
        }
        if self.lease_extension > LEASE_EXTENSION_MAX {
            return Err(ConfigError::LeaseExtension(self.lease_extension));
        }
        Ok(())
    }
}
