//! Inspects one file beneath a root. The kernel resolves the path and refuses everything that
//! leads out, so nothing can be swapped between the check and the use: the opened file is the
//! one that is inspected. Only a regular file is opened for reading; opening a pipe can block
//! for ever, and opening a device can have effects.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use baton_proto::v1::{ArtifactReceipt, RequiredArtifact};
use prost_types::Timestamp;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, open, openat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::workspace::{open_beneath, opened_path};

/// A file is hashed if the contract has a hash, or if it is not larger than this.
const HASHED_SIZE_MAX: u64 = 64 << 20;
const READ_CHUNK_BYTES: usize = 256 * 1024;

/// Refers to a file without opening it.
const PATH_ONLY_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const READ_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Why a path has no valid receipt.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileProblem {
    #[error("the workspace directory is unknown, so no file can be checked")]
    NoRoot,
    #[error("the workspace directory {} cannot be opened: {source}", root.display())]
    BadRoot { root: PathBuf, source: io::Error },
    #[error("it leads out of the workspace")]
    Outside,
    #[error("it goes through too many links, or through one of the kernel's own")]
    TooManyLinks,
    #[error(
        "it goes through a link, and this kernel cannot check whether that stays in the workspace"
    )]
    UncheckedLink,
    #[error("it is {0}, not a regular file")]
    NotAFile(&'static str),
    #[error("it changed while it was read")]
    Changed,
    #[error("there was no time to read it to its end")]
    NoTime,
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
}

/// An opened root: paths beneath it are resolved from here, even if it is renamed.
#[derive(Debug)]
pub(super) struct OpenedRoot {
    directory: OwnedFd,
    /// Without symbolic links.
    path: Option<PathBuf>,
}

pub(super) fn open_root(root: &Path) -> Result<OpenedRoot, FileProblem> {
    if root.as_os_str().is_empty() {
        return Err(FileProblem::NoRoot);
    }
    let directory =
        open(root, PATH_ONLY_FLAGS | OFlags::DIRECTORY, Mode::empty()).map_err(|error| {
            let (root, source) = (root.to_owned(), error.into());
            FileProblem::BadRoot { root, source }
        })?;
    let path = opened_path(&directory).ok();
    Ok(OpenedRoot { directory, path })
}

/// Inspects a checked path. Stops reading when `stopped` is set.
pub(super) fn inspect_file(
    root: &OpenedRoot,
    required: &RequiredArtifact,
    stopped: &AtomicBool,
) -> ArtifactReceipt {
    let mut receipt = ArtifactReceipt {
        path: required.path.clone(),
        ..ArtifactReceipt::default()
    };
    if let Err(problem) = fill_receipt(root, required, stopped, &mut receipt) {
        receipt.problem = problem.to_string();
    }
    receipt
}

fn fill_receipt(
    root: &OpenedRoot,
    required: &RequiredArtifact,
    stopped: &AtomicBool,
    receipt: &mut ArtifactReceipt,
) -> Result<(), FileProblem> {
    let Some(named) = open_path_beneath(&root.directory, Path::new(&required.path))? else {
        return Ok(());
    };
    receipt.exists = true;
    let stat = stat(&named)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile {
        return Err(FileProblem::NotAFile(file_type_name(kind)));
    }
    receipt.is_file = true;
    receipt.resolved_path = resolved_path(root, &named).unwrap_or_default();
    record_stat(&stat, receipt);
    let is_hash_required = !required.sha256.is_empty();
    if !is_hash_required && receipt.size > HASHED_SIZE_MAX {
        return Ok(());
    }
    match reopen_for_reading(&named) {
        Ok(file) => {
            receipt.sha256 = hash(file, stopped, receipt)?;
            Ok(())
        }
        // A file of another user exists even if it cannot be read.
        Err(_) if !is_hash_required => Ok(()),
        Err(error) => Err(FileProblem::Unreadable(error)),
    }
}

