//! The output log: bytes that attempts wrote, in shared append-only segment files beside the store.
//!
//! One writer thread appends, syncs once per group and then publishes durable ends; readers use positioned reads
//! and never wait for the writer. It knows attempts by id only: ownership is checked before anyone reads here.

pub(crate) mod attempt;
mod error;
mod piece;
pub(crate) mod segment;
mod segment_reader;
mod stored_output;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use uuid::Uuid;

pub use attempt::ack_feed::AckFeed;
pub use error::{OutputAppendError, OutputError, OutputReadError, OutputSyncError};
pub use piece::{AcceptedEnd, CHUNK_BYTES_MAX, CutReason, OutputChunk, OutputEnd, OutputPiece};
pub use stored_output::{StoredOutput, damaged_segments};

use attempt::follower::FollowStream;
use attempt::index::OutputIndex;
use segment::file::SegmentTable;
use segment_reader::OutputSegmentReader;
use writer::segment_writer::{OutputSegmentWriter, WriterCounters};
use writer::write_queue::{OutputWriterJob, WriteQueue};

/// Positions in a segment are 32 bits wide; far below that there is nothing to gain.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

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

    /// Segments are the unit of retention, so there must be room for several.
    fn checked(mut self) -> Result<Self, OutputError> {
        if self.segment_bytes == 0 || self.segment_bytes > SEGMENT_BYTES_MAX {
            return Err(OutputError::Config(
                "segment_bytes must be between 1 B and 1 GiB",
            ));
        }
        if self.retention_bytes == 0 || self.retention_age.is_zero() {
            return Err(OutputError::Config("retention must keep something"));
        }
        self.segment_bytes = self.segment_bytes.min(self.retention_bytes / 4).max(1);
        Ok(self)
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

/// What retention dropped between two ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DroppedSegments {
    pub segments: usize,
    pub bytes: u64,
}

/// For metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputStats {
    pub segments: usize,
    pub bytes: u64,
    pub attempts: usize,
    pub queued_bytes: usize,
    pub groups: u64,
    pub frames: u64,
    pub corrupt_reads: u64,
    pub disk_full: bool,
}

/// Handle to the log; clones share it. The writer thread ends when `close` is called or the last clone is dropped.
#[derive(Debug, Clone)]
pub struct OutputLog {
    shared: Arc<OutputLogShared>,
}

#[derive(Debug)]
struct OutputLogShared {
    index: Arc<OutputIndex>,
    segments: Arc<SegmentTable>,
    reader: Arc<OutputSegmentReader>,
    queue: WriteQueue,
    full: Arc<AtomicBool>,
    counters: Arc<WriterCounters>,
}

impl OutputLog {
    /// Recovers what is on disk and starts the writer thread. Blocks on disk. One log per directory: the data
    /// directory's lock is the caller's.
    pub fn open(
        config: OutputConfig,
        now_wall_ms: u64,
        abort: AbortHook,
    ) -> Result<(Self, OutputRecovery), OutputError> {
        let (log, found, writer, jobs) = Self::prepare(config, now_wall_ms, abort)?;
        spawn_writer(writer, jobs)?;
        Ok((log, found))
    }

