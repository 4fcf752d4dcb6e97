//! Export and verify of a live relay: each reads everything, on a thread of its own that yields to the relay's work.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use baton_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::Api;
use super::fault::Fault;
use super::operator::all_tenants;
use super::streams::{Answers, Feed};
use crate::archive::{
    self, ExportError, ExportOptions, Exported, Finding, Progress, Seen, Source, VerifyError,
};
use crate::auth::Principal;
use crate::clock::Clock;

/// Bytes of an export in one message: large enough to be few, small enough that a client that does not read holds little.
const CHUNK: usize = 256 * 1024;
/// Between two words about progress.
const PROGRESS_MS: u64 = 500;
/// Findings that are told one by one; a verify counts all of them.
const FINDINGS: u64 = 10_000;
/// How much less urgent than the relay's work (see nice(2)).
const NICE: i32 = 10;

/// What exports, imports and verifies share. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Transfers {
    running: Arc<Semaphore>,
    pub(super) data: Arc<Path>,
    /// Cancelled when the relay is to start again with imported data.
    pub(super) again: CancellationToken,
}

impl Transfers {
    pub(crate) fn new(data: &Path, again: CancellationToken) -> Self {
        Self {
            running: Arc::new(Semaphore::new(1)),
            data: data.into(),
            again,
        }
    }

    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let place = Arc::clone(&self.running).try_acquire_owned();
        place.map_err(|_| Fault::TransferBusy)
    }
}

impl Api {
    pub(super) fn export_all(
        &self,
        who: &Principal,
        request: &v1::ExportRequest,
    ) -> Result<Answers<v1::ExportResponse>, Fault> {
        all_tenants(who)?;
        let place = self.transfers.enter()?;
        let (api, options) = (self.clone(), self.export_options(request));
        tracing::info!(by = %who.name, ?options, "export begins");
        self.stream(who, |feed| {
            apart("relay-export", move || {
                let _place = place;
                api.export_to(options, feed)
            })
        })
    }

    fn export_options(&self, request: &v1::ExportRequest) -> ExportOptions {
        ExportOptions {
            without_output: request.without_output,
            without_tokens: request.without_tokens,
            made_at_ms: self.clock.now().wall.0,
        }
    }

    fn export_to(
        &self,
        options: ExportOptions,
        feed: Feed<v1::ExportResponse>,
    ) -> Result<(), Fault> {
        use v1::export_response::Item;
        let (output, mut pace) = (self.output.stored(), Pace::new(&self.clock));
        let chunks = Chunks {
            feed: feed.clone(),
            buffer: Vec::with_capacity(CHUNK),
        };
        let send = |item| {
            let message = v1::ExportResponse { item: Some(item) };
            // A client that left is noticed by the next chunk.
            let _ = feed.blocking_send(Ok(message));
        };
        let mut watch = |progress: Progress| {
            if pace.is_due() {
                send(Item::Progress(shown(&progress)));
            }
        };
        let exported = archive::export(&self.source(&output), options, chunks, &mut watch);
        let (exported, _) = exported.map_err(|error| export_fault(&error))?;
        tracing::info!(bytes = exported.bytes, trailer = ?exported.trailer, "export made");
        send(Item::Trailer(trailer(&exported)));
        Ok(())
    }

    pub(super) fn verify_all(
        &self,
        who: &Principal,
        request: &v1::VerifyRequest,
    ) -> Result<Answers<v1::VerifyResponse>, Fault> {
        all_tenants(who)?;
        let place = self.transfers.enter()?;
        let (api, with_output) = (self.clone(), request.include_output);
        self.stream(who, |feed| {
            apart("relay-verify", move || {
                let _place = place;
                api.verify_to(with_output, &feed)
            })
        })
    }

    fn verify_to(&self, with_output: bool, feed: &Feed<v1::VerifyResponse>) -> Result<(), Fault> {
        use v1::verify_response::Item;
        let (output, mut pace) = (self.output.stored(), Pace::new(&self.clock));
        let send = |item| {
            let message = v1::VerifyResponse { item: Some(item) };
            feed.blocking_send(Ok(message)).is_ok()
        };
        let mut told = 0;
        let mut watch = |seen: Seen| match seen {
            Seen::Progress(progress) if pace.is_due() => send(Item::Progress(shown(&progress))),
            Seen::Progress(_) => !feed.is_closed(),
            Seen::Finding(finding) => {
                told += 1;
                told > FINDINGS || send(Item::Finding(found(finding)))
            }
        };
        let output_dir = self.transfers.data.join("output");
        let output_dir = with_output.then_some(output_dir.as_path());
        let summary = archive::verify(&self.source(&output), output_dir, &mut watch);
        let summary = summary.map_err(|error| verify_fault(&error))?;
        send(Item::Summary(v1::VerifySummary {
            records: summary.records,
            findings: summary.findings,
            commit_seq: summary.revision,
            tasks: summary.tasks,
        }));
        Ok(())
    }

