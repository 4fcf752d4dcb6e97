//! Verification: reads all data of a running relay, a directory without one, or an export, and
//! reports what is wrong. Changes nothing.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use uuid::Uuid;

use super::export::ExportSource;
use super::fault::ArchiveFault;
use super::item::{ArchiveHead, ArchiveItem, ArchiveTrailer};
use super::progress::{ArchiveProgress, ArchiveStage, PROGRESS_INTERVAL};
use super::reader::ArchiveReader;
use super::record_checker::{RecordChecker, VerifyFinding};
use super::record_references::RecordReferences;
use crate::body_files::{BodyFiles, BodyHash};
use crate::output::{self, CutReason, OutputError, OutputPiece, OutputReadError, StoredOutput};
use crate::store::{
    DumpError, DumpItem, Store, StoreChange, StoreConfig, StoreOpenError, StoreVerification,
};

/// Output bytes read at a time.
const BLOCK: usize = 256 * 1024;

/// A report to the watcher, which returns whether to continue.
#[derive(Debug)]
pub enum VerifyEvent {
    Progress(ArchiveProgress),
    Finding(VerifyFinding),
}

pub type VerifyWatcher<'a> = &'a mut dyn FnMut(VerifyEvent) -> bool;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifySummary {
    pub records: u64,
    pub tasks: u64,
    pub findings: u64,
    /// The commit whose state was verified.
    pub revision: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Archive(#[from] ArchiveFault),
    #[error("cannot open {path}: {source}")]
    File { path: String, source: io::Error },
    #[error("{0}")]
    Read(String),
    #[error("the verification was stopped because its report is no longer read")]
    WatcherStopped,
}

impl From<DumpError<VerifyError>> for VerifyError {
    fn from(error: DumpError<VerifyError>) -> Self {
        match error {
            DumpError::Consumer(error) => error,
            DumpError::Read(_)
            | DumpError::Stopped(_)
            | DumpError::FellBehind
            | DumpError::Journal { .. } => Self::Read(error.to_string()),
        }
    }
}

/// Verifies a directory that no relay uses, even one that a relay would refuse to start on.
pub fn verify_directory(
    data: &Path,
    with_output: bool,
    watch: VerifyWatcher<'_>,
) -> Result<VerifySummary, VerifyError> {
    let output_dir = data.join("output");
    let output = StoredOutput::open_offline(&output_dir)?;
    let bodies = BodyFiles::open_read_only(data.join("bodies"));
    let config = StoreConfig::new(data.join("store"), Uuid::nil());
    Store::with_offline_store(config, |offline| {
        let source = ExportSource::of(offline, &bodies, &output).with_import_state(data);
        verify_source(&source, with_output.then_some(output_dir.as_path()), watch)
    })?
}

/// Verifies the data of a source. `output_dir` is the directory of the output, if that should
/// be verified too.
pub(crate) fn verify_source(
    source: &ExportSource<'_>,
    output_dir: Option<&Path>,
    watch: VerifyWatcher<'_>,
) -> Result<VerifySummary, VerifyError> {
    let _body_guard = source.bodies.read_guard();
    let mut run = VerifyRun::new(watch);
    if let Some(refusal) = &source.refusal {
        run.report_finding(VerifyFinding::new("watermark", "store", refusal.clone()))?;
    }
    run.verify_pages(source.store)?;
    let mut checker = RecordChecker::default();
    let revision = source
        .store
        .dump(|item| run.verify_dump_item(item, source, &mut checker))?;
    run.verify_bodies(source.bodies, &checker)?;
    run.report_findings(checker.findings())?;
    if let Some(dir) = output_dir {
        run.verify_output(source.output, dir)?;
    }
    Ok(VerifySummary {
        records: checker.records,
        tasks: checker.tasks(),
        findings: run.findings,
        revision: revision.get(),
    })
}

/// An export that was read to its end.
#[derive(Clone, Debug)]
pub struct VerifiedArchive {
    pub head: ArchiveHead,
    pub trailer: ArchiveTrailer,
    /// Of the whole file.
    pub sha256: [u8; 32],
    pub summary: VerifySummary,
}

/// Verifies an export file. A truncated or altered file is an error; findings concern its
/// contents.
pub fn verify_file(path: &Path, watch: VerifyWatcher<'_>) -> Result<VerifiedArchive, VerifyError> {
    let unreadable = |source| VerifyError::File {
        path: path.display().to_string(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let total = file.metadata().map_err(unreadable)?.len();
    let mut reader = ArchiveReader::open(BufReader::with_capacity(BLOCK, file))?;
    let (mut run, mut checker) = (VerifyRun::new(watch), RecordChecker::default());
    let mut contents = ArchiveContents::default();
    while let Some(item) = reader.next_item()? {
        contents.add_item(&item, &mut checker);
        let progress = ArchiveProgress {
            stage: ArchiveStage::Checking,
            records: checker.records,
            bytes: reader.position(),
            total_bytes: Some(total),
        };
        run.report_progress(progress)?;
    }
    run.report_findings(checker.findings())?;
    run.report_findings(contents.findings(&checker))?;
    let (head, trailer) = (
        reader.head().clone(),
        reader.trailer().cloned().unwrap_or_default(),
    );
    run.report_findings(missing_data_findings(&head, &trailer))?;
    let summary = VerifySummary {
        records: checker.records,
        tasks: checker.tasks(),
        findings: run.findings,
        revision: trailer.revision,
    };
    Ok(VerifiedArchive {
        head,
        trailer,
        sha256: reader.sha256(),
        summary,
    })
}

/// Data that was already missing when the export was made.
fn missing_data_findings(head: &ArchiveHead, trailer: &ArchiveTrailer) -> Vec<VerifyFinding> {
    let refusal = head.refusal.iter().map(|refusal| {
        let message = format!(
            "the export is incomplete: it was made from a directory on which a relay would refuse to start: {refusal}"
        );
        VerifyFinding::new("watermark", "export", message)
    });
    let skipped = (trailer.skipped > 0).then(|| {
        let message = format!(
            "{} records could not be read when the export was made",
            trailer.skipped
        );
        VerifyFinding::new("unreadable", "export", message)
    });
    refusal.chain(skipped).collect()
}

impl VerifiedArchive {
    /// What was already missing when the export was made, and why; `None` for a complete
    /// export.
    pub fn missing_data(&self) -> Option<String> {
        let (records, prompts) = (self.trailer.skipped, self.trailer.missing_bodies);
        let unread = (records + prompts > 0).then(|| {
            format!(
                "{records} records and {prompts} long prompts could not be read and were left out"
            )
        });
        let refused = self.head.refusal.as_ref().map(|refusal| {
            format!("a relay would refuse to start on the exported directory: {refusal}")
        });
        let both: Vec<String> = unread.into_iter().chain(refused).collect();
        (!both.is_empty()).then(|| both.join("; "))
    }
}

/// What an export contains besides records.
#[derive(Default)]
struct ArchiveContents {
    bodies: std::collections::HashSet<BodyHash>,
    /// The attempt whose output is being read, and its end so far.
    at: Option<(Uuid, u64)>,
    gaps: Vec<VerifyFinding>,
}

impl ArchiveContents {
    fn add_item(&mut self, item: &ArchiveItem, checker: &mut RecordChecker) {
        match item {
            ArchiveItem::Put { key, body } => drop(checker.put(key, body)),
            ArchiveItem::Delete(key) => checker.delete(key),
            ArchiveItem::Body(body) => drop(self.bodies.insert(BodyHash::of(body))),
            ArchiveItem::Output { attempt, piece } => {
                self.advance_output(*attempt, piece.start(), piece.end())
            }
            ArchiveItem::Sealed { attempt, end } => self.advance_output(*attempt, *end, *end),
        }
    }

    fn advance_output(&mut self, attempt: Uuid, from: u64, to: u64) {
        let at = match self.at {
            Some((same, at)) if same == attempt => at,
            Some(_) | None => 0,
        };
        if from != at {
            let message = format!("output continues at byte {from} instead of {at}");
            let key = format_args!("attempt/{attempt}");
            self.gaps.push(VerifyFinding::new("gap", key, message));
        }
        self.at = Some((attempt, to));
    }

    fn findings(self, checker: &RecordChecker) -> Vec<VerifyFinding> {
        let mut findings = self.gaps;
        let missing = checker
            .bodies
            .iter()
            .filter(|(_, hash)| !self.bodies.contains(hash));
        findings.extend(missing.map(|(task, hash)| {
            let message = format!(
                "the task's prompt {} is not in the export",
                hash.file_name()
            );
            VerifyFinding::new("body", format_args!("task/{task}"), message)
        }));
        findings
    }
}

struct VerifyRun<'w> {
    watch: VerifyWatcher<'w>,
    steps: u64,
    findings: u64,
}

impl<'w> VerifyRun<'w> {
    fn new(watch: VerifyWatcher<'w>) -> Self {
        Self {
            watch,
            steps: 0,
            findings: 0,
        }
    }

    fn report_finding(&mut self, finding: VerifyFinding) -> Result<(), VerifyError> {
        self.findings += 1;
        self.send_event(VerifyEvent::Finding(finding))
    }

    fn report_findings(&mut self, findings: Vec<VerifyFinding>) -> Result<(), VerifyError> {
        findings
            .into_iter()
            .try_for_each(|finding| self.report_finding(finding))
    }

    fn send_event(&mut self, event: VerifyEvent) -> Result<(), VerifyError> {
        if (self.watch)(event) {
            Ok(())
        } else {
            Err(VerifyError::WatcherStopped)
        }
    }

    fn report_progress(&mut self, progress: ArchiveProgress) -> Result<(), VerifyError> {
        self.steps += 1;
        if self.steps.is_multiple_of(PROGRESS_INTERVAL) {
            return self.send_event(VerifyEvent::Progress(progress));
        }
        Ok(())
    }

    /// Verifies the data on disk: pages, checksums, pieces and the journal.
    fn verify_pages(&mut self, store: &Store) -> Result<(), VerifyError> {
        let mut proceed = true;
        let verified = store.verify_watched(&mut |so_far| {
            proceed = (self.watch)(VerifyEvent::Progress(ArchiveProgress {
                stage: ArchiveStage::Pages,
                records: so_far.records.values().sum(),
                bytes: so_far.bytes,
                total_bytes: None,
            }));
            proceed
        });
        let verified = verified.map_err(|error| VerifyError::Read(error.to_string()))?;
        if !proceed {
            return Err(VerifyError::WatcherStopped);
        }
        self.page_findings(&verified)
    }

    fn page_findings(&mut self, verified: &StoreVerification) -> Result<(), VerifyError> {
        for (key, reason) in &verified.listed {
            let key = key.as_ref().map_or("page".to_owned(), ToString::to_string);
            self.report_finding(VerifyFinding::new("unreadable", key, reason.clone()))?;
        }
        let more = verified.unreadable - verified.listed.len() as u64;
        if more > 0 {
            let message = format!("{more} more records cannot be read");
            self.report_finding(VerifyFinding::new("unreadable", "store", message))?;
        }
        if verified.broken_journal_entries > 0 {
            let message = format!(
                "{} entries or pages of the journal cannot be read",
                verified.broken_journal_entries
            );
            self.report_finding(VerifyFinding::new("journal", "store", message))?;
        }
        if verified.too_long > 0 {
            let message = format!(
                "{} values are longer than the database can store safely",
                verified.too_long
            );
            self.report_finding(VerifyFinding::new("journal", "store", message))?;
        }
        Ok(())
    }

    fn verify_dump_item(
        &mut self,
        item: DumpItem,
        source: &ExportSource<'_>,
        checker: &mut RecordChecker,
    ) -> Result<(), VerifyError> {
        let references = match &item {
            DumpItem::Record(key, body) => checker.put(key, body),
            DumpItem::Change(StoreChange::Put(key, body)) => checker.put(key, body),
            DumpItem::Change(StoreChange::Delete(key)) => {
                checker.delete(key);
                None
            }
            // Already reported with the pages.
            DumpItem::Unreadable(key, _) => {
                if let Some(key) = key {
                    checker.unreadable(key);
                }
                None
            }
        };
        if let Some(RecordReferences::Task { attempts, .. }) = references {
            self.verify_output_ends(source.output, &attempts)?;
        }
        self.report_progress(ArchiveProgress {
            stage: ArchiveStage::Records,
            records: checker.records,
            bytes: checker.bytes,
            total_bytes: None,
        })
    }

    /// Checks the ends of output. The final frame of an attempt waits for its output, so a
    /// record never has a larger end than the log, unless all of the output was removed.
    fn verify_output_ends(
        &mut self,
        output: &StoredOutput,
        attempts: &[(Uuid, Option<u64>)],
    ) -> Result<(), VerifyError> {
        for (attempt, final_offset) in attempts {
            let (Some(final_offset), Some(stored)) = (final_offset, output.end(*attempt)) else {
                continue;
            };
            if stored.durable < *final_offset {
                let message = format!(
                    "the stored output ends at byte {}, but the attempt's output ended at {final_offset}",
                    stored.durable
                );
                self.report_finding(VerifyFinding::new(
                    "gap",
                    format_args!("attempt/{attempt}"),
                    message,
                ))?;
            }
        }
        Ok(())
    }

    fn verify_bodies(
        &mut self,
        bodies: &BodyFiles,
        checker: &RecordChecker,
    ) -> Result<(), VerifyError> {
        for (number, (task, hash)) in (0..).zip(&checker.bodies) {
            if let Err(error) = bodies.load_bytes(*hash) {
                let message = format!(
                    "the task's prompt {} cannot be read: {error}",
                    hash.file_name()
                );
                self.report_finding(VerifyFinding::new(
                    "body",
                    format_args!("task/{task}"),
                    message,
                ))?;
            }
            self.report_progress(ArchiveProgress {
                stage: ArchiveStage::Bodies,
                records: number,
                bytes: 0,
                total_bytes: None,
            })?;
        }
        Ok(())
    }

    /// Reads every stored byte, which verifies it.
    fn verify_output(&mut self, output: &StoredOutput, dir: &Path) -> Result<(), VerifyError> {
        let damaged = output::damaged_segments(dir)
            .map_err(|error| VerifyError::Read(format!("output cannot be listed: {error}")))?;
        for path in damaged {
            let message = "the segment's header is damaged; none of its output can be read";
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.report_finding(VerifyFinding::new("output", name, message))?;
        }
        let mut bytes = 0;
        for (number, attempt) in (0..).zip(output.attempts()) {
            bytes += self.verify_attempt_output(output, attempt)?;
            self.report_progress(ArchiveProgress {
                stage: ArchiveStage::Output,
                records: number,
                bytes,
                total_bytes: None,
            })?;
        }
        Ok(())
    }

    fn verify_attempt_output(
        &mut self,
        output: &StoredOutput,
        attempt: Uuid,
    ) -> Result<u64, VerifyError> {
        let until = output.end(attempt).map_or(0, |end| end.durable);
        let (mut at, mut damaged) = (0, 0);
        while at < until {
            let pieces = match output.read(attempt, at, BLOCK) {
                Ok(pieces) if pieces.is_empty() => break,
                Ok(pieces) => pieces,
                Err(OutputReadError::Unknown) => break,
                Err(error) => return Err(VerifyError::Read(error.to_string())),
            };
            for piece in &pieces {
                at = piece.end();
                if let OutputPiece::Cut {
                    from,
                    to,
                    reason: CutReason::Corrupt,
                } = piece
                {
                    damaged += to - from;
                }
            }
        }
        if damaged > 0 {
            let message = format!("{damaged} stored bytes of the attempt's output cannot be read");
            self.report_finding(VerifyFinding::new(
                "output",
                format_args!("attempt/{attempt}"),
                message,
            ))?;
        }
        Ok(at)
    }
}
