//! A child as a command: its own process group, directory and environment, killed with the
//! process that starts it. The caller provides its pipes. No async runtime is needed here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use baton_proto::codes;
use rustix::process::Pid;

use super::pre_exec::{die_with_parent_thread, join_control_group, restore_memory_defaults};
use super::{ProcessId, process_stat};

/// Everything that a child is started with.
#[derive(Clone, Debug)]
pub(crate) struct ChildSpec {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) cwd: PathBuf,
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// The directory of its control group.
    pub(crate) control_group: Option<PathBuf>,
}

/// Why the child was not started. The codes are failure codes of the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    #[error(
        "working directory {cwd} cannot be used: {source}; choose one that exists on this daemon"
    )]
    BadCwd { cwd: PathBuf, source: io::Error },
    #[error(
        "cannot start {program:?} in {cwd}: {source}; it must be executable, and exist there or in the daemon's PATH"
    )]
    NotStarted {
        program: OsString,
        /// A relative program path is resolved from here.
        cwd: PathBuf,
        source: io::Error,
    },
}

impl SpawnError {
    pub(crate) fn failure_code(&self) -> &'static str {
        match self {
            Self::BadCwd { .. } => codes::BAD_CWD,
            Self::NotStarted { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                codes::PROVIDER_MISSING
            }
            Self::NotStarted { .. } => codes::SPAWN_FAILED,
        }
    }
}

/// The command that starts the child. `parent` is the calling process, whose calling thread
/// must outlive the child.
pub(crate) fn build_command(spec: ChildSpec, parent: Pid) -> Result<Command, SpawnError> {
    let ChildSpec {
        program,
        args,
        cwd,
        environment,
        control_group: group,
    } = spec;
    check_directory(&cwd)?;
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(cwd)
        .env_clear()
        .envs(environment)
        .process_group(0);
    die_with_parent_thread(&mut command, parent);
    restore_memory_defaults(&mut command);
    if let Some(group) = group {
        join_control_group(&mut command, &group);
    }
    Ok(command)
}

/// exec and chdir report the same errors, so the directory is checked first.
fn check_directory(cwd: &PathBuf) -> Result<(), SpawnError> {
    let checked = std::fs::metadata(cwd).and_then(|found| {
        if found.is_dir() {
            Ok(())
        } else {
            Err(io::ErrorKind::NotADirectory.into())
        }
    });
    checked.map_err(|source| SpawnError::BadCwd {
        cwd: cwd.clone(),
        source,
    })
}

/// The child must not be reaped yet: until then its pid cannot be reused.
pub(crate) fn identify_child(pid: i32) -> io::Result<ProcessId> {
    let stat = process_stat::read(pid)?;
    let stat = stat.ok_or_else(|| io::Error::other("/proc does not show the child"))?;
    Ok(stat.id)
}
