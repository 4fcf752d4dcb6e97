//! Examines a directory before anything is decided. For a start, sled opens its own files
//! without its cleaning thread, so that the only writes are those of its recovery, which
//! `file_backup.rs` can undo. A read-only caller gets a copy.

use std::fs::{self, File};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::database::{SledDatabase, damaged_error, open_failure};
use super::file_backup::SledFileBackup;
use super::log_format::{SledLog, SledSegmentHead, SledSnapshot};
use super::log_repair;
use super::log_repair::DamageHandling;
use super::recovery_survey::RecoverySurvey;
use super::store_paths;
use super::store_paths::{StorePaths, io_error};
use super::tree_walk::TreeWalk;
use crate::store::journal::entry::{JournalEntries, JournalError};
use crate::store::journal::overlay::Overlay;
use crate::store::journal::tail::{DirectoryFacts, JournalTail, StartDecision};
use crate::store::journal::watermark::Watermark;
use crate::store::records::migration::MigrationState;
use crate::store::records::schema::RecordSchema;
use crate::store::{
    CommitSeq, KeyRange, MetaKey, RecordKey, StoreConfig, StoreOpenError, UnreadableReason,
};

/// Attempts to open sled. Its threads may keep the file locked for a moment after the last
/// handle is dropped.
const SLED_LOCK_TRIES: u32 = 200;
/// Interval of sled's background thread, which also cleans its segments.
const FLUSH_EVERY_MS: u64 = 500;

/// What a directory contains.
#[derive(Debug)]
pub(crate) struct DirectoryState {
    /// The changes of the journal's tail, as reads will see them.
    pub(crate) overlay: Overlay,
    pub(crate) applied: CommitSeq,
    pub(crate) tail: JournalTail,
    pub(crate) facts: DirectoryFacts,
    /// Pages that sled cannot read and therefore not write: of the journal, and of the records
    /// if a write to one of them has failed before.
    pub(crate) damaged_pages: u64,
}

impl DirectoryState {
    /// How a start on this directory continues, or why it is refused.
    pub(crate) fn decide(
        &self,
        mark: Option<Watermark>,
        config: &StoreConfig,
    ) -> Result<StartDecision, StoreOpenError> {
        if self.damaged_pages > 0 {
            return Err(StoreOpenError::DamagedPage);
        }
        self.facts.decide(&self.tail, mark, config)
    }
}

/// The result of the examination, and the backup to undo what sled wrote meanwhile.
#[derive(Debug)]
pub(crate) struct DirectoryExamination {
    pub(crate) found: Result<DirectoryState, StoreOpenError>,
    pub(crate) backup: SledFileBackup,
}

pub(crate) fn examine_directory(
    config: &StoreConfig,
    paths: &StorePaths,
) -> Result<DirectoryExamination, StoreOpenError> {
    store_paths::drop_unfinished_conf(paths)?;
    let mut backup = SledFileBackup::make(paths)?;
    let prepared = prepare(paths, &mut backup);
    let found = prepared.and_then(|()| catch_open_panic(paths, || read_state(config, paths)));
    Ok(DirectoryExamination { found, backup })
}

/// Examines a copy, which sled may change freely. Returns its state and the damage found.
pub(crate) fn examine_copy(
    config: &StoreConfig,
    copy: &StorePaths,
    handling: DamageHandling,
) -> Result<(DirectoryState, Option<StoreOpenError>), StoreOpenError> {
    let broken = store_paths::broken_snapshots(&copy.sled)?;
    for path in &broken {
        fs::remove_file(path).map_err(io_error("remove", path))?;
    }
    let (log, survey) = survey_log(copy)?;
    let damage = survey_damage(copy, &survey);
    let (db, repair_error) = (copy.db_file(), |error| {
        io_error("repair", &copy.db_file())(error)
    });
    let patched =
        log_repair::patch_damage(&db, &log, &survey.damage, handling).map_err(repair_error)?;
    close_log_gap(copy, !broken.is_empty())?;
    if !patched.is_empty() {
        // Recovers the log and records the position of each page.
        drop(catch_open_panic(copy, || {
            open_database_with(config, copy, None)
        })?);
        log_repair::restore_checksums(&db, &patched).map_err(repair_error)?;
    }
    let found = catch_open_panic(copy, || read_state(config, copy))?;
    Ok((found, damage))
}

