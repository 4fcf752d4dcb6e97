//! Opening the store: preflight, examination of the directory, the decision to start, the entry
//! that counts the start, and the threads. Every step that can refuse comes before any
//! permanent change.

use std::fs::File;
use std::sync::Arc;
use std::thread;

use tokio::sync::{Notify, watch};

use super::journal::append_queue::{AppendQueue, QueuedAppend};
use super::journal::applier::RecordApplier;
use super::journal::commit_progress::CommitProgress;
use super::journal::committer::{JournalCommitter, StoreShared};
use super::journal::entry;
use super::journal::overlay::RawChange;
use super::journal::pin::JournalPins;
use super::journal::tail::{JournalTail, StartDecision};
use super::journal::watermark::{Watermark, WatermarkFile};
use super::journal::watermark_writer::WatermarkWriter;
use super::journal::writer::{Journal, StoreThreads};
use super::records::migration::{MigrationState, SchemaMigration};
use super::sled::database::write_failure;
use super::sled::directory_examination::{
    DirectoryExamination, DirectoryState, examine_directory, open_database,
};
use super::sled::file_backup::SledFileBackup;
use super::sled::panic_guard::catch_sled_panic;
use super::sled::store_paths;
use super::sled::store_paths::{StorePaths, io_error};
use super::{
    CommitSeq, MetaKey, OpenedStore, RecordKey, Store, StoreChange, StoreConfig, StoreFailure,
    StoreOpenError, StoreRecovery,
};

/// The locked directory, and what it contains besides sled's files.
struct LockedDirectory {
    paths: StorePaths,
    lock: File,
    mark: Option<Watermark>,
}

pub(super) fn open_store(config: StoreConfig) -> Result<OpenedStore, StoreOpenError> {
    let paths = StorePaths::in_dir(&config.dir);
    let lock = store_paths::lock(&paths)?;
    store_paths::remove_dir(&paths.copy_dir)?;
    let mark = WatermarkFile::peek(&paths.watermark).map_err(io_error("read", &paths.watermark))?;
    let directory = LockedDirectory { paths, lock, mark };
    let DirectoryExamination { found, backup } = examine_directory(&config, &directory.paths)?;
    let decided = found.and_then(|found| {
        let start = found.decide(directory.mark, &config)?;
        Ok((found, start))
    });
    let (found, start) = match decided {
        Ok(decided) => decided,
        Err(refusal) => {
            backup.restore_original()?;
            return Err(refusal);
        }
    };
    let mut recovery = StoreRecovery::default();
    recovery.record_tail(&found.tail, store_paths::blob_files(&directory.paths)?);
    recovery.accepted_loss = quarantine_loss(&backup, &start)?;
    recovery.quarantined = backup.discard()?;
    store_paths::remove_damage_marker(&directory.paths)?;
    let paths = directory.paths.clone();
    start_store(config, found, &start, directory, recovery).map_err(|error| match error {
        StoreOpenError::Fatal(fatal) if fatal.damaged => {
            store_paths::write_damage_marker(&paths, &fatal.message);
            StoreOpenError::DamagedPage
        }
        other => other,
    })
}

/// Describes the accepted loss and saves a copy of the old files in the quarantine.
fn quarantine_loss(
    backup: &SledFileBackup,
    start: &StartDecision,
) -> Result<Option<String>, StoreOpenError> {
    let Some(loss) = &start.loss else {
        return Ok(None);
    };
    let copy = backup.copy_to_quarantine(&format!("before-loss-{}", start.base))?;
    let copy = copy.map(|path| format!("; a copy of the previous files is in {}", path.display()));
    let text = format!("{loss}{}", copy.unwrap_or_default());
    tracing::error!(loss = %text, "starting although acknowledged changes are missing");
    Ok(Some(text))
}

