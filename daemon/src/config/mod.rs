//! What a daemon is told at its start: flags become a [`DaemonConfig`], and `daemon.toml` (`file`) names its agents,
//! roots and limits. Checks shapes; touches nothing but the file it reads and the roots that it names.

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

/// Name of the agent that runs whatever command a task brings. Off unless it is allowed.
pub const ANY_COMMAND_AGENT: &str = "command";

/// Says which boot of the machine this is.
pub const KERNEL_BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The longest hold that a relay grants.
pub const LEASE_EXTENSION_MAX: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// `http://host:port` or `https://host:port`.
    pub relay: String,
    /// Read again for every connection, so that a credential can be rotated in place.
    pub token_file: PathBuf,
    /// Certificate authority for https.
    pub ca_file: Option<PathBuf>,
    /// Holds the daemon's identity; one running daemon per directory.
    pub data_dir: PathBuf,
    pub name: String,
    /// Attempts at once, 1 to 4096.
    pub slots: u32,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    pub agents: BTreeMap<String, AgentConfig>,
    /// Directories that tasks can ask for by name.
    pub roots: BTreeMap<String, RootConfig>,
    /// Where a child runs when its task asks for no workspace.
    pub work_dir: PathBuf,
    pub limits: ResourceLimits,
    /// From the order to stop to the end of the daemon. Running attempts may finish in most of it.
    pub drain: Duration,
    /// How long attempts that outlast the drain may go on until the next daemon takes them over; at most [`HOLD_MAX`].
    /// Zero: they are killed.
    pub lease_extension: Duration,
    /// Answers health checks here too; over a Unix socket in the data directory it always does.
    pub health: Option<SocketAddr>,
    /// Holds on to one attempt's child, whatever happens to the daemon. See [`ShimProgram::own`].
    pub shim: ShimProgram,
    /// What agents are handed as the server of Baton's tools: an executable that knows the command `mcp`. See
    /// [`crate::tools::own_program`].
    pub tools_program: PathBuf,
    /// Where the kernel tells which boot this is. See [`KERNEL_BOOT_ID`].
    pub boot_id_file: PathBuf,
    /// Orphans of attempts become children of this process. Only for a process that has no other children.
    pub adopt_orphans: bool,
    pub clock: Clock,
}

/// A directory that tasks can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootConfig {
    /// Absolute and without links.
    pub path: PathBuf,
    /// For tasks that do not say.
    pub(crate) mode: SharingMode,
    pub retention: WorkspaceRetention,
    /// Where scratch directories and worktrees are made, if not in the data directory.
    pub made_in: Option<PathBuf>,
}

/// What becomes of a scratch directory or a worktree after its attempt.
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

    pub(crate) fn parse(word: &str) -> Option<Self> {
        let all = [Self::Always, Self::Changed, Self::Never];
        all.into_iter().find(|keep| keep.as_str() == word)
    }
}

/// What the machine and each attempt may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Below this share of available memory new work is refused. 0: never.
    pub memory_floor_percent: u32,
    /// Of each attempt, where the system lets the daemon set it.
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
        /// Variables that tasks may set. Others could make it run anything, or send what the operator gave it anywhere.
        task_env: Vec<String>,
    },
    /// A coding agent, spoken to in its own way.
    Coding {
        wire: AgentWire,
        program: OsString,
        args: Vec<OsString>,
        env: BTreeMap<String, String>,
        task_env: Vec<String>,
    },
}

impl AgentConfig {
    /// What is started, and what of its environment the operator chose. None where the task brings both.
    pub(crate) fn program(&self) -> Option<(&OsStr, &BTreeMap<String, String>)> {
        match self {
            Self::AnyCommand => None,
            Self::Command { program, env, .. } | Self::Coding { program, env, .. } => {
                Some((program, env))
            }
        }
    }

    /// Whether a task may set this variable. Whoever brings the whole command line may set what he likes.
    pub(crate) fn allows_task_variable(&self, name: &str) -> bool {
        match self {
            Self::AnyCommand => true,
            Self::Command { task_env, .. } | Self::Coding { task_env, .. } => {
                task_env.iter().any(|allowed| allowed == name)
            }
        }
    }
}

/// What a coding agent speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentWire {
    Claude,
    CodexAppServer,
    /// For versions of Codex without an app-server. It can ask nobody.
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
    #[error("a root's name has 1 to 128 bytes, which {0:?} has not")]
    RootName(String),
    #[error("a daemon has 64 roots at most, not {0}")]
    TooManyRoots(usize),
    #[error("agent {0:?} is reserved; it is what --allow-command switches on")]
    ReservedName(String),
    #[error("slots must be 1 to 4096, not {0}")]
    Slots(u32),
    #[error(
        "a hold lasts ten minutes at most, not {0:?}; attempts of a daemon that is away longer are lost"
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