/// Checks that sled will read all of its log, and copies what sled may overwrite, before
/// anything is changed.
fn prepare(paths: &StorePaths, backup: &mut SledFileBackup) -> Result<(), StoreOpenError> {
    if !paths.db_file().exists() {
        return Ok(());
    }
    let (log, survey) = survey_log(paths)?;
    if let Some(damage) = survey_damage(paths, &survey) {
        return Err(damage);
    }
    backup.copy(&log, &survey);
    close_log_gap(paths, backup.has_broken()?)
}

fn survey_log(paths: &StorePaths) -> Result<(SledLog, RecoverySurvey), StoreOpenError> {
    let snapshot = match store_paths::newest_snapshot(&paths.sled)? {
        Some(path) => SledSnapshot::read(&path).map_err(io_error("read", &path))?,
        None => None,
    };
    let db = paths.db_file();
    let log = SledLog::open(&db).map_err(io_error("read", &db))?;
    let survey = RecoverySurvey::of(&log, snapshot.as_ref()).map_err(io_error("read", &db))?;
    Ok((log, survey))
}

fn survey_damage(paths: &StorePaths, survey: &RecoverySurvey) -> Option<StoreOpenError> {
    let damaged_places = survey.damage.len();
    (damaged_places > 0).then(|| {
        let reason = format!("its log cannot be read in {damaged_places} places");
        damaged_error(&paths.dir, reason)
    })
}

/// Repairs the gap that sled leaves in a log without a snapshot. If the snapshot was broken,
/// the log must be complete.
fn close_log_gap(paths: &StorePaths, was_broken: bool) -> Result<(), StoreOpenError> {
    if store_paths::newest_snapshot(&paths.sled)?.is_some() {
        return Ok(());
    }
    let db = paths.db_file();
    let log = SledLog::open(&db).map_err(io_error("read", &db))?;
    if was_broken && log.heads.contains(&SledSegmentHead::Damaged) {
        let reason = "its snapshot and a part of its log are damaged";
        return Err(damaged_error(&paths.dir, reason));
    }
    log_repair::write_bridge_segment(&db, &log).map_err(io_error("repair", &db))
}

/// Turns a panic of sled over damage into an error.
fn catch_open_panic<T>(
    paths: &StorePaths,
    step: impl FnOnce() -> Result<T, StoreOpenError>,
) -> Result<T, StoreOpenError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(damaged_error(
            &paths.dir,
            text.unwrap_or_else(|| "sled panicked".to_owned()),
        ))
    })
}

fn read_state(config: &StoreConfig, paths: &StorePaths) -> Result<DirectoryState, StoreOpenError> {
    let broken = |error: sled::Error| damaged_error(&paths.dir, error);
    let disk = open_database_with(config, paths, None)?;
    let overlay = Overlay::default();
    let stored = read_meta_number(&overlay, &disk, MetaKey::Applied).map_err(broken)?;
    let (tail, mut damaged_pages) = read_journal(&disk, config.schema, paths, stored)?;
    if paths.damage_marker.exists() {
        damaged_pages += count_damaged_record_pages(&disk).map_err(broken)?;
    }
    for entry in &tail.entries {
        overlay.add(entry.last, &entry.changes);
    }
    let facts = DirectoryFacts {
        applied: stored,
        schema: read_meta_number(&overlay, &disk, MetaKey::Schema).map_err(broken)?,
        incarnation: read_incarnation(&overlay, &disk).map_err(broken)?,
        relay_epoch: read_meta_number(&overlay, &disk, MetaKey::RelayEpoch).map_err(broken)?,
        migration: read_migration_state(&overlay, &disk).map_err(broken)?,
    };
    Ok(DirectoryState {
        overlay,
        applied: tail.applied,
        tail,
        facts,
        damaged_pages,
    })
}

fn read_journal(
    disk: &SledDatabase,
    schema: RecordSchema,
    paths: &StorePaths,
    applied: MetaFact<u64>,
) -> Result<(JournalTail, u64), StoreOpenError> {
    let failed = |error| match error {
        JournalError::Sled(error) => damaged_error(&paths.dir, error),
        JournalError::NewerSchema(found) => StoreOpenError::NewerSchema {
            found,
            known: schema.number(),
        },
        JournalError::Step(from) => StoreOpenError::Unmigratable {
            from,
            known: schema.number(),
        },
    };
    let mut entries = JournalEntries::all(&disk.journal, schema);
    let mut entry = entries.next().map_err(failed)?;
    // An unreadable `Applied` record is a loss. If that is accepted, the journal is read from
    // its beginning.
    let lowest = entry
        .as_ref()
        .map_or(0, |entry| entry.first.0.saturating_sub(1));
    let mut tail =
        JournalTail::after_applied(CommitSeq(applied.unwrap_or(Some(lowest)).unwrap_or(0)));
    while let Some(found) = entry {
        tail.add_found(found);
        entry = entries.next().map_err(failed)?;
    }
    Ok((tail, entries.damaged_pages))
}

