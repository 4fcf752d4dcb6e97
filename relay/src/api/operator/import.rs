//! Import into a running relay that has no tasks.
//!
//! The upload is verified and written beside the relay's data while the relay keeps running.
//! Then the dispatcher checks once more that there is no task and stops accepting requests, in
//! one step. From there on the import always ends with a restart, even if the client leaves.

use std::fs::File;
use std::io::Write;

use baton_proto::v1;
use baton_proto::v1::import_request::Item as Sent;
use baton_proto::v1::import_response::Item;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tonic::Streaming;

use super::export::{ProgressInterval, progress_message, run_on_own_thread};
use super::require_all_tenants;
use crate::api::Api;
use crate::api::error::fault::ApiFault;
use crate::api::request::limits::TextLimit;
use crate::api::request::streams::{ResponseStream, StreamSender};
use crate::api::request::validate::{InvalidReason, invalid_field};
use crate::archive::{
    ImportError, ImportSummary, ImportUpload, StagedImport, VerifyError, VerifyEvent,
};
use crate::auth::Principal;

/// The largest chunk; the proto states the same number.
const IMPORT_CHUNK_MAX: usize = 1 << 20;

impl Api {
    pub(crate) async fn handle_import(
        &self,
        who: Principal,
        chunks: Streaming<v1::ImportRequest>,
    ) -> Result<ResponseStream<v1::ImportResponse>, ApiFault> {
        require_all_tenants(&who)?;
        self.check_disk_space()?;
        let permit = self.transfers.acquire()?;
        // The dispatcher checks this again later. This check avoids a useless upload.
        if !self.read_store(|reader| reader.has_no_task()).await? {
            return Err(ApiFault::RelayNotEmpty);
        }
        tracing::info!(by = %who.name, "import started");
        let api = self.clone();
        self.open_stream(&who, |feed| api.run_import(chunks, permit, feed))
    }

    async fn run_import(
        self,
        chunks: Streaming<v1::ImportRequest>,
        permit: OwnedSemaphorePermit,
        feed: StreamSender<v1::ImportResponse>,
    ) -> Result<(), ApiFault> {
        let (upload, file) =
            ImportUpload::begin(&self.transfers.data_dir).map_err(|error| import_fault(&error))?;
        self.receive_upload(chunks, file, &feed).await?;
        let (api, watcher) = (self.clone(), feed.clone());
        // The thread owns the permit: if the client leaves, the thread still removes its files,
        // and the next import must not begin in the same directory before that.
        let staged = run_on_own_thread("relay-import", move || {
            let staged = api.stage_upload(upload, &watcher)?;
            Ok((staged, permit))
        });
        let (staged, permit) = staged.await?;
        let (outcome, imported) = oneshot::channel();
        let (summary_sent, client_done) = oneshot::channel();
        tokio::spawn(self.replace_data(staged, permit, outcome, client_done));
        let imported = imported.await.map_err(|_| ApiFault::Internal)??;
        send_item(&feed, Item::Summary(imported)).await?;
        drop(summary_sent);
        Ok(())
    }

    /// Writes the upload to its file and checks the digest that ends it.
    async fn receive_upload(
        &self,
        mut chunks: Streaming<v1::ImportRequest>,
        mut file: File,
        feed: &StreamSender<v1::ImportResponse>,
    ) -> Result<(), ApiFault> {
        let (mut hash, mut bytes, mut progress_interval) =
            (Sha256::new(), 0, ProgressInterval::new(&self.clock));
        loop {
            let message = chunks.message().await.map_err(|_| ApiFault::Undecodable)?;
            let Some(v1::ImportRequest { item: Some(item) }) = message else {
                return Err(truncated_upload());
            };
            let chunk = match item {
                Sent::Chunk(chunk) if chunk.len() > IMPORT_CHUNK_MAX => {
                    let limit = TextLimit::Bytes(IMPORT_CHUNK_MAX);
                    return Err(invalid_field("chunk", InvalidReason::TooLong { limit }).into());
                }
                Sent::Chunk(chunk) => chunk,
                Sent::Sha256(digest) if digest == *hash.finalize() => return Ok(()),
                Sent::Sha256(_) => return Err(digest_mismatch()),
            };
            hash.update(&chunk);
            bytes += chunk.len() as u64;
            file = write_chunk(file, chunk).await?;
            if progress_interval.is_due() {
                let progress = v1::TransferProgress {
                    bytes,
                    stage: "receiving".to_owned(),
                    ..v1::TransferProgress::default()
                };
                send_item(feed, Item::Progress(progress)).await?;
            }
        }
    }

