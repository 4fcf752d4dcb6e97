//! The writer thread: takes what is queued as one group, writes it with as few calls as
//! possible, syncs once, and only then publishes the new ends.
//!
//! Only this thread changes segment files. Any failure except a full disk calls the abort hook,
//! because after a failed sync the content of the disk is unknown.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::write_group;
use super::write_group::PendingFrame;
use super::write_queue::{OutputWriterControl, OutputWriterJob, QueuedWrite, WriteBody};
use crate::output::attempt::index::OutputIndex;
use crate::output::segment::extent::StoredExtent;
use crate::output::segment::file::{ActiveSegment, SegmentInfo, SegmentTable};
use crate::output::segment::frame::SegmentFrameClass;
use crate::output::{AbortHook, DroppedSegments, OutputConfig};
use crate::store::is_disk_full_error;

#[derive(Debug, Default)]
pub(crate) struct WriterCounters {
    pub(crate) groups: AtomicU64,
    pub(crate) frames: AtomicU64,
}

pub(crate) struct OutputSegmentWriter {
    pub(crate) config: OutputConfig,
    pub(crate) index: Arc<OutputIndex>,
    pub(crate) segments: Arc<SegmentTable>,
    pub(crate) active: ActiveSegment,
    pub(crate) now_wall_ms: u64,
    pub(crate) full: Arc<AtomicBool>,
    pub(crate) counters: Arc<WriterCounters>,
    pub(crate) abort: AbortHook,
    /// What retention dropped since the last tick.
    pub(crate) dropped: DroppedSegments,
    #[cfg(test)]
    pub(crate) faults: crate::output::tests::InjectedFault,
}

/// Why the writer stops.
enum WriterStop {
    Closed(Option<oneshot::Sender<()>>),
    Failed(io::Error),
}

impl OutputSegmentWriter {
    pub(crate) fn run(mut self, mut jobs: mpsc::Receiver<OutputWriterJob>) {
        let stop = self.serve(&mut jobs);
        jobs.close();
        drop(jobs);
        self.index.close_listeners();
        match stop {
            WriterStop::Closed(None) => {}
            // The caller may have stopped waiting.
            WriterStop::Closed(Some(reply)) => drop(reply.send(())),
            WriterStop::Failed(error) => (self.abort)(&error),
        }
    }

    fn serve(&mut self, jobs: &mut mpsc::Receiver<OutputWriterJob>) -> WriterStop {
        let bytes_max = write_group::group_bytes(self.config.segment_bytes);
        let mut group = Vec::new();
        loop {
            let Some(first) = jobs.blocking_recv() else {
                return WriterStop::Closed(None);
            };
            let after = write_group::collect_group(first, jobs, &mut group, bytes_max);
            if let Err(error) = self.commit(std::mem::take(&mut group)) {
                return WriterStop::Failed(error);
            }
            match after {
                None => {}
                Some(OutputWriterControl::Tick { now_wall_ms, reply }) => {
                    match self.tick(now_wall_ms) {
                        Ok(dropped) => drop(reply.send(dropped)),
                        Err(error) => return WriterStop::Failed(error),
                    }
                }
                Some(OutputWriterControl::Close { reply }) => {
                    return WriterStop::Closed(Some(reply));
                }
            }
        }
    }

    fn commit(&mut self, writes: Vec<QueuedWrite>) -> io::Result<()> {
        // Kept to the end, because the jobs own the reserved room in the queue.
        let (frames, _writes) = self.prepare_frames(writes);
        match self.store(&frames) {
            Ok(()) => Ok(()),
            Err(error) if is_disk_full_error(&error) => self.discard_group(&frames),
            Err(error) => Err(error),
        }
    }

    /// The frames of a group, ordered by attempt so that they lie together. Adjacent cuts with
    /// the same reason are merged.
    fn prepare_frames(
        &self,
        mut writes: Vec<QueuedWrite>,
    ) -> (Vec<PendingFrame>, Vec<QueuedWrite>) {
        writes.sort_by_key(|write| write.attempt);
        writes.retain(|write| {
            matches!(write.body, WriteBody::Forget)
                || self.index.is_current(write.attempt, write.generation)
        });
        let frames = write_group::frames(&writes);
        (frames, writes)
    }