    fn prepare(
        config: OutputConfig,
        now_wall_ms: u64,
        abort: AbortHook,
    ) -> Result<
        (
            Self,
            OutputRecovery,
            OutputSegmentWriter,
            mpsc::Receiver<OutputWriterJob>,
        ),
        OutputError,
    > {
        let config = config.checked()?;
        let index = Arc::new(OutputIndex::new());
        let segments = Arc::new(SegmentTable::new(config.dir.clone()));
        let (active, found) = segment::recovery::recover(&config, now_wall_ms, &index, &segments)?;
        let (full, counters) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(WriterCounters::default()),
        );
        let (queue, jobs) = WriteQueue::new(
            Arc::clone(&index),
            Arc::clone(&full),
            config.attempt_bytes_max,
        );
        let writer = OutputSegmentWriter {
            config,
            index: Arc::clone(&index),
            segments: Arc::clone(&segments),
            active,
            now_wall_ms,
            full: Arc::clone(&full),
            counters: Arc::clone(&counters),
            abort,
            dropped: DroppedSegments::default(),
            #[cfg(test)]
            faults: tests::InjectedFault::default(),
        };
        let reader = Arc::new(OutputSegmentReader::new(
            Arc::clone(&index),
            Arc::clone(&segments),
        ));
        let shared = OutputLogShared {
            index,
            segments,
            reader,
            queue,
            full,
            counters,
        };
        let log = Self {
            shared: Arc::new(shared),
        };
        Ok((log, found, writer, jobs))
    }

    /// Takes a chunk: at the end it is appended, what is already there is ignored, of an overlap only the new tail
    /// is taken, and past the end it is a `Gap`. Waits for room in the writer's queue, not for the disk; a dropped
    /// future has either taken all of it or nothing.
    pub async fn append(&self, chunk: OutputChunk) -> Result<AcceptedEnd, OutputAppendError> {
        let len = chunk.bytes.len();
        if len > CHUNK_BYTES_MAX {
            return Err(OutputAppendError::TooLarge { len });
        }
        self.shared.queue.append(chunk).await
    }

    /// Records that bytes `from..to` will never come, under the same order rules as `append`.
    pub async fn append_cut(
        &self,
        attempt: Uuid,
        from: u64,
        to: u64,
        reason: CutReason,
    ) -> Result<AcceptedEnd, OutputAppendError> {
        if to <= from {
            return Err(OutputAppendError::EmptyCut { from, to });
        }
        self.shared
            .queue
            .append_cut(attempt, from, to, reason)
            .await
    }

    /// Ends the attempt's output and waits until that is durable, with all bytes before it. Idempotent. Followers
    /// end after the last byte. An attempt without output and without readers leaves no trace.
    pub async fn seal(&self, attempt: Uuid) -> Result<(), OutputAppendError> {
        self.shared.queue.seal(attempt).await
    }

    /// None for an attempt that has written nothing, or of which nothing is left.
    pub fn end(&self, attempt: Uuid) -> Option<OutputEnd> {
        self.shared.index.end(attempt)
    }

    /// Resolves when everything below `through` is durable.
    pub async fn wait_durable(&self, attempt: Uuid, through: u64) -> Result<(), OutputSyncError> {
        self.shared.queue.wait_durable(attempt, through).await
    }

    /// The attempt's end as it moves; closed after the seal. For many attempts at once use an [`AckFeed`].
    pub fn subscribe(&self, attempt: Uuid) -> watch::Receiver<OutputEnd> {
        self.shared.index.subscribe(attempt)
    }

    /// A session's view of the durable ends of all its attempts.
    pub fn ack_feed(&self) -> AckFeed {
        AckFeed::new(Arc::clone(&self.shared.index))
    }

    /// Durable pieces from `from` on: at least one when there is any, and about `max_bytes` in all. Blocks on disk.
    pub fn read(
        &self,
        attempt: Uuid,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<OutputPiece>, OutputReadError> {
        self.shared.reader.read(attempt, from, max_bytes)
    }

    /// History and then live pieces, without gap or duplicate, until the attempt is sealed and all is read. An
    /// attempt that has written nothing yet is waited for, so look at the task's record *after* this call and
    /// `seal` when it says that the attempt has ended. Needs a tokio runtime.
    pub fn follow_output(
        &self,
        attempt: Uuid,
        from: u64,
    ) -> impl Stream<Item = Result<OutputPiece, OutputReadError>> + Send + Unpin + 'static {
        let (index, reader) = (
            Arc::clone(&self.shared.index),
            Arc::clone(&self.shared.reader),
        );
        FollowStream::new(index, reader, attempt, from)
    }

    /// Everything that is stored, for those who read all of it.
    pub fn stored(&self) -> StoredOutput {
        StoredOutput::of_running_log(
            Arc::clone(&self.shared.index),
            Arc::clone(&self.shared.reader),
        )
    }

    /// Frees the attempt's index; its bytes go when retention drops their segments.
    pub async fn forget(&self, attempt: Uuid) -> Result<(), OutputAppendError> {
        self.shared.queue.forget(attempt).await
    }

    /// Applies retention, and lets appends try again after a full disk. Call it every few seconds.
    pub async fn tick(&self, now_wall_ms: u64) -> Result<DroppedSegments, OutputAppendError> {
        self.shared.queue.tick(now_wall_ms).await
    }

    /// Refuses more bytes of whoever has said much, as if the disk were full, until it is told otherwise. Cuts and seals are small and
    /// still go.
    pub fn restrict_to_small_outputs(&self, held: bool) {
        self.shared.queue.set_restricted(held);
    }

    /// Whether everybody's output is taken.
    pub fn has_room(&self) -> bool {
        self.shared.queue.has_room()
    }

    /// Writes what is queued and ends the writer thread.
    pub async fn close(&self) {
        self.shared.queue.close().await;
    }

    pub fn stats(&self) -> OutputStats {
        let (segments, bytes) = self.shared.segments.count_and_bytes();
        OutputStats {
            segments,
            bytes,
            attempts: self.shared.index.count(),
            queued_bytes: self.shared.queue.queued_bytes(),
            groups: self.shared.counters.groups.load(Ordering::Relaxed),
            frames: self.shared.counters.frames.load(Ordering::Relaxed),
            corrupt_reads: self.shared.reader.corrupt.load(Ordering::Relaxed),
            disk_full: self.shared.full.load(Ordering::Acquire),
        }
    }
}

/// A writer that panics is as bad as one that cannot sync: the hook ends the process.
fn spawn_writer(
    writer: OutputSegmentWriter,
    jobs: mpsc::Receiver<OutputWriterJob>,
) -> Result<(), OutputError> {
    let (dir, abort) = (writer.config.dir.clone(), Arc::clone(&writer.abort));
    let thread = std::thread::Builder::new().name("output-writer".to_owned());
    let run = move || {
        if std::panic::catch_unwind(AssertUnwindSafe(|| writer.run(jobs))).is_err() {
            abort(&io::Error::other("the output writer panicked"));
        }
    };
    let started = thread.spawn(run);
    started
        .map(drop)
        .map_err(OutputError::io("start the writer of", &dir))
}
