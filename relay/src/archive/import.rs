//! Imports an export into a new directory with a new incarnation, completely or not at all.
//!
//! The file is read twice. The first pass checks everything, and a bad file changes nothing.
//! The second pass writes the data under a marker that prevents a relay from starting, until
//! the last byte is synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_core::config::Config;
use baton_core::ids::{Incarnation, RelayEpoch};
use baton_core::time::WallTime;
use uuid::Uuid;

use super::fault::ArchiveFault;
use super::import_directory;
use super::import_directory::{DATA_PARTS, IMPORTED, IMPORTING};
use super::item::{ArchiveHead, ArchiveItem, ArchiveTrailer};
use super::progress::{ArchiveProgress, ArchiveStage, PROGRESS_INTERVAL};
use super::reader::ArchiveReader;
use super::verification::{VerifiedArchive, VerifyError, VerifyEvent, VerifyWatcher, verify_file};
use crate::api::operator::tokens;
use crate::auth::bootstrap;
use crate::body_files::BodyFiles;
use crate::output::{OutputChunk, OutputConfig, OutputError, OutputLog, OutputPiece};
use crate::store::{
    FatalHook, OpenedStore, RecordKey, Store, StoreChange, StoreConfig, StoreOpenError,
};

/// Bytes of changes in one append.
const BATCH: usize = 512 * 1024;
/// Bytes read at a time.
const BLOCK: usize = 256 * 1024;

/// The result of an import.
#[derive(Clone, Debug)]
pub struct ImportSummary {
    pub head: ArchiveHead,
    pub trailer: ArchiveTrailer,
    pub tasks: u64,
    /// The incarnation of the new directory.
    pub incarnation: Uuid,
    /// How long a relay delays the imported open tasks.
    pub hold_ms: u64,
    /// Number of inconsistencies between the export's records; `baton verify FILE` lists them.
    pub findings: u64,
    /// What was already missing when the export was made.
    pub missing: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Check(#[from] VerifyError),
    #[error("the export changed while it was imported: {0}")]
    Changed(ArchiveFault),
    #[error("the export is incomplete: {missing}")]
    NotWhole { missing: String },
    #[error(
        "the directory {dir} is not empty; use a new one, or start a relay on it and import into that relay if it has no \
         tasks"
    )]
    NotEmpty { dir: PathBuf },
    #[error(
        "an import into {dir} was interrupted and its data is incomplete; run `baton import FILE --data DIR` again with the same \
         directory to start over, or remove the directory"
    )]
    Interrupted { dir: PathBuf },
    #[error("cannot {op} {path}: {source}")]
    Io {
        op: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("writing the import failed: {0}; free disk space, then run `baton import FILE` again")]
    Write(String),
}

pub(super) fn io_error(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImportError {
    let path = path.to_owned();
    move |source| ImportError::Io { op, path, source }
}

#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// Import although data was already missing when the export was made.
    pub accept_loss: bool,
    /// The wall clock.
    pub now_ms: u64,
}

/// Imports into a directory that does not exist, is empty, or contains an interrupted import.
/// Creates a local administrator's token there, because no token of the old relay may be
/// available.
pub fn import_file(
    file: &Path,
    data: &Path,
    options: ImportOptions,
    watch: VerifyWatcher<'_>,
) -> Result<ImportSummary, ImportError> {
    let now = WallTime(options.now_ms);
    check_directory_free(data)?;
    let checked = verify_file(file, watch)?;
    if let Some(missing) = checked.missing_data().filter(|_| !options.accept_loss) {
        return Err(ImportError::NotWhole { missing });
    }
    let mut staging = ImportStaging::begin(data, now)?;
    staging.import_all(file, &checked, watch)?;
    let admin = bootstrap::make_local_admin(data, now)
        .map_err(io_error("write", &data.join(bootstrap::ADMIN_TOKEN_FILE)))?;
    staging.add(tokens::token_change(&admin))?;
    let incarnation = staging.finish()?;
    Ok(import_summary(checked, incarnation))
}

pub(super) fn import_summary(checked: VerifiedArchive, incarnation: Uuid) -> ImportSummary {
    ImportSummary {
        missing: checked.missing_data(),
        head: checked.head,
        trailer: checked.trailer,
        tasks: checked.summary.tasks,
        findings: checked.summary.findings,
        incarnation,
        hold_ms: Config::new(Incarnation(incarnation), RelayEpoch(1)).longest_grant_ms(),
    }
}

