//! Record of the directory that was created for an attempt. It is stored in the attempt's
//! directory after the workspace directory was created and before anything is put into it, and
//! read before anything is removed. The directory is identified by device and inode, so that
//! another directory at the same path is never touched.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::storage::atomic_file;

/// File name of the record in the attempt's directory.
pub(crate) const RECORD_FILE: &str = "workspace";

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// State of a workspace when its attempt began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CreatedWorkspace {
    /// The commit at the start; empty outside git.
    pub(super) base_commit: String,
    /// The directory that was created for the attempt; `None` if it existed before.
    pub(super) directory: Option<DirectoryId>,
}

/// Identity of a directory, independent of its path.
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
        fs::symlink_metadata(path).map(|metadata| Self::from(&metadata))
    }
}

impl From<&fs::Metadata> for DirectoryId {
    fn from(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Creates a directory that only this user may enter. An existing directory is an error,
/// because it belongs to something else.
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

/// Opens the directory and keeps it open even if its path is replaced. A created directory must
/// still be the same one, and a symbolic link in its place is refused.
pub(super) fn open_directory(path: &Path, created: Option<DirectoryId>) -> io::Result<OwnedFd> {
    let Some(created) = created else {
        return Ok(rustix::fs::open(path, DIRECTORY, Mode::empty())?);
    };
    let opened = rustix::fs::open(path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
    let opened = fs::File::from(opened.map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => replaced_error(),
        error => error.into(),
    })?);
    if DirectoryId::from(&opened.metadata()?) == created {
        Ok(opened.into())
    } else {
        Err(replaced_error())
    }
}

fn replaced_error() -> io::Error {
    io::Error::other("the directory was replaced by another one")
}

/// Removes the directory and its content if it is still the one that was created.
pub(super) fn remove_directory(path: &Path, created: DirectoryId) -> io::Result<()> {
    match DirectoryId::of_path(path) {
        Ok(id) if id == created => fs::remove_dir_all(path),
        Ok(_) => Err(replaced_error()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_created_directory_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in/new");
        let created = create_directory(&path).unwrap();
        fs::write(path.join("file"), "work").unwrap();
        assert!(create_directory(&path).is_err(), "the directory exists");
        // The directory was moved away, and another one is at its path.
        fs::rename(&path, dir.path().join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "other work").unwrap();
        assert!(remove_directory(&path, created).is_err());
        assert!(path.join("file").exists() && dir.path().join("moved/file").exists());
        fs::remove_dir_all(&path).unwrap();
        remove_directory(&path, created).unwrap();
        fs::rename(dir.path().join("moved"), &path).unwrap();
        remove_directory(&path, created).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_record_is_read_back_and_a_torn_one_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(CreatedWorkspace::read(dir.path()), None);
        let created = CreatedWorkspace {
            base_commit: "abc".to_owned(),
            directory: Some(DirectoryId::of_path(dir.path()).unwrap()),
        };
        created.write(dir.path()).unwrap();
        assert_eq!(CreatedWorkspace::read(dir.path()), Some(created));
        fs::write(dir.path().join(RECORD_FILE), "{\"base").unwrap();
        assert_eq!(CreatedWorkspace::read(dir.path()), None);
    }
}
