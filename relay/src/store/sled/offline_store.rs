//! Reads a directory that no relay uses, without changing it: for verification, and to save
//! what can be read from one on which a relay refuses to start. Takes the directory's lock.
//! sled cannot open its files without writing to them, so it gets a copy.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::directory_examination::{DirectoryState, examine_copy, open_database_read_only};
use super::file_backup::{copy_dir, free_disk_bytes};
use super::log_format::{SEGMENT, SledLog};
use super::log_repair::DamageHandling;
use super::store_paths;
use super::store_paths::{StorePaths, io_error, remove_dir};
use crate::store::journal::append_queue::AppendQueue;
use crate::store::journal::commit_progress::CommitProgress;
use crate::store::journal::committer::StoreShared;
use crate::store::journal::pin::JournalPins;
use crate::store::journal::watermark::WatermarkFile;
use crate::store::{Store, StoreConfig, StoreOpenError};

/// The readable contents of a directory.
#[derive(Debug)]
pub struct OfflineStore {
    /// Everything readable, including the journal's tail. Read only; clones must not outlive
    /// the callback.
    pub store: Store,
    /// `None` if its record cannot be read.
    pub incarnation: Option<Uuid>,
    pub relay_epoch: u64,
    /// Why a relay would refuse to start on it.
    pub refusal: Option<StoreOpenError>,
    /// The last entry was never acknowledged and was torn by a crash.
    pub torn_tail: bool,
}

impl Store {
    /// Calls `see` with the directory's contents. Fails if another process uses the directory,
    /// or if it cannot be read at all.
    pub fn with_offline_store<T>(
        config: StoreConfig,
        use_store: impl FnOnce(&OfflineStore) -> T,
    ) -> Result<T, StoreOpenError> {
        let paths = StorePaths::in_dir(&config.dir);
        if !paths.db_file().exists() {
            return Err(StoreOpenError::NoRelayData { dir: config.dir });
        }
        let lock = store_paths::lock(&paths)?;
        let mark =
            WatermarkFile::peek(&paths.watermark).map_err(io_error("read", &paths.watermark))?;
        let (copy, (state, damage)) = examine_file_copy(&config, &paths, DamageHandling::Skip)
            .or_else(|_| examine_file_copy(&config, &paths, DamageHandling::TreatAsIntact))?;
        let refusal = damage.or_else(|| state.decide(mark, &config).err());
        let disk = open_database_read_only(&config, &copy.paths)?;
        let (_durable, offline) = offline_store(config, disk, state, refusal, lock);
        Ok(use_store(&offline))
    }
}

/// A copy of sled's files, and its state.
pub(crate) fn examine_file_copy(
    config: &StoreConfig,
    paths: &StorePaths,
    handling: DamageHandling,
) -> Result<(SledFileCopy, (DirectoryState, Option<StoreOpenError>)), StoreOpenError> {
    let copy = SledFileCopy::make(paths)?;
    let state = examine_copy(config, &copy.paths, handling)?;
    Ok((copy, state))
}

/// A copy of sled's files, removed when this value is dropped.
pub(crate) struct SledFileCopy {
    /// The paths of the copy; those outside sled's files are the original's.
    paths: StorePaths,
}

impl SledFileCopy {
    fn make(original: &StorePaths) -> Result<Self, StoreOpenError> {
        let copy_dir = &original.copy_dir;
        remove_dir(copy_dir)?;
        let copied = Self {
            paths: StorePaths {
                sled: copy_dir.clone(),
                ..original.clone()
            },
        };
        copied
            .fill(original)
            .map(|()| copied)
            .map_err(io_error("make a copy of the database in", copy_dir))
    }

    fn fill(&self, original: &StorePaths) -> io::Result<()> {
        let (from, to) = (&original.sled, &self.paths.sled);
        fs::create_dir_all(to)?;
        copy_dir(&from.join("blobs"), &to.join("blobs"))?;
        for path in store_paths::files(from).map_err(io::Error::other)? {
            if path.is_file() && path != original.db_file() {
                fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
            }
        }
        self.copy_db(original)
    }

    /// Copies the data file: at no cost if the file system can share blocks, else without its
    /// empty segments.
    fn copy_db(&self, original: &StorePaths) -> io::Result<()> {
        let to = File::create(self.paths.db_file())?;
        if rustix::fs::ioctl_ficlone(&to, File::open(original.db_file())?).is_ok() {
            return Ok(());
        }
        let log = SledLog::open(&original.db_file())?;
        if log.len > free_disk_bytes(original)? {
            let why = format!("a copy needs {} MiB; free disk space", log.len >> 20);
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        for number in 0..log.heads.len() as u64 {
            let bytes = log.segment(number)?;
            if bytes.iter().any(|byte| *byte != 0) {
                to.write_all_at(&bytes, number * SEGMENT as u64)?;
            }
        }
        to.set_len(log.len)
    }
}

impl Drop for SledFileCopy {
    fn drop(&mut self) {
        if let Err(error) = remove_dir(&self.paths.sled) {
            tracing::warn!(%error, "removing a copy of the database failed; the next start removes it");
        }
    }
}

fn offline_store(
    config: StoreConfig,
    disk: super::database::SledDatabase,
    state: DirectoryState,
    refusal: Option<StoreOpenError>,
    lock: File,
) -> (watch::Sender<crate::store::CommitSeq>, OfflineStore) {
    let head = state.tail.head;
    let shared = Arc::new(StoreShared {
        pins: JournalPins::new(config.max_pinned_bytes),
        config,
        disk,
        overlay: Arc::new(state.overlay),
        queue: AppendQueue::default(),
        progress: CommitProgress::starting_at(head),
        room: Notify::new(),
        _directory_lock: lock,
    });
    let (sender, durable) = watch::channel(head);
    let offline = OfflineStore {
        store: Store::new(shared, durable),
        incarnation: state.facts.incarnation.ok().flatten(),
        relay_epoch: state.facts.relay_epoch.ok().flatten().unwrap_or(0),
        refusal,
        torn_tail: state.tail.torn,
    };
    (sender, offline)
}
