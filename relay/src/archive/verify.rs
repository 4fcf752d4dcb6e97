//! Reads everything and says what is wrong with it: of a live relay, of a directory where none runs, or of an export.
//! Changes nothing.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use uuid::Uuid;

use super::check::{Checker, Finding};
use super::export::Source;
use super::fault::ArchiveFault;
use super::item::{Head, Item, Trailer};
use super::progress::{Progress, STEPS, Stage};
use super::reader::ArchiveReader;
use super::records::Fact;
use crate::bodies::{Bodies, BodyHash};
use crate::output::{self, CutReason, OutputError, Piece, ReadError, StoredOutput};
use crate::store::{Change, OpenError, Store, StoreConfig, TellError, Told, Verified};

/// Output read at one time.
const BLOCK: usize = 256 * 1024;

/// What whoever watches gets to see. The answer is whether to go on.
#[derive(Debug)]
pub enum Seen {
    Progress(Progress),
    Finding(Finding),
}

pub type Watch<'a> = &'a mut dyn FnMut(Seen) -> bool;

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
    Open(#[from] OpenError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Archive(#[from] ArchiveFault),
    #[error("cannot open {path}: {source}")]
    File { path: String, source: io::Error },
    #[error("{0}")]
    Read(String),
    #[error("nobody watches any more")]
    Ended,
}

impl From<TellError<VerifyError>> for VerifyError {
    fn from(error: TellError<VerifyError>) -> Self {
        match error {
            TellError::Listener(error) => error,
            TellError::Read(_)
            | TellError::Stopped(_)
            | TellError::FellBehind
            | TellError::Journal { .. } => Self::Read(error.to_string()),
        }
    }
}

/// Of a directory on which no relay runs, also of one that no longer starts.
pub fn verify_directory(
    data: &Path,
    with_output: bool,
    watch: Watch<'_>,
) -> Result<VerifySummary, VerifyError> {
    let output_dir = data.join("output");
    let output = StoredOutput::look(&output_dir)?;
    let bodies = Bodies::look(data.join("bodies"));
    let config = StoreConfig::new(data.join("store"), Uuid::nil());
    Store::look(config, |looked| {
        let source = Source::of(looked, &bodies, &output).in_directory(data);
        verify(&source, with_output.then_some(output_dir.as_path()), watch)
    })?
}

