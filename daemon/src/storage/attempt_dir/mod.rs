//! The directory of one attempt: `DATA/attempts/<attempt_id>/`, created when the attempt is
//! accepted, removed when the relay has acknowledged everything. Layout, listing and removal;
//! the contents of the files belong to their own modules. A directory is removed file by file,
//! by known names: nothing is deleted by guess.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tracing::warn;
use uuid::Uuid;

use crate::attempt::RESUME_FILE;
use crate::shim::{REPORT_FILE, SOCKET_FILE, SPOOL_DIR};
use crate::spool::is_segment;
use crate::workspace::RECORD_FILE;

mod meta;

pub(crate) use meta::{AttemptMeta, MetaError};

const ATTEMPTS_DIR: &str = "attempts";
/// The description of the attempt; a directory without it is ignored.
const META_FILE: &str = "attempt";
/// Frames that the relay has not acknowledged.
const OUTBOX_FILE: &str = "outbox";
/// The lease of the shim, for the case that the shim cannot be asked.
pub(crate) const LEASE_FILE: &str = "lease";
/// Unfinished replacements of the files above.
const DRAFT_FILES: [&str; 3] = ["attempt.new", "outbox.new", "workspace.new"];

/// An attempt's id in its only allowed spelling as a file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptId(Uuid);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an attempt's id is a UUID in lower case with hyphens")]
pub(crate) struct InvalidAttemptId;

impl FromStr for AttemptId {
    type Err = InvalidAttemptId;

    fn from_str(text: &str) -> Result<Self, InvalidAttemptId> {
        let id = Uuid::parse_str(text).map_err(|_| InvalidAttemptId)?;
        let mut buffer = Uuid::encode_buffer();
        // Other spellings of the same id would be other file names.
        let canonical = id.hyphenated().encode_lower(&mut buffer) == text;
        canonical.then_some(Self(id)).ok_or(InvalidAttemptId)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The directory of all attempts.
#[derive(Clone, Debug)]
pub(crate) struct AttemptDirectories {
    path: PathBuf,
}

impl AttemptDirectories {
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(ATTEMPTS_DIR);
        create_private_dir(&path)?;
        Ok(Self { path })
    }

    pub(crate) fn attempt_dir(&self, id: AttemptId) -> AttemptDir {
        AttemptDir {
            id,
            path: self.path.join(id.to_string()),
        }
    }

    /// All attempts in this directory, oldest id first. Other entries are left alone.
    pub(crate) fn list(&self) -> io::Result<Vec<AttemptDir>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            match name.to_str().and_then(|name| name.parse().ok()) {
                Some(id) => found.push(self.attempt_dir(id)),
                None => warn!(?name, "not an attempt's directory; left alone"),
            }
        }
        found.sort_by_key(|dir| dir.id);
        Ok(found)
    }

    /// Syncs the directory, so that new names survive a power failure.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// The directory of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct AttemptDir {
    pub(crate) id: AttemptId,
    path: PathBuf,
}

impl AttemptDir {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn outbox_path(&self) -> PathBuf {
        self.path.join(OUTBOX_FILE)
    }

    pub(crate) fn spool_path(&self) -> PathBuf {
        self.path.join(SPOOL_DIR)
    }

    #[cfg(test)]
    pub(crate) fn report_path(&self) -> PathBuf {
        self.path.join(REPORT_FILE)
    }

    /// Creates the directory with the attempt's description. What an interrupted removal left
    /// is cleared first.
    pub(crate) fn create(&self, meta: &AttemptMeta) -> io::Result<()> {
        if self.has_meta()? {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.remove()?;
        create_private_dir(&self.path)?;
        meta.write(&self.path, META_FILE)
    }

    /// Without a description an attempt was never accepted, or is settled and partly removed.
    pub(crate) fn has_meta(&self) -> io::Result<bool> {
        fs::exists(self.path.join(META_FILE))
    }

    pub(crate) fn read_meta(&self) -> Result<AttemptMeta, MetaError> {
        AttemptMeta::read(&self.path.join(META_FILE))
    }

    /// Syncs the description and the names of the attempt's files.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(self.path.join(META_FILE))?.sync_all()?;
        File::open(&self.path)?.sync_all()
    }

    /// Removes the known files of an attempt. Other files stay, and their directory with them.
    pub(crate) fn remove(&self) -> io::Result<()> {
        // The description first: without it the rest is ignored, wherever the removal is
        // interrupted.
        remove_if_present(&self.path.join(META_FILE))?;
        for name in [
            OUTBOX_FILE,
            REPORT_FILE,
            SOCKET_FILE,
            LEASE_FILE,
            RECORD_FILE,
            RESUME_FILE,
        ]
        .into_iter()
        .chain(DRAFT_FILES)
        {
            remove_if_present(&self.path.join(name))?;
        }
        self.remove_spool()?;
        ignore_not_found(fs::remove_dir(&self.path))
    }

    fn remove_spool(&self) -> io::Result<()> {
        let spool = self.spool_path();
        let segments = match fs::read_dir(&spool) {
            Ok(segments) => segments,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for segment in segments {
            let segment = segment?;
            if is_segment(&segment.file_name()) {
                remove_if_present(&segment.path())?;
            }
        }
        ignore_not_found(fs::remove_dir(&spool))
    }
}

fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    ignore_not_found(fs::remove_file(path))
}

fn ignore_not_found(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests;
