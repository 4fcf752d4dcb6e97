//! A directory on which no relay runs, read as it lies: for verification, and to save what can be read from one that no
//! longer starts. Takes the directory's lock, and takes back what sled's own recovery changes in its files.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::committer::Shared;
use super::examine::{Examined, Found, examine, open_for_reading};
use super::pins::Pins;
use super::preflight::{self, Places, io_error};
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
        let Examined { found, kept, .. } = examine(&config, &places)?;
        let seen = found.and_then(|found| {
            let refusal = found.decide(mark, &config).err();
            let disk = open_for_reading(&config, &places)?;
            let (_durable, looked) = looked(config, disk, found, refusal, lock);
            Ok(see(&looked))
        });
        kept.put_back()?;
        seen
    }
}

fn looked(
    config: StoreConfig,
    disk: super::disk::Disk,
    found: Found,
    refusal: Option<OpenError>,
    lock: std::fs::File,
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
