//! Export and verify of a running relay. Each reads the whole store, on its own thread with low
//! priority.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use baton_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::require_all_tenants;
use crate::api::Api;
use crate::api::error::fault::ApiFault;
use crate::api::request::streams::{ResponseStream, StreamSender};
use crate::archive::{
    self, ArchiveProgress, ExportError, ExportOptions, ExportSource, ExportSummary, VerifyError,
    VerifyEvent, VerifyFinding,
};
use crate::auth::Principal;
use crate::clock::RelayClock;

/// Bytes of an export in one message: large enough for few messages, small enough that a client
/// that does not read occupies little memory.
const EXPORT_CHUNK_BYTES: usize = 256 * 1024;
/// Time between two progress messages.
const PROGRESS_INTERVAL_MS: u64 = 500;
/// Findings that are sent in full. The summary counts all of them.
const FINDINGS_MAX: u64 = 10_000;
/// Nice value of the thread (see nice(2)), so that the relay's work goes first.
const NICE_LEVEL: i32 = 10;

/// The state that exports, imports and verifies share. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct DataTransfers {
    running: Arc<Semaphore>,
    pub(crate) data_dir: Arc<Path>,
    /// Cancelled when the relay must restart with imported data.
    pub(crate) restart: CancellationToken,
}

impl DataTransfers {
    pub(crate) fn new(data: &Path, restart: CancellationToken) -> Self {
        Self {
            running: Arc::new(Semaphore::new(1)),
            data_dir: data.into(),
            restart,
        }
    }

    pub(crate) fn acquire(&self) -> Result<OwnedSemaphorePermit, ApiFault> {
        let permit = Arc::clone(&self.running).try_acquire_owned();
        permit.map_err(|_| ApiFault::TransferBusy)
    }
}

