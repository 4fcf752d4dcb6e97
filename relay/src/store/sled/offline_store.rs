//! A directory on which no relay runs, read as it lies: for verification, and to save what can be read from one that no
//! longer starts. Takes the directory's lock. sled cannot open its files without writing to them, so it gets a copy.

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

/// What there is to see.
#[derive(Debug)]
pub struct OfflineStore {
    /// Everything readable, the journal's tail included. Reading only; clones must not outlive the look.
    pub store: Store,
    /// Absent when the record of it cannot be read.
    pub incarnation: Option<Uuid>,
    pub relay_epoch: u64,
    /// Why a relay would not start here.
    pub refusal: Option<StoreOpenError>,
    /// A last entry that was never acknowledged was cut short by a crash.
    pub torn_tail: bool,
}

impl Store {
    /// Shows `see` what the directory holds. Fails when another process uses it, or when not even reading is possible.
    pub fn with_offline_store<T>(
        config: StoreConfig,
        see: impl FnOnce(&OfflineStore) -> T,
    ) -> Result<T, StoreOpenError> {
        let places = StorePaths::in_dir(&config.dir);
        if !places.db_file().exists() {
            return Err(StoreOpenError::NoRelayData { dir: config.dir });
        }
        let lock = store_paths::lock(&places)?;
        let mark =
            WatermarkFile::peek(&places.watermark).map_err(io_error("read", &places.watermark))?;
        let (copy, (found, damage)) = examine_file_copy(&config, &places, DamageHandling::Skip)
            .or_else(|_| examine_file_copy(&config, &places, DamageHandling::TreatAsIntact))?;
        let refusal = damage.or_else(|| found.decide(mark, &config).err());
        let disk = open_database_read_only(&config, &copy.places)?;
        let (_durable, looked) = offline_store(config, disk, found, refusal, lock);
        Ok(see(&looked))
    }
}

/// A copy, and what there is to see in it.
pub(crate) fn examine_file_copy(
    config: &StoreConfig,
    places: &StorePaths,
    taken: DamageHandling,
) -> Result<(SledFileCopy, (DirectoryState, Option<StoreOpenError>)), StoreOpenError> {
    let copy = SledFileCopy::make(places)?;
    let found = examine_copy(config, &copy.places, taken)?;
    Ok((copy, found))
}

/// sled's files once more. They go with this value.
pub(crate) struct SledFileCopy {
    /// Of the copy, but for what is beside sled's files.
    places: StorePaths,
}

impl SledFileCopy {
    fn make(original: &StorePaths) -> Result<Self, StoreOpenError> {
        let looking = &original.copy_dir;
        remove_dir(looking)?;
        let copied = Self {
            places: StorePaths {
                sled: looking.clone(),
                ..original.clone()
            },
        };
        copied
            .fill(original)
            .map(|()| copied)
            .map_err(io_error("make a copy to look at in", looking))
    }

    fn fill(&self, original: &StorePaths) -> io::Result<()> {
        let (from, to) = (&original.sled, &self.places.sled);
        fs::create_dir_all(to)?;
        copy_dir(&from.join("blobs"), &to.join("blobs"))?;
        for path in store_paths::files(from).map_err(io::Error::other)? {
            if path.is_file() && path != original.db_file() {
                fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
            }
        }
        self.copy_db(original)
    }

    /// At no cost where the file system can share blocks; else without what is empty.
    fn copy_db(&self, original: &StorePaths) -> io::Result<()> {
        let to = File::create(self.places.db_file())?;
        if rustix::fs::ioctl_ficlone(&to, File::open(original.db_file())?).is_ok() {
            return Ok(());
        }
        let log = SledLog::open(&original.db_file())?;
        if log.len > free_disk_bytes(original)? {
            let why = format!("{} MiB are not free; make room", log.len >> 20);
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
        if let Err(error) = remove_dir(&self.places.sled) {
            tracing::warn!(%error, "a copy that was looked at could not be removed; the next start does it");
        }
    }
}

fn offline_store(
    config: StoreConfig,
    disk: super::database::SledDatabase,
    found: DirectoryState,
    refusal: Option<StoreOpenError>,
    lock: File,
) -> (watch::Sender<crate::store::CommitSeq>, OfflineStore) {
    let head = found.tail.head;
    let shared = Arc::new(StoreShared {
        pins: JournalPins::new(config.max_pinned_bytes),
        config,
        disk,
        overlay: Arc::new(found.overlay),
        queue: AppendQueue::default(),
        progress: CommitProgress::starting_at(head),
        room: Notify::new(),
        _directory_lock: lock,
    });
    let (sender, durable) = watch::channel(head);
    let looked = OfflineStore {
        store: Store::new(shared, durable),
        incarnation: found.facts.incarnation.ok().flatten(),
        relay_epoch: found.facts.relay_epoch.ok().flatten().unwrap_or(0),
        refusal,
        torn_tail: found.tail.torn,
    };
    (sender, looked)
}
