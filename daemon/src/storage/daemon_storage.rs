//! What a daemon stores in its data directory beside its identity: attempts, conversations, and
//! which relays were replaced.

use std::io;
use std::path::{Path, PathBuf};

use crate::machine::disk_monitor::{DiskMonitor, FreeSpace};
use crate::outbox::OutboxWriter;
use crate::storage::attempt_dir::AttemptDirectories;
use crate::storage::conversation_store::ConversationStore;
use crate::storage::relay_epochs;
use crate::storage::relay_epochs::RelayEpochs;

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("cannot use {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "{} is damaged: {message}; it records which relays were replaced. Remove it only if no old relay can answer any more",
        path.display()
    )]
    Epochs { path: PathBuf, message: String },
}

#[derive(Debug)]
pub(crate) struct DaemonStorage {
    pub(crate) attempts: AttemptDirectories,
    pub(crate) epochs: RelayEpochs,
    pub(crate) conversations: ConversationStore,
    pub(crate) disk: DiskMonitor,
    data_dir: PathBuf,
}

impl DaemonStorage {
    pub(crate) fn open(data_dir: &Path) -> Result<Self, StorageError> {
        let unusable = |source| StorageError::Directory {
            path: data_dir.to_owned(),
            source,
        };
        let attempts = AttemptDirectories::open(data_dir).map_err(unusable)?;
        let conversations = ConversationStore::open(data_dir).map_err(unusable)?;
        let mut disk = DiskMonitor::default();
        disk.on_measured(measure_free_space(data_dir).ok(), true);
        Ok(Self {
            attempts,
            epochs: relay_epochs::read_relay_epochs(data_dir)?,
            conversations,
            disk,
            data_dir: data_dir.to_owned(),
        })
    }

    pub(crate) fn start_writer(&self) -> io::Result<OutboxWriter> {
        OutboxWriter::start(self.attempts.clone(), self.data_dir.clone())
    }
}

/// The space that is free for this process on the disk of `dir`.
pub(crate) fn measure_free_space(dir: &Path) -> io::Result<FreeSpace> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(FreeSpace {
        free: disk.f_bavail.saturating_mul(disk.f_frsize),
        total: disk.f_blocks.saturating_mul(disk.f_frsize),
    })
}