    fn source<'a>(&'a self, output: &'a crate::output::StoredOutput) -> Source<'a> {
        Source {
            store: self.reader.store(),
            bodies: self.reader.bodies(),
            output,
            incarnation: Some(self.config.incarnation.0),
            relay_epoch: self.config.epoch.0,
            refusal: None,
        }
    }
}

/// Runs the work on a thread of its own, less urgent than others. Dropping the future leaves it to notice by itself.
pub(super) async fn apart<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let (done, outcome) = oneshot::channel();
    let thread = std::thread::Builder::new().name(name.to_owned());
    let started = thread.spawn(move || {
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "the thread is as urgent as others");
        }
        // Nobody may wait any more.
        let _ = done.send(work());
    });
    started.map_err(|error| {
        tracing::error!(%error, "no thread could be started");
        Fault::Internal
    })?;
    // A thread that panicked has said so in the log.
    outcome.await.map_err(|_| Fault::Internal)?
}

/// An export on its way into messages. Full: the export waits for its client.
struct Chunks {
    feed: Feed<v1::ExportResponse>,
    buffer: Vec<u8>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK - self.buffer.len();
        let some = bytes.len().min(room);
        self.buffer.extend_from_slice(&bytes[..some]);
        if self.buffer.len() == CHUNK {
            self.flush()?;
        }
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK));
        let item = v1::export_response::Item::Chunk(full.into());
        let message = v1::ExportResponse { item: Some(item) };
        self.feed
            .blocking_send(Ok(message))
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Says when there is time for the next word.
pub(super) struct Pace {
    clock: Clock,
    next_ms: u64,
}

impl Pace {
    pub(super) fn new(clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            next_ms: 0,
        }
    }

    pub(super) fn is_due(&mut self) -> bool {
        let now_ms = self.clock.now().at.0;
        let due = now_ms >= self.next_ms;
        if due {
            self.next_ms = now_ms + PROGRESS_MS;
        }
        due
    }
}

pub(super) fn shown(progress: &Progress) -> v1::TransferProgress {
    v1::TransferProgress {
        records: progress.records,
        bytes: progress.bytes,
        total_records: None,
        stage: progress.stage.as_str().to_owned(),
        total_bytes: progress.total_bytes,
    }
}

fn found(finding: Finding) -> v1::VerifyFinding {
    v1::VerifyFinding {
        kind: finding.kind.to_owned(),
        key: finding.key,
        message: finding.message,
    }
}

fn trailer(exported: &Exported) -> v1::ExportTrailer {
    let incarnation = exported.head.incarnation;
    v1::ExportTrailer {
        sha256: exported.sha256.to_vec().into(),
        records: exported.trailer.puts,
        commit_seq: exported.trailer.revision,
        skipped: exported.trailer.skipped,
        bytes: exported.bytes,
        incarnation: incarnation.map(|id| id.to_string()).unwrap_or_default(),
        missing_bodies: exported.trailer.missing_bodies,
    }
}

fn export_fault(error: &ExportError) -> Fault {
    match error {
        // The client is gone, so nobody hears this.
        ExportError::Write(_) | ExportError::Stopped(_) => Fault::Stopping,
        ExportError::FellBehind(_) => Fault::ExportBehind,
        ExportError::Open(_)
        | ExportError::Output(_)
        | ExportError::ReadOutput(_)
        | ExportError::Read(_) => {
            tracing::error!(%error, "the export failed");
            Fault::Unreadable
        }
    }
}

fn verify_fault(error: &VerifyError) -> Fault {
    match error {
        VerifyError::Ended => Fault::Stopping,
        VerifyError::Open(_)
        | VerifyError::Output(_)
        | VerifyError::Archive(_)
        | VerifyError::File { .. }
        | VerifyError::Read(_) => {
            tracing::error!(%error, "the verify failed");
            Fault::Unreadable
        }
    }
}
