//! `baton daemon check`: whether a daemon would do well on this machine, asked before it is started. Looks, and changes
//! nothing but a file that it makes and removes in the data directory.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::daemon_link_client::DaemonLinkClient;
use rustix::process::{Resource, geteuid, getrlimit};
use tonic::{Code, Request};

use crate::agents::{answers_version, find_program, program_version};
use crate::config::{AgentConfig, DaemonConfig, RootConfig};
use crate::link::{endpoint, read_token};
use crate::machine::control_groups::ControlGroups;
use crate::machine::disk_monitor::{DiskMonitor, DiskState};
use crate::machine::memory_monitor::MemoryMonitor;
use crate::storage::daemon_storage::measure_free_space;
use crate::workspace::{SharingMode, git_version};

/// For one program to say its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// For the relay to answer.
const RELAY_TIMEOUT: Duration = Duration::from_secs(5);
/// What a daemon opens by itself, and for each attempt: a connection, a transcript, an outbox, and some to spare.
const BASE_OPEN_FILES: u64 = 256;
const OPEN_FILES_PER_SLOT: u64 = 8;
/// An attempt is a shim, an agent and what that starts.
const PROCESSES_PER_SLOT: u64 = 64;
const PROBE_FILE: &str = "check-probe";

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    Good,
    /// The daemon runs, with less than it could have.
    Warning,
    /// The daemon does not run, or not all that it is configured for.
    Problem,
}

impl CheckVerdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFinding {
    /// What it is, for example `agent claude`.
    pub subject: String,
    pub verdict: CheckVerdict,
    /// What was seen, and what to do where that is not good.
    pub detail: String,
}

impl CheckFinding {
    pub fn new(what: impl Into<String>, verdict: CheckVerdict, detail: impl Into<String>) -> Self {
        Self {
            subject: what.into(),
            verdict,
            detail: detail.into(),
        }
    }

    pub fn is_problem(&self) -> bool {
        self.verdict == CheckVerdict::Problem
    }
}

/// Looks at everything that a daemon with this configuration needs. Each look has its own limit.
pub async fn run_daemon_checks(config: &DaemonConfig) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    for (name, agent) in &config.agents {
        findings.push(check_agent(name, agent).await);
    }
    if config.agents.is_empty() {
        let detail = "none: name some in daemon.toml, or start it with --allow-command";
        findings.push(CheckFinding::new("agents", CheckVerdict::Warning, detail));
    }
    findings.push(check_git(config).await);
    findings.extend(
        config
            .roots
            .iter()
            .map(|(name, root)| check_root(name, root)),
    );
    findings.extend(check_process_limits(config.slots));
    findings.push(check_memory(config));
    findings.push(check_control_groups(config));
    findings.push(check_data_dir(&config.data_dir));
    findings.push(check_disk(&config.data_dir));
    findings.push(check_relay(config).await);
    findings
}

async fn check_agent(name: &str, agent: &AgentConfig) -> CheckFinding {
    let what = format!("agent {name}");
    let Some((program, _)) = agent.program() else {
        let detail = "runs whatever command a task brings";
        return CheckFinding::new(what, CheckVerdict::Good, detail);
    };
    let Some(path) = find_program(agent) else {
        let detail = format!(
            "{} is not a program on this machine; install it, or give its path as `program`",
            program.display()
        );
        return CheckFinding::new(what, CheckVerdict::Problem, detail);
    };
    let path = path.display();
    // Nobody knows what a command does when it is called.
    if !answers_version(agent) {
        return CheckFinding::new(what, CheckVerdict::Good, format!("{path}"));
    }
    match program_version(agent, VERSION_TIMEOUT).await {
        Ok(version) => CheckFinding::new(what, CheckVerdict::Good, format!("{path}, {version}")),
        Err(error) => {
            let detail = format!("{path} does not answer --version: {error}");
            CheckFinding::new(what, CheckVerdict::Warning, detail)
        }
    }
}

