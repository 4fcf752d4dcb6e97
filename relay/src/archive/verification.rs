//! Reads everything and says what is wrong with it: of a live relay, of a directory where none runs, or of an export.
//! Changes nothing.

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

/// Output read at one time.
const BLOCK: usize = 256 * 1024;

/// What whoever watches gets to see. The answer is whether to go on.
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
    /// The commit that it was read at.
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
    #[error("nobody watches any more")]
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

/// Of a directory on which no relay runs, also of one that no longer starts.
pub fn verify_directory(
    data: &Path,
    with_output: bool,
    watch: VerifyWatcher<'_>,
) -> Result<VerifySummary, VerifyError> {
    let output_dir = data.join("output");
    let output = StoredOutput::open_offline(&output_dir)?;
    let bodies = BodyFiles::open_read_only(data.join("bodies"));
    let config = StoreConfig::new(data.join("store"), Uuid::nil());
    Store::with_offline_store(config, |looked| {
        let source = ExportSource::of(looked, &bodies, &output).with_import_state(data);
        verify_source(&source, with_output.then_some(output_dir.as_path()), watch)
    })?
}

/// `output_dir` is where the output lies, if it is wanted.
pub(crate) fn verify_source(
    source: &ExportSource<'_>,
    output_dir: Option<&Path>,
    watch: VerifyWatcher<'_>,
) -> Result<VerifySummary, VerifyError> {
    let _bodies_stay = source.bodies.read_guard();
    let mut verifying = VerifyRun::new(watch);
    if let Some(refusal) = &source.refusal {
        verifying.report_finding(VerifyFinding::new("watermark", "store", refusal.clone()))?;
    }
    verifying.pages(source.store)?;
    let mut checker = RecordChecker::default();
    let revision = source
        .store
        .dump(|told| verifying.verify_dump_item(told, source, &mut checker))?;
    verifying.bodies(source.bodies, &checker)?;
    verifying.all_found(checker.findings())?;
    if let Some(dir) = output_dir {
        verifying.output(source.output, dir)?;
    }
    Ok(VerifySummary {
        records: checker.records,
        tasks: checker.tasks(),
        findings: verifying.findings,
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

/// An export that is cut short or altered is an error; findings are about what it holds.
pub fn verify_file(path: &Path, watch: VerifyWatcher<'_>) -> Result<VerifiedArchive, VerifyError> {
    let unreadable = |source| VerifyError::File {
        path: path.display().to_string(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let total = file.metadata().map_err(unreadable)?.len();
    let mut reader = ArchiveReader::open(BufReader::with_capacity(BLOCK, file))?;
    let (mut verifying, mut checker) = (VerifyRun::new(watch), RecordChecker::default());
    let mut carried = ArchiveContents::default();
    while let Some(item) = reader.next_item()? {
        carried.take(&item, &mut checker);
        let progress = ArchiveProgress {
            stage: ArchiveStage::Checking,
            records: checker.records,
            bytes: reader.position(),
            total_bytes: Some(total),
        };
        verifying.step(progress)?;
    }
    verifying.all_found(checker.findings())?;
    verifying.all_found(carried.findings(&checker))?;
    let (head, trailer) = (
        reader.head().clone(),
        reader.trailer().cloned().unwrap_or_default(),
    );
    verifying.all_found(missing_data_findings(&head, &trailer))?;
    let summary = VerifySummary {
        records: checker.records,
        tasks: checker.tasks(),
        findings: verifying.findings,
        revision: trailer.revision,
    };
    Ok(VerifiedArchive {
        head,
        trailer,
        sha256: reader.sha256(),
        summary,
    })
}

/// What its maker knew to be missing.
fn missing_data_findings(head: &ArchiveHead, trailer: &ArchiveTrailer) -> Vec<VerifyFinding> {
    let refusal = head.refusal.iter().map(|refusal| {
        let what = format!(
            "it was made of a directory on which no relay would start, and is not whole: {refusal}"
        );
        VerifyFinding::new("watermark", "export", what)
    });
    let skipped = (trailer.skipped > 0).then(|| {
        let what = format!(
            "{} records could not be read when it was made",
            trailer.skipped
        );
        VerifyFinding::new("unreadable", "export", what)
    });
    refusal.chain(skipped).collect()
}

impl VerifiedArchive {
    /// What was missing already when it was made, and why; none for a whole export.
    pub fn missing_data(&self) -> Option<String> {
        let (records, prompts) = (self.trailer.skipped, self.trailer.missing_bodies);
        let unread = (records + prompts > 0).then(|| {
            format!(
                "{records} records and {prompts} long prompts could not be read and are not in it"
            )
        });
        let refused = self.head.refusal.as_ref().map(|refusal| {
            format!("no relay would start on the directory that it was made of: {refusal}")
        });
        let both: Vec<String> = unread.into_iter().chain(refused).collect();
        (!both.is_empty()).then(|| both.join("; "))
    }
}

/// What an export carries besides records.
#[derive(Default)]
struct ArchiveContents {
    bodies: std::collections::HashSet<BodyHash>,
    /// The attempt whose output comes now, and its end so far.
    at: Option<(Uuid, u64)>,
    gaps: Vec<VerifyFinding>,
}

impl ArchiveContents {
    fn take(&mut self, item: &ArchiveItem, checker: &mut RecordChecker) {
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
            let what = format!("output goes on at byte {from} and not at {at}");
            let key = format_args!("attempt/{attempt}");
            self.gaps.push(VerifyFinding::new("gap", key, what));
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
            let what = format!("its prompt {} is not in the export", hash.file_name());
            VerifyFinding::new("body", format_args!("task/{task}"), what)
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
        self.show(VerifyEvent::Finding(finding))
    }

    fn all_found(&mut self, findings: Vec<VerifyFinding>) -> Result<(), VerifyError> {
        findings
            .into_iter()
            .try_for_each(|finding| self.report_finding(finding))
    }

    fn show(&mut self, seen: VerifyEvent) -> Result<(), VerifyError> {
        if (self.watch)(seen) {
            Ok(())
        } else {
            Err(VerifyError::WatcherStopped)
        }
    }

    fn step(&mut self, progress: ArchiveProgress) -> Result<(), VerifyError> {
        self.steps += 1;
        if self.steps.is_multiple_of(PROGRESS_INTERVAL) {
            return self.show(VerifyEvent::Progress(progress));
        }
        Ok(())
    }

    /// What lies on the disk: pages, checksums, pieces, and the journal.
    fn pages(&mut self, store: &Store) -> Result<(), VerifyError> {
        let mut go_on = true;
        let verified = store.verify_watched(&mut |so_far| {
            go_on = (self.watch)(VerifyEvent::Progress(ArchiveProgress {
                stage: ArchiveStage::Pages,
                records: so_far.records.values().sum(),
                bytes: so_far.bytes,
                total_bytes: None,
            }));
            go_on
        });
        let verified = verified.map_err(|error| VerifyError::Read(error.to_string()))?;
        if !go_on {
            return Err(VerifyError::WatcherStopped);
        }
        self.page_findings(&verified)
    }

    fn page_findings(&mut self, verified: &StoreVerification) -> Result<(), VerifyError> {
        for (key, why) in &verified.listed {
            let key = key.as_ref().map_or("page".to_owned(), ToString::to_string);
            self.report_finding(VerifyFinding::new("unreadable", key, why.clone()))?;
        }
        let more = verified.unreadable - verified.listed.len() as u64;
        if more > 0 {
            let what = format!("{more} more records cannot be read");
            self.report_finding(VerifyFinding::new("unreadable", "store", what))?;
        }
        if verified.broken_journal_entries > 0 {
            let what = format!(
                "{} entries or pages of the journal cannot be read",
                verified.broken_journal_entries
            );
            self.report_finding(VerifyFinding::new("journal", "store", what))?;
        }
        if verified.too_long > 0 {
            let what = format!(
                "{} values are longer than the database holds safely",
                verified.too_long
            );
            self.report_finding(VerifyFinding::new("journal", "store", what))?;
        }
        Ok(())
    }

    fn verify_dump_item(
        &mut self,
        told: DumpItem,
        source: &ExportSource<'_>,
        checker: &mut RecordChecker,
    ) -> Result<(), VerifyError> {
        let fact = match &told {
            DumpItem::Record(key, body) => checker.put(key, body),
            DumpItem::Change(StoreChange::Put(key, body)) => checker.put(key, body),
            DumpItem::Change(StoreChange::Delete(key)) => {
                checker.delete(key);
                None
            }
            // Found and named with the pages already.
            DumpItem::Unreadable(key, _) => {
                if let Some(key) = key {
                    checker.unreadable(key);
                }
                None
            }
        };
        if let Some(RecordReferences::Task { attempts, .. }) = fact {
            self.verify_output_ends(source.output, &attempts)?;
        }
        self.step(ArchiveProgress {
            stage: ArchiveStage::Records,
            records: checker.records,
            bytes: checker.bytes,
            total_bytes: None,
        })
    }

    /// A terminal frame waits for its output, so a record never knows of more than the log has, unless all of it went.
    fn verify_output_ends(
        &mut self,
        output: &StoredOutput,
        attempts: &[(Uuid, Option<u64>)],
    ) -> Result<(), VerifyError> {
        for (attempt, said) in attempts {
            let (Some(said), Some(stored)) = (said, output.end(*attempt)) else {
                continue;
            };
            if stored.durable < *said {
                let what = format!(
                    "its output ends at byte {}, and it ended at {said}",
                    stored.durable
                );
                self.report_finding(VerifyFinding::new(
                    "gap",
                    format_args!("attempt/{attempt}"),
                    what,
                ))?;
            }
        }
        Ok(())
    }

    fn bodies(&mut self, bodies: &BodyFiles, checker: &RecordChecker) -> Result<(), VerifyError> {
        for (number, (task, hash)) in (0..).zip(&checker.bodies) {
            if let Err(error) = bodies.load_bytes(*hash) {
                let what = format!("its prompt {} cannot be read: {error}", hash.file_name());
                self.report_finding(VerifyFinding::new(
                    "body",
                    format_args!("task/{task}"),
                    what,
                ))?;
            }
            self.step(ArchiveProgress {
                stage: ArchiveStage::Bodies,
                records: number,
                bytes: 0,
                total_bytes: None,
            })?;
        }
        Ok(())
    }

    /// Reads every stored byte, which checks it.
    fn output(&mut self, output: &StoredOutput, dir: &Path) -> Result<(), VerifyError> {
        let damaged = output::damaged_segments(dir)
            .map_err(|error| VerifyError::Read(format!("output cannot be listed: {error}")))?;
        for path in damaged {
            let what = "the segment's header is damaged, and nothing in it can be read";
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.report_finding(VerifyFinding::new("output", name, what))?;
        }
        let mut bytes = 0;
        for (number, attempt) in (0..).zip(output.attempts()) {
            bytes += self.output_of(output, attempt)?;
            self.step(ArchiveProgress {
                stage: ArchiveStage::Output,
                records: number,
                bytes,
                total_bytes: None,
            })?;
        }
        Ok(())
    }

    fn output_of(&mut self, output: &StoredOutput, attempt: Uuid) -> Result<u64, VerifyError> {
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
            let what = format!("{damaged} bytes of its output were stored and cannot be read");
            self.report_finding(VerifyFinding::new(
                "output",
                format_args!("attempt/{attempt}"),
                what,
            ))?;
        }
        Ok(at)
    }
}
