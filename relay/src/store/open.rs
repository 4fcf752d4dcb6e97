//! Opening: preflight, sled, the decision to start, the entry that counts the start, and the threads. Each step that
//! can be refused comes before anything is changed for good.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::apply::Applier;
use super::committer::{Committer, Shared};
use super::config::SCHEMA;
use super::disk::{Disk, damaged, write_failed};
use super::journal::{self, JournalError};
use super::keep::Kept;
use super::marker::Marker;
use super::overlay::Overlay;
use super::preflight::{self, Places, io_error};
use super::progress::Progress;
use super::queue::{Append, Queue};
use super::recover::{Facts, Start, Tail};
use super::watermark::{Mark, WatermarkFile};
use super::writer::{Journal, Threads};
use super::{
    Change, CommitSeq, Fatal, Key, MetaKey, OpenError, Opened, Recovery, Store, StoreConfig,
    Unreadable,
};

/// sled's threads may hold its file for a moment after the last handle is gone.
const SLED_LOCK_TRIES: u32 = 200;

/// A database that sled opened, and what is in it.
struct Examined {
    disk: Disk,
    overlay: Overlay,
    applied: CommitSeq,
    tail: Tail,
    facts: Facts,
}

pub(super) fn open(config: StoreConfig) -> Result<Opened, OpenError> {
    let places = Places::under(&config.dir);
    let lock = preflight::lock(&places)?;
    let opened = WatermarkFile::open(&places.watermark);
    let (watermark, mark) = opened.map_err(io_error("open", &places.watermark))?;
    let quarantined = preflight::quarantine_broken_snapshots(&places)?;
    let mut recovery = Recovery {
        quarantined,
        ..Recovery::default()
    };
    let kept = Kept::make(&places)?;
    let decided = examine(&config, &places, &kept, &mut recovery).and_then(|examined| {
        let start = examined.facts.decide(&examined.tail, mark, &config)?;
        Ok((examined, start))
    });
    match decided {
        Err(refusal) => {
            kept.put_back()?;
            Err(refusal)
        }
        Ok((examined, start)) => {
            recovery.note(&examined.tail, preflight::blob_files(&places)?);
            settle_copy(kept, &start, &mut recovery)?;
            preflight::sync_names(&places)?;
            begin(config, examined, &start, (watermark, mark), lock, recovery)
        }
    }
}

fn settle_copy(kept: Kept, start: &Start, recovery: &mut Recovery) -> Result<(), OpenError> {
    let Some(loss) = &start.loss else {
        return kept.discard();
    };
    let copy = kept.file_away(&format!("before-loss-{}", start.base))?;
    let copy = copy.map(|path| format!("; what there was is in {}", path.display()));
    let text = format!("{loss}{}", copy.unwrap_or_default());
    tracing::error!(loss = %text, "starting although acknowledged changes are missing");
    recovery.accepted_loss = Some(text);
    Ok(())
}

fn examine(
    config: &StoreConfig,
    places: &Places,
    kept: &Kept,
    recovery: &mut Recovery,
) -> Result<Examined, OpenError> {
    let first = guarded(places, || read(config, places));
    if !matches!(first, Err(OpenError::Damaged { .. })) {
        return first;
    }
    // The damage may be in the snapshot alone, and the log whole.
    kept.copy_back()?;
    let moved = preflight::quarantine_all_snapshots(places)?;
    if moved.is_empty() {
        return first;
    }
    recovery.quarantined.extend(moved);
    guarded(places, || read(config, places))
}

/// sled panics over some damage; here that is an error like any other.
fn guarded<T>(
    places: &Places,
    step: impl FnOnce() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(damaged(
            &places.sled,
            text.unwrap_or_else(|| "sled panicked".to_owned()),
        ))
    })
}

fn read(config: &StoreConfig, places: &Places) -> Result<Examined, OpenError> {
    let broken = |error: sled::Error| damaged(&places.sled, error);
    let db = open_sled(config, places)?;
    let file = File::open(places.db_file()).map_err(io_error("open", &places.db_file()))?;
    let disk = Disk::new(db, file, Arc::clone(&config.sync)).map_err(broken)?;
    let met = journal::read_all(&disk.journal).map_err(|error| match error {
        JournalError::Sled(error) => broken(error),
        JournalError::NewerSchema(found) => OpenError::NewerSchema {
            found,
            known: SCHEMA,
        },
    })?;
    let overlay = Overlay::default();
    let stored = number(&overlay, &disk, MetaKey::Applied).map_err(broken)?;
    // Only after an accepted loss is a journal read whose beginning is not known from the record.
    let lowest = met.first().map_or(0, |met| met.first.0.saturating_sub(1));
    let applied = CommitSeq(stored.unwrap_or(Some(lowest)).unwrap_or(0));
    let tail = Tail::sort(applied, met);
    for entry in &tail.entries {
        overlay.add(entry.last, &entry.changes);
    }
    let facts = Facts {
        applied: stored,
        schema: number(&overlay, &disk, MetaKey::Schema).map_err(broken)?,
        incarnation: identity(&overlay, &disk).map_err(broken)?,
        relay_epoch: number(&overlay, &disk, MetaKey::RelayEpoch).map_err(broken)?,
    };
    Ok(Examined {
        disk,
        overlay,
        applied,
        tail,
        facts,
    })
}