    fn stage_upload(
        &self,
        upload: ImportUpload,
        feed: &StreamSender<v1::ImportResponse>,
    ) -> Result<StagedImport, ApiFault> {
        let mut progress_interval = ProgressInterval::new(&self.clock);
        let mut watch = |event: VerifyEvent| match event {
            VerifyEvent::Progress(progress) if progress_interval.is_due() => {
                let item = Some(Item::Progress(progress_message(&progress)));
                feed.blocking_send(Ok(v1::ImportResponse { item })).is_ok()
            }
            // Findings are only counted; the summary has their number.
            VerifyEvent::Progress(_) | VerifyEvent::Finding(_) => !feed.is_closed(),
        };
        let staged = upload.stage(self.clock.now().wall, &mut watch);
        staged.map_err(|error| import_fault(&error))
    }

    /// The last steps. Once the dispatcher has stopped accepting requests, the relay restarts,
    /// whether or not the import succeeds.
    async fn replace_data(
        self,
        staged: StagedImport,
        permit: OwnedSemaphorePermit,
        outcome: oneshot::Sender<Result<v1::ImportSummary, ApiFault>>,
        client_done: oneshot::Receiver<()>,
    ) {
        match self.dispatcher.stop_accepting().await {
            Ok(true) => {}
            refused => {
                let fault = refused.map_or_else(ApiFault::from, |_| ApiFault::RelayNotEmpty);
                // Released before the client sees the fault, so that its next transfer is not
                // refused with `transfer_busy`. The files go first: the next import uses the same
                // directory.
                drop(staged);
                drop(permit);
                let _ = outcome.send(Err(fault)); // The client may have gone.
                return;
            }
        }
        let api = self.clone();
        let finished = run_on_own_thread("relay-import", move || api.finish_import(staged)).await;
        let _ = outcome.send(finished); // The client may have gone.
        // Resolves when the summary was sent, or when the client's stream has ended.
        let _ = client_done.await;
        // Kept until here: the relay restarts now, so no other transfer may begin before that.
        drop(permit);
        self.transfers.restart.cancel();
        self.stop.cancel();
    }

    fn finish_import(&self, staged: StagedImport) -> Result<v1::ImportSummary, ApiFault> {
        let finished = staged.finish(self.reader.store());
        let imported = finished.map_err(|error| import_fault(&error))?;
        tracing::info!(
            ?imported,
            "import finished; restarting with the imported data"
        );
        Ok(import_summary(&imported))
    }
}

/// Writes on a blocking thread, because the disk may be slow.
async fn write_chunk(mut file: File, chunk: bytes::Bytes) -> Result<File, ApiFault> {
    let written = tokio::task::spawn_blocking(move || file.write_all(&chunk).map(|()| file)).await;
    match written {
        Ok(Ok(file)) => Ok(file),
        Ok(Err(error)) => Err(ApiFault::ImportFailed {
            message: error.to_string(),
        }),
        Err(_) => Err(ApiFault::Internal),
    }
}

async fn send_item(feed: &StreamSender<v1::ImportResponse>, item: Item) -> Result<(), ApiFault> {
    let message = v1::ImportResponse { item: Some(item) };
    feed.send(Ok(message)).await.map_err(|_| ApiFault::Stopping)
}

fn import_summary(imported: &ImportSummary) -> v1::ImportSummary {
    v1::ImportSummary {
        records: imported.trailer.puts,
        tasks: imported.tasks,
        incarnation: imported.incarnation.to_string(),
        hold_ms: imported.hold_ms,
        findings: imported.findings,
    }
}

fn truncated_upload() -> ApiFault {
    ApiFault::InvalidArchive {
        code: "export_cut_short",
        message: "the upload ended without its SHA-256".to_owned(),
    }
}

fn digest_mismatch() -> ApiFault {
    ApiFault::InvalidArchive {
        code: "export_altered",
        message: "the upload does not match its SHA-256".to_owned(),
    }
}

fn import_fault(error: &ImportError) -> ApiFault {
    match error {
        ImportError::Check(VerifyError::Archive(fault)) | ImportError::Changed(fault) => {
            ApiFault::InvalidArchive {
                code: fault.damage.code(),
                message: fault.to_string(),
            }
        }
        ImportError::Check(VerifyError::WatcherStopped) => ApiFault::Stopping,
        ImportError::Check(_)
        | ImportError::NotWhole { .. }
        | ImportError::NotEmpty { .. }
        | ImportError::Interrupted { .. }
        | ImportError::Io { .. }
        | ImportError::Store(_)
        | ImportError::Output(_)
        | ImportError::Write(_) => {
            tracing::error!(%error, "import failed");
            ApiFault::ImportFailed {
                message: error.to_string(),
            }
        }
    }
}