async fn check_git(config: &DaemonConfig) -> CheckFinding {
    let needs_git = config
        .roots
        .values()
        .any(|root| root.mode == SharingMode::Worktree);
    let asked = tokio::time::timeout(VERSION_TIMEOUT, git_version()).await;
    match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(version) => CheckFinding::new("git", CheckVerdict::Good, version),
        Err(error) if needs_git => {
            let detail = format!("{error}; worktrees need it");
            CheckFinding::new("git", CheckVerdict::Problem, detail)
        }
        Err(error) => {
            let detail = format!("{error}; without it no commit is recorded and no worktree made");
            CheckFinding::new("git", CheckVerdict::Warning, detail)
        }
    }
}

fn check_root(name: &str, root: &RootConfig) -> CheckFinding {
    let what = format!("root {name}");
    let path = root.path.display();
    if let Err(error) = rustix::fs::access(&root.path, rustix::fs::Access::WRITE_OK) {
        let detail = format!("{path} cannot be written: {error}");
        return CheckFinding::new(what, CheckVerdict::Problem, detail);
    }
    if root.mode == SharingMode::Worktree && !root.path.join(".git").exists() {
        let detail = format!("{path} is no git repository, so it has no worktrees");
        return CheckFinding::new(what, CheckVerdict::Problem, detail);
    }
    CheckFinding::new(what, CheckVerdict::Good, format!("{path}"))
}

fn check_process_limits(slots: u32) -> [CheckFinding; 2] {
    let slots = u64::from(slots);
    [
        check_process_limit(
            "open files",
            Resource::Nofile,
            BASE_OPEN_FILES + slots * OPEN_FILES_PER_SLOT,
            "-n",
        ),
        check_process_limit(
            "processes",
            Resource::Nproc,
            slots * PROCESSES_PER_SLOT,
            "-u",
        ),
    ]
}

fn check_process_limit(what: &str, resource: Resource, wanted: u64, flag: &str) -> CheckFinding {
    match getrlimit(resource).current {
        None => CheckFinding::new(what, CheckVerdict::Good, "no limit"),
        Some(limit) if limit >= wanted => {
            CheckFinding::new(what, CheckVerdict::Good, format!("{limit} at most"))
        }
        Some(limit) => {
            let detail = format!(
                "{limit} at most, and so many slots may need {wanted}; raise it (ulimit {flag}, or the unit's limit)"
            );
            CheckFinding::new(what, CheckVerdict::Warning, detail)
        }
    }
}

fn check_memory(config: &DaemonConfig) -> CheckFinding {
    let memory = MemoryMonitor::new(config.limits.memory_floor_percent);
    let verdict = if memory.is_low() {
        CheckVerdict::Problem
    } else {
        CheckVerdict::Good
    };
    CheckFinding::new("memory", verdict, memory.to_string())
}

/// Only a daemon that has attempts to limit needs groups.
fn check_control_groups(config: &DaemonConfig) -> CheckFinding {
    let limits = &config.limits;
    let is_limited = limits.attempt_memory_mib.is_some() || limits.attempt_processes.is_some();
    match ControlGroups::find(limits) {
        Ok(_) => CheckFinding::new("control groups", CheckVerdict::Good, "one for each attempt"),
        Err(why) if is_limited => {
            let detail = format!("{why}; limits of attempts are not enforced");
            CheckFinding::new("control groups", CheckVerdict::Warning, detail)
        }
        Err(why) => {
            let detail = format!("not used: {why}");
            CheckFinding::new("control groups", CheckVerdict::Good, detail)
        }
    }
}

fn check_data_dir(dir: &Path) -> CheckFinding {
    let what = "data directory";
    let shown = dir.display();
    let place = nearest_existing_ancestor(dir);
    let found = match fs::metadata(&place) {
        Ok(found) => found,
        Err(error) => {
            return CheckFinding::new(
                what,
                CheckVerdict::Problem,
                format!("{}: {error}", place.display()),
            );
        }
    };
    let probe = place.join(PROBE_FILE);
    let written = fs::write(&probe, "probe").and_then(|()| fs::remove_file(&probe));
    if let Err(error) = written {
        let detail = format!("{} cannot be written: {error}", place.display());
        return CheckFinding::new(what, CheckVerdict::Problem, detail);
    }
    if place != dir {
        let detail = format!("{shown} will be made at the first start");
        return CheckFinding::new(what, CheckVerdict::Good, detail);
    }
    if found.uid() != geteuid().as_raw() {
        let detail = format!("{shown} is another user's");
        return CheckFinding::new(what, CheckVerdict::Problem, detail);
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let detail = format!(
            "{shown} is open to other users ({mode:o}), and agents' output is in it; chmod 700 it"
        );
        return CheckFinding::new(what, CheckVerdict::Warning, detail);
    }
    CheckFinding::new(what, CheckVerdict::Good, format!("{shown}, private"))
}

