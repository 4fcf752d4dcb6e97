//! The open sled database, and the only way to make its writes durable. sled's own `flush`
//! passes pages to the kernel without syncing them, so a second descriptor of its file is
//! synced afterwards.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::store::error::is_disk_full_error;
use crate::store::records::schema::RecordSchema;
use crate::store::records::tree::RecordTree;
use crate::store::{StoreFailure, StoreOpenError};

/// The sync that an acknowledgement waits for. A test can block it or make it fail.
pub(crate) type SyncCall = Arc<dyn Fn(&File) -> io::Result<()> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct SledDatabase {
    db: sled::Db,
    pub(crate) records: RecordTree,
    pub(crate) journal: sled::Tree,
    file: Arc<File>,
    sync: SyncCall,
}

impl SledDatabase {
    pub(crate) fn new(
        db: sled::Db,
        file: File,
        schema: RecordSchema,
        sync: SyncCall,
    ) -> Result<Self, sled::Error> {
        let records = RecordTree::new(db.open_tree("records")?, schema);
        let journal = db.open_tree("journal")?;
        Ok(Self {
            db,
            records,
            journal,
            file: Arc::new(file),
            sync,
        })
    }

    /// Returns when all earlier writes are on disk. Never use `flush_async`: seven callers of
    /// it deadlock.
    pub(crate) fn flush_and_sync(&self) -> Result<(), StoreFailure> {
        self.db
            .flush()
            .map_err(|error| StoreFailure::sled("flush", &error))?;
        (self.sync)(&self.file).map_err(|error| StoreFailure::io("fdatasync", &error))
    }
}

impl std::fmt::Debug for SledDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

/// The default [`SyncCall`].
pub(crate) fn fdatasync() -> SyncCall {
    Arc::new(|file| Ok(rustix::fs::fdatasync(file)?))
}

/// The failure that stops the store after a write error.
pub(crate) fn write_failure(error: &sled::Error) -> StoreFailure {
    StoreFailure::sled("write", error)
}

/// The error for a database that sled cannot open.
pub(crate) fn open_failure(dir: &std::path::Path, error: &sled::Error) -> StoreOpenError {
    match error {
        sled::Error::Io(cause) if is_disk_full_error(cause) => StoreOpenError::DiskFull {
            dir: dir.to_owned(),
        },
        other => damaged_error(dir, other),
    }
}

/// The error for damage found while opening; `dir` is the directory for the operator to check.
pub(crate) fn damaged_error(
    dir: &std::path::Path,
    reason: impl std::fmt::Display,
) -> StoreOpenError {
    StoreOpenError::Damaged {
        dir: dir.to_owned(),
        reason: reason.to_string(),
    }
}
