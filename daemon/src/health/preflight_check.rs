//! `baton daemon check`: whether a daemon would work on this machine, checked before it is
//! started. Changes nothing, except for a probe file that it creates and removes in the data
//! directory.

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

/// The time limit for a program's version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the relay's answer.
const RELAY_TIMEOUT: Duration = Duration::from_secs(5);
/// Files that a daemon opens by itself, and for each attempt: a connection, a transcript, an
/// outbox, and a reserve.
const BASE_OPEN_FILES: u64 = 256;
const OPEN_FILES_PER_SLOT: u64 = 8;
/// An attempt is a shim, an agent and the processes that it starts.
const PROCESSES_PER_SLOT: u64 = 64;
const PROBE_FILE: &str = "check-probe";

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    Good,
    /// The daemon runs, but with fewer features.
    Warning,
    /// The daemon does not run, or not everything that it is configured for.
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

/// One checked subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFinding {
    /// The subject, for example `agent claude`.
    pub subject: String,
    pub verdict: CheckVerdict,
    /// What was found, and what to do if it is not good.
    pub detail: String,
}

impl CheckFinding {
    pub fn new(
        subject: impl Into<String>,
        verdict: CheckVerdict,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            subject: subject.into(),
            verdict,
            detail: detail.into(),
        }
    }

    pub fn is_problem(&self) -> bool {
        self.verdict == CheckVerdict::Problem
    }
}

/// Checks everything that a daemon with this configuration needs. Each check has its own time
/// limit.
pub async fn run_daemon_checks(config: &DaemonConfig) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    for (name, agent) in &config.agents {
        findings.push(check_agent(name, agent).await);
    }
    if config.agents.is_empty() {
        let detail =
            "none: configure some in daemon.toml, or start the daemon with --allow-command";
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
    let subject = format!("agent {name}");
    let Some((program, _)) = agent.program() else {
        let detail = "runs any command that a task brings";
        return CheckFinding::new(subject, CheckVerdict::Good, detail);
    };
    let Some(path) = find_program(agent) else {
        let detail = format!(
            "{} is not a program on this machine; install it, or set its path as `program`",
            program.display()
        );
        return CheckFinding::new(subject, CheckVerdict::Problem, detail);
    };
    let path = path.display();
    // A command may have side effects when it is called with --version.
    if !answers_version(agent) {
        return CheckFinding::new(subject, CheckVerdict::Good, format!("{path}"));
    }
    match program_version(agent, VERSION_TIMEOUT).await {
        Ok(version) => CheckFinding::new(subject, CheckVerdict::Good, format!("{path}, {version}")),
        Err(error) => {
            let detail = format!("{path} does not answer --version: {error}");
            CheckFinding::new(subject, CheckVerdict::Warning, detail)
        }
    }
}

async fn check_git(config: &DaemonConfig) -> CheckFinding {
    let needs_git = config
        .roots
        .values()
        .any(|root| root.mode == SharingMode::Worktree);
    let request = tokio::time::timeout(VERSION_TIMEOUT, git_version()).await;
    match request.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(version) => CheckFinding::new("git", CheckVerdict::Good, version),
        Err(error) if needs_git => {
            let detail = format!("{error}; worktrees need git");
            CheckFinding::new("git", CheckVerdict::Problem, detail)
        }
        Err(error) => {
            let detail =
                format!("{error}; without git no commit is recorded and no worktree created");
            CheckFinding::new("git", CheckVerdict::Warning, detail)
        }
    }
}

