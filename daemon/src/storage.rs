//! What a daemon keeps in its data directory beside its identity: the attempts, conversations, and which relays are of
//! the past.

use std::io;
use std::path::{Path, PathBuf};

use crate::attempt_dir::Attempts;
use crate::conversations::Conversations;
use crate::disk::{Disk, Space};
use crate::epoch::{self, RelayEpochs};
use crate::outbox::Writer;

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("cannot use {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "{} is damaged: {message}; it tells which relays were replaced. Remove it only if no old relay can answer any more",
        path.display()
    )]
    Epochs { path: PathBuf, message: String },
}

#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) attempts: Attempts,
    pub(crate) epochs: RelayEpochs,
    pub(crate) conversations: Conversations,
    pub(crate) disk: Disk,
    data_dir: PathBuf,
}

impl Storage {
    pub(crate) fn open(data_dir: &Path) -> Result<Self, StorageError> {
        let unusable = |source| StorageError::Directory {
            path: data_dir.to_owned(),
            source,
        };
        let attempts = Attempts::open(data_dir).map_err(unusable)?;
        let conversations = Conversations::open(data_dir).map_err(unusable)?;
        let mut disk = Disk::default();
        disk.on_look(space(data_dir).ok(), true);
        Ok(Self {
            attempts,
            epochs: epoch::read(data_dir)?,
            conversations,
            disk,
            data_dir: data_dir.to_owned(),
        })
    }

    pub(crate) fn start_writer(&self) -> io::Result<Writer> {
        Writer::start(self.attempts.clone(), self.data_dir.clone())
    }
}

/// What is free for this process on the disk that holds `dir`.
pub(crate) fn space(dir: &Path) -> io::Result<Space> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(Space {
        free: disk.f_bavail.saturating_mul(disk.f_frsize),
        total: disk.f_blocks.saturating_mul(disk.f_frsize),
    })
}
