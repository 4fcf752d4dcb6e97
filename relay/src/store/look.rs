//! A directory on which no relay runs, read as it lies: for verification, and to save what can be read from one that no
//! longer starts. Takes the directory's lock. sled cannot open its files without writing to them, so it gets a copy.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::committer::Shared;
use super::examine::{Found, examine_copy, open_for_reading};
use super::keep::{copy_dir, room};
use super::log::{Log, SEGMENT};
use super::mend::Taken;
use super::pins::Pins;
use super::preflight::{self, Places, io_error, remove_dir};
use super::progress::Progress;
use super::queue::Queue;
use super::watermark::WatermarkFile;
use super::{OpenError, Store, StoreConfig};

/// What there is to see.
#[derive(Debug)]
pub struct Looked {
    /// Everything readable, the journal's tail included. Reading only; clones must not outlive the look.
    pub store: Store,
    /// Absent when the record of it cannot be read.
    pub incarnation: Option<Uuid>,
    pub relay_epoch: u64,
    /// Why a relay would not start here.
    pub refusal: Option<OpenError>,
    /// A last entry that was never acknowledged was cut short by a crash.
    pub torn_tail: bool,
}

impl Store {
    /// Shows `see` what the directory holds. Fails when another process uses it, or when not even reading is possible.
    pub fn look<T>(config: StoreConfig, see: impl FnOnce(&Looked) -> T) -> Result<T, OpenError> {
        let places = Places::under(&config.dir);
        if !places.db_file().exists() {
            return Err(OpenError::NotThere { dir: config.dir });
        }
        let lock = preflight::lock(&places)?;
        let mark =
            WatermarkFile::peek(&places.watermark).map_err(io_error("read", &places.watermark))?;
        let (copy, (found, damage)) = examined(&config, &places, Taken::ForNothing)
            .or_else(|_| examined(&config, &places, Taken::ForWhole))?;
        let refusal = damage.or_else(|| found.decide(mark, &config).err());
        let disk = open_for_reading(&config, &copy.places)?;
        let (_durable, looked) = looked(config, disk, found, refusal, lock);
        Ok(see(&looked))
    }
}

/// A copy, and what there is to see in it.
pub(super) fn examined(
    config: &StoreConfig,
    places: &Places,
    taken: Taken,
) -> Result<(Copied, (Found, Option<OpenError>)), OpenError> {
    let copy = Copied::make(places)?;
    let found = examine_copy(config, &copy.places, taken)?;
    Ok((copy, found))
}

/// sled's files once more. They go with this value.
pub(super) struct Copied {
    /// Of the copy, but for what is beside sled's files.
    places: Places,
}

impl Copied {
    fn make(original: &Places) -> Result<Self, OpenError> {
        let looking = &original.looking;
        remove_dir(looking)?;
        let copied = Self {
            places: Places {
                sled: looking.clone(),
                ..original.clone()
            },
        };
        copied
            .fill(original)
            .map(|()| copied)
            .map_err(io_error("make a copy to look at in", looking))
    }

    fn fill(&self, original: &Places) -> io::Result<()> {
        let (from, to) = (&original.sled, &self.places.sled);
        fs::create_dir_all(to)?;
        copy_dir(&from.join("blobs"), &to.join("blobs"))?;
        for path in preflight::files(from).map_err(io::Error::other)? {
            if path.is_file() && path != original.db_file() {
                fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
            }
        }
        self.copy_db(original)
    }

    /// At no cost where the file system can share blocks; else without what is empty.
    fn copy_db(&self, original: &Places) -> io::Result<()> {
        let to = File::create(self.places.db_file())?;
        if rustix::fs::ioctl_ficlone(&to, File::open(original.db_file())?).is_ok() {
            return Ok(());
        }
        let log = Log::open(&original.db_file())?;
        if log.len > room(original)? {
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

impl Drop for Copied {
    fn drop(&mut self) {
        if let Err(error) = remove_dir(&self.places.sled) {
            tracing::warn!(%error, "a copy that was looked at could not be removed; the next start does it");
        }
    }
}

fn looked(
    config: StoreConfig,
    disk: super::disk::Disk,
    found: Found,
    refusal: Option<OpenError>,
    lock: File,
) -> (watch::Sender<super::CommitSeq>, Looked) {
    let head = found.tail.head;
    let shared = Arc::new(Shared {
        pins: Pins::new(config.told_bytes),
        config,
        disk,
        overlay: Arc::new(found.overlay),
        queue: Queue::default(),
        progress: Progress::at(head),
        room: Notify::new(),
        _lock: lock,
    });
    let (sender, durable) = watch::channel(head);
    let looked = Looked {
        store: Store::new(shared, durable),
        incarnation: found.facts.incarnation.ok().flatten(),
        relay_epoch: found.facts.relay_epoch.ok().flatten().unwrap_or(0),
        refusal,
        torn_tail: found.tail.torn,
    };
    (sender, looked)
}