/// An interrupted import may be repeated. Any other content may belong to somebody else.
fn check_directory_free(data: &Path) -> Result<(), ImportError> {
    if import_directory::interrupted_import(data).is_some() {
        return Ok(());
    }
    let mut entries = match fs::read_dir(data) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("list", data)(error)),
    };
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(ImportError::NotEmpty {
            dir: data.to_owned(),
        }),
    }
}

/// A directory that an import is filling.
pub(super) struct ImportStaging {
    dir: PathBuf,
    opened: OpenedStore,
    output: OutputLog,
    bodies: BodyFiles,
    /// Runs the output log's async calls, which wait for room; the log's writer has its own
    /// thread.
    runtime: tokio::runtime::Runtime,
    batch: Vec<StoreChange>,
    batch_bytes: usize,
    failure: Arc<Mutex<Option<String>>>,
}

impl ImportStaging {
    pub(super) fn begin(dir: &Path, now: WallTime) -> Result<Self, ImportError> {
        create_private_dir(dir).map_err(io_error("create", dir))?;
        write_import_marker(dir)?;
        for part in DATA_PARTS {
            let path = dir.join(part);
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove", &path)(error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        let failure = Arc::<Mutex<Option<String>>>::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        Ok(Self {
            opened: open_store(dir, &failure)?,
            output: open_output(dir, now, &failure)?,
            bodies: BodyFiles::open(dir.join("bodies"))
                .map_err(io_error("create", &dir.join("bodies")))?,
            runtime: runtime.map_err(io_error("start a runtime for", dir))?,
            dir: dir.to_owned(),
            batch: Vec::new(),
            batch_bytes: 0,
            failure,
        })
    }

    /// Imports every item of the file, which was verified before.
    pub(super) fn import_all(
        &mut self,
        file: &Path,
        checked: &VerifiedArchive,
        watch: VerifyWatcher<'_>,
    ) -> Result<(), ImportError> {
        let input = File::open(file).map_err(io_error("open", file))?;
        let total = input.metadata().map_err(io_error("read", file))?.len();
        let reader = ArchiveReader::open(BufReader::with_capacity(BLOCK, input));
        let mut reader = reader.map_err(ImportError::Changed)?;
        let (mut steps, mut records) = (0_u64, 0);
        while let Some(item) = reader.next_item().map_err(ImportError::Changed)? {
            records += u64::from(matches!(item, ArchiveItem::Put { .. }));
            self.import_item(item)?;
            steps += 1;
            let progress = ArchiveProgress {
                stage: ArchiveStage::Writing,
                records,
                bytes: reader.position(),
                total_bytes: Some(total),
            };
            if steps.is_multiple_of(PROGRESS_INTERVAL) && !watch(VerifyEvent::Progress(progress)) {
                return Err(VerifyError::WatcherStopped.into());
            }
        }
        self.flush()?;
        if reader.trailer() == Some(&checked.trailer) {
            return Ok(());
        }
        Err(ImportError::Changed(ArchiveFault {
            at: reader.position(),
            frame: 0,
            damage: super::ArchiveDamage::Inconsistent(
                "it differs from the file that was verified",
            ),
        }))
    }

    fn import_item(&mut self, item: ArchiveItem) -> Result<(), ImportError> {
        match item {
            ArchiveItem::Put { key, body } => self.add(StoreChange::Put(key, body.to_vec())),
            ArchiveItem::Delete(key) => self.add(StoreChange::Delete(key)),
            ArchiveItem::Body(body) => {
                let stored = self.bodies.store(&body);
                stored
                    .map(drop)
                    .map_err(io_error("write a long prompt to", &self.dir))
            }
            ArchiveItem::Output { attempt, piece } => self.append_output(attempt, piece),
            ArchiveItem::Sealed { attempt, .. } => {
                let sealed = self.runtime.block_on(self.output.seal(attempt));
                sealed.map_err(|error| self.failed(&error))
            }
        }
    }

    fn append_output(&self, attempt: Uuid, piece: OutputPiece) -> Result<(), ImportError> {
        let appended = match piece {
            OutputPiece::Bytes {
                offset,
                observed_at_ms,
                after_control_seq,
                kind,
                bytes,
            } => {
                let chunk = OutputChunk {
                    attempt,
                    offset,
                    after_control_seq,
                    kind,
                    observed_at_ms,
                    bytes,
                };
                self.runtime.block_on(self.output.append(chunk))
            }
            OutputPiece::Cut { from, to, reason } => self
                .runtime
                .block_on(self.output.append_cut(attempt, from, to, reason)),
        };
        appended.map(drop).map_err(|error| self.failed(&error))
    }

    /// Whether the import contains this record.
    pub(super) fn has(&self, key: &RecordKey) -> bool {
        !matches!(self.opened.store.get(key), Ok(None))
    }

    /// Adds one change. It is durable at the latest when the import has finished.
    pub(super) fn add(&mut self, change: StoreChange) -> Result<(), ImportError> {
        let size = change.size();
        if self.batch_bytes + size > BATCH {
            self.flush()?;
        }
        self.batch_bytes += size;
        self.batch.push(change);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        let appended = self.opened.journal.append(batch);
        appended.map(drop).map_err(|error| self.failed(&error))
    }

    /// Makes everything durable and closes it. From here on a relay may start on the directory.
    pub(super) fn finish(mut self) -> Result<Uuid, ImportError> {
        self.flush()?;
        let incarnation = self.opened.incarnation;
        self.runtime.block_on(self.output.close());
        let OpenedStore { journal, store, .. } = self.opened;
        let closed = journal.close();
        drop(store);
        let failure = self
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(failure) = failure {
            return Err(ImportError::Write(failure));
        }
        closed.map_err(|error| ImportError::Write(error.to_string()))?;
        finish_import_marker(&self.dir, incarnation)?;
        Ok(incarnation)
    }

    /// The error, or the reason that a background thread recorded.
    fn failed(&self, error: &dyn std::fmt::Display) -> ImportError {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        ImportError::Write(failure.clone().unwrap_or_else(|| error.to_string()))
    }
}

