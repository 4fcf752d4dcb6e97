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

use crate::agents::{find, is_asked, version};
use crate::cgroups::Groups;
use crate::config::{AgentConfig, DaemonConfig, RootConfig};
use crate::disk::{Disk, DiskState};
use crate::link::{endpoint, read_token};
use crate::memory::Memory;
use crate::storage::space;
use crate::workspace::{Mode, git_version};

/// For one program to say its version.
const VERSION: Duration = Duration::from_secs(5);
/// For the relay to answer.
const RELAY: Duration = Duration::from_secs(5);
/// What a daemon opens by itself, and for each attempt: a connection, a transcript, an outbox, and some to spare.
const FILES: u64 = 256;
const FILES_EACH: u64 = 8;
/// An attempt is a shim, an agent and what that starts.
const PROCESSES_EACH: u64 = 64;
const PROBE: &str = "check-probe";

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// The daemon runs, with less than it could have.
    Doubtful,
    /// The daemon does not run, or not all that it is configured for.
    Bad,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Doubtful => "warning",
            Self::Bad => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is, for example `agent claude`.
    pub what: String,
    pub verdict: Verdict,
    /// What was seen, and what to do where that is not good.
    pub detail: String,
}

impl Finding {
    pub fn new(what: impl Into<String>, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            verdict,
            detail: detail.into(),
        }
    }

    pub fn is_problem(&self) -> bool {
        self.verdict == Verdict::Bad
    }
}

/// Looks at everything that a daemon with this configuration needs. Each look has its own limit.
pub async fn examine(config: &DaemonConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, agent) in &config.agents {
        findings.push(examine_agent(name, agent).await);
    }
    if config.agents.is_empty() {
        let detail = "none: name some in daemon.toml, or start it with --allow-command";
        findings.push(Finding::new("agents", Verdict::Doubtful, detail));
    }
    findings.push(examine_git(config).await);
    findings.extend(
        config
            .roots
            .iter()
            .map(|(name, root)| examine_root(name, root)),
    );
    findings.extend(examine_limits(config.slots));
    findings.push(examine_memory(config));
    findings.push(examine_groups(config));
    findings.push(examine_data(&config.data_dir));
    findings.push(examine_disk(&config.data_dir));
    findings.push(examine_relay(config).await);
    findings
}

async fn examine_agent(name: &str, agent: &AgentConfig) -> Finding {
    let what = format!("agent {name}");
    let Some((program, _)) = agent.program() else {
        let detail = "runs whatever command a task brings";
        return Finding::new(what, Verdict::Good, detail);
    };
    let Some(path) = find(agent) else {
        let detail = format!(
            "{} is not a program on this machine; install it, or give its path as `program`",
            program.display()
        );
        return Finding::new(what, Verdict::Bad, detail);
    };
    let path = path.display();
    // Nobody knows what a command does when it is called.
    if !is_asked(agent) {
        return Finding::new(what, Verdict::Good, format!("{path}"));
    }
    match version(agent, VERSION).await {
        Ok(version) => Finding::new(what, Verdict::Good, format!("{path}, {version}")),
        Err(error) => {
            let detail = format!("{path} does not answer --version: {error}");
            Finding::new(what, Verdict::Doubtful, detail)
        }
    }
}

async fn examine_git(config: &DaemonConfig) -> Finding {
    let needs_git = config
        .roots
        .values()
        .any(|root| root.mode == Mode::Worktree);
    let asked = tokio::time::timeout(VERSION, git_version()).await;
    match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(version) => Finding::new("git", Verdict::Good, version),
        Err(error) if needs_git => {
            let detail = format!("{error}; worktrees need it");
            Finding::new("git", Verdict::Bad, detail)
        }
        Err(error) => {
            let detail = format!("{error}; without it no commit is recorded and no worktree made");
            Finding::new("git", Verdict::Doubtful, detail)
        }
    }
}

fn examine_root(name: &str, root: &RootConfig) -> Finding {
    let what = format!("root {name}");
    let path = root.path.display();
    if let Err(error) = rustix::fs::access(&root.path, rustix::fs::Access::WRITE_OK) {
        let detail = format!("{path} cannot be written: {error}");
        return Finding::new(what, Verdict::Bad, detail);
    }
    if root.mode == Mode::Worktree && !root.path.join(".git").exists() {
        let detail = format!("{path} is no git repository, so it has no worktrees");
        return Finding::new(what, Verdict::Bad, detail);
    }
    Finding::new(what, Verdict::Good, format!("{path}"))
}

fn examine_limits(slots: u32) -> [Finding; 2] {
    let slots = u64::from(slots);
    [
        examine_limit(
            "open files",
            Resource::Nofile,
            FILES + slots * FILES_EACH,
            "-n",
        ),
        examine_limit("processes", Resource::Nproc, slots * PROCESSES_EACH, "-u"),
    ]
}