    /// Writes, syncs and publishes. After an error nothing is published, and the file has its
    /// old length or is longer.
    pub(crate) fn store(&mut self, frames: &[PendingFrame]) -> io::Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        let size: usize = frames.iter().map(|frame| frame.header.frame_bytes()).sum();
        self.roll_for(size)?;
        let end = self.write(frames)?;
        // Publishing wakes tasks that wait for these bytes, so update the statistics first.
        self.segments.set_len(self.active.identity.number, end);
        self.counters.groups.fetch_add(1, Ordering::Relaxed);
        self.counters
            .frames
            .fetch_add(frames.len() as u64, Ordering::Relaxed);
        self.publish(frames);
        self.active.len = end;
        // Only a hint for recovery, which is correct without it.
        drop(self.active.write_synced_slot());
        Ok(())
    }

    fn write(&self, frames: &[PendingFrame]) -> io::Result<u32> {
        let (salt, synced) = (self.active.identity.salt, self.active.len);
        let headers: Vec<_> = frames
            .iter()
            .map(|frame| frame.header.encode(salt, synced, &frame.payload))
            .collect();
        let mut slices: Vec<_> = headers
            .iter()
            .zip(frames)
            .flat_map(|(header, frame)| [IoSlice::new(header), IoSlice::new(&frame.payload)])
            .filter(|slice| !slice.is_empty())
            .collect();
        #[cfg(test)]
        self.faults.strike()?;
        let end = self.active.write(&mut slices)?;
        rustix::fs::fdatasync(&self.active.file)?;
        u32::try_from(end).map_err(|_| io::ErrorKind::FileTooLarge.into())
    }

    fn publish(&mut self, frames: &[PendingFrame]) {
        let mut pos = self.active.len;
        for run in frames.chunk_by(|one, next| one.header.attempt == next.header.attempt) {
            let (mut extents, mut pieces, mut sealed) =
                (Vec::<StoredExtent>::new(), Vec::new(), false);
            for frame in run {
                let extent = self.active.contents.note_frame(
                    self.active.identity.number,
                    pos,
                    &frame.header,
                );
                if let Some(extent) = extent {
                    match extents.last_mut() {
                        Some(last) if last.same_place(&extent) => *last = extent,
                        Some(_) | None => extents.push(extent),
                    }
                }
                sealed |= frame.header.class == SegmentFrameClass::Seal;
                pieces.extend(frame.to_piece());
                pos += u32::try_from(frame.header.frame_bytes()).expect("frames are small");
            }
            self.index
                .publish(run[0].header.attempt, &extents, &pieces, sealed);
        }
    }

    /// Handles a full disk: discards the group as if it had never been accepted, and refuses
    /// more until the next tick.
    fn discard_group(&mut self, frames: &[PendingFrame]) -> io::Result<()> {
        self.active.truncate_to_len()?;
        self.full.store(true, Ordering::Release);
        for run in frames.chunk_by(|one, next| one.header.attempt == next.header.attempt) {
            self.index.discard_unsynced(run[0].header.attempt);
        }
        tracing::warn!(frames = frames.len(), "disk full: output refused");
        Ok(())
    }

    fn roll_for(&mut self, size: usize) -> io::Result<()> {
        let after = u64::from(self.active.len) + size as u64;
        if after <= self.config.segment_bytes || self.active.is_empty() {
            return Ok(());
        }
        self.roll()?;
        // Apply retention here too, or fast output could exceed the limit between two ticks.
        self.drop_excess_segments()
    }

    /// Starts the next segment, then saves the contents of the closed one. That copy may be
    /// lost; the next start rebuilds it.
    pub(crate) fn roll(&mut self) -> io::Result<()> {
        let number = self.active.identity.number + 1;
        let next = ActiveSegment::create(&self.segments.dir, number, self.now_wall_ms)?;
        let closed = std::mem::replace(&mut self.active, next);
        let closed_number = closed.identity.number;
        let info = SegmentInfo {
            closed_at_ms: Some(self.now_wall_ms),
            ..closed.info()
        };
        crate::output::segment::recovery::save_contents(
            &self.segments.dir,
            closed_number,
            info,
            closed.contents,
        );
        self.segments.set(closed_number, info);
        self.segments.set(number, self.active.info());
        Ok(())
    }
}