impl Api {
    pub(crate) fn handle_export(
        &self,
        who: &Principal,
        request: &v1::ExportRequest,
    ) -> Result<ResponseStream<v1::ExportResponse>, ApiFault> {
        require_all_tenants(who)?;
        let permit = self.transfers.acquire()?;
        let (api, options) = (self.clone(), self.export_options(request));
        tracing::info!(by = %who.name, ?options, "export started");
        self.open_stream(who, |feed| {
            run_on_own_thread("relay-export", move || {
                api.run_export(options, permit, feed)
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

    fn run_export(
        &self,
        options: ExportOptions,
        permit: OwnedSemaphorePermit,
        feed: StreamSender<v1::ExportResponse>,
    ) -> Result<(), ApiFault> {
        use v1::export_response::Item;
        let (output, mut progress_interval) =
            (self.output.stored(), ProgressInterval::new(&self.clock));
        let chunks = ExportChunkWriter {
            sender: feed.clone(),
            buffer: Vec::with_capacity(EXPORT_CHUNK_BYTES),
        };
        let send = |item| {
            let message = v1::ExportResponse { item: Some(item) };
            // If the client has left, writing the next chunk fails.
            let _ = feed.blocking_send(Ok(message));
        };
        let mut watch = |progress: ArchiveProgress| {
            if progress_interval.is_due() {
                send(Item::Progress(progress_message(&progress)));
            }
        };
        let exported =
            archive::write_export(&self.archive_source(&output), options, chunks, &mut watch);
        let (exported, _) = exported.map_err(|error| export_fault(&error))?;
        tracing::info!(bytes = exported.bytes, trailer = ?exported.trailer, "export finished");
        // Released before the last message: a client that has received it may start the next
        // transfer at once and must not be refused with `transfer_busy`.
        drop(permit);
        send(Item::Trailer(export_trailer(&exported)));
        Ok(())
    }

    pub(crate) fn handle_verify(
        &self,
        who: &Principal,
        request: &v1::VerifyRequest,
    ) -> Result<ResponseStream<v1::VerifyResponse>, ApiFault> {
        require_all_tenants(who)?;
        let permit = self.transfers.acquire()?;
        let (api, with_output) = (self.clone(), request.include_output);
        self.open_stream(who, |feed| {
            run_on_own_thread("relay-verify", move || {
                api.run_verify(with_output, permit, &feed)
            })
        })
    }

    fn run_verify(
        &self,
        with_output: bool,
        permit: OwnedSemaphorePermit,
        feed: &StreamSender<v1::VerifyResponse>,
    ) -> Result<(), ApiFault> {
        use v1::verify_response::Item;
        let (output, mut progress_interval) =
            (self.output.stored(), ProgressInterval::new(&self.clock));
        let send = |item| {
            let message = v1::VerifyResponse { item: Some(item) };
            feed.blocking_send(Ok(message)).is_ok()
        };
        let mut findings = 0;
        let mut watch = |event: VerifyEvent| match event {
            VerifyEvent::Progress(progress) if progress_interval.is_due() => {
                send(Item::Progress(progress_message(&progress)))
            }
            VerifyEvent::Progress(_) => !feed.is_closed(),
            VerifyEvent::Finding(finding) => {
                findings += 1;
                findings > FINDINGS_MAX || send(Item::Finding(finding_message(finding)))
            }
        };
        let output_dir = self.transfers.data_dir.join("output");
        let output_dir = with_output.then_some(output_dir.as_path());
        let summary = archive::verify_source(&self.archive_source(&output), output_dir, &mut watch);
        let summary = summary.map_err(|error| verify_fault(&error))?;
        // Released before the last message, as in `run_export`.
        drop(permit);
        send(Item::Summary(v1::VerifySummary {
            records: summary.records,
            findings: summary.findings,
            commit_seq: summary.revision,
            tasks: summary.tasks,
        }));
        Ok(())
    }

    fn archive_source<'a>(&'a self, output: &'a crate::output::StoredOutput) -> ExportSource<'a> {
        ExportSource {
            store: self.reader.store(),
            bodies: self.reader.bodies(),
            output,
            incarnation: Some(self.config.incarnation.0),
            relay_epoch: self.config.epoch.0,
            refusal: None,
        }
    }
}

/// Runs the work on its own thread with low priority. Dropping the future does not stop the thread;
/// the work notices that its channel is closed.
pub(crate) async fn run_on_own_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, ApiFault> + Send + 'static,
) -> Result<T, ApiFault> {
    let (done, outcome) = oneshot::channel();
    let thread = std::thread::Builder::new().name(name.to_owned());
    let started = thread.spawn(move || {
        if let Err(error) = rustix::process::nice(NICE_LEVEL) {
            tracing::debug!(%error, "lowering the thread priority failed");
        }
        // The receiver may have been dropped.
        let _ = done.send(work());
    });
    started.map_err(|error| {
        tracing::error!(%error, "starting a thread failed");
        ApiFault::Internal
    })?;
    // The sender is only dropped if the thread panicked, which is logged by the panic hook.
    outcome.await.map_err(|_| ApiFault::Internal)?
}

/// Splits an export into messages. If the channel is full, the export waits for its client.
struct ExportChunkWriter {
    sender: StreamSender<v1::ExportResponse>,
    buffer: Vec<u8>,
}

impl Write for ExportChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = EXPORT_CHUNK_BYTES - self.buffer.len();
        let taken = bytes.len().min(room);
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == EXPORT_CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(EXPORT_CHUNK_BYTES));
        let item = v1::export_response::Item::Chunk(full.into());
        let message = v1::ExportResponse { item: Some(item) };
        self.sender
            .blocking_send(Ok(message))
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Limits how often progress is sent.
pub(crate) struct ProgressInterval {
    clock: RelayClock,
    next_ms: u64,
}

impl ProgressInterval {
    pub(crate) fn new(clock: &RelayClock) -> Self {
        Self {
            clock: clock.clone(),
            next_ms: 0,
        }
    }

    pub(crate) fn is_due(&mut self) -> bool {
        let now_ms = self.clock.now().monotonic.0;
        let due = now_ms >= self.next_ms;
        if due {
            self.next_ms = now_ms + PROGRESS_INTERVAL_MS;
        }
        due
    }
}

pub(crate) fn progress_message(progress: &ArchiveProgress) -> v1::TransferProgress {
    v1::TransferProgress {
        records: progress.records,
        bytes: progress.bytes,
        total_records: None,
        stage: progress.stage.as_str().to_owned(),
        total_bytes: progress.total_bytes,
    }
}

fn finding_message(finding: VerifyFinding) -> v1::VerifyFinding {
    v1::VerifyFinding {
        kind: finding.kind.to_owned(),
        key: finding.key,
        message: finding.message,
    }
}

fn export_trailer(exported: &ExportSummary) -> v1::ExportTrailer {
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

fn export_fault(error: &ExportError) -> ApiFault {
    match error {
        // The client has left, so it does not receive this fault.
        ExportError::Write(_) | ExportError::Stopped(_) => ApiFault::Stopping,
        ExportError::FellBehind(_) => ApiFault::ExportBehind,
        ExportError::Open(_)
        | ExportError::Output(_)
        | ExportError::ReadOutput(_)
        | ExportError::Read(_) => {
            tracing::error!(%error, "export failed");
            ApiFault::Unreadable
        }
    }
}

fn verify_fault(error: &VerifyError) -> ApiFault {
    match error {
        VerifyError::WatcherStopped => ApiFault::Stopping,
        VerifyError::Open(_)
        | VerifyError::Output(_)
        | VerifyError::Archive(_)
        | VerifyError::File { .. }
        | VerifyError::Read(_) => {
            tracing::error!(%error, "verify failed");
            ApiFault::Unreadable
        }
    }
}
