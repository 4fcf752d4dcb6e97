//! What a daemon is told at its start: flags become a [`DaemonConfig`], `daemon.toml` names its agents.
//! Checks shapes; touches nothing but the file it reads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::clock::Clock;
use crate::shim::client::ShimProgram;

/// Name of the agent that runs whatever command a task brings. Off unless it is allowed.
pub const ANY_COMMAND: &str = "command";

/// Says which boot of the machine this is.
pub const KERNEL_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The longest hold that a relay grants.
pub const HOLD_MAX: Duration = Duration::from_secs(600);

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
    /// Where a child runs when its task names no directory.
    pub work_dir: PathBuf,
    /// From the order to stop to the end of the daemon. Running attempts may finish in most of it.
    pub drain: Duration,
    /// How long attempts that outlast the drain may go on until the next daemon takes them over; at most [`HOLD_MAX`].
    /// Zero: they are killed.
    pub hold: Duration,
    /// Answers health checks here too; over a Unix socket in the data directory it always does.
    pub health: Option<SocketAddr>,
    /// Holds on to one attempt's child, whatever happens to the daemon. See [`ShimProgram::own`].
    pub shim: ShimProgram,
    /// Where the kernel tells which boot this is. See [`KERNEL_BOOT_ID`].
    pub boot_id_file: PathBuf,
    /// Orphans of attempts become children of this process. Only for a process that has no other children.
    pub adopt_orphans: bool,
    pub clock: Clock,
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
    },
    /// A coding agent, spoken to in its own way.
    Coding {
        wire: AgentWire,
        program: OsString,
        args: Vec<OsString>,
        env: BTreeMap<String, String>,
    },
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
    #[error("agent {0:?} is reserved; it is what --allow-command switches on")]
    ReservedName(String),
    #[error("slots must be 1 to 4096, not {0}")]
    Slots(u32),
    #[error(
        "a hold lasts ten minutes at most, not {0:?}; attempts of a daemon that is away longer are lost"
    )]
    Hold(Duration),
}

impl DaemonConfig {
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(1..=4096).contains(&self.slots) {
            return Err(ConfigError::Slots(self.slots));
        }
        if self.hold > HOLD_MAX {
            return Err(ConfigError::Hold(self.hold));
        }
        Ok(())
    }
}

/// The agents of a `daemon.toml`: `[agents.NAME]` with `kind`, `program`, `args`, `env`.
pub fn read_agents(path: &Path) -> Result<BTreeMap<String, AgentConfig>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    parse_agents(&text, path)
}

fn parse_agents(text: &str, path: &Path) -> Result<BTreeMap<String, AgentConfig>, ConfigError> {
    let file: ConfigFile = toml::from_str(text).map_err(|source| ConfigError::Malformed {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    if file.agents.contains_key(ANY_COMMAND) {
        return Err(ConfigError::ReservedName(ANY_COMMAND.to_owned()));
    }
    Ok(file
        .agents
        .into_iter()
        .map(|(name, entry)| (name, entry.into()))
        .collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    agents: BTreeMap<String, AgentEntry>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum AgentEntry {
    Command {
        program: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
    Claude {
        #[serde(default = "claude")]
        program: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
    Codex {
        #[serde(default = "codex")]
        program: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
        #[serde(default)]
        protocol: CodexProtocol,
    },
    Acp {
        program: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CodexProtocol {
    #[default]
    AppServer,
    Exec,
}

fn claude() -> String {
    "claude".to_owned()
}

fn codex() -> String {
    "codex".to_owned()
}

impl From<AgentEntry> for AgentConfig {
    fn from(entry: AgentEntry) -> Self {
        let (wire, program, args, env) = match entry {
            AgentEntry::Command { program, args, env } => {
                return Self::Command {
                    program: program.into(),
                    args: args.into_iter().map(OsString::from).collect(),
                    env,
                };
            }
            AgentEntry::Claude { program, args, env } => (AgentWire::Claude, program, args, env),
            AgentEntry::Codex {
                program,
                args,
                env,
                protocol,
            } => {
                let wire = match protocol {
                    CodexProtocol::AppServer => AgentWire::CodexAppServer,
                    CodexProtocol::Exec => AgentWire::CodexExec,
                };
                (wire, program, args, env)
            }
            AgentEntry::Acp { program, args, env } => (AgentWire::Acp, program, args, env),
        };
        Self::Coding {
            wire,
            program: program.into(),
            args: args.into_iter().map(OsString::from).collect(),
            env,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_read_by_name_and_mistakes_are_named() {
        let text = "[agents.lint]\nkind = \"command\"\nprogram = \"lint\"\nargs = [\"-q\"]\n";
        let agents = parse_agents(text, Path::new("daemon.toml")).unwrap();
        let lint = AgentConfig::Command {
            program: "lint".into(),
            args: vec!["-q".into()],
            env: BTreeMap::new(),
        };
        assert_eq!(agents, BTreeMap::from([("lint".to_owned(), lint)]));
        let text = "[agents.a]\nkind = \"claude\"\n[agents.b]\nkind = \"codex\"\nprotocol = \"exec\"\n\
                    [agents.c]\nkind = \"acp\"\nprogram = \"gemini\"\nargs = [\"--acp\"]\n";
        let agents = parse_agents(text, Path::new("daemon.toml")).unwrap();
        let wires = agents.into_values().map(|agent| match agent {
            AgentConfig::Coding { wire, program, .. } => (wire, program),
            other => panic!("{other:?}"),
        });
        let expected = [
            (AgentWire::Claude, "claude".into()),
            (AgentWire::CodexExec, "codex".into()),
            (AgentWire::Acp, "gemini".into()),
        ];
        assert_eq!(wires.collect::<Vec<_>>(), expected);
        for (broken, word) in [
            ("[agents.x]\nkind = \"magic\"\n", "magic"),
            ("[agents.x]\nkind = \"command\"\n", "program"),
            ("[agents.x]\nkind = \"acp\"\n", "program"),
            (
                "[agents.x]\nkind = \"codex\"\nprotocol = \"morse\"\n",
                "morse",
            ),
            (
                "[agents.x]\nkind = \"claude\"\nprotocol = \"exec\"\n",
                "protocol",
            ),
            (
                "[agents.x]\nkind = \"command\"\nprogram = \"x\"\ncolour = 1\n",
                "colour",
            ),
            ("[other]\n", "other"),
            (
                "[agents.command]\nkind = \"command\"\nprogram = \"x\"\n",
                "--allow-command",
            ),
        ] {
            let error = parse_agents(broken, Path::new("daemon.toml"))
                .unwrap_err()
                .to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
