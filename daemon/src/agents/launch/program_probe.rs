//! Checks whether the configured programs exist and which versions they report. Runs outside
//! the daemon's loop: a directory of the search path may be on a disk that does not respond,
//! and a program may never answer.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use baton_proto::codes;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::config::AgentConfig;
use crate::process::{identify_child, start_registered};

/// Time limit for all programs together, before the daemon sends Hello.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are kept of a program's version.
const MAX_VERSION_BYTES: usize = 128;

/// What is known of one agent's program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramStatus {
    /// Empty if it was not asked or did not answer.
    pub(crate) version: String,
    /// Why it cannot be run, as a failure code.
    pub(crate) problem: Option<&'static str>,
}

/// Looks for the programs. Blocks as long as the disks of the search path do.
pub(crate) fn find_programs(
    agents: &BTreeMap<String, AgentConfig>,
) -> BTreeMap<String, ProgramStatus> {
    let statuses = agents.iter().map(|(name, config)| {
        let status = ProgramStatus {
            problem: program_problem(config),
            ..ProgramStatus::default()
        };
        (name.clone(), status)
    });
    statuses.collect()
}

/// Looks for the programs and asks coding agents for their versions, all in parallel and with a
/// time limit.
pub(crate) async fn find_programs_and_versions(
    agents: BTreeMap<String, AgentConfig>,
) -> BTreeMap<String, ProgramStatus> {
    let configs = agents.clone();
    let found = tokio::task::spawn_blocking(move || find_programs(&configs));
    // Without an answer no problem is assumed.
    let found = tokio::time::timeout(PROBE_TIMEOUT, found).await;
    let mut found = found.ok().and_then(Result::ok).unwrap_or_default();
    let mut probes = tokio::task::JoinSet::new();
    for (name, config) in agents {
        let exists = found
            .get(&name)
            .is_some_and(|status| status.problem.is_none());
        if exists && answers_version(&config) {
            probes.spawn(async move { (name, program_version(&config, PROBE_TIMEOUT).await) });
        }
    }
    while let Some(answer) = probes.join_next().await {
        if let Ok((name, Ok(version))) = answer {
            found.entry(name).or_default().version = version;
        }
    }
    found
}

/// Whether its program supports `--version`. A command might do anything when called with it.
pub(crate) fn answers_version(config: &AgentConfig) -> bool {
    match config {
        AgentConfig::AnyCommand | AgentConfig::Command { .. } => false,
        AgentConfig::Coding { .. } => true,
    }
}

fn program_problem(config: &AgentConfig) -> Option<&'static str> {
    let is_missing = config.program().is_some() && find_program(config).is_none();
    is_missing.then_some(codes::PROVIDER_MISSING)
}

/// The path of its program, found as the shim would find it: along the PATH that the program
/// itself is given.
pub(crate) fn find_program(config: &AgentConfig) -> Option<PathBuf> {
    let (program, env) = config.program()?;
    let path = Path::new(program);
    if path.components().count() > 1 {
        return is_program(path).then(|| path.to_owned());
    }
    let own = env.get("PATH").map(OsString::from);
    let search = own.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    let mut paths = std::env::split_paths(&search).map(|directory| directory.join(program));
    paths.find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    let metadata = std::fs::metadata(path);
    metadata.is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The first line that its program prints for `--version`.
pub(crate) async fn program_version(config: &AgentConfig, limit: Duration) -> io::Result<String> {
    let (program, env) = config.program().ok_or(io::ErrorKind::NotFound)?;
    let version = tokio::time::timeout(limit, run_version_command(program, env)).await;
    version.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Replaces the shell with the program.
const VERSION_SCRIPT: &str = "exec \"$0\" --version";

/// Runs the program through a shell. Spawning blocks until the program is loaded, with a
/// runtime thread and a lock that all spawns share, and the program's disk may not respond.
async fn run_version_command(
    program: &OsStr,
    env: &BTreeMap<String, String>,
) -> io::Result<String> {
    let mut command = Command::new("/bin/sh");
    let inherited = ["PATH", "HOME", "USER", "LANG", "TMPDIR"].into_iter();
    command
        .args([OsStr::new("-c"), OsStr::new(VERSION_SCRIPT), program])
        .env_clear()
        .envs(inherited.filter_map(|name| Some((name, std::env::var_os(name)?))))
        .envs(env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = start_registered(|| {
        let child = command.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let id = identify_child(pid.ok_or(io::ErrorKind::NotFound)?)?;
        Ok::<_, io::Error>((id, child))
    })?;
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(4096).read_to_end(&mut output).await?;
    }
    let status = child.wait().await?;
    let output = String::from_utf8_lossy(&output);
    let first = output.lines().next().unwrap_or_default().trim();
    if !status.success() || first.is_empty() {
        return Err(io::Error::other(format!("--version ended with {status}")));
    }
    Ok(first[..first.floor_char_boundary(MAX_VERSION_BYTES)].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AgentWire;

    fn coding(program: &Path) -> AgentConfig {
        AgentConfig::Coding {
            wire: AgentWire::Claude,
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            task_env: Vec::new(),
        }
    }

    fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn versions_are_reported_and_silent_or_missing_programs_cost_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let good = script(dir.path(), "good", "echo 1.2.3; echo more");
        let silent = script(dir.path(), "silent", "sleep 600");
        let broken = script(dir.path(), "broken", "exit 3");
        let agents = BTreeMap::from([
            ("good".to_owned(), coding(&good)),
            ("silent".to_owned(), coding(&silent)),
            ("broken".to_owned(), coding(&broken)),
            ("gone".to_owned(), coding(&dir.path().join("gone"))),
            ("any".to_owned(), AgentConfig::AnyCommand),
        ]);
        let found = find_programs_and_versions(agents).await;
        assert_eq!(found["good"].version, "1.2.3");
        for unknown in ["silent", "broken", "any"] {
            assert_eq!(found[unknown], ProgramStatus::default(), "{unknown}");
        }
        assert_eq!(found["gone"].problem, Some(codes::PROVIDER_MISSING));
    }

    #[tokio::test]
    async fn a_program_is_found_along_its_own_path_variable() {
        let dir = tempfile::tempdir().unwrap();
        let path = script(dir.path(), "elsewhere", "echo \"$SAYS\"");
        let own = |search: &str| {
            let mut config = coding(Path::new("elsewhere"));
            if let AgentConfig::Coding { env, .. } = &mut config {
                env.insert("PATH".to_owned(), search.to_owned());
                env.insert("SAYS".to_owned(), "7.8.9".to_owned());
            }
            config
        };
        let there = own(dir.path().to_str().unwrap());
        assert_eq!(find_program(&there), Some(path));
        // A program that only the daemon's PATH contains does not count, because the agent
        // cannot find it.
        let mut sh = own("/nowhere");
        if let AgentConfig::Coding { program, .. } = &mut sh {
            *program = "sh".into();
        }
        let agents = BTreeMap::from([("there".to_owned(), there), ("sh".to_owned(), sh)]);
        let found = find_programs_and_versions(agents).await;
        assert_eq!(found["there"].version, "7.8.9");
        assert_eq!(found["sh"].problem, Some(codes::PROVIDER_MISSING));
    }
}
