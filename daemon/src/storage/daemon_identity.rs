//! The daemon's identity: the id that the relay assigned, stored in the data directory; a new
//! id for each process; the kernel's boot id. Also owns the directory's lock: one running
//! daemon per directory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use crate::storage::atomic_file;

const ID_FILE: &str = "daemon-id";
const LOCK_FILE: &str = "daemon.lock";

#[derive(Debug)]
pub(crate) struct DaemonIdentity {
    data_dir: PathBuf,
    /// Empty until the first Welcome.
    daemon_id: String,
    pub(crate) instance_id: String,
    /// Never empty: without it a reboot would look like a restart.
    pub(crate) boot_id: String,
    /// Released by the kernel when the process ends.
    lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot use data directory {path}: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("another daemon runs with data directory {path}; stop it or choose another directory")]
    Locked { path: PathBuf },
    #[error(
        "cannot read the kernel's boot id from {path}: {source}; without it a restart could be taken for a reboot and \
         running work for dead"
    )]
    BootId { path: PathBuf, source: io::Error },
    #[error("cannot store the daemon's id in {path}: {source}")]
    Store { path: PathBuf, source: io::Error },
}

impl DaemonIdentity {
    pub(crate) fn open(data_dir: &Path, boot_id_file: &Path) -> Result<Self, IdentityError> {
        let failed = |source| IdentityError::Directory {
            path: data_dir.to_owned(),
            source,
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data_dir)
            .map_err(failed)?;
        let lock = atomic_file::open_private(&data_dir.join(LOCK_FILE)).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            IdentityError::Locked {
                path: data_dir.to_owned(),
            }
        })?;
        let daemon_id = match fs::read_to_string(data_dir.join(ID_FILE)) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        Ok(Self {
            data_dir: data_dir.to_owned(),
            daemon_id,
            instance_id: Uuid::now_v7().to_string(),
            boot_id: read_boot_id(boot_id_file)?,
            lock,
        })
    }

    pub(crate) fn daemon_id(&self) -> &str {
        &self.daemon_id
    }

    /// Stores the id that the relay assigned, atomically and before it is used.
    pub(crate) fn store_daemon_id(&mut self, daemon_id: &str) -> Result<(), IdentityError> {
        if daemon_id.is_empty() || daemon_id == self.daemon_id {
            return Ok(());
        }
        atomic_file::write(&self.data_dir, ID_FILE, &format!("{daemon_id}\n")).map_err(
            |source| IdentityError::Store {
                path: self.data_dir.join(ID_FILE),
                source,
            },
        )?;
        daemon_id.clone_into(&mut self.daemon_id);
        Ok(())
    }
}

fn read_boot_id(path: &Path) -> Result<String, IdentityError> {
    let failed = |source| IdentityError::BootId {
        path: path.to_owned(),
        source,
    };
    let text = fs::read_to_string(path).map_err(failed)?;
    match text.trim() {
        "" => Err(failed(io::ErrorKind::UnexpectedEof.into())),
        id => Ok(id.to_owned()),
    }
}

impl Drop for DaemonIdentity {
    fn drop(&mut self) {
        // Closing alone is not enough: a child between fork and exec has a copy of the
        // descriptor.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KERNEL_BOOT_ID_FILE;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_daemon_does_not_start_without_a_boot_id() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("boot_id");
        let open = || DaemonIdentity::open(dir.path(), &file);
        assert!(matches!(open(), Err(IdentityError::BootId { .. })));
        fs::write(&file, "\n").unwrap();
        assert!(matches!(open(), Err(IdentityError::BootId { .. })));
        fs::write(&file, "boot\n").unwrap();
        assert_eq!(open().unwrap().boot_id, "boot");
    }

    #[test]
    fn the_id_survives_a_restart_and_the_directory_belongs_to_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = DaemonIdentity::open(dir.path(), Path::new(KERNEL_BOOT_ID_FILE)).unwrap();
        assert_eq!(first.daemon_id(), "");
        first.store_daemon_id("d-1").unwrap();
        assert!(matches!(
            DaemonIdentity::open(dir.path(), Path::new(KERNEL_BOOT_ID_FILE)),
            Err(IdentityError::Locked { .. })
        ));
        let mode = fs::metadata(dir.path().join(ID_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let instance = first.instance_id.clone();
        drop(first);
        let second = DaemonIdentity::open(dir.path(), Path::new(KERNEL_BOOT_ID_FILE)).unwrap();
        assert_eq!(second.daemon_id(), "d-1");
        assert_ne!(second.instance_id, instance);
    }
}