fn open_store(
    dir: &Path,
    failure: &Arc<Mutex<Option<String>>>,
) -> Result<OpenedStore, StoreOpenError> {
    let recorder = Arc::clone(failure);
    let mut config = StoreConfig::new(dir.join("store"), Uuid::now_v7());
    config.inherited = true;
    config.on_fatal = FatalHook::new(move |fatal| record_failure(&recorder, fatal));
    Store::open(config)
}

/// Opens the output log without limits, so that the import cuts and drops nothing.
fn open_output(
    dir: &Path,
    now: WallTime,
    failure: &Arc<Mutex<Option<String>>>,
) -> Result<OutputLog, OutputError> {
    let recorder = Arc::clone(failure);
    let mut config = OutputConfig::new(dir.join("output"));
    config.attempt_bytes_max = u64::MAX;
    config.retention_bytes = u64::MAX;
    config.retention_age = Duration::MAX;
    let abort = Arc::new(move |error: &io::Error| record_failure(&recorder, error));
    OutputLog::open(config, now.0, abort).map(|(log, _)| log)
}

fn record_failure(failure: &Mutex<Option<String>>, what: &dyn std::fmt::Display) {
    let mut recorded = failure.lock().unwrap_or_else(PoisonError::into_inner);
    recorded.get_or_insert_with(|| what.to_string());
}

pub(super) fn create_private_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    let parent = dir.canonicalize()?;
    parent.parent().map_or(Ok(()), |parent| {
        File::open(parent).and_then(|parent| parent.sync_all())
    })
}

/// Writes the marker before anything else, so that a crash at any point leaves it in the
/// directory.
fn write_import_marker(dir: &Path) -> Result<(), ImportError> {
    let path = dir.join(IMPORTING);
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path);
    file.and_then(|mut file| {
        file.write_all(b"an import has not finished here; `baton import FILE` starts it over\n")?;
        file.sync_all()
    })
    .map_err(io_error("write", &path))?;
    import_directory::sync(dir)
}

/// Writes the incarnation into the marker and renames it, which completes the import.
fn finish_import_marker(dir: &Path, incarnation: Uuid) -> Result<(), ImportError> {
    let (importing, imported) = (dir.join(IMPORTING), dir.join(IMPORTED));
    import_directory::sync(dir)?;
    let written = fs::write(&importing, format!("{incarnation}\n"))
        .and_then(|()| File::open(&importing)?.sync_all());
    written.map_err(io_error("write", &importing))?;
    fs::rename(&importing, &imported).map_err(io_error("rename", &importing))?;
    import_directory::sync(dir)
}
