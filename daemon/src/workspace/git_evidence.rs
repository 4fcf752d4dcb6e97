//! Evidence of what an attempt left in a git directory: its commit and a digest of uncommitted
//! changes. Equal digests mean equal changes. The changes themselves are not sent.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use super::git_command::{GitError, GitRepository};
use super::lock::LOCK_FILE_IN_ROOT;

/// Limit for the content of all untracked files together. Beyond it only names and sizes are
/// hashed.
const MAX_UNTRACKED_BYTES: u64 = 256 * 1024 * 1024;

/// State of a git directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GitEvidence {
    pub(super) head_commit: String,
    /// Empty when everything is committed.
    pub(super) dirty_digest: String,
    pub(super) changed_files: u64,
}

pub(super) async fn collect_evidence(git: GitRepository<'_>) -> Result<GitEvidence, GitError> {
    // A repository without a commit has no head. Its content still gets a digest.
    let head_commit = read_head_commit(git).await;
    let lock = format!(":(exclude){LOCK_FILE_IN_ROOT}");
    let status = [
        "status",
        "--porcelain=v1",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--",
        ".",
        &lock,
    ];
    let status = git.run_for_bytes(&status).await?;
    let entries: Vec<&[u8]> = status
        .split(|byte| *byte == 0)
        .filter(|entry| !entry.is_empty())
        .collect();
    if entries.is_empty() {
        return Ok(GitEvidence {
            head_commit,
            ..GitEvidence::default()
        });
    }
    let mut digest = Sha256::new();
    digest.update(&status);
    if !head_commit.is_empty() {
        let diff = ["diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv"];
        git.run_streaming(&diff, |bytes| digest.update(bytes))
            .await?;
    }
    let untracked = entries
        .iter()
        .filter_map(|entry| entry.strip_prefix(b"?? "));
    let untracked: Vec<PathBuf> = untracked
        .map(|name| join_bytes(git.directory, name))
        .collect();
    let hashed = tokio::task::spawn_blocking(move || hash_files(digest, &untracked));
    let digest = hashed.await.map_err(io::Error::other)?;
    Ok(GitEvidence {
        head_commit,
        dirty_digest: format!("sha256:{}", hex(&digest.finalize())),
        changed_files: entries.len() as u64,
    })
}

/// Empty outside git and before the first commit.
pub(super) async fn read_head_commit(git: GitRepository<'_>) -> String {
    let head = git.run(&["rev-parse", "--verify", "--quiet", "HEAD"]).await;
    head.unwrap_or_default()
}

fn join_bytes(directory: &Path, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    directory.join(std::ffi::OsStr::from_bytes(name))
}

fn hash_files(mut digest: Sha256, files: &[PathBuf]) -> Sha256 {
    let mut remaining = MAX_UNTRACKED_BYTES;
    for path in files {
        // A file that cannot be read counts by its name, which is part of the status.
        if let Ok(read) = hash_file(&mut digest, path, remaining) {
            remaining = remaining.saturating_sub(read);
        }
    }
    digest
}

/// Never blocks: a pipe in the directory is opened but not read.
fn hash_file(digest: &mut Sha256, path: &Path, limit: u64) -> io::Result<u64> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options()
        .read(true)
        .custom_flags(i32::try_from(flags.bits()).unwrap_or(0))
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(0);
    }
    digest.update(metadata.len().to_be_bytes());
    let mut file = file.take(limit);
    let (mut buffer, mut read) = (vec![0; 64 * 1024], 0);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(read);
        }
        digest.update(&buffer[..count]);
        read += count as u64;
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
