//! The relay's durable memory: keys and opaque bodies in one sled database, behind a journal. It knows nothing of tasks.
//!
//! A change is visible to reads from its [`Journal::append`] on, and durable when [`Store::durable`] reaches the number
//! that the append returned. Nothing may leave the relay that depends on a change which is not durable.

#![expect(dead_code, reason = "the disk half is being moved in")]

mod config;
mod error;
mod key;
mod overlay;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

pub use config::{FatalHook, MAX_ENTRY, StoreConfig};
pub use error::{AppendError, Fatal, OpenError, ReadError, Stopped, Unreadable};
pub use key::{BadKeyText, Key, KeyRange, KeyText, Kind, MAX_TEXT, MetaKey};

use overlay::{Overlay, RawChange};

/// The number of an append. Numbers rise by one and are never given twice in one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitSeq(u64);

impl CommitSeq {
    pub fn get(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for CommitSeq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(Key, Vec<u8>),
    Delete(Key),
}

/// A store that is open, with what was found in its directory.
#[derive(Debug)]
pub struct Opened {
    pub store: Store,
    pub journal: Journal,
    /// The identity of this history.
    pub incarnation: Uuid,
    /// Counts the starts; higher at every open, and durable already.
    pub relay_epoch: u64,
    /// The directory was empty.
    pub fresh: bool,
    pub recovery: Recovery,
}

/// What opening found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Journal entries whose changes were not yet in their records.
    pub journal_entries: u64,
    /// Changes in those entries.
    pub changes: u64,
    /// A last entry that was cut short by a crash, and so never acknowledged, was dropped.
    pub torn_tail: bool,
    /// Half-written snapshot files that were moved to `quarantine/`.
    pub quarantined: Vec<PathBuf>,
    /// Files in sled's `blobs/`; always 0, since no value is large enough to make one.
    pub blob_files: u64,
    /// Set when acknowledged changes are missing and that was accepted.
    pub accepted_loss: Option<String>,
}

/// The reading half: cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct Store {
    overlay: Arc<Overlay>,
    durable: watch::Receiver<CommitSeq>,
}

/// The writing half. There is one, and its owner decides the order of all changes.
#[derive(Debug)]
pub struct Journal {
    overlay: Arc<Overlay>,
    durable: watch::Sender<CommitSeq>,
    last: CommitSeq,
}

/// One page of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    pub entries: Vec<(Key, Bytes)>,
    /// Records in this page's range that could not be read, and were passed over.
    pub unreadable: u64,
    /// There are more records behind the last one.
    pub more: bool,
}

/// Which part of a range to read.
#[derive(Clone, Debug)]
pub struct Page {
    /// Start behind this key (in scan order). It need not exist.
    pub after: Option<Key>,
    pub limit: usize,
    pub reverse: bool,
}

impl Page {
    pub fn first(limit: usize) -> Self {
        Self {
            after: None,
            limit,
            reverse: false,
        }
    }
}

impl Store {
    /// Blocks for as long as recovery takes; call it before serving.
    pub fn open(config: StoreConfig) -> Result<Opened, OpenError> {
        let overlay = Arc::new(Overlay::default());
        let (durable, receiver) = watch::channel(CommitSeq::default());
        Ok(Opened {
            store: Self {
                overlay: Arc::clone(&overlay),
                durable: receiver,
            },
            journal: Journal {
                overlay,
                durable,
                last: CommitSeq::default(),
            },
            incarnation: config.new_incarnation,
            relay_epoch: 1,
            fresh: true,
            recovery: Recovery::default(),
        })
    }

    /// The newest value, durable or not. May read the disk.
    pub fn get(&self, key: &Key) -> Result<Option<Bytes>, ReadError> {
        Ok(self.overlay.get(&key.encode()).and_then(|slot| slot.body))
    }

    /// One page of a range, newest values. Unreadable records are counted and passed over. May read the disk.
    pub fn scan(&self, _range: &KeyRange, _page: &Page) -> Result<Scan, ReadError> {
        Ok(Scan::default())
    }

    /// Every tenant that has a record, in order, without reading their records.
    pub fn tenants(&self) -> Result<Vec<KeyText>, ReadError> {
        Ok(Vec::new())
    }

    /// The newest append; reads see everything up to it.
    pub fn appended(&self) -> CommitSeq {
        self.durable()
    }

    /// Everything up to this number is durable.
    pub fn durable(&self) -> CommitSeq {
        *self.durable.borrow()
    }

    /// Follows [`Store::durable`]. The channel closes when the store stops.
    pub fn subscribe(&self) -> watch::Receiver<CommitSeq> {
        self.durable.clone()
    }

    /// Waits until `seq` is durable.
    pub async fn wait_durable(&self, seq: CommitSeq) -> Result<(), Stopped> {
        let mut durable = self.durable.clone();
        durable
            .wait_for(|durable| *durable >= seq)
            .await
            .map(|_| ())
            .map_err(|_| Stopped)
    }
}

impl Journal {
    /// Takes the changes as one atomic step: visible to reads at once, durable when the store says so. Does not touch the
    /// disk. Ask [`Journal::has_room`] before: without room this waits for the disk, on the calling thread.
    pub fn append(&mut self, changes: Vec<Change>) -> Result<CommitSeq, AppendError> {
        let raw: Vec<RawChange> = changes.into_iter().map(Change::into_raw).collect();
        self.last = CommitSeq(self.last.0 + 1);
        self.overlay.add(self.last, &raw);
        self.durable.send_replace(self.last);
        Ok(self.last)
    }

    /// The number of the last append.
    pub fn last(&self) -> CommitSeq {
        self.last
    }

    /// Whether an append will be taken without waiting.
    pub fn has_room(&self) -> bool {
        true
    }

    /// Waits until there is room.
    #[expect(clippy::unused_async, reason = "the first version never fills")]
    pub async fn room(&mut self) -> Result<(), Stopped> {
        Ok(())
    }

    /// Makes everything durable, writes it to its records and stops. Blocks.
    pub fn close(self) -> Result<(), Stopped> {
        Ok(())
    }
}

impl Change {
    /// Bytes that it adds to an append, about: callers use it to keep appends below [`MAX_ENTRY`].
    pub fn size(&self) -> usize {
        const OVERHEAD: usize = 200;
        match self {
            Self::Put(_, body) => body.len() + OVERHEAD,
            Self::Delete(_) => OVERHEAD,
        }
    }

    fn into_raw(self) -> RawChange {
        match self {
            Self::Put(key, body) => RawChange {
                key: key.encode().into(),
                body: Some(body.into()),
            },
            Self::Delete(key) => RawChange {
                key: key.encode().into(),
                body: None,
            },
        }
    }
}