fn open_sled(config: &StoreConfig, places: &Places) -> Result<sled::Db, OpenError> {
    let options = sled::Config::new()
        .path(&places.sled)
        .cache_capacity(config.cache_bytes)
        // Segments are cleaned only in the thread that this starts.
        .flush_every_ms(Some(500));
    for _ in 0..SLED_LOCK_TRIES {
        match options.open() {
            Err(sled::Error::Io(error)) if error.to_string().contains("acquire lock") => {
                preflight::pause();
            }
            other => return other.map_err(|error| damaged(&places.sled, error)),
        }
    }
    Err(OpenError::Locked {
        dir: places.dir.clone(),
    })
}

type Fact<T> = Result<Option<T>, Unreadable>;

fn meta(overlay: &Overlay, disk: &Disk, key: MetaKey) -> sled::Result<Fact<bytes::Bytes>> {
    let key = Key::Meta(key).encode();
    match overlay.get(&key) {
        Some(slot) => Ok(Ok(slot.body)),
        None => disk.records.get(&key),
    }
}

fn number(overlay: &Overlay, disk: &Disk, key: MetaKey) -> sled::Result<Fact<u64>> {
    Ok(meta(overlay, disk, key)?.and_then(|body| {
        let bytes = body.map(|body| <[u8; 8]>::try_from(&*body).map_err(|_| Unreadable::Short));
        Ok(bytes.transpose()?.map(u64::from_be_bytes))
    }))
}

fn identity(overlay: &Overlay, disk: &Disk) -> sled::Result<Fact<Uuid>> {
    Ok(meta(overlay, disk, MetaKey::Incarnation)?.and_then(|body| {
        body.map(|body| Uuid::from_slice(&body).map_err(|_| Unreadable::Short))
            .transpose()
    }))
}

/// Counts the start, durably, and lets the threads go.
fn begin(
    config: StoreConfig,
    examined: Examined,
    start: &Start,
    (watermark, mark): (WatermarkFile, Option<Mark>),
    lock: File,
    recovery: Recovery,
) -> Result<Opened, OpenError> {
    let Examined {
        disk,
        overlay,
        applied,
        tail,
        ..
    } = examined;
    let shared = Arc::new(Shared {
        config,
        disk,
        overlay: Arc::new(overlay),
        queue: Queue::default(),
        progress: Progress::at(tail.head),
        room: Notify::new(),
        _lock: lock,
    });
    let mut applier = Applier {
        shared: Arc::clone(&shared),
        applied,
    };
    drop_leftovers(&applier, &tail).map_err(|error| write_failed(&error))?;
    if start.loss.is_some() {
        applier.jump(tail.head, start)?;
    }
    let (sender, durable) = watch::channel(start.base);
    let committer = Committer {
        shared: Arc::clone(&shared),
        durable: sender,
        relay_epoch: start.relay_epoch,
    };
    let last = count_start(&committer, start)?;
    let marked = mark.map_or(CommitSeq::default(), |mark| mark.seq);
    let mut marker = Marker {
        shared: Arc::clone(&shared),
        file: watermark,
        incarnation: start.incarnation,
        marked,
    };
    marker.mark(last)?;
    let threads = spawn(committer, applier, marker)?;
    let store = Store::new(Arc::clone(&shared), durable);
    Ok(Opened {
        store,
        journal: Journal::new(shared, last, threads),
        incarnation: start.incarnation,
        relay_epoch: start.relay_epoch,
        fresh: start.fresh,
        recovery,
    })
}

/// What a crash left before the tail (half a cut) and behind it (a torn entry).
fn drop_leftovers(applier: &Applier, tail: &Tail) -> sled::Result<()> {
    let tree = &applier.shared.disk.journal;
    journal::remove(tree, CommitSeq(0), applier.applied)?;
    journal::remove(tree, CommitSeq(tail.head.0 + 1), CommitSeq(u64::MAX))
}

/// The first entry of this start. It rides in the journal, so that the watermark vouches for the epoch as well.
fn count_start(committer: &Committer, start: &Start) -> Result<CommitSeq, Fatal> {
    let seq = CommitSeq(start.base.0 + 1);
    let facts = [
        (MetaKey::Schema, u64::from(SCHEMA).to_be_bytes().to_vec()),
        (MetaKey::Incarnation, start.incarnation.as_bytes().to_vec()),
        (
            MetaKey::RelayEpoch,
            start.relay_epoch.to_be_bytes().to_vec(),
        ),
    ];
    let changes = facts
        .map(|(key, body)| Change::Put(Key::Meta(key), body).into_raw())
        .to_vec();
    committer.shared.overlay.add(seq, &changes);
    let bytes = changes.iter().map(super::overlay::RawChange::cost).sum();
    committer.commit(
        &[Append {
            seq,
            changes,
            bytes,
        }],
        seq,
    )?;
    committer.publish(seq);
    Ok(seq)
}

fn spawn(committer: Committer, applier: Applier, marker: Marker) -> Result<Threads, Fatal> {
    let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
        thread.map_err(|error| Fatal::new("thread start", &error))
    };
    Ok(Threads {
        committer: start("store-committer", Box::new(|| committer.run()))?,
        applier: start("store-applier", Box::new(|| applier.run()))?,
        marker: start("store-marker", Box::new(|| marker.run()))?,
    })
}
