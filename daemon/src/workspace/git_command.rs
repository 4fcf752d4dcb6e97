//! Runs git commands for a workspace, with bounded output. A repository's configuration may
//! name programs, so hooks and monitors are switched off. Every process that git starts has the
//! attempt's marker in its environment.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::process::{ATTEMPT_MARKER, identify_child, start_registered};

/// Limit of stderr that is kept for an error message.
const MAX_STDERR_BYTES: usize = 2048;
/// Limit of stdout that is kept.
const MAX_OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// Options that override the repository's configuration.
const SAFE_OPTIONS: [&str; 6] = [
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
];

#[derive(Debug, thiserror::Error)]
pub(super) enum GitError {
    #[error("cannot run git: {0}; install git, or use a workspace mode that does not need it")]
    NotRun(#[from] io::Error),
    #[error("git {command} failed: {stderr}")]
    Failed { command: String, stderr: String },
}

/// A repository that is used for one attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct GitRepository<'a> {
    pub(super) directory: &'a Path,
    pub(super) attempt_id: &'a str,
}

impl GitRepository<'_> {
    /// Runs git and returns its output without the trailing newline.
    pub(super) async fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String, GitError> {
        let output = self.run_for_bytes(args).await?;
        Ok(String::from_utf8_lossy(&output).trim_end().to_owned())
    }

    pub(super) async fn run_for_bytes<S: AsRef<OsStr>>(
        &self,
        args: &[S],
    ) -> Result<Vec<u8>, GitError> {
        let mut output = Vec::new();
        self.run_streaming(args, |bytes| {
            let room = MAX_OUTPUT_BYTES.saturating_sub(output.len());
            output.extend_from_slice(&bytes[..bytes.len().min(room)]);
        })
        .await?;
        Ok(output)
    }

    /// Runs git and passes its output on piece by piece. Dropping the future ends git.
    pub(super) async fn run_streaming<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        mut sink: impl FnMut(&[u8]),
    ) -> Result<(), GitError> {
        let mut command = self.command(args);
        let mut child = start_registered(|| {
            let child = command.spawn()?;
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
            let id = identify_child(pid.ok_or(io::ErrorKind::NotFound)?)?;
            Ok::<_, io::Error>((id, child))
        })?;
        let (mut stdout, child_stderr) = (child.stdout.take(), child.stderr.take());
        let streamed = async {
            let mut buffer = vec![0; 64 * 1024];
            while let Some(stdout) = &mut stdout {
                match stdout.read(&mut buffer).await? {
                    0 => break,
                    count => sink(&buffer[..count]),
                }
            }
            Ok::<_, io::Error>(())
        };
        let (streamed, stderr) = tokio::join!(streamed, read_stderr(child_stderr));
        streamed?;
        let status = child.wait().await?;
        if status.success() {
            return Ok(());
        }
        let command = args.iter().map(|arg| arg.as_ref().to_string_lossy());
        Err(GitError::Failed {
            command: command.take(2).collect::<Vec<_>>().join(" "),
            stderr,
        })
    }

    fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new("git");
        command
            .arg("-C")
            .arg(self.directory)
            .args(SAFE_OPTIONS)
            .args(args)
            .env_clear()
            .envs(["PATH", "HOME"].into_iter().filter_map(inherited_variable))
            .env(ATTEMPT_MARKER, self.attempt_id)
            .env("LC_ALL", "C")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_TERMINAL_PROMPT", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command
    }
}

fn inherited_variable(name: &'static str) -> Option<(&'static str, std::ffi::OsString)> {
    Some((name, std::env::var_os(name)?))
}

async fn read_stderr(stderr: Option<tokio::process::ChildStderr>) -> String {
    let mut output = Vec::new();
    if let Some(mut stderr) = stderr {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
            let room = MAX_STDERR_BYTES.saturating_sub(output.len());
            output.extend_from_slice(&buffer[..count.min(room)]);
        }
    }
    String::from_utf8_lossy(&output).trim().replace('\n', "; ")
}

/// The output of `git --version`.
pub(crate) async fn version() -> io::Result<String> {
    let git = GitRepository {
        directory: Path::new("/"),
        attempt_id: "",
    };
    git.run(&["--version"]).await.map_err(|error| match error {
        GitError::NotRun(error) => error,
        GitError::Failed { stderr, .. } => io::Error::other(stderr),
    })
}
