//! The output log: bytes that attempts wrote, in shared append-only segment files beside the store.
//!
//! One writer thread appends, syncs once per group and then publishes durable ends; readers use positioned reads
//! and never wait for the writer. It knows attempts by id only: ownership is checked before anyone reads here.

mod error;
mod piece;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::Stream;
use uuid::Uuid;

pub use error::{AppendError, OutputError, ReadError, SyncError};
pub use piece::{Appended, CHUNK_BYTES_MAX, Chunk, CutReason, OutputEnd, Piece};

/// Called once when a write or sync fails for another reason than a full disk. It must end the process: after a
/// failed sync nothing on disk can be trusted to be what was acknowledged.
pub type AbortHook = Arc<dyn Fn(&io::Error) + Send + Sync>;

#[derive(Debug, Clone)]
pub struct OutputConfig {
    pub dir: PathBuf,
    /// A segment is closed when it would grow past this.
    pub segment_bytes: u64,
    /// Stored bytes per attempt; what comes after is a cut.
    pub attempt_bytes_max: u64,
    /// Whole oldest segments are dropped above this total.
    pub retention_bytes: u64,
    /// Whole segments older than this are dropped.
    pub retention_age: Duration,
}

impl OutputConfig {
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            segment_bytes: 64 << 20,
            attempt_bytes_max: 64 << 20,
            retention_bytes: 10 << 30,
            retention_age: Duration::from_secs(14 * 24 * 3600),
        }
    }
}

/// What opening found on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputRecovery {
    pub segments: usize,
    pub attempts: usize,
    pub bytes: u64,
    /// Never acknowledged, cut off the end of the last segment.
    pub torn_bytes: u64,
    /// Frames that were stored and can no longer be read; readers see them as cuts.
    pub corrupt_frames: u64,
    /// Segment indexes that were missing or damaged and were rebuilt from their segment.
    pub indexes_rebuilt: usize,
    /// Attempts that were not sealed; the caller seals those that have ended meanwhile.
    pub open: Vec<Uuid>,
}

/// What one retention tick dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    pub segments: usize,
    pub bytes: u64,
}

/// Handle to the log; clones share it. The writer thread ends when `close` is called or the last clone is dropped.
#[derive(Debug, Clone)]
pub struct OutputLog {}

impl OutputLog {
    pub fn open(
        _config: OutputConfig,
        _now_wall_ms: u64,
        _abort: AbortHook,
    ) -> Result<(Self, OutputRecovery), OutputError> {
        Err(OutputError::Config("not built yet"))
    }

    /// Takes a chunk: at the end it is appended, what is already there is ignored, of an overlap only the new tail
    /// is taken, and past the end it is a `Gap`. Waits for room in the writer's queue, not for the disk; dropping
    /// the future takes nothing.
    pub async fn append(&self, _chunk: Chunk) -> Result<Appended, AppendError> {
        std::future::ready(Err(AppendError::Closed)).await
    }

    /// Records that bytes `from..to` will never come, under the same order rules as `append`.
    pub async fn append_cut(
        &self,
        _attempt: Uuid,
        _from: u64,
        _to: u64,
        _reason: CutReason,
    ) -> Result<Appended, AppendError> {
        std::future::ready(Err(AppendError::Closed)).await
    }

    /// Ends the attempt's output and waits until that is durable, with all bytes before it. Idempotent. Followers
    /// end after the last byte. An attempt without output and without readers leaves no trace.
    pub async fn seal(&self, _attempt: Uuid) -> Result<(), AppendError> {
        std::future::ready(Err(AppendError::Closed)).await
    }

    pub fn end(&self, _attempt: Uuid) -> Option<OutputEnd> {
        None
    }

    /// Resolves when everything below `through` is durable.
    pub async fn synced(&self, _attempt: Uuid, _through: u64) -> Result<(), SyncError> {
        std::future::ready(Err(SyncError::Closed)).await
    }

    /// The attempt's end as it moves. For many attempts at once use an [`AckFeed`].
    pub fn subscribe(&self, _attempt: Uuid) -> watch::Receiver<OutputEnd> {
        watch::channel(OutputEnd::default()).1
    }

    /// A session's view of the durable ends of all its attempts.
    pub fn ack_feed(&self) -> AckFeed {
        AckFeed {}
    }

    /// Stored pieces from `from` on: at least one when there is any, and about `max_bytes` in all. Blocks on disk.
    pub fn read(
        &self,
        _attempt: Uuid,
        _from: u64,
        _max_bytes: usize,
    ) -> Result<Vec<Piece>, ReadError> {
        Err(ReadError::Unknown)
    }

    /// History and then live pieces, without gap or duplicate, until the attempt is sealed and all is read. An
    /// attempt that has written nothing yet is waited for, so look at the task's record *after* this call and
    /// `seal` when it says that the attempt has ended.
    pub fn follow(
        &self,
        _attempt: Uuid,
        _from: u64,
    ) -> impl Stream<Item = Result<Piece, ReadError>> + Send + Unpin + 'static {
        tokio_stream::empty()
    }

    /// Frees the attempt's index; its bytes go when retention drops their segments.
    pub async fn forget(&self, _attempt: Uuid) -> Result<(), AppendError> {
        std::future::ready(Ok(())).await
    }

    /// Applies retention, and lets appends try again after a full disk. Call it every few seconds.
    pub async fn tick(&self, _now_wall_ms: u64) -> Result<Dropped, AppendError> {
        std::future::ready(Ok(Dropped::default())).await
    }

    /// Writes what is queued and ends the writer thread.
    pub async fn close(&self) {
        std::future::ready(()).await;
    }
}

/// Durable ends of the attempts that one session watches, coalesced: one entry per attempt, always the newest.
#[derive(Debug)]
pub struct AckFeed {}

impl AckFeed {
    /// Starts watching an attempt; its present end, if it has any, comes with the next `changed`.
    pub fn watch(&self, _attempt: Uuid) {}

    pub fn unwatch(&self, _attempt: Uuid) {}

    /// Waits until some watched attempt's durable end moved and takes all that did. Safe in `select!`.
    pub async fn changed(&self) -> Vec<(Uuid, OutputEnd)> {
        std::future::pending().await
    }
}
