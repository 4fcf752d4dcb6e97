//! An import into a running relay that has no task.
//!
//! The upload is checked and written beside the relay's data while the relay goes on. Only then does the dispatcher take
//! no more requests, in one step with its look at whether there is still no task; what follows ends with a new start in
//! any case, and so does not stop when the client leaves.

use std::fs::File;
use std::io::Write;

use baton_proto::v1;
use baton_proto::v1::import_request::Item as Sent;
use baton_proto::v1::import_response::Item;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tonic::Streaming;

use super::Api;
use super::fault::Fault;
use super::limits::Size;
use super::operator::all_tenants;
use super::streams::{Answers, Feed};
use super::transfer::{Pace, apart, shown};
use super::validate::{Why, invalid};
use crate::archive::{ImportError, Imported, Seen, Staged, Upload, VerifyError};
use crate::auth::Principal;

/// The largest chunk, as the proto says.
const CHUNK_MAX: usize = 1 << 20;

impl Api {
    pub(super) async fn import_all(
        &self,
        who: Principal,
        chunks: Streaming<v1::ImportRequest>,
    ) -> Result<Answers<v1::ImportResponse>, Fault> {
        all_tenants(&who)?;
        self.admit()?;
        let place = self.transfers.enter()?;
        // Asked again when it counts; here it saves the upload.
        if !self.read(|reader| reader.has_no_task()).await? {
            return Err(Fault::NotEmpty);
        }
        tracing::info!(by = %who.name, "import begins");
        let api = self.clone();
        self.stream(&who, |feed| api.import(chunks, place, feed))
    }

    async fn import(
        self,
        chunks: Streaming<v1::ImportRequest>,
        place: OwnedSemaphorePermit,
        feed: Feed<v1::ImportResponse>,
    ) -> Result<(), Fault> {
        let (upload, file) =
            Upload::begin(&self.transfers.data).map_err(|error| import_fault(&error))?;
        self.receive(chunks, file, &feed).await?;
        let (api, watcher) = (self.clone(), feed.clone());
        let staged = apart("relay-import", move || api.stage(upload, &watcher)).await?;
        let (outcome, imported) = oneshot::channel();
        let (told, heard) = oneshot::channel();
        tokio::spawn(self.take_over(staged, place, outcome, heard));
        let imported = imported.await.map_err(|_| Fault::Internal)??;
        send(&feed, Item::Summary(imported)).await?;
        drop(told);
        Ok(())
    }

    /// Writes the upload to its file, and checks what its sender says of it.
    async fn receive(
        &self,
        mut chunks: Streaming<v1::ImportRequest>,
        mut file: File,
        feed: &Feed<v1::ImportResponse>,
    ) -> Result<(), Fault> {
        let (mut hash, mut bytes, mut pace) = (Sha256::new(), 0, Pace::new(&self.clock));
        loop {
            let message = chunks.message().await.map_err(|_| Fault::Undecodable)?;
            let Some(v1::ImportRequest { item: Some(item) }) = message else {
                return Err(cut_short());
            };
            let chunk = match item {
                Sent::Chunk(chunk) if chunk.len() > CHUNK_MAX => {
                    let limit = Size::Bytes(CHUNK_MAX);
                    return Err(invalid("chunk", Why::TooLong { limit }).into());
                }
                Sent::Chunk(chunk) => chunk,
                Sent::Sha256(said) if said == *hash.finalize() => return Ok(()),
                Sent::Sha256(_) => return Err(altered()),
            };
            hash.update(&chunk);
            bytes += chunk.len() as u64;
            file = write(file, chunk).await?;
            if pace.is_due() {
                let progress = v1::TransferProgress {
                    bytes,
                    stage: "receiving".to_owned(),
                    ..v1::TransferProgress::default()
                };
                send(feed, Item::Progress(progress)).await?;
            }
        }
    }

