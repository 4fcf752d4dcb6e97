//! Makes an export of a running relay, or of a directory without one.
//!
//! Records are written first, in the order of the store's dump; the journal is pinned only
//! during that time. Then follow the long prompts and the output that those records refer to.
//! Memory use is one frame, plus 16 bytes for each attempt with stored output and 48 for each
//! long prompt.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;

use uuid::Uuid;

use super::import_directory;
use super::item::{ArchiveHead, ArchiveItem, ArchiveTrailer, FORMAT};
use super::progress::{ArchiveProgress, ArchiveStage, PROGRESS_INTERVAL};
use super::record_checker::is_credential;
use super::record_references::{RecordReferences, record_references};
use super::writer::ArchiveWriter;
use crate::body_files::{BodyFiles, BodyHash};
use crate::output::{OutputError, OutputReadError, StoredOutput};
use crate::store::{
    self, DumpError, DumpItem, OfflineStore, RecordKey, SCHEMA, Store, StoreChange, StoreConfig,
    StoreOpenError,
};

/// Output bytes read at a time.
const BLOCK: usize = 256 * 1024;

/// The data that an export is made from.
#[derive(Debug)]
pub(crate) struct ExportSource<'a> {
    pub(crate) store: &'a Store,
    pub(crate) bodies: &'a BodyFiles,
    pub(crate) output: &'a StoredOutput,
    pub(crate) incarnation: Option<Uuid>,
    pub(crate) relay_epoch: u64,
    /// Why a relay would refuse to start on this data.
    pub(crate) refusal: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ExportOptions {
    pub without_output: bool,
    pub without_tokens: bool,
    /// The wall clock, for the head.
    pub made_at_ms: u64,
}

/// A finished export.
#[derive(Clone, Debug)]
pub struct ExportSummary {
    pub head: ArchiveHead,
    pub trailer: ArchiveTrailer,
    /// Size of the whole file.
    pub bytes: u64,
    pub sha256: [u8; 32],
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The receiver stopped reading, or there is no space.
    #[error("writing the export failed: {0}")]
    Write(#[from] io::Error),
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("stored output cannot be read: {0}")]
    ReadOutput(OutputReadError),
    #[error("{0}")]
    Read(String),
    #[error("{0}")]
    FellBehind(String),
    #[error(transparent)]
    Stopped(store::StoreStopped),
}

impl From<DumpError<io::Error>> for ExportError {
    fn from(error: DumpError<io::Error>) -> Self {
        match error {
            DumpError::Consumer(error) => Self::Write(error),
            DumpError::Stopped(stopped) => Self::Stopped(stopped),
            DumpError::FellBehind => Self::FellBehind(error.to_string()),
            DumpError::Read(_) | DumpError::Journal { .. } => Self::Read(error.to_string()),
        }
    }
}

/// Exports a directory that no relay uses, even one that a relay would refuse to start on.
pub fn export_directory<W: Write>(
    data: &Path,
    options: ExportOptions,
    out: W,
    watch: &mut dyn FnMut(ArchiveProgress),
) -> Result<(ExportSummary, W), ExportError> {
    let output = StoredOutput::open_offline(&data.join("output"))?;
    let bodies = BodyFiles::open_read_only(data.join("bodies"));
    let config = StoreConfig::new(data.join("store"), Uuid::nil());
    Store::with_offline_store(config, |offline| {
        let source = ExportSource::of(offline, &bodies, &output).with_import_state(data);
        write_export(&source, options, out, watch)
    })?
}

impl<'a> ExportSource<'a> {
    pub(super) fn of(
        offline: &'a OfflineStore,
        bodies: &'a BodyFiles,
        output: &'a StoredOutput,
    ) -> Self {
        Self {
            store: &offline.store,
            bodies,
            output,
            incarnation: offline.incarnation,
            relay_epoch: offline.relay_epoch,
            refusal: offline.refusal.as_ref().map(ToString::to_string),
        }
    }

    /// Marks the export as incomplete if an import into this directory was interrupted.
    pub(super) fn with_import_state(mut self, data: &Path) -> Self {
        if let Some(interrupted) = import_directory::interrupted_import(data) {
            self.refusal = Some(interrupted.to_string());
        }
        self
    }

    fn head(&self, options: ExportOptions) -> ArchiveHead {
        ArchiveHead {
            format: FORMAT,
            schema: SCHEMA,
            incarnation: self.incarnation,
            relay_epoch: self.relay_epoch,
            from_revision: self.store.durable().get(),
            made_at_ms: options.made_at_ms,
            made_by: env!("CARGO_PKG_VERSION").to_owned(),
            with_output: !options.without_output,
            with_tokens: !options.without_tokens,
            refusal: self.refusal.clone(),
        }
    }
}

/// Writes an export. Blocks until it is complete, as long as `out` does.
pub(crate) fn write_export<W: Write>(
    source: &ExportSource<'_>,
    options: ExportOptions,
    out: W,
    watch: &mut dyn FnMut(ArchiveProgress),
) -> Result<(ExportSummary, W), ExportError> {
    let _body_guard = source.bodies.read_guard();
    let head = source.head(options);
    let mut run = ExportRun {
        source,
        options,
        writer: ArchiveWriter::begin(out, &head)?,
        watch,
        steps: 0,
        records: 0,
        references: ReferencedData::default(),
    };
    let revision = source.store.dump(|item| run.write_dump_item(item))?;
    let missing_bodies = run.write_bodies()?;
    if !options.without_output {
        run.write_output()?;
    }
    let skipped = run.references.skipped();
    let finished = run.writer.finish(|trailer| {
        trailer.revision = revision.get();
        trailer.skipped = skipped;
        trailer.missing_bodies = missing_bodies;
    })?;
    let exported = ExportSummary {
        head,
        trailer: finished.trailer,
        bytes: finished.bytes,
        sha256: finished.sha256,
    };
    Ok((exported, finished.out))
}

