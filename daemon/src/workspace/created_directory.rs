//! The record of what was made for an attempt, beside the attempt: written when its directory is there and before
//! anything is in it, and asked before anything is removed. The directory is known by its number on the disk, so that
//! nothing else that came to stand under its name is touched.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::storage::atomic_file;

/// Its name in the attempt's directory.
pub(crate) const RECORD_FILE: &str = "workspace";

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// What a workspace was when the attempt came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CreatedWorkspace {
    /// The commit that it began with; empty outside git.
    pub(super) base_commit: String,
    /// The directory that was made for it; none where it was there before.
    pub(super) directory: Option<DirectoryId>,
}

/// A directory, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirectoryId {
    device: u64,
    inode: u64,
}

impl CreatedWorkspace {
    pub(super) fn write(&self, attempt_dir: &Path) -> io::Result<()> {
        atomic_file::write(attempt_dir, RECORD_FILE, &serde_json::to_string(self)?)
    }

    pub(super) fn read(attempt_dir: &Path) -> Option<Self> {
        let text = fs::read_to_string(attempt_dir.join(RECORD_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl DirectoryId {
    pub(super) fn of_path(path: &Path) -> io::Result<Self> {
        fs::symlink_metadata(path).map(|found| Self::from(&found))
    }
}

impl From<&fs::Metadata> for DirectoryId {
    fn from(found: &fs::Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
        }
    }
}

/// A new directory that only this user may enter. One that is there already is nobody's to give.
pub(super) fn create_directory(path: &Path) -> io::Result<DirectoryId> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
    }
    fs::DirBuilder::new().mode(0o700).create(path)?;
    DirectoryId::of_path(path)
}

/// The directory, whatever comes to stand under its name meanwhile; where it was made, only if it is still that one. A link
/// in its place leads elsewhere.
pub(super) fn open_directory(path: &Path, made: Option<DirectoryId>) -> io::Result<OwnedFd> {
    let Some(made) = made else {
        return Ok(rustix::fs::open(path, DIRECTORY, Mode::empty())?);
    };
    let opened = rustix::fs::open(path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
    let opened = fs::File::from(opened.map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => replaced_error(),
        error => error.into(),
    })?);
    if DirectoryId::from(&opened.metadata()?) == made {
        Ok(opened.into())
    } else {
        Err(replaced_error())
    }
}

fn replaced_error() -> io::Error {
    io::Error::other("another directory stands there now")
}

/// Removes the directory with all that is in it, if it is still the one that was made.
pub(super) fn remove_directory(path: &Path, made: DirectoryId) -> io::Result<()> {
    match DirectoryId::of_path(path) {
        Ok(found) if found == made => fs::remove_dir_all(path),
        Ok(_) => Err(replaced_error()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in/new");
        let made = create_directory(&path).unwrap();
        fs::write(path.join("file"), "work").unwrap();
        assert!(create_directory(&path).is_err(), "it is there");
        // Moved away, and another one in its place.
        fs::rename(&path, dir.path().join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "somebody's").unwrap();
        assert!(remove_directory(&path, made).is_err());
        assert!(path.join("file").exists() && dir.path().join("moved/file").exists());
        fs::remove_dir_all(&path).unwrap();
        remove_directory(&path, made).unwrap();
        fs::rename(dir.path().join("moved"), &path).unwrap();
        remove_directory(&path, made).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn the_record_comes_back_and_a_torn_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(CreatedWorkspace::read(dir.path()), None);
        let made = CreatedWorkspace {
            base_commit: "abc".to_owned(),
            directory: Some(DirectoryId::of_path(dir.path()).unwrap()),
        };
        made.write(dir.path()).unwrap();
        assert_eq!(CreatedWorkspace::read(dir.path()), Some(made));
        fs::write(dir.path().join(RECORD_FILE), "{\"base").unwrap();
        assert_eq!(CreatedWorkspace::read(dir.path()), None);
    }
}