/// Reads all records, which an ordinary start does not do.
fn count_damaged_record_pages(disk: &SledDatabase) -> sled::Result<u64> {
    let everything = KeyRange::everything();
    let bounds = (
        Bound::Included(everything.start),
        Bound::Excluded(everything.end),
    );
    let mut walk = TreeWalk::new(&disk.records.tree, bounds, false);
    let mut pages = 0;
    while let Some(item) = walk.next()? {
        pages += u64::from(item.is_err());
    }
    Ok(pages)
}

/// Opens the database for use, with its cleaning thread.
pub(crate) fn open_database(
    config: &StoreConfig,
    paths: &StorePaths,
) -> Result<SledDatabase, StoreOpenError> {
    catch_open_panic(paths, || {
        open_database_with(config, paths, Some(FLUSH_EVERY_MS))
    })
}

/// Opens the database for reading only.
pub(crate) fn open_database_read_only(
    config: &StoreConfig,
    paths: &StorePaths,
) -> Result<SledDatabase, StoreOpenError> {
    catch_open_panic(paths, || open_database_with(config, paths, None))
}

fn open_database_with(
    config: &StoreConfig,
    paths: &StorePaths,
    flush_every_ms: Option<u64>,
) -> Result<SledDatabase, StoreOpenError> {
    let options = sled::Config::new()
        .path(&paths.sled)
        .cache_capacity(config.cache_bytes)
        .flush_every_ms(flush_every_ms);
    let db = open_sled(&options, paths)?;
    let file = File::open(paths.db_file()).map_err(io_error("open", &paths.db_file()))?;
    let disk = SledDatabase::new(db, file, config.schema, Arc::clone(&config.sync));
    disk.map_err(|error| open_failure(&paths.dir, &error))
}

fn open_sled(options: &sled::Config, paths: &StorePaths) -> Result<sled::Db, StoreOpenError> {
    for _ in 0..SLED_LOCK_TRIES {
        match options.open() {
            Err(sled::Error::Io(error)) if error.to_string().contains("acquire lock") => {
                store_paths::pause();
            }
            other => return other.map_err(|error| open_failure(&paths.dir, &error)),
        }
    }
    Err(StoreOpenError::Locked {
        dir: paths.dir.clone(),
    })
}

type MetaFact<T> = Result<Option<T>, UnreadableReason>;

fn read_meta(
    overlay: &Overlay,
    disk: &SledDatabase,
    key: MetaKey,
) -> sled::Result<MetaFact<Bytes>> {
    let key = RecordKey::Meta(key).encode();
    match overlay.get(&key) {
        Some(slot) => Ok(Ok(slot.body)),
        None => disk.records.get(&key),
    }
}

fn read_meta_number(
    overlay: &Overlay,
    disk: &SledDatabase,
    key: MetaKey,
) -> sled::Result<MetaFact<u64>> {
    Ok(read_meta(overlay, disk, key)?.and_then(|body| {
        let bytes =
            body.map(|body| <[u8; 8]>::try_from(&*body).map_err(|_| UnreadableReason::Short));
        Ok(bytes.transpose()?.map(u64::from_be_bytes))
    }))
}

/// `None` if the state cannot be read. The migration then starts from the beginning, which does
/// no harm.
fn read_migration_state(
    overlay: &Overlay,
    disk: &SledDatabase,
) -> sled::Result<Option<MigrationState>> {
    let body = read_meta(overlay, disk, MetaKey::Migration)?;
    Ok(body
        .ok()
        .flatten()
        .and_then(|body| MigrationState::read(&body)))
}

fn read_incarnation(overlay: &Overlay, disk: &SledDatabase) -> sled::Result<MetaFact<Uuid>> {
    Ok(
        read_meta(overlay, disk, MetaKey::Incarnation)?.and_then(|body| {
            body.map(|body| Uuid::from_slice(&body).map_err(|_| UnreadableReason::Short))
                .transpose()
        }),
    )
}