struct ExportRun<'a, 'w, W> {
    source: &'a ExportSource<'a>,
    options: ExportOptions,
    writer: ArchiveWriter<W>,
    watch: &'w mut dyn FnMut(ArchiveProgress),
    steps: u64,
    records: u64,
    references: ReferencedData,
}

/// What the records refer to, and the records that could not be read.
#[derive(Default)]
struct ReferencedData {
    bodies: HashMap<Uuid, BodyHash>,
    attempts: HashSet<Uuid>,
    unreadable: BTreeSet<RecordKey>,
    /// Unreadable items without a key, mostly damaged pages.
    unreadable_without_key: u64,
}

impl ReferencedData {
    fn skipped(&self) -> u64 {
        self.unreadable.len() as u64 + self.unreadable_without_key
    }
}

impl<W: Write> ExportRun<'_, '_, W> {
    fn write_dump_item(&mut self, item: DumpItem) -> io::Result<()> {
        match item {
            DumpItem::Record(key, body) => self.write_record(key, body),
            DumpItem::Change(StoreChange::Put(key, body)) => self.write_record(key, body.into()),
            DumpItem::Change(StoreChange::Delete(key)) => self.write_deletion(key),
            DumpItem::Unreadable(Some(key), _) => {
                self.references.unreadable.insert(key);
                Ok(())
            }
            DumpItem::Unreadable(None, _) => {
                self.references.unreadable_without_key += 1;
                Ok(())
            }
        }
    }

    fn write_record(&mut self, key: RecordKey, body: bytes::Bytes) -> io::Result<()> {
        self.references.unreadable.remove(&key);
        if self.options.without_tokens && is_credential(&key) {
            return Ok(());
        }
        // A record that this version cannot decode is copied unchanged.
        match record_references(&key, &body) {
            Ok(RecordReferences::Spec {
                task,
                body: Some(hash),
            }) => drop(self.references.bodies.insert(task, hash)),
            Ok(RecordReferences::Task { attempts, .. }) => self.note_attempts(attempts),
            Ok(
                RecordReferences::Spec { body: None, .. }
                | RecordReferences::Idempotency { .. }
                | RecordReferences::Other,
            )
            | Err(_) => {}
        }
        self.records += 1;
        self.put(ArchiveStage::Records, &ArchiveItem::Put { key, body })
    }

    /// Remembers the attempts with output. The log's own index uses much more memory for each
    /// of them.
    fn note_attempts(&mut self, attempts: Vec<(Uuid, Option<u64>)>) {
        let stored = attempts
            .into_iter()
            .map(|(attempt, _)| attempt)
            .filter(|attempt| self.source.output.end(*attempt).is_some());
        self.references.attempts.extend(stored);
    }

    fn write_deletion(&mut self, key: RecordKey) -> io::Result<()> {
        self.references.unreadable.remove(&key);
        if self.options.without_tokens && is_credential(&key) {
            return Ok(());
        }
        if let RecordKey::Spec { task, .. } = &key {
            self.references.bodies.remove(task);
        }
        self.put(ArchiveStage::Records, &ArchiveItem::Delete(key))
    }

    /// Writes the long prompts; returns how many could not be read.
    fn write_bodies(&mut self) -> io::Result<u64> {
        let hashes: BTreeSet<BodyHash> = self.references.bodies.values().copied().collect();
        let mut missing = 0;
        for hash in hashes {
            match self.source.bodies.load_bytes(hash) {
                Ok(body) => self.put(ArchiveStage::Bodies, &ArchiveItem::Body(body.into()))?,
                Err(error) => {
                    tracing::error!(body = hash.file_name(), %error, "long prompt cannot be read; leaving it out of the export");
                    missing += 1;
                }
            }
        }
        Ok(missing)
    }

    fn write_output(&mut self) -> Result<(), ExportError> {
        let mut attempts: Vec<Uuid> = std::mem::take(&mut self.references.attempts)
            .into_iter()
            .collect();
        // In order of time, which is roughly the order on disk.
        attempts.sort_unstable();
        attempts
            .into_iter()
            .try_for_each(|attempt| self.write_attempt_output(attempt))
    }

    /// Writes the output that is stored now. Bytes that a running attempt adds meanwhile are
    /// left out.
    fn write_attempt_output(&mut self, attempt: Uuid) -> Result<(), ExportError> {
        let Some(end) = self.source.output.end(attempt) else {
            return Ok(());
        };
        let mut at = 0;
        while at < end.durable {
            let pieces = match self.source.output.read(attempt, at, BLOCK) {
                Ok(pieces) if pieces.is_empty() => break,
                Ok(pieces) => pieces,
                // Retention removed all of it meanwhile. The record still has its length.
                Err(OutputReadError::Unknown) => return Ok(()),
                Err(error) => return Err(ExportError::ReadOutput(error)),
            };
            for piece in pieces {
                at = piece.end();
                self.put(
                    ArchiveStage::Output,
                    &ArchiveItem::Output { attempt, piece },
                )?;
            }
        }
        if end.sealed {
            let end = end.durable;
            self.put(ArchiveStage::Output, &ArchiveItem::Sealed { attempt, end })?;
        }
        Ok(())
    }

    fn put(&mut self, stage: ArchiveStage, item: &ArchiveItem) -> io::Result<()> {
        self.writer.put(item)?;
        self.steps += 1;
        if self.steps.is_multiple_of(PROGRESS_INTERVAL) {
            (self.watch)(ArchiveProgress {
                stage,
                records: self.records,
                bytes: self.writer.written(),
                total_bytes: None,
            });
        }
        Ok(())
    }
}
