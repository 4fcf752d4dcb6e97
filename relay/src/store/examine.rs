//! Looks at what a directory holds before anything is decided. For a start sled is opened on its own files, without its
//! cleaning thread, so that the only writes are those of its recovery, which `keep.rs` can take back. Who only looks gets
//! a copy.

use std::fs::{self, File};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::disk::{Disk, damaged, not_opened};
use super::journal::{Entries, JournalError};
use super::keep::Kept;
use super::log::{Head, Log, Snapshot};
use super::mend::{self, Taken};
use super::migrate::Standing;
use super::overlay::Overlay;
use super::preflight::{self, Places, io_error};
use super::recover::{Facts, Start, Tail};
use super::schema::Schema;
use super::survey::Survey;
use super::walk::Walk;
use super::watermark::Mark;
use super::{CommitSeq, Key, KeyRange, MetaKey, OpenError, StoreConfig, Unreadable};

/// sled's threads may hold its file for a moment after the last handle is gone.
const SLED_LOCK_TRIES: u32 = 200;
/// sled cleans its segments only in the thread that this starts.
const FLUSH_EVERY_MS: u64 = 500;

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    /// The changes of the journal's tail, as reads will see them.
    pub(super) overlay: Overlay,
    pub(super) applied: CommitSeq,
    pub(super) tail: Tail,
    pub(super) facts: Facts,
    /// Pages of sled's that cannot be read, and so not be written: of the journal, and of the records if a write to one
    /// of them has failed before.
    pub(super) damaged_pages: u64,
}

impl Found {
    /// How a start on this would go on, or why it is refused.
    pub(super) fn decide(
        &self,
        mark: Option<Mark>,
        config: &StoreConfig,
    ) -> Result<Start, OpenError> {
        if self.damaged_pages > 0 {
            return Err(OpenError::DamagedPage);
        }
        self.facts.decide(&self.tail, mark, config)
    }
}

/// The look itself, and how to take back what sled did meanwhile.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) found: Result<Found, OpenError>,
    pub(super) kept: Kept,
}

pub(super) fn examine(config: &StoreConfig, places: &Places) -> Result<Examined, OpenError> {
    preflight::drop_unfinished_conf(places)?;
    let mut kept = Kept::make(places)?;
    let prepared = prepare(places, &mut kept);
    let found = prepared.and_then(|()| guarded(places, || look(config, places)));
    Ok(Examined { found, kept })
}

/// What there is to see on a copy, which is sled's to do with as it likes, and what of it cannot be read.
pub(super) fn examine_copy(
    config: &StoreConfig,
    copy: &Places,
    taken: Taken,
) -> Result<(Found, Option<OpenError>), OpenError> {
    let broken = preflight::broken_snapshots(&copy.sled)?;
    for path in &broken {
        fs::remove_file(path).map_err(io_error("remove", path))?;
    }
    let (log, survey) = survey(copy)?;
    let damage = damage(copy, &survey);
    let (db, mended) = (copy.db_file(), |error| {
        io_error("mend", &copy.db_file())(error)
    });
    let claimed = mend::pass_over(&db, &log, &survey.damage, taken).map_err(mended)?;
    close_gap(copy, !broken.is_empty())?;
    if !claimed.is_empty() {
        // Recovers, and notes where each page is.
        drop(guarded(copy, || open_disk(config, copy, None))?);
        mend::put_back(&db, &claimed).map_err(mended)?;
    }
    let found = guarded(copy, || look(config, copy))?;
    Ok((found, damage))
}

/// Nothing is changed before this has found out that sled will read all of its log, and has copied what sled may overwrite.
fn prepare(places: &Places, kept: &mut Kept) -> Result<(), OpenError> {
    if !places.db_file().exists() {
        return Ok(());
    }
    let (log, survey) = survey(places)?;
    if let Some(damage) = damage(places, &survey) {
        return Err(damage);
    }
    kept.copy(&log, &survey);
    close_gap(places, kept.has_broken()?)
}

fn survey(places: &Places) -> Result<(Log, Survey), OpenError> {
    let snapshot = match preflight::newest_snapshot(&places.sled)? {
        Some(path) => Snapshot::read(&path).map_err(io_error("read", &path))?,
        None => None,
    };
    let db = places.db_file();
    let log = Log::open(&db).map_err(io_error("read", &db))?;
    let survey = Survey::of(&log, snapshot.as_ref()).map_err(io_error("read", &db))?;
    Ok((log, survey))
}

fn damage(places: &Places, survey: &Survey) -> Option<OpenError> {
    let places_told = survey.damage.len();
    (places_told > 0).then(|| {
        let reason = format!("its log cannot be read in {places_told} places");
        damaged(&places.dir, reason)
    })
}

/// A log whose snapshot was broken must be whole by itself.
fn close_gap(places: &Places, was_broken: bool) -> Result<(), OpenError> {
    if preflight::newest_snapshot(&places.sled)?.is_some() {
        return Ok(());
    }
    let db = places.db_file();
    let log = Log::open(&db).map_err(io_error("read", &db))?;
    if was_broken && log.heads.contains(&Head::Damaged) {
        let reason = "its snapshot is damaged, and a part of its log";
        return Err(damaged(&places.dir, reason));
    }
    mend::close_gap(&db, &log).map_err(io_error("mend", &db))
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
            &places.dir,
            text.unwrap_or_else(|| "sled panicked".to_owned()),
        ))
    })
}

