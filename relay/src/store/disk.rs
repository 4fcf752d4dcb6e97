//! The open sled database and the one way to make its writes durable. sled's own `flush` hands pages to the kernel and
//! does not sync them, so a second descriptor of its file is synced after it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::error::is_full;
use super::records::Records;
use super::schema::Schema;
use super::{Fatal, OpenError};

/// The sync that an acknowledgement waits for; a test can hold it or make it fail.
pub(super) type SyncCall = Arc<dyn Fn(&File) -> io::Result<()> + Send + Sync>;

#[derive(Clone)]
pub(super) struct Disk {
    db: sled::Db,
    pub(super) records: Records,
    pub(super) journal: sled::Tree,
    file: Arc<File>,
    sync: SyncCall,
}

impl Disk {
    pub(super) fn new(
        db: sled::Db,
        file: File,
        schema: Schema,
        sync: SyncCall,
    ) -> Result<Self, sled::Error> {
        let records = Records::new(db.open_tree("records")?, schema);
        let journal = db.open_tree("journal")?;
        Ok(Self {
            db,
            records,
            journal,
            file: Arc::new(file),
            sync,
        })
    }

    /// Returns when all earlier writes are on the disk. Never `flush_async`: seven callers of it deadlock.
    pub(super) fn make_durable(&self) -> Result<(), Fatal> {
        self.db
            .flush()
            .map_err(|error| Fatal::sled("flush", &error))?;
        (self.sync)(&self.file).map_err(|error| Fatal::io("fdatasync", &error))
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

/// The default [`SyncCall`].
pub(super) fn fdatasync() -> SyncCall {
    Arc::new(|file| Ok(rustix::fs::fdatasync(file)?))
}

/// Any failure to write, as the reason to stop.
pub(super) fn write_failed(error: &sled::Error) -> Fatal {
    Fatal::sled("write", error)
}

/// What sled says when it does not open.
pub(super) fn not_opened(dir: &std::path::Path, error: &sled::Error) -> OpenError {
    match error {
        sled::Error::Io(cause) if is_full(cause) => OpenError::DiskFull {
            dir: dir.to_owned(),
        },
        other => damaged(dir, other),
    }
}

/// A failure of sled while opening; `dir` is where the operator should look.
pub(super) fn damaged(dir: &std::path::Path, reason: impl std::fmt::Display) -> OpenError {
    OpenError::Damaged {
        dir: dir.to_owned(),
        reason: reason.to_string(),
    }
}
