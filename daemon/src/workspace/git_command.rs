//! The few words that are said to git, each with an end in sight. A repository's own configuration may name programs:
//! hooks and monitors are switched off, and whatever git starts carries the attempt's marker like all its processes.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::process::{ATTEMPT_MARKER, identify_child, start_registered};

/// Of what git says when it fails.
const MAX_STDERR_BYTES: usize = 2048;
/// Of what it says when it does not, where it is kept.
const MAX_OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// Switched off whatever the repository says.
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
    #[error("cannot run git: {0}; install it, or use a workspace that needs none")]
    NotRun(#[from] io::Error),
    #[error("git {what} failed: {complaint}")]
    Failed { what: String, complaint: String },
}

/// One repository as one attempt sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct GitRepository<'a> {
    pub(super) directory: &'a Path,
    pub(super) attempt_id: &'a str,
}

impl GitRepository<'_> {
    /// What it prints, without the line's end.
    pub(super) async fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String, GitError> {
        let said = self.run_for_bytes(words).await?;
        Ok(String::from_utf8_lossy(&said).trim_end().to_owned())
    }

    pub(super) async fn run_for_bytes<S: AsRef<OsStr>>(
        &self,
        words: &[S],
    ) -> Result<Vec<u8>, GitError> {
        let mut said = Vec::new();
        self.run_streaming(words, |bytes| {
            let room = MAX_OUTPUT_BYTES.saturating_sub(said.len());
            said.extend_from_slice(&bytes[..bytes.len().min(room)]);
        })
        .await?;
        Ok(said)
    }

    /// Everything that it prints, piece by piece. Dropping the future ends git.
    pub(super) async fn run_streaming<S: AsRef<OsStr>>(
        &self,
        words: &[S],
        mut sink: impl FnMut(&[u8]),
    ) -> Result<(), GitError> {
        let mut command = self.command(words);
        let mut child = start_registered(|| {
            let child = command.spawn()?;
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
            let id = identify_child(pid.ok_or(io::ErrorKind::NotFound)?)?;
            Ok::<_, io::Error>((id, child))
        })?;
        let (mut stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let printed = async {
            let mut piece = vec![0; 64 * 1024];
            while let Some(stdout) = &mut stdout {
                match stdout.read(&mut piece).await? {
                    0 => break,
                    count => sink(&piece[..count]),
                }
            }
            Ok::<_, io::Error>(())
        };
        let (printed, complaint) = tokio::join!(printed, read_stderr(stderr));
        printed?;
        let status = child.wait().await?;
        if status.success() {
            return Ok(());
        }
        let what = words.iter().map(|word| word.as_ref().to_string_lossy());
        Err(GitError::Failed {
            what: what.take(2).collect::<Vec<_>>().join(" "),
            complaint,
        })
    }

    fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new("git");
        command
            .arg("-C")
            .arg(self.directory)
            .args(SAFE_OPTIONS)
            .args(words)
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
    let mut said = Vec::new();
    if let Some(mut stderr) = stderr {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stderr.read(&mut piece).await {
            let room = MAX_STDERR_BYTES.saturating_sub(said.len());
            said.extend_from_slice(&piece[..count.min(room)]);
        }
    }
    String::from_utf8_lossy(&said).trim().replace('\n', "; ")
}

/// What `git --version` says.
pub(crate) async fn version() -> io::Result<String> {
    let git = GitRepository {
        directory: Path::new("/"),
        attempt_id: "",
    };
    git.run(&["--version"]).await.map_err(|error| match error {
        GitError::NotRun(error) => error,
        GitError::Failed { complaint, .. } => io::Error::other(complaint),
    })
}
