//! Makes an export: of a live relay, or of a directory where none runs.
//!
//! Records go first, as the store tells them; only while that lasts is its journal held. Then come the long prompts and
//! the output that those records name. Besides one frame it holds 16 bytes for each attempt that has stored output and
//! 48 for each long prompt.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;

use uuid::Uuid;

use super::check::is_credential;
use super::incoming;
use super::item::{FORMAT, Head, Item, Trailer};
use super::progress::{Progress, STEPS, Stage};
use super::records::{Fact, fact};
use super::writer::ArchiveWriter;
use crate::bodies::{Bodies, BodyHash};
use crate::output::{OutputError, ReadError, StoredOutput};
use crate::store::{
    self, Change, Key, Looked, OpenError, SCHEMA, Store, StoreConfig, TellError, Told,
};

/// Output read at one time.
const BLOCK: usize = 256 * 1024;

/// What an export is made of.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) store: &'a Store,
    pub(crate) bodies: &'a Bodies,
    pub(crate) output: &'a StoredOutput,
    pub(crate) incarnation: Option<Uuid>,
    pub(crate) relay_epoch: u64,
    /// Why a relay would not start on it.
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
pub struct Exported {
    pub head: Head,
    pub trailer: Trailer,
    /// Of the whole file.
    pub bytes: u64,
    pub sha256: [u8; 32],
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Nobody takes it any more, or there is no room for it.
    #[error("the export cannot be written: {0}")]
    Write(#[from] io::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("stored output cannot be read: {0}")]
    ReadOutput(ReadError),
    #[error("{0}")]
    Read(String),
    #[error("{0}")]
    FellBehind(String),
    #[error(transparent)]
    Stopped(store::Stopped),
}

impl From<TellError<io::Error>> for ExportError {
    fn from(error: TellError<io::Error>) -> Self {
        match error {
            TellError::Listener(error) => Self::Write(error),
            TellError::Stopped(stopped) => Self::Stopped(stopped),
            TellError::FellBehind => Self::FellBehind(error.to_string()),
            TellError::Read(_) | TellError::Journal { .. } => Self::Read(error.to_string()),
        }
    }
}

/// Of a directory on which no relay runs, also of one that no longer starts.
pub fn export_directory<W: Write>(
    data: &Path,
    options: ExportOptions,
    out: W,
    watch: &mut dyn FnMut(Progress),
) -> Result<(Exported, W), ExportError> {
    let output = StoredOutput::look(&data.join("output"))?;
    let bodies = Bodies::look(data.join("bodies"));
    let config = StoreConfig::new(data.join("store"), Uuid::nil());
    Store::look(config, |looked| {
        let source = Source::of(looked, &bodies, &output).in_directory(data);
        export(&source, options, out, watch)
    })?
}

impl<'a> Source<'a> {
    pub(super) fn of(looked: &'a Looked, bodies: &'a Bodies, output: &'a StoredOutput) -> Self {
        Self {
            store: &looked.store,
            bodies,
            output,
            incarnation: looked.incarnation,
            relay_epoch: looked.relay_epoch,
            refusal: looked.refusal.as_ref().map(ToString::to_string),
        }
    }

    /// What an import left half done is no more whole than what the disk has lost.
    pub(super) fn in_directory(mut self, data: &Path) -> Self {
        if let Some(interrupted) = incoming::interrupted(data) {
            self.refusal = Some(interrupted.to_string());
        }
        self
    }