    fn stage(&self, upload: Upload, feed: &Feed<v1::ImportResponse>) -> Result<Staged, Fault> {
        let mut pace = Pace::new(&self.clock);
        let mut watch = |seen: Seen| match seen {
            Seen::Progress(progress) if pace.is_due() => {
                let item = Some(Item::Progress(shown(&progress)));
                feed.blocking_send(Ok(v1::ImportResponse { item })).is_ok()
            }
            // Findings are counted in the summary.
            Seen::Progress(_) | Seen::Finding(_) => !feed.is_closed(),
        };
        let staged = upload.stage(self.clock.now().wall, &mut watch);
        staged.map_err(|error| import_fault(&error))
    }

    /// The last steps. Once nothing is taken any more the relay starts again, whatever comes of it.
    async fn take_over(
        self,
        staged: Staged,
        place: OwnedSemaphorePermit,
        outcome: oneshot::Sender<Result<v1::ImportSummary, Fault>>,
        heard: oneshot::Receiver<()>,
    ) {
        match self.dispatcher.retire().await {
            Ok(true) => {}
            refused => {
                let fault = refused.map_or_else(Fault::from, |_| Fault::NotEmpty);
                let _ = outcome.send(Err(fault)); // The client may have gone.
                return;
            }
        }
        let api = self.clone();
        let finished = apart("relay-import", move || api.finish(staged)).await;
        let _ = outcome.send(finished); // The client may have gone.
        // Ends when the client was told, or will not be.
        let _ = heard.await;
        drop(place);
        self.transfers.again.cancel();
        self.stop.cancel();
    }

    fn finish(&self, staged: Staged) -> Result<v1::ImportSummary, Fault> {
        let finished = staged.finish(self.reader.store());
        let imported = finished.map_err(|error| import_fault(&error))?;
        tracing::info!(?imported, "import taken; starting again with it");
        Ok(summary(&imported))
    }
}

/// Off the async threads: the disk may take its time.
async fn write(mut file: File, chunk: bytes::Bytes) -> Result<File, Fault> {
    let written = tokio::task::spawn_blocking(move || file.write_all(&chunk).map(|()| file)).await;
    match written {
        Ok(Ok(file)) => Ok(file),
        Ok(Err(error)) => Err(Fault::ImportFailed {
            message: error.to_string(),
        }),
        Err(_) => Err(Fault::Internal),
    }
}

async fn send(feed: &Feed<v1::ImportResponse>, item: Item) -> Result<(), Fault> {
    let message = v1::ImportResponse { item: Some(item) };
    feed.send(Ok(message)).await.map_err(|_| Fault::Stopping)
}

fn summary(imported: &Imported) -> v1::ImportSummary {
    v1::ImportSummary {
        records: imported.trailer.puts,
        tasks: imported.tasks,
        incarnation: imported.incarnation.to_string(),
        hold_ms: imported.hold_ms,
        findings: imported.findings,
    }
}

fn cut_short() -> Fault {
    Fault::BadExport {
        code: "export_cut_short",
        message: "the upload ended without its hash".to_owned(),
    }
}

fn altered() -> Fault {
    Fault::BadExport {
        code: "export_altered",
        message: "the upload does not match its hash".to_owned(),
    }
}

fn import_fault(error: &ImportError) -> Fault {
    match error {
        ImportError::Check(VerifyError::Archive(fault)) | ImportError::Changed(fault) => {
            Fault::BadExport {
                code: fault.damage.code(),
                message: fault.to_string(),
            }
        }
        ImportError::Check(VerifyError::Ended) => Fault::Stopping,
        ImportError::Check(_)
        | ImportError::NotWhole { .. }
        | ImportError::NotEmpty { .. }
        | ImportError::Interrupted { .. }
        | ImportError::Io { .. }
        | ImportError::Store(_)
        | ImportError::Output(_)
        | ImportError::Write(_) => {
            tracing::error!(%error, "the import failed");
            Fault::ImportFailed {
                message: error.to_string(),
            }
        }
    }
}
