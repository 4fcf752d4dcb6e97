//! Whether the configured programs are there, and which versions they say they are. Away from the daemon's loop: a
//! directory of the search path may be on a disk that does not answer, and a program may never do.

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

/// For all programs together, before the daemon says Hello.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Of what a program says.
const MAX_VERSION_BYTES: usize = 128;

/// What is known of one agent's program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramStatus {
    /// Empty where it was not asked or did not say.
    pub(crate) version: String,
    /// Why it cannot be run, as a failure code.
    pub(crate) problem: Option<&'static str>,
}

/// Looks for the programs. Blocks for as long as the search path's disks do.
pub(crate) fn find_programs(
    agents: &BTreeMap<String, AgentConfig>,
) -> BTreeMap<String, ProgramStatus> {
    let looked = agents.iter().map(|(name, config)| {
        let found = ProgramStatus {
            problem: program_problem(config),
            ..ProgramStatus::default()
        };
        (name.clone(), found)
    });
    looked.collect()
}

/// Looks for the programs and asks those that can be asked for their versions, all at once and not for long.
pub(crate) async fn find_programs_and_versions(
    agents: BTreeMap<String, AgentConfig>,
) -> BTreeMap<String, ProgramStatus> {
    let looked = agents.clone();
    let found = tokio::task::spawn_blocking(move || find_programs(&looked));
    // Without an answer nothing is known to be wrong.
    let found = tokio::time::timeout(PROBE_TIMEOUT, found).await;
    let mut found = found.ok().and_then(Result::ok).unwrap_or_default();
    let mut asked = tokio::task::JoinSet::new();
    for (name, config) in agents {
        let is_there = found
            .get(&name)
            .is_some_and(|found| found.problem.is_none());
        if is_there && answers_version(&config) {
            asked.spawn(async move { (name, program_version(&config, PROBE_TIMEOUT).await) });
        }
    }
    while let Some(answer) = asked.join_next().await {
        if let Ok((name, Ok(version))) = answer {
            found.entry(name).or_default().version = version;
        }
    }
    found
}

/// Whether its program answers `--version`. Of a command nobody knows what it would do.
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

/// Where its program is, as the shim would find it: along the path that the program itself is given.
pub(crate) fn find_program(config: &AgentConfig) -> Option<PathBuf> {
    let (program, env) = config.program()?;
    let path = Path::new(program);
    if path.components().count() > 1 {
        return is_program(path).then(|| path.to_owned());
    }
    let own = env.get("PATH").map(OsString::from);
    let search = own.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    let places = std::env::split_paths(&search).map(|place| place.join(program));
    places.into_iter().find(|place| is_program(place))
}

fn is_program(path: &Path) -> bool {
    let found = std::fs::metadata(path);
    found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The first line of what its program says to `--version`.
pub(crate) async fn program_version(config: &AgentConfig, limit: Duration) -> io::Result<String> {
    let (program, env) = config.program().ok_or(io::ErrorKind::NotFound)?;
    let said = tokio::time::timeout(limit, run_version_command(program, env)).await;
    said.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Becomes the program, however long that takes.
const VERSION_SCRIPT: &str = "exec \"$0\" --version";

/// Through a shell: whoever starts a process waits until its program is loaded, with a thread of the runtime and a lock that
/// all starts share, and the disk that holds this program may not answer.
async fn run_version_command(
    program: &OsStr,
    env: &BTreeMap<String, String>,
) -> io::Result<String> {
    let mut command = Command::new("/bin/sh");
    let kept = ["PATH", "HOME", "USER", "LANG", "TMPDIR"];
    let kept = kept.into_iter();
    command
        .args([OsStr::new("-c"), OsStr::new(VERSION_SCRIPT), program])
        .env_clear()
        .envs(kept.filter_map(|name| Some((name, std::env::var_os(name)?))))
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
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(4096).read_to_end(&mut said).await?;
    }
    let status = child.wait().await?;
    let said = String::from_utf8_lossy(&said);
    let first = said.lines().next().unwrap_or_default().trim();
    if !status.success() || first.is_empty() {
        return Err(io::Error::other(format!("it answered with {status}")));
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
    async fn versions_are_told_and_neither_silence_nor_absence_holds_anybody_up() {
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
    async fn a_program_is_looked_for_where_its_own_environment_says() {
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
        // What the daemon finds by itself is nothing to an agent that cannot see it.
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