fn nearest_existing_ancestor(dir: &Path) -> PathBuf {
    let all = dir.ancestors();
    let found = all.into_iter().find(|place| place.exists());
    found.unwrap_or(Path::new("/")).to_owned()
}

fn check_disk(dir: &Path) -> CheckFinding {
    let mut disk = DiskMonitor::default();
    disk.on_measured(
        measure_free_space(&nearest_existing_ancestor(dir)).ok(),
        true,
    );
    let verdict = match disk.state() {
        DiskState::Fine => CheckVerdict::Good,
        DiskState::Low | DiskState::Failing => CheckVerdict::Problem,
    };
    CheckFinding::new("disk", verdict, disk.to_string())
}

async fn check_relay(config: &DaemonConfig) -> CheckFinding {
    let what = "relay";
    let asked = async {
        let endpoint = endpoint(config).map_err(|error| error.to_string())?;
        let token = read_token(&config.token_file).map_err(|error| error.to_string())?;
        let channel = endpoint.connect().await.map_err(|error| {
            let why = std::error::Error::source(&error).map(ToString::to_string);
            let why = why.unwrap_or(error.to_string());
            let hint = if why.contains("UnknownIssuer") {
                "; name the authority that signed its certificate with --ca FILE"
            } else {
                ""
            };
            format!("cannot be reached: {why}{hint}")
        })?;
        // A stream that ends before its Hello: the credential is judged and nobody is registered.
        let mut request = Request::new(tokio_stream::empty());
        request.metadata_mut().insert("authorization", token);
        let answer = DaemonLinkClient::new(channel).link(request).await;
        match answer {
            Err(status) if status.code() == Code::Unauthenticated => {
                Err(format!("does not take the token: {}", status.message()))
            }
            Err(status) if status.code() == Code::PermissionDenied => Err(format!(
                "does not take the token for a daemon: {}; make one with `baton token create --role daemon`",
                status.message()
            )),
            Err(status) if status.code() == Code::Unavailable => {
                Err(format!("is not ready: {}", status.message()))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    };
    let url = &config.relay;
    match tokio::time::timeout(RELAY_TIMEOUT, asked).await {
        Ok(Ok(())) => CheckFinding::new(what, CheckVerdict::Good, format!("{url} takes the token")),
        Ok(Err(why)) => CheckFinding::new(what, CheckVerdict::Problem, format!("{url}: {why}")),
        Err(_) => {
            let detail = format!("{url} did not answer within {RELAY_TIMEOUT:?}");
            CheckFinding::new(what, CheckVerdict::Problem, detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_requires_a_writable_and_private_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("deep/data");
        assert_eq!(
            check_data_dir(&data).verdict,
            CheckVerdict::Good,
            "not made yet"
        );
        fs::create_dir_all(&data).unwrap();
        let set = |mode| fs::set_permissions(&data, fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        let open = check_data_dir(&data);
        assert_eq!(open.verdict, CheckVerdict::Warning);
        assert!(open.detail.contains("755"), "{}", open.detail);
        set(0o700);
        assert_eq!(check_data_dir(&data).verdict, CheckVerdict::Good);
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn limits_are_measured_by_what_the_slots_need() {
        let most = check_process_limit("processes", Resource::Nproc, 0, "-u");
        assert_eq!(most.verdict, CheckVerdict::Good);
        let files = check_process_limit("open files", Resource::Nofile, u64::MAX, "-n");
        assert!(files.verdict == CheckVerdict::Warning || files.detail == "no limit");
    }
}
