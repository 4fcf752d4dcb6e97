//! `daemon.toml`: agents, roots and limits. docs/daemon.md describes it. Its keys are checked
//! in `key_check`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::DeTable;

use super::{
    ANY_COMMAND_AGENT, AgentConfig, AgentWire, ConfigError, ResourceLimits, RootConfig,
    WorkspaceRetention, key_check,
};
use crate::workspace::{self, SharingMode};

/// Everything that a `daemon.toml` can configure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileConfig {
    pub agents: BTreeMap<String, AgentConfig>,
    pub roots: BTreeMap<String, RootConfig>,
    pub limits: ResourceLimits,
}

/// The longest name of a root.
const ROOT_NAME_BYTES_MAX: usize = 128;
/// The most roots of a daemon.
const ROOTS_MAX: usize = 64;

/// Reads and checks the file. Roots must exist.
pub fn read_config(path: &Path) -> Result<FileConfig, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<FileConfig, ConfigError> {
    let malformed = |source| ConfigError::Malformed {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let table = DeTable::parse(text).map_err(malformed)?;
    key_check::check_keys(text, table.get_ref()).map_err(|fault| ConfigError::Key {
        path: path.to_owned(),
        fault,
    })?;
    let file: ConfigFileTables = toml::from_str(text).map_err(malformed)?;
    if file.agents.contains_key(ANY_COMMAND_AGENT) {
        return Err(ConfigError::ReservedName(ANY_COMMAND_AGENT.to_owned()));
    }
    let agents = file.agents.into_iter();
    Ok(FileConfig {
        agents: agents.map(|(name, entry)| (name, entry.into())).collect(),
        roots: check_roots(file.roots)?,
        limits: file.limits.into(),
    })
}

pub(super) fn check_roots(
    entries: BTreeMap<String, RootEntry>,
) -> Result<BTreeMap<String, RootConfig>, ConfigError> {
    if entries.len() > ROOTS_MAX {
        return Err(ConfigError::TooManyRoots(entries.len()));
    }
    let mut roots = BTreeMap::new();
    for (name, entry) in entries {
        if name.is_empty() || name.len() > ROOT_NAME_BYTES_MAX {
            return Err(ConfigError::RootName(name));
        }
        let unusable = |path: &Path, source| ConfigError::Root {
            name: name.clone(),
            path: path.to_owned(),
            source,
        };
        let usable =
            |path: PathBuf| workspace::check_root(&path).map_err(|source| unusable(&path, source));
        let root = RootConfig {
            path: usable(entry.path)?,
            mode: entry.mode.into(),
            retention: entry.keep,
            made_in: entry.made_in.map(usable).transpose()?,
        };
        roots.insert(name, root);
    }
    Ok(roots)
}

#[derive(Deserialize)]
struct ConfigFileTables {
    #[serde(default)]
    agents: BTreeMap<String, AgentEntry>,
    #[serde(default)]
    roots: BTreeMap<String, RootEntry>,
    #[serde(default)]
    limits: LimitsEntry,
}

#[derive(Deserialize)]
pub(super) struct RootEntry {
    path: PathBuf,
    #[serde(default)]
    mode: WorkspaceModeEntry,
    #[serde(default)]
    keep: WorkspaceRetention,
    made_in: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkspaceModeEntry {
    #[default]
    Shared,
    Scratch,
    Worktree,
}

impl From<WorkspaceModeEntry> for SharingMode {
    fn from(entry: WorkspaceModeEntry) -> Self {
        match entry {
            WorkspaceModeEntry::Shared => Self::Shared,
            WorkspaceModeEntry::Scratch => Self::Scratch,
            WorkspaceModeEntry::Worktree => Self::Worktree,
        }
    }
}

#[derive(Default, Deserialize)]
pub(super) struct LimitsEntry {
    memory_floor_percent: Option<FloorPercent>,
    attempt_memory_mib: Option<std::num::NonZeroU32>,
    attempt_processes: Option<std::num::NonZeroU32>,
}

/// 0 to 99: with 100 no work would ever be accepted.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "u32")]
struct FloorPercent(u32);

impl TryFrom<u32> for FloorPercent {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        if number < 100 {
            Ok(Self(number))
        } else {
            Err(format!("a floor is 0 to 99 percent, not {number}"))
        }
    }
}

impl From<LimitsEntry> for ResourceLimits {
    fn from(entry: LimitsEntry) -> Self {
        let default = Self::default();
        Self {
            memory_floor_percent: entry
                .memory_floor_percent
                .map_or(default.memory_floor_percent, |FloorPercent(number)| number),
            attempt_memory_mib: entry.attempt_memory_mib,
            attempt_processes: entry.attempt_processes,
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum AgentEntry {
    Command {
        program: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
        #[serde(default)]
        task_env: Vec<String>,
    },
    Claude {
        #[serde(default = "claude")]
        program: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
        #[serde(default)]
        task_env: Vec<String>,
    },
    Codex {
        #[serde(default = "codex")]
        program: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
        #[serde(default)]
        task_env: Vec<String>,
        #[serde(default)]
        protocol: CodexProtocol,
    },
    Acp {
        program: String,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
        #[serde(default)]
        task_env: Vec<String>,
    },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CodexProtocol {
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
        let to_os_strings = |args: Vec<String>| args.into_iter().map(OsString::from).collect();
        let (wire, program, args, env, task_env) = match entry {
            AgentEntry::Command {
                program,
                args,
                env,
                task_env,
            } => {
                return Self::Command {
                    program: program.into(),
                    args: to_os_strings(args),
                    env,
                    task_env,
                };
            }
            AgentEntry::Claude {
                program,
                args,
                env,
                task_env,
            } => (AgentWire::Claude, program, args, env, task_env),
            AgentEntry::Codex {
                program,
                args,
                env,
                task_env,
                protocol,
            } => (protocol.into(), program, args, env, task_env),
            AgentEntry::Acp {
                program,
                args,
                env,
                task_env,
            } => (AgentWire::Acp, program, args, env, task_env),
        };
        Self::Coding {
            wire,
            program: program.into(),
            args: to_os_strings(args),
            env,
            task_env,
        }
    }
}

impl From<CodexProtocol> for AgentWire {
    fn from(protocol: CodexProtocol) -> Self {
        match protocol {
            CodexProtocol::AppServer => Self::CodexAppServer,
            CodexProtocol::Exec => Self::CodexExec,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<FileConfig, ConfigError> {
        parse(text, Path::new("daemon.toml"))
    }

    #[test]
    fn agents_are_read_by_name() {
        let text = "[agents.lint]\nkind = \"command\"\nprogram = \"lint\"\nargs = [\"-q\"]\n\
                    task_env = [\"LEVEL\"]\n";
        let lint = AgentConfig::Command {
            program: "lint".into(),
            args: vec!["-q".into()],
            env: BTreeMap::new(),
            task_env: vec!["LEVEL".to_owned()],
        };
        assert!(lint.allows_task_variable("LEVEL") && !lint.allows_task_variable("LD_PRELOAD"));
        let agents = parsed(text).unwrap().agents;
        assert_eq!(agents, BTreeMap::from([("lint".to_owned(), lint)]));
        let text = "[agents.a]\nkind = \"claude\"\n[agents.b]\nkind = \"codex\"\nprotocol = \"exec\"\n\
                    [agents.c]\nkind = \"acp\"\nprogram = \"gemini\"\nargs = [\"--acp\"]\n";
        let agents = parsed(text).unwrap().agents;
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
    }

    #[test]
    fn roots_and_limits_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let shown = path.display();
        let text = format!(
            "[roots.api]\npath = \"{shown}\"\n[roots.\"a b\"]\npath = \"{shown}\"\nmode = \"worktree\"\n\
             keep = \"never\"\nmade_in = \"{shown}\"\n[limits]\nmemory_floor_percent = 0\nattempt_processes = 7\n"
        );
        let file = parsed(&text).unwrap();
        let api = RootConfig {
            path: path.clone(),
            mode: SharingMode::Shared,
            retention: WorkspaceRetention::Changed,
            made_in: None,
        };
        let other = RootConfig {
            path: path.clone(),
            mode: SharingMode::Worktree,
            retention: WorkspaceRetention::Never,
            made_in: Some(path),
        };
        let expected = BTreeMap::from([("api".to_owned(), api), ("a b".to_owned(), other)]);
        assert_eq!(file.roots, expected);
        assert_eq!(file.limits.memory_floor_percent, 0);
        assert_eq!(file.limits.attempt_processes.unwrap().get(), 7);
        assert_eq!(parsed("").unwrap().limits, ResourceLimits::default());
    }

    #[test]
    fn configuration_errors_name_the_key_and_a_similar_one() {
        for (broken, to_os_strings) in [
            ("[agents.x]\nkind = \"magic\"\n", &["magic"][..]),
            ("[agents.x]\nkind = \"command\"\n", &["program"]),
            ("[agents.x]\nkind = \"acp\"\n", &["program"]),
            (
                "[agents.x]\nkind = \"codex\"\nprotocol = \"morse\"\n",
                &["morse"],
            ),
            (
                "[agents.x]\nkind = \"claude\"\nprotocol = \"exec\"\n",
                &["agents.x.protocol"],
            ),
            (
                "[agents.x]\nkind = \"command\"\nprogramm = \"x\"\n",
                &["line 3", "agents.x.programm", "\"program\""],
            ),
            (
                "[agents.x]\nknid = \"claude\"\n",
                &["daemon.toml, line 2", "agents.x.knid", "\"kind\""],
            ),
            (
                "[agents.x]\nkind = \"claude\"\nenv = { A = \"1\", BATON_X = \"1\" }\n",
                &["line 3", "agents.x.env.BATON_X", "Baton's own"],
            ),
            (
                "[agents.x]\nkind = \"claude\"\nenv = { 9X = \"1\" }\n",
                &["agents.x.env.9X", "no digit"],
            ),
            ("[other]\n", &["\"other\""]),
            ("[agent.x]\nkind = \"claude\"\n", &["\"agents\""]),
            ("[limits]\nmemory_floor = 10\n", &["memory_floor_percent"]),
            ("[limits]\nmemory_floor_percent = 100\n", &["0 to 99"]),
            ("[limits]\nattempt_processes = 0\n", &["nonzero"]),
            ("[roots.x]\nmode = \"shared\"\n", &["path"]),
            ("[roots.x]\npath = \"/\"\nmode = \"open\"\n", &["open"]),
            (
                "[roots.x]\npath = \"/\"\nkep = \"never\"\n",
                &["roots.x.kep", "\"keep\""],
            ),
            (
                "[roots.x]\npath = \"/does/not/exist\"\n",
                &["\"x\"", "/does/not/exist"],
            ),
            (
                "[agents.command]\nkind = \"command\"\nprogram = \"x\"\n",
                &["--allow-command"],
            ),
        ] {
            let error = parsed(broken).unwrap_err().to_string();
            let named = to_os_strings.iter().all(|entry| error.contains(entry));
            assert!(named, "{broken:?}: {error}");
        }
    }
}