/// Opens the file without reading it; `None` when it does not exist.
fn open_path_beneath(root: &OwnedFd, path: &Path) -> Result<Option<OwnedFd>, FileProblem> {
    let found = match open_beneath(root, path, PATH_ONLY_FLAGS) {
        // The kernel or a sandbox does not have the call.
        Err(Errno::NOSYS | Errno::PERM) => open_without_links(root, path)?,
        found => found,
    };
    match found {
        Ok(named) => Ok(Some(named)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(Errno::XDEV) => Err(FileProblem::Outside),
        Err(Errno::LOOP) => Err(FileProblem::TooManyLinks),
        Err(error) => Err(FileProblem::Unreadable(error.into())),
    }
}

/// Opens part by part without following any link, which stays beneath the root on every kernel.
/// A checked path has no `..` and is relative.
pub(super) fn open_without_links(
    root: &OwnedFd,
    path: &Path,
) -> Result<Result<OwnedFd, Errno>, FileProblem> {
    let mut at = match root.try_clone() {
        Ok(root) => root,
        Err(error) => return Err(FileProblem::Unreadable(error)),
    };
    for part in path.iter() {
        at = match openat(&at, part, PATH_ONLY_FLAGS | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(next) => next,
            Err(error) => return Ok(Err(error)),
        };
        if FileType::from_raw_mode(stat(&at)?.st_mode) == FileType::Symlink {
            return Err(FileProblem::UncheckedLink);
        }
    }
    Ok(Ok(at))
}

/// The same file for reading: no path is resolved again.
fn reopen_for_reading(named: &OwnedFd) -> io::Result<File> {
    let link = format!("/proc/self/fd/{}", named.as_raw_fd());
    Ok(File::from(openat(CWD, link, READ_FLAGS, Mode::empty())?))
}

fn stat(file: &OwnedFd) -> Result<Stat, FileProblem> {
    fstat(file).map_err(|error| FileProblem::Unreadable(error.into()))
}

fn record_stat(stat: &Stat, receipt: &mut ArtifactReceipt) {
    receipt.size = stat.st_size.cast_unsigned();
    receipt.modified_at = Some(Timestamp {
        seconds: stat.st_mtime,
        nanos: i32::try_from(stat.st_mtime_nsec).unwrap_or(0),
    });
}

/// The hash of the file, if it did not change while it was read.
fn hash(
    mut file: File,
    stopped: &AtomicBool,
    receipt: &mut ArtifactReceipt,
) -> Result<String, FileProblem> {
    let before = fstat(&file).map_err(|error| FileProblem::Unreadable(error.into()))?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; READ_CHUNK_BYTES];
    let mut length = 0;
    loop {
        if stopped.load(Ordering::Relaxed) {
            return Err(FileProblem::NoTime);
        }
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(&chunk[..count]);
                length += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FileProblem::Unreadable(error)),
        }
    }
    let after = fstat(&file).map_err(|error| FileProblem::Unreadable(error.into()))?;
    record_stat(&after, receipt);
    if length != receipt.size || change_stamp(&before) != change_stamp(&after) {
        return Err(FileProblem::Changed);
    }
    let digest = hasher.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Values that change with every write to a file.
fn change_stamp(stat: &Stat) -> (i64, i64, i64, i64, i64) {
    let nanos = |nanos| i64::try_from(nanos).unwrap_or(0);
    (
        stat.st_size,
        stat.st_mtime,
        nanos(stat.st_mtime_nsec),
        stat.st_ctime,
        nanos(stat.st_ctime_nsec),
    )
}

/// The path after following links inside the root, relative to it.
fn resolved_path(root: &OpenedRoot, named: &OwnedFd) -> Option<String> {
    let path = opened_path(named).ok()?;
    let inner = path.strip_prefix(root.path.as_ref()?).ok()?;
    Some(inner.to_str()?.to_owned())
}

fn file_type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something unknown",
    }
}