/// Commits the start entry durably and starts the threads.
fn start_store(
    config: StoreConfig,
    found: DirectoryState,
    start: &StartDecision,
    directory: LockedDirectory,
    mut recovery: StoreRecovery,
) -> Result<OpenedStore, StoreOpenError> {
    let disk = open_database(&config, &directory.paths)?;
    store_paths::sync_names(&directory.paths)?;
    let shared = Arc::new(StoreShared {
        pins: JournalPins::new(config.max_pinned_bytes),
        config,
        disk,
        overlay: Arc::new(found.overlay),
        queue: AppendQueue::default(),
        progress: CommitProgress::starting_at(found.tail.head),
        room: Notify::new(),
        _directory_lock: directory.lock,
    });
    let applier = remove_crash_remains(&shared, found.applied, &found.tail, start)?;
    let (sender, durable) = watch::channel(start.base);
    let committer = JournalCommitter {
        shared: Arc::clone(&shared),
        durable: sender,
        relay_epoch: start.relay_epoch,
    };
    let migration = SchemaMigration::due(shared.config.schema, found.facts.migration);
    let last = commit_start_entry(&committer, start)?;
    let watermark = &directory.paths.watermark;
    let (file, _) = WatermarkFile::open(watermark).map_err(io_error("open", watermark))?;
    let mut watermark_writer = WatermarkWriter {
        shared: Arc::clone(&shared),
        file,
        incarnation: start.incarnation,
        written_seq: directory.mark.map_or(CommitSeq::default(), |mark| mark.seq),
    };
    watermark_writer.write_watermark(last)?;
    let threads = spawn_threads(committer, applier, watermark_writer)?;
    let store = Store::new(Arc::clone(&shared), durable);
    let inherited = !matches!(store.get(&RecordKey::Meta(MetaKey::Inherited)), Ok(None));
    let mut journal = Journal::new(shared, last, threads);
    recovery.migrated = migration
        .filter(|_| !start.fresh)
        .map(|migration| migration.run(&store, &mut journal))
        .transpose()?;
    Ok(OpenedStore {
        store,
        inherited,
        journal,
        incarnation: start.incarnation,
        relay_epoch: start.relay_epoch,
        fresh: start.fresh,
        recovery,
    })
}

/// Removes what a crash left in the journal: before the tail an unfinished truncation, after it
/// a torn entry.
fn remove_crash_remains(
    shared: &Arc<StoreShared>,
    applied: CommitSeq,
    tail: &JournalTail,
    start: &StartDecision,
) -> Result<RecordApplier, StoreFailure> {
    let tree = &shared.disk.journal;
    let removed = catch_sled_panic(|| {
        entry::remove(tree, CommitSeq(0), applied)?;
        entry::remove(tree, CommitSeq(tail.head.0 + 1), CommitSeq(u64::MAX))
    });
    removed.map_err(|error| write_failure(&error))?;
    let mut applier = RecordApplier {
        shared: Arc::clone(shared),
        applied,
        cut: applied,
    };
    if start.loss.is_some() {
        applier.apply_and_advance_to(tail.head, start)?;
    }
    Ok(applier)
}

/// Commits the first entry of this start. It is part of the journal, so that the watermark
/// covers the epoch too.
fn commit_start_entry(
    committer: &JournalCommitter,
    start: &StartDecision,
) -> Result<CommitSeq, StoreFailure> {
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
    // Must be in the first entry of the new history. Otherwise a crash before the caller has
    // acted on it would lose it.
    if start.loss.is_some() || committer.shared.config.inherited {
        facts.push((MetaKey::Inherited, vec![1]));
    }
    // A new directory has no older records.
    if start.fresh && schema > 1 {
        facts.push((MetaKey::Migration, MigrationState::done(schema).body()));
    }
    let changes: Vec<RawChange> = facts
        .into_iter()
        .map(|(key, body)| StoreChange::Put(RecordKey::Meta(key), body).into_raw())
        .collect();
    committer.shared.overlay.add(seq, &changes);
    let bytes = changes.iter().map(RawChange::cost).sum();
    committer.commit(
        &[QueuedAppend {
            seq,
            changes,
            bytes,
        }],
        seq,
    )?;
    committer.publish(seq);
    Ok(seq)
}

fn spawn_threads(
    committer: JournalCommitter,
    applier: RecordApplier,
    watermark_writer: WatermarkWriter,
) -> Result<StoreThreads, StoreFailure> {
    let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
        thread.map_err(|error| StoreFailure::new("thread start", &error))
    };
    Ok(StoreThreads {
        committer: start("store-committer", Box::new(|| committer.run()))?,
        applier: start("store-applier", Box::new(|| applier.run()))?,
        marker: start("store-marker", Box::new(|| watermark_writer.run()))?,
    })
}
