//! Opening: preflight, a look at what is there, the decision to start, the entry that counts the start, and the threads.
//! Each step that can be refused comes before anything is changed for good.

use std::fs::File;
use std::sync::Arc;
use std::thread;

use tokio::sync::{Notify, watch};

use super::apply::Applier;
use super::careful::careful;
use super::committer::{Committer, Shared};
use super::disk::write_failed;
use super::examine::{Examined, Found, examine, open_for_good};
use super::journal;
use super::keep::Kept;
use super::marker::Marker;
use super::migrate::{Migration, Standing};
use super::overlay::RawChange;
use super::pins::Pins;
use super::preflight::{self, Places, io_error};
use super::progress::Progress;
use super::queue::{Append, Queue};
use super::recover::{Start, Tail};
use super::watermark::{Mark, WatermarkFile};
use super::writer::{Journal, Threads};
use super::{
    Change, CommitSeq, Fatal, Key, MetaKey, OpenError, Opened, Recovery, Store, StoreConfig,
};

/// What the directory has besides sled.
struct Beside {
    places: Places,
    lock: File,
    mark: Option<Mark>,
}

pub(super) fn open(config: StoreConfig) -> Result<Opened, OpenError> {
    let places = Places::under(&config.dir);
    let lock = preflight::lock(&places)?;
    preflight::remove_dir(&places.looking)?;
    let mark =
        WatermarkFile::peek(&places.watermark).map_err(io_error("read", &places.watermark))?;
    let beside = Beside { places, lock, mark };
    let Examined { found, kept } = examine(&config, &beside.places)?;
    let decided = found.and_then(|found| {
        let start = found.decide(beside.mark, &config)?;
        Ok((found, start))
    });
    let (found, start) = match decided {
        Ok(decided) => decided,
        Err(refusal) => {
            kept.put_back()?;
            return Err(refusal);
        }
    };
    let mut recovery = Recovery::default();
    recovery.note(&found.tail, preflight::blob_files(&beside.places)?);
    recovery.accepted_loss = file_away(&kept, &start)?;
    recovery.quarantined = kept.discard()?;
    preflight::forget_damage(&beside.places)?;
    let places = beside.places.clone();
    begin(config, found, &start, beside, recovery).map_err(|error| match error {
        OpenError::Fatal(fatal) if fatal.damaged => {
            preflight::note_damage(&places, &fatal.message);
            OpenError::DamagedPage
        }
        other => other,
    })
}

/// What the accepted loss is, and where a copy of what there was is now.
fn file_away(kept: &Kept, start: &Start) -> Result<Option<String>, OpenError> {
    let Some(loss) = &start.loss else {
        return Ok(None);
    };
    let copy = kept.file_away(&format!("before-loss-{}", start.base))?;
    let copy = copy.map(|path| format!("; what there was is in {}", path.display()));
    let text = format!("{loss}{}", copy.unwrap_or_default());
    tracing::error!(loss = %text, "starting although acknowledged changes are missing");
    Ok(Some(text))
}

/// Counts the start, durably, and lets the threads go.
fn begin(
    config: StoreConfig,
    found: Found,
    start: &Start,
    beside: Beside,
    mut recovery: Recovery,
) -> Result<Opened, OpenError> {
    let disk = open_for_good(&config, &beside.places)?;
    preflight::sync_names(&beside.places)?;
    let shared = Arc::new(Shared {
        pins: Pins::new(config.told_bytes),
        config,
        disk,
        overlay: Arc::new(found.overlay),
        queue: Queue::default(),
        progress: Progress::at(found.tail.head),
        room: Notify::new(),
        _lock: beside.lock,
    });
    let applier = take_over(&shared, found.applied, &found.tail, start)?;
    let (sender, durable) = watch::channel(start.base);
    let committer = Committer {
        shared: Arc::clone(&shared),
        durable: sender,
        relay_epoch: start.relay_epoch,
    };
    let migration = Migration::due(shared.config.schema, found.facts.stands);
    let last = count_start(&committer, start)?;
    let watermark = &beside.places.watermark;
    let (file, _) = WatermarkFile::open(watermark).map_err(io_error("open", watermark))?;
    let mut marker = Marker {
        shared: Arc::clone(&shared),
        file,
        incarnation: start.incarnation,
        marked: beside.mark.map_or(CommitSeq::default(), |mark| mark.seq),
    };
    marker.mark(last)?;
    let threads = spawn(committer, applier, marker)?;
    let store = Store::new(Arc::clone(&shared), durable);
    let inherited = !matches!(store.get(&Key::Meta(MetaKey::Inherited)), Ok(None));
    let mut journal = Journal::new(shared, last, threads);
    recovery.migrated = migration
        .filter(|_| !start.fresh)
        .map(|migration| migration.run(&store, &mut journal))
        .transpose()?;
    Ok(Opened {
        store,
        inherited,
        journal,
        incarnation: start.incarnation,
        relay_epoch: start.relay_epoch,
        fresh: start.fresh,
        recovery,
    })
}

/// Takes away what a crash left before the tail (half a cut) and behind it (a torn entry).
fn take_over(
    shared: &Arc<Shared>,
    applied: CommitSeq,
    tail: &Tail,
    start: &Start,
) -> Result<Applier, Fatal> {
    let tree = &shared.disk.journal;
    let removed = careful(|| {
        journal::remove(tree, CommitSeq(0), applied)?;
        journal::remove(tree, CommitSeq(tail.head.0 + 1), CommitSeq(u64::MAX))
    });
    removed.map_err(|error| write_failed(&error))?;
    let mut applier = Applier {
        shared: Arc::clone(shared),
        applied,
        cut: applied,
    };
    if start.loss.is_some() {
        applier.jump(tail.head, start)?;
    }
    Ok(applier)
}

/// The first entry of this start. It rides in the journal, so that the watermark vouches for the epoch as well.
fn count_start(committer: &Committer, start: &Start) -> Result<CommitSeq, Fatal> {
    let seq = CommitSeq(start.base.0 + 1);
    let schema = committer.shared.config.schema.number();
    let mut facts = vec![
        (MetaKey::Schema, u64::from(schema).to_be_bytes().to_vec()),
        (MetaKey::Incarnation, start.incarnation.as_bytes().to_vec()),
        (
            MetaKey::RelayEpoch,
            start.relay_epoch.to_be_bytes().to_vec(),
        ),
    ];
    // With the first entry of the new history, or a crash before the caller's conclusions would lose the fact.
    if start.loss.is_some() || committer.shared.config.inherited {
        facts.push((MetaKey::Inherited, vec![1]));
    }
    // Nothing in a new directory is older.
    if start.fresh && schema > 1 {
        facts.push((MetaKey::Migration, Standing::done(schema).body()));
    }
    let changes: Vec<RawChange> = facts
        .into_iter()
        .map(|(key, body)| Change::Put(Key::Meta(key), body).into_raw())
        .collect();
    committer.shared.overlay.add(seq, &changes);
    let bytes = changes.iter().map(RawChange::cost).sum();
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