    fn head(&self, options: ExportOptions) -> Head {
        Head {
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

/// Blocks for as long as it takes, and as long as `out` does.
pub(crate) fn export<W: Write>(
    source: &Source<'_>,
    options: ExportOptions,
    out: W,
    watch: &mut dyn FnMut(Progress),
) -> Result<(Exported, W), ExportError> {
    let _bodies_stay = source.bodies.reading();
    let head = source.head(options);
    let mut exporting = Exporting {
        source,
        options,
        writer: ArchiveWriter::begin(out, &head)?,
        watch,
        steps: 0,
        records: 0,
        named: Named::default(),
    };
    let revision = source.store.tell(|told| exporting.hear(told))?;
    let missing_bodies = exporting.bodies()?;
    if !options.without_output {
        exporting.output()?;
    }
    let skipped = exporting.named.skipped();
    let finished = exporting.writer.finish(|trailer| {
        trailer.revision = revision.get();
        trailer.skipped = skipped;
        trailer.missing_bodies = missing_bodies;
    })?;
    let exported = Exported {
        head,
        trailer: finished.trailer,
        bytes: finished.bytes,
        sha256: finished.sha256,
    };
    Ok((exported, finished.out))
}

struct Exporting<'a, 'w, W> {
    source: &'a Source<'a>,
    options: ExportOptions,
    writer: ArchiveWriter<W>,
    watch: &'w mut dyn FnMut(Progress),
    steps: u64,
    records: u64,
    named: Named,
}

/// What the records name, and what could not be read of them.
#[derive(Default)]
struct Named {
    bodies: HashMap<Uuid, BodyHash>,
    attempts: HashSet<Uuid>,
    unreadable: BTreeSet<Key>,
    /// Unreadable without a key: damaged pages, mostly.
    nameless: u64,
}

impl Named {
    fn skipped(&self) -> u64 {
        self.unreadable.len() as u64 + self.nameless
    }
}

impl<W: Write> Exporting<'_, '_, W> {
    fn hear(&mut self, told: Told) -> io::Result<()> {
        match told {
            Told::Record(key, body) => self.record(key, body),
            Told::Change(Change::Put(key, body)) => self.record(key, body.into()),
            Told::Change(Change::Delete(key)) => self.deletion(key),
            Told::Unreadable(Some(key), _) => {
                self.named.unreadable.insert(key);
                Ok(())
            }
            Told::Unreadable(None, _) => {
                self.named.nameless += 1;
                Ok(())
            }
        }
    }

    fn record(&mut self, key: Key, body: bytes::Bytes) -> io::Result<()> {
        self.named.unreadable.remove(&key);
        if self.options.without_tokens && is_credential(&key) {
            return Ok(());
        }
        // What this version cannot decode is carried as it is.
        match fact(&key, &body) {
            Ok(Fact::Spec {
                task,
                body: Some(hash),
            }) => drop(self.named.bodies.insert(task, hash)),
            Ok(Fact::Task { attempts, .. }) => self.remember(attempts),
            Ok(Fact::Spec { body: None, .. } | Fact::Idempotency { .. } | Fact::Other) | Err(_) => {
            }
        }
        self.records += 1;
        self.put(Stage::Records, &Item::Put { key, body })
    }

    /// Only attempts that have output; the log's own index holds much more for each of those.
    fn remember(&mut self, attempts: Vec<(Uuid, Option<u64>)>) {
        let stored = attempts
            .into_iter()
            .map(|(attempt, _)| attempt)
            .filter(|attempt| self.source.output.end(*attempt).is_some());
        self.named.attempts.extend(stored);
    }

    fn deletion(&mut self, key: Key) -> io::Result<()> {
        self.named.unreadable.remove(&key);
        if self.options.without_tokens && is_credential(&key) {
            return Ok(());
        }
        if let Key::Spec { task, .. } = &key {
            self.named.bodies.remove(task);
        }
        self.put(Stage::Records, &Item::Delete(key))
    }

    /// How many could not be read.
    fn bodies(&mut self) -> io::Result<u64> {
        let hashes: BTreeSet<BodyHash> = self.named.bodies.values().copied().collect();
        let mut missing = 0;
        for hash in hashes {
            match self.source.bodies.load_bytes(hash) {
                Ok(body) => self.put(Stage::Bodies, &Item::Body(body.into()))?,
                Err(error) => {
                    tracing::error!(body = hash.file_name(), %error, "a long prompt is left out of the export");
                    missing += 1;
                }
            }
        }
        Ok(missing)
    }

    fn output(&mut self) -> Result<(), ExportError> {
        let mut attempts: Vec<Uuid> = std::mem::take(&mut self.named.attempts)
            .into_iter()
            .collect();
        // In the order of time, which is roughly the order on the disk.
        attempts.sort_unstable();
        attempts
            .into_iter()
            .try_for_each(|attempt| self.output_of(attempt))
    }

    /// What was stored when its turn came; what a running attempt adds meanwhile is not waited for.
    fn output_of(&mut self, attempt: Uuid) -> Result<(), ExportError> {
        let Some(end) = self.source.output.end(attempt) else {
            return Ok(());
        };
        let mut at = 0;
        while at < end.durable {
            let pieces = match self.source.output.read(attempt, at, BLOCK) {
                Ok(pieces) if pieces.is_empty() => break,
                Ok(pieces) => pieces,
                // Retention took all of it since; its record says how long it was.
                Err(ReadError::Unknown) => return Ok(()),
                Err(error) => return Err(ExportError::ReadOutput(error)),
            };
            for piece in pieces {
                at = piece.end();
                self.put(Stage::Output, &Item::Output { attempt, piece })?;
            }
        }
        if end.sealed {
            let end = end.durable;
            self.put(Stage::Output, &Item::Sealed { attempt, end })?;
        }
        Ok(())
    }

    fn put(&mut self, stage: Stage, item: &Item) -> io::Result<()> {
        self.writer.put(item)?;
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS) {
            (self.watch)(Progress {
                stage,
                records: self.records,
                bytes: self.writer.written(),
                total_bytes: None,
            });
        }
        Ok(())
    }
}