fn examine_limit(what: &str, resource: Resource, wanted: u64, flag: &str) -> Finding {
    match getrlimit(resource).current {
        None => Finding::new(what, Verdict::Good, "no limit"),
        Some(limit) if limit >= wanted => {
            Finding::new(what, Verdict::Good, format!("{limit} at most"))
        }
        Some(limit) => {
            let detail = format!(
                "{limit} at most, and so many slots may need {wanted}; raise it (ulimit {flag}, or the unit's limit)"
            );
            Finding::new(what, Verdict::Doubtful, detail)
        }
    }
}

fn examine_memory(config: &DaemonConfig) -> Finding {
    let memory = Memory::new(config.limits.memory_floor_percent);
    let verdict = if memory.is_low() {
        Verdict::Bad
    } else {
        Verdict::Good
    };
    Finding::new("memory", verdict, memory.to_string())
}

/// Only a daemon that has attempts to limit needs groups.
fn examine_groups(config: &DaemonConfig) -> Finding {
    let limits = &config.limits;
    let is_limited = limits.attempt_memory_mib.is_some() || limits.attempt_processes.is_some();
    match Groups::find(limits) {
        Ok(_) => Finding::new("control groups", Verdict::Good, "one for each attempt"),
        Err(why) if is_limited => {
            let detail = format!("{why}; limits of attempts are not enforced");
            Finding::new("control groups", Verdict::Doubtful, detail)
        }
        Err(why) => {
            let detail = format!("not used: {why}");
            Finding::new("control groups", Verdict::Good, detail)
        }
    }
}

fn examine_data(dir: &Path) -> Finding {
    let what = "data directory";
    let shown = dir.display();
    let place = nearest_that_exists(dir);
    let found = match fs::metadata(&place) {
        Ok(found) => found,
        Err(error) => {
            return Finding::new(what, Verdict::Bad, format!("{}: {error}", place.display()));
        }
    };
    let probe = place.join(PROBE);
    let written = fs::write(&probe, "probe").and_then(|()| fs::remove_file(&probe));
    if let Err(error) = written {
        let detail = format!("{} cannot be written: {error}", place.display());
        return Finding::new(what, Verdict::Bad, detail);
    }
    if place != dir {
        let detail = format!("{shown} will be made at the first start");
        return Finding::new(what, Verdict::Good, detail);
    }
    if found.uid() != geteuid().as_raw() {
        let detail = format!("{shown} is another user's");
        return Finding::new(what, Verdict::Bad, detail);
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let detail = format!(
            "{shown} is open to other users ({mode:o}), and agents' output is in it; chmod 700 it"
        );
        return Finding::new(what, Verdict::Doubtful, detail);
    }
    Finding::new(what, Verdict::Good, format!("{shown}, private"))
}

fn nearest_that_exists(dir: &Path) -> PathBuf {
    let all = dir.ancestors();
    let found = all.into_iter().find(|place| place.exists());
    found.unwrap_or(Path::new("/")).to_owned()
}

fn examine_disk(dir: &Path) -> Finding {
    let mut disk = Disk::default();
    disk.on_look(space(&nearest_that_exists(dir)).ok(), true);
    let verdict = match disk.state() {
        DiskState::Fine => Verdict::Good,
        DiskState::Low | DiskState::Failing => Verdict::Bad,
    };
    Finding::new("disk", verdict, disk.to_string())
}

async fn examine_relay(config: &DaemonConfig) -> Finding {
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
    match tokio::time::timeout(RELAY, asked).await {
        Ok(Ok(())) => Finding::new(what, Verdict::Good, format!("{url} takes the token")),
        Ok(Err(why)) => Finding::new(what, Verdict::Bad, format!("{url}: {why}")),
        Err(_) => {
            let detail = format!("{url} did not answer within {RELAY:?}");
            Finding::new(what, Verdict::Bad, detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_is_writable_and_private_or_said_not_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("deep/data");
        assert_eq!(examine_data(&data).verdict, Verdict::Good, "not made yet");
        fs::create_dir_all(&data).unwrap();
        let set = |mode| fs::set_permissions(&data, fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        let open = examine_data(&data);
        assert_eq!(open.verdict, Verdict::Doubtful);
        assert!(open.detail.contains("755"), "{}", open.detail);
        set(0o700);
        assert_eq!(examine_data(&data).verdict, Verdict::Good);
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn limits_are_measured_by_what_the_slots_need() {
        let most = examine_limit("processes", Resource::Nproc, 0, "-u");
        assert_eq!(most.verdict, Verdict::Good);
        let files = examine_limit("open files", Resource::Nofile, u64::MAX, "-n");
        assert!(files.verdict == Verdict::Doubtful || files.detail == "no limit");
    }
}