fn check_root(name: &str, root: &RootConfig) -> CheckFinding {
    let subject = format!("root {name}");
    let path = root.path.display();
    if let Err(error) = rustix::fs::access(&root.path, rustix::fs::Access::WRITE_OK) {
        let detail = format!("{path} cannot be written: {error}");
        return CheckFinding::new(subject, CheckVerdict::Problem, detail);
    }
    if root.mode == SharingMode::Worktree && !root.path.join(".git").exists() {
        let detail = format!("{path} is not a git repository, so it cannot have worktrees");
        return CheckFinding::new(subject, CheckVerdict::Problem, detail);
    }
    CheckFinding::new(subject, CheckVerdict::Good, format!("{path}"))
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

fn check_process_limit(
    subject: &str,
    resource: Resource,
    required: u64,
    flag: &str,
) -> CheckFinding {
    match getrlimit(resource).current {
        None => CheckFinding::new(subject, CheckVerdict::Good, "no limit"),
        Some(limit) if limit >= required => {
            CheckFinding::new(subject, CheckVerdict::Good, format!("at most {limit}"))
        }
        Some(limit) => {
            let detail = format!(
                "at most {limit}, but the configured slots may need {required}; raise the limit (ulimit {flag}, or the unit's limit)"
            );
            CheckFinding::new(subject, CheckVerdict::Warning, detail)
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

/// Control groups are required only when attempts have limits.
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
    let subject = "data directory";
    let shown = dir.display();
    let existing = nearest_existing_ancestor(dir);
    let found = match fs::metadata(&existing) {
        Ok(found) => found,
        Err(error) => {
            return CheckFinding::new(
                subject,
                CheckVerdict::Problem,
                format!("{}: {error}", existing.display()),
            );
        }
    };
    let probe = existing.join(PROBE_FILE);
    let written = fs::write(&probe, "probe").and_then(|()| fs::remove_file(&probe));
    if let Err(error) = written {
        let detail = format!("{} cannot be written: {error}", existing.display());
        return CheckFinding::new(subject, CheckVerdict::Problem, detail);
    }
    if existing != dir {
        let detail = format!("{shown} will be created at the first start");
        return CheckFinding::new(subject, CheckVerdict::Good, detail);
    }
    if found.uid() != geteuid().as_raw() {
        let detail = format!("{shown} belongs to another user");
        return CheckFinding::new(subject, CheckVerdict::Problem, detail);
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let detail = format!(
            "{shown} is accessible to other users ({mode:o}) and contains agents' output; run chmod 700 on it"
        );
        return CheckFinding::new(subject, CheckVerdict::Warning, detail);
    }
    CheckFinding::new(subject, CheckVerdict::Good, format!("{shown}, private"))
}

fn nearest_existing_ancestor(dir: &Path) -> PathBuf {
    let all = dir.ancestors();
    let found = all.into_iter().find(|existing| existing.exists());
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
    let subject = "relay";
    let request = async {
        let endpoint = endpoint(config).map_err(|error| error.to_string())?;
        let token = read_token(&config.token_file).map_err(|error| error.to_string())?;
        let channel = endpoint.connect().await.map_err(|error| {
            let why = std::error::Error::source(&error).map(ToString::to_string);
            let why = why.unwrap_or(error.to_string());
            let hint = if why.contains("UnknownIssuer") {
                "; pass the authority that signed its certificate with --ca FILE"
            } else {
                ""
            };
            format!("cannot be reached: {why}{hint}")
        })?;
        // A stream that ends before its Hello: the token is checked and no daemon is
        // registered.
        let mut request = Request::new(tokio_stream::empty());
        request.metadata_mut().insert("authorization", token);
        let answer = DaemonLinkClient::new(channel).link(request).await;
        match answer {
            Err(status) if status.code() == Code::Unauthenticated => {
                Err(format!("does not accept the token: {}", status.message()))
            }
            Err(status) if status.code() == Code::PermissionDenied => Err(format!(
                "does not accept the token for a daemon: {}; create one with `baton token create --role daemon`",
                status.message()
            )),
            Err(status) if status.code() == Code::Unavailable => {
                Err(format!("is not ready: {}", status.message()))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    };
    let url = &config.relay;
    match tokio::time::timeout(RELAY_TIMEOUT, request).await {
        Ok(Ok(())) => CheckFinding::new(
            subject,
            CheckVerdict::Good,
            format!("{url} accepts the token"),
        ),
        Ok(Err(why)) => CheckFinding::new(subject, CheckVerdict::Problem, format!("{url}: {why}")),
        Err(_) => {
            let detail = format!("{url} did not answer within {RELAY_TIMEOUT:?}");
            CheckFinding::new(subject, CheckVerdict::Problem, detail)
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
            "not created yet"
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
