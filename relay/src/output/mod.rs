//! The output log: the bytes that attempts wrote, in shared append-only segment files beside
//! the store.
//!
//! One writer thread appends, syncs once per group and then publishes the durable ends. Readers
//! use positioned reads and never wait for the writer. The log identifies attempts by id only:
//! callers check ownership before they read.

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

/// Positions in a segment are 32 bits wide; larger segments than this bring no benefit.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Called once when a write or sync fails for another reason than a full disk. It must end the
/// process, because after a failed sync the content of the disk is unknown.
pub type AbortHook = Arc<dyn Fn(&io::Error) + Send + Sync>;

#[derive(Debug, Clone)]
pub struct OutputConfig {
    pub dir: PathBuf,
    /// A segment is closed when it would grow past this.
    pub segment_bytes: u64,
    /// Stored bytes per attempt; what follows becomes a cut.
    pub attempt_bytes_max: u64,
    /// The oldest segments are dropped above this total.
    pub retention_bytes: u64,
    /// Segments older than this are dropped.
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

    /// Checks the settings. Segments are the unit of retention, so there must be room for
    /// several.
    fn checked(mut self) -> Result<Self, OutputError> {
        if self.segment_bytes == 0 || self.segment_bytes > SEGMENT_BYTES_MAX {
            return Err(OutputError::Config(
                "segment_bytes must be between 1 B and 1 GiB",
            ));
        }
        if self.retention_bytes == 0 || self.retention_age.is_zero() {
            return Err(OutputError::Config(
                "retention_bytes and retention_age must not be zero",
            ));
        }
        self.segment_bytes = self.segment_bytes.min(self.retention_bytes / 4).max(1);
        Ok(self)
    }
}

/// What opening the log found on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputRecovery {
    pub segments: usize,
    pub attempts: usize,
    pub bytes: u64,
    /// Bytes that were never acknowledged and were truncated from the last segment.
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

/// Statistics for metrics.
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

/// Handle to the log; clones share it. The writer thread ends when `close` is called or the
/// last clone is dropped.
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
    /// Recovers what is on disk and starts the writer thread. Blocks on disk. Only one log may
    /// use a directory; the caller must own the data directory's lock.
    pub fn open(
        config: OutputConfig,
        now_wall_ms: u64,
        abort: AbortHook,
    ) -> Result<(Self, OutputRecovery), OutputError> {
        let (log, recovery, writer, jobs) = Self::prepare(config, now_wall_ms, abort)?;
        spawn_writer(writer, jobs)?;
        Ok((log, recovery))
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
        let (active, recovery) =
            segment::recovery::recover(&config, now_wall_ms, &index, &segments)?;
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
        Ok((log, recovery, writer, jobs))
    }

    /// Accepts a chunk. A chunk at the end is appended; a duplicate is ignored; of an overlap
    /// only the new tail is accepted; a chunk past the end is a `Gap`. Waits for room in the
    /// writer's queue, not for the disk. A future that is dropped has accepted either all of it
    /// or nothing.
    pub async fn append(&self, chunk: OutputChunk) -> Result<AcceptedEnd, OutputAppendError> {
        let len = chunk.bytes.len();
        if len > CHUNK_BYTES_MAX {
            return Err(OutputAppendError::TooLarge { len });
        }
        self.shared.queue.append(chunk).await
    }

    /// Records that bytes `from..to` will never arrive, under the same order rules as `append`.
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

    /// Ends the attempt's output, and waits until that and all bytes before it are durable.
    /// Idempotent. Followers end after the last byte. An attempt without output and without
    /// readers leaves no entry.
    pub async fn seal(&self, attempt: Uuid) -> Result<(), OutputAppendError> {
        self.shared.queue.seal(attempt).await
    }

    /// The attempt's end; `None` if it has written nothing or nothing of it is left.
    pub fn end(&self, attempt: Uuid) -> Option<OutputEnd> {
        self.shared.index.end(attempt)
    }

    /// Returns when everything below `through` is durable.
    pub async fn wait_durable(&self, attempt: Uuid, through: u64) -> Result<(), OutputSyncError> {
        self.shared.queue.wait_durable(attempt, through).await
    }

    /// A channel with the attempt's end, updated as it changes and closed after the seal. For
    /// many attempts at once use an [`AckFeed`].
    pub fn subscribe(&self, attempt: Uuid) -> watch::Receiver<OutputEnd> {
        self.shared.index.subscribe(attempt)
    }

    /// A feed of the durable ends of all attempts of one session.
    pub fn ack_feed(&self) -> AckFeed {
        AckFeed::new(Arc::clone(&self.shared.index))
    }

    /// Durable pieces from `from` on: at least one if there is any, about `max_bytes` in all.
    /// Blocks on disk.
    pub fn read(
        &self,
        attempt: Uuid,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<OutputPiece>, OutputReadError> {
        self.shared.reader.read(attempt, from, max_bytes)
    }

    /// History and then live pieces, without gap or duplicate, until the attempt is sealed and
    /// everything is read. If the attempt has written nothing yet, the stream waits for it. So
    /// read the task's record *after* this call, and call `seal` if the attempt has ended.
    /// Needs a tokio runtime.
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

    /// All stored output, for an export or a verification.
    pub fn stored(&self) -> StoredOutput {
        StoredOutput::of_running_log(
            Arc::clone(&self.shared.index),
            Arc::clone(&self.shared.reader),
        )
    }

    /// Frees the attempt's index entry. Its bytes go when retention drops their segments.
    pub async fn forget(&self, attempt: Uuid) -> Result<(), OutputAppendError> {
        self.shared.queue.forget(attempt).await
    }

    /// Applies retention, and allows appends again after a full disk. Call it every few
    /// seconds.
    pub async fn tick(&self, now_wall_ms: u64) -> Result<DroppedSegments, OutputAppendError> {
        self.shared.queue.tick(now_wall_ms).await
    }

    /// Refuses more bytes from attempts that have written much, as if the disk were full, until
    /// it is called with `false`. Cuts and seals are small and are still accepted.
    pub fn restrict_to_small_outputs(&self, restricted: bool) {
        self.shared.queue.set_restricted(restricted);
    }

    /// Whether output of every attempt is accepted.
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

/// Starts the writer thread. A panic there is as bad as a failed sync, so the abort hook ends
/// the process.
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
        .map_err(OutputError::io("start the output writer for", &dir))
}