/// `output_dir` is where the output lies, if it is wanted.
pub(crate) fn verify(
    source: &Source<'_>,
    output_dir: Option<&Path>,
    watch: Watch<'_>,
) -> Result<VerifySummary, VerifyError> {
    let _bodies_stay = source.bodies.reading();
    let mut verifying = Verifying::new(watch);
    if let Some(refusal) = &source.refusal {
        verifying.found(Finding::new("watermark", "store", refusal.clone()))?;
    }
    verifying.pages(source.store)?;
    let mut checker = Checker::default();
    let revision = source
        .store
        .tell(|told| verifying.hear(told, source, &mut checker))?;
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
pub struct VerifiedFile {
    pub head: Head,
    pub trailer: Trailer,
    /// Of the whole file.
    pub sha256: [u8; 32],
    pub summary: VerifySummary,
}

/// An export that is cut short or altered is an error; findings are about what it holds.
pub fn verify_file(path: &Path, watch: Watch<'_>) -> Result<VerifiedFile, VerifyError> {
    let unreadable = |source| VerifyError::File {
        path: path.display().to_string(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let total = file.metadata().map_err(unreadable)?.len();
    let mut reader = ArchiveReader::open(BufReader::with_capacity(BLOCK, file))?;
    let (mut verifying, mut checker) = (Verifying::new(watch), Checker::default());
    let mut carried = Carried::default();
    while let Some(item) = reader.next_item()? {
        carried.take(&item, &mut checker);
        let progress = Progress {
            stage: Stage::Checking,
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
    verifying.all_found(shortcomings(&head, &trailer))?;
    let summary = VerifySummary {
        records: checker.records,
        tasks: checker.tasks(),
        findings: verifying.findings,
        revision: trailer.revision,
    };
    Ok(VerifiedFile {
        head,
        trailer,
        sha256: reader.sha256(),
        summary,
    })
}

/// What its maker knew to be missing.
fn shortcomings(head: &Head, trailer: &Trailer) -> Vec<Finding> {
    let refusal = head.refusal.iter().map(|refusal| {
        let what = format!(
            "it was made of a directory on which no relay would start, and is not whole: {refusal}"
        );
        Finding::new("watermark", "export", what)
    });
    let skipped = (trailer.skipped > 0).then(|| {
        let what = format!(
            "{} records could not be read when it was made",
            trailer.skipped
        );
        Finding::new("unreadable", "export", what)
    });
    refusal.chain(skipped).collect()
}

impl VerifiedFile {
    /// What was missing already when it was made, and why; none for a whole export.
    pub fn missing(&self) -> Option<String> {
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
struct Carried {
    bodies: std::collections::HashSet<BodyHash>,
    /// The attempt whose output comes now, and its end so far.
    at: Option<(Uuid, u64)>,
    gaps: Vec<Finding>,
}

impl Carried {
    fn take(&mut self, item: &Item, checker: &mut Checker) {
        match item {
            Item::Put { key, body } => drop(checker.put(key, body)),
            Item::Delete(key) => checker.delete(key),
            Item::Body(body) => drop(self.bodies.insert(BodyHash::of(body))),
            Item::Output { attempt, piece } => self.reach(*attempt, piece.start(), piece.end()),
            Item::Sealed { attempt, end } => self.reach(*attempt, *end, *end),
        }
    }

    fn reach(&mut self, attempt: Uuid, from: u64, to: u64) {
        let at = match self.at {
            Some((same, at)) if same == attempt => at,
            Some(_) | None => 0,
        };
        if from != at {
            let what = format!("output goes on at byte {from} and not at {at}");
            let key = format_args!("attempt/{attempt}");
            self.gaps.push(Finding::new("gap", key, what));
        }
        self.at = Some((attempt, to));
    }

    fn findings(self, checker: &Checker) -> Vec<Finding> {
        let mut findings = self.gaps;
        let missing = checker
            .bodies
            .iter()
            .filter(|(_, hash)| !self.bodies.contains(hash));
        findings.extend(missing.map(|(task, hash)| {
            let what = format!("its prompt {} is not in the export", hash.file_name());
            Finding::new("body", format_args!("task/{task}"), what)
        }));
        findings
    }
}

struct Verifying<'w> {
    watch: Watch<'w>,
    steps: u64,
    findings: u64,
}

impl<'w> Verifying<'w> {
    fn new(watch: Watch<'w>) -> Self {
        Self {
            watch,
            steps: 0,
            findings: 0,
        }
    }

    fn found(&mut self, finding: Finding) -> Result<(), VerifyError> {
        self.findings += 1;
        self.show(Seen::Finding(finding))
    }

    fn all_found(&mut self, findings: Vec<Finding>) -> Result<(), VerifyError> {
        findings
            .into_iter()
            .try_for_each(|finding| self.found(finding))
    }

    fn show(&mut self, seen: Seen) -> Result<(), VerifyError> {
        if (self.watch)(seen) {
            Ok(())
        } else {
            Err(VerifyError::Ended)
        }
    }

    fn step(&mut self, progress: Progress) -> Result<(), VerifyError> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS) {
            return self.show(Seen::Progress(progress));
        }
        Ok(())
    }

    /// What lies on the disk: pages, checksums, pieces, and the journal.
    fn pages(&mut self, store: &Store) -> Result<(), VerifyError> {
        let mut go_on = true;
        let verified = store.verify_watched(&mut |so_far| {
            go_on = (self.watch)(Seen::Progress(Progress {
                stage: Stage::Pages,
                records: so_far.records.values().sum(),
                bytes: so_far.bytes,
                total_bytes: None,
            }));
            go_on
        });
        let verified = verified.map_err(|error| VerifyError::Read(error.to_string()))?;
        if !go_on {
            return Err(VerifyError::Ended);
        }
        self.page_findings(&verified)
    }

    fn page_findings(&mut self, verified: &Verified) -> Result<(), VerifyError> {
        for (key, why) in &verified.listed {
            let key = key.as_ref().map_or("page".to_owned(), ToString::to_string);
            self.found(Finding::new("unreadable", key, why.clone()))?;
        }
        let more = verified.unreadable - verified.listed.len() as u64;
        if more > 0 {
            let what = format!("{more} more records cannot be read");
            self.found(Finding::new("unreadable", "store", what))?;
        }
        if verified.journal_broken > 0 {
            let what = format!(
                "{} entries or pages of the journal cannot be read",
                verified.journal_broken
            );
            self.found(Finding::new("journal", "store", what))?;
        }
        if verified.too_long > 0 {
            let what = format!(
                "{} values are longer than the database holds safely",
                verified.too_long
            );
            self.found(Finding::new("journal", "store", what))?;
        }
        Ok(())
    }

    fn hear(
        &mut self,
        told: Told,
        source: &Source<'_>,
        checker: &mut Checker,
    ) -> Result<(), VerifyError> {
        let fact = match &told {
            Told::Record(key, body) => checker.put(key, body),
            Told::Change(Change::Put(key, body)) => checker.put(key, body),
            Told::Change(Change::Delete(key)) => {
                checker.delete(key);
                None
            }
            // Found and named with the pages already.
            Told::Unreadable(key, _) => {
                if let Some(key) = key {
                    checker.unreadable(key);
                }
                None
            }
        };
        if let Some(Fact::Task { attempts, .. }) = fact {
            self.ends(source.output, &attempts)?;
        }
        self.step(Progress {
            stage: Stage::Records,
            records: checker.records,
            bytes: checker.bytes,
            total_bytes: None,
        })
    }

    /// A terminal frame waits for its output, so a record never knows of more than the log has, unless all of it went.
    fn ends(
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
                self.found(Finding::new("gap", format_args!("attempt/{attempt}"), what))?;
            }
        }
        Ok(())
    }

    fn bodies(&mut self, bodies: &Bodies, checker: &Checker) -> Result<(), VerifyError> {
        for (number, (task, hash)) in (0..).zip(&checker.bodies) {
            if let Err(error) = bodies.load_bytes(*hash) {
                let what = format!("its prompt {} cannot be read: {error}", hash.file_name());
                self.found(Finding::new("body", format_args!("task/{task}"), what))?;
            }
            self.step(Progress {
                stage: Stage::Bodies,
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
            self.found(Finding::new("output", name, what))?;
        }
        let mut bytes = 0;
        for (number, attempt) in (0..).zip(output.attempts()) {
            bytes += self.output_of(output, attempt)?;
            self.step(Progress {
                stage: Stage::Output,
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
                Err(ReadError::Unknown) => break,
                Err(error) => return Err(VerifyError::Read(error.to_string())),
            };
            for piece in &pieces {
                at = piece.end();
                if let Piece::Cut {
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
            self.found(Finding::new(
                "output",
                format_args!("attempt/{attempt}"),
                what,
            ))?;
        }
        Ok(at)
    }
}