fn look(config: &StoreConfig, places: &Places) -> Result<Found, OpenError> {
    let broken = |error: sled::Error| damaged(&places.dir, error);
    let disk = open_disk(config, places, None)?;
    let overlay = Overlay::default();
    let stored = number(&overlay, &disk, MetaKey::Applied).map_err(broken)?;
    let (tail, mut damaged_pages) = read_journal(&disk, config.schema, places, stored)?;
    if places.damage_note.exists() {
        damaged_pages += damaged_record_pages(&disk).map_err(broken)?;
    }
    for entry in &tail.entries {
        overlay.add(entry.last, &entry.changes);
    }
    let facts = Facts {
        applied: stored,
        schema: number(&overlay, &disk, MetaKey::Schema).map_err(broken)?,
        incarnation: identity(&overlay, &disk).map_err(broken)?,
        relay_epoch: number(&overlay, &disk, MetaKey::RelayEpoch).map_err(broken)?,
        stands: standing(&overlay, &disk).map_err(broken)?,
    };
    Ok(Found {
        overlay,
        applied: tail.applied,
        tail,
        facts,
        damaged_pages,
    })
}

fn read_journal(
    disk: &Disk,
    schema: Schema,
    places: &Places,
    applied: Fact<u64>,
) -> Result<(Tail, u64), OpenError> {
    let failed = |error| match error {
        JournalError::Sled(error) => damaged(&places.dir, error),
        JournalError::NewerSchema(found) => OpenError::NewerSchema {
            found,
            known: schema.number(),
        },
        JournalError::Step(from) => OpenError::Unmigratable {
            from,
            known: schema.number(),
        },
    };
    let mut entries = Entries::all(&disk.journal, schema);
    let mut met = entries.next().map_err(failed)?;
    // An unreadable record is a loss; if that is accepted, the journal is taken from its beginning.
    let lowest = met.as_ref().map_or(0, |met| met.first.0.saturating_sub(1));
    let mut tail = Tail::after(CommitSeq(applied.unwrap_or(Some(lowest)).unwrap_or(0)));
    while let Some(one) = met {
        tail.meet(one);
        met = entries.next().map_err(failed)?;
    }
    Ok((tail, entries.damaged_pages))
}

/// Reads all records, which an ordinary start does not.
fn damaged_record_pages(disk: &Disk) -> sled::Result<u64> {
    let everything = KeyRange::everything();
    let bounds = (
        Bound::Included(everything.start),
        Bound::Excluded(everything.end),
    );
    let mut walk = Walk::new(&disk.records.tree, bounds, false);
    let mut pages = 0;
    while let Some(item) = walk.next()? {
        pages += u64::from(item.is_err());
    }
    Ok(pages)
}

/// The database for good, with its cleaning thread.
pub(super) fn open_for_good(config: &StoreConfig, places: &Places) -> Result<Disk, OpenError> {
    guarded(places, || open_disk(config, places, Some(FLUSH_EVERY_MS)))
}

/// The database for one who only reads.
pub(super) fn open_for_reading(config: &StoreConfig, places: &Places) -> Result<Disk, OpenError> {
    guarded(places, || open_disk(config, places, None))
}

fn open_disk(
    config: &StoreConfig,
    places: &Places,
    flush_every_ms: Option<u64>,
) -> Result<Disk, OpenError> {
    let options = sled::Config::new()
        .path(&places.sled)
        .cache_capacity(config.cache_bytes)
        .flush_every_ms(flush_every_ms);
    let db = open_sled(&options, places)?;
    let file = File::open(places.db_file()).map_err(io_error("open", &places.db_file()))?;
    let disk = Disk::new(db, file, config.schema, Arc::clone(&config.sync));
    disk.map_err(|error| not_opened(&places.dir, &error))
}

fn open_sled(options: &sled::Config, places: &Places) -> Result<sled::Db, OpenError> {
    for _ in 0..SLED_LOCK_TRIES {
        match options.open() {
            Err(sled::Error::Io(error)) if error.to_string().contains("acquire lock") => {
                preflight::pause();
            }
            other => return other.map_err(|error| not_opened(&places.dir, &error)),
        }
    }
    Err(OpenError::Locked {
        dir: places.dir.clone(),
    })
}

type Fact<T> = Result<Option<T>, Unreadable>;

fn meta(overlay: &Overlay, disk: &Disk, key: MetaKey) -> sled::Result<Fact<Bytes>> {
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

/// Nothing where it cannot be read: the way is then gone once more from its beginning, which changes nothing.
fn standing(overlay: &Overlay, disk: &Disk) -> sled::Result<Option<Standing>> {
    let body = meta(overlay, disk, MetaKey::Migration)?;
    Ok(body.ok().flatten().and_then(|body| Standing::read(&body)))
}

fn identity(overlay: &Overlay, disk: &Disk) -> sled::Result<Fact<Uuid>> {
    Ok(meta(overlay, disk, MetaKey::Incarnation)?.and_then(|body| {
        body.map(|body| Uuid::from_slice(&body).map_err(|_| Unreadable::Short))
            .transpose()
    }))
}
