//! Retention: drops the oldest segments by total size or age, and turns their output into cuts.
//!
//! Runs on the writer thread, so no segment is dropped while it is written. The index is
//! updated before the file is removed: a reader finds either the bytes or the cut.

use std::io;
use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::segment_writer::OutputSegmentWriter;
use super::write_group::PendingFrame;
use crate::output::DroppedSegments;
use crate::output::segment::file::{SegmentInfo, index_path, segment_path};
use crate::output::segment::recovery::load_contents;
use crate::store::is_disk_full_error;

/// The growing segment is closed after this fraction of the age limit. Otherwise a relay with
/// little output would keep everything for ever.
const ROLLS_PER_AGE_LIMIT: u64 = 4;

impl OutputSegmentWriter {
    /// Applies retention, and allows appends again after a full disk.
    pub(crate) fn tick(&mut self, now_wall_ms: u64) -> io::Result<DroppedSegments> {
        self.now_wall_ms = now_wall_ms;
        let retained = self
            .roll_if_old()
            .and_then(|()| self.drop_excess_segments());
        self.full.store(false, Ordering::Release);
        match retained {
            Err(error) if !is_disk_full_error(&error) => Err(error),
            Ok(()) | Err(_) => Ok(std::mem::take(&mut self.dropped)),
        }
    }

    fn age_limit_ms(&self) -> u64 {
        u64::try_from(self.config.retention_age.as_millis()).unwrap_or(u64::MAX)
    }

    fn roll_if_old(&mut self) -> io::Result<()> {
        let old_at = self
            .active
            .identity
            .created_at_ms
            .saturating_add(self.age_limit_ms() / ROLLS_PER_AGE_LIMIT);
        if self.active.is_empty() || self.now_wall_ms < old_at {
            return Ok(());
        }
        self.roll()
    }

    /// Drops segments until both limits are met. The growing segment always stays.
    pub(crate) fn drop_excess_segments(&mut self) -> io::Result<()> {
        while let Some((number, info)) = self.segments.oldest_closed() {
            if !self.is_over_limits(&info) {
                break;
            }
            self.drop_segment(number)?;
            self.dropped.segments += 1;
            self.dropped.bytes += info.len;
        }
        Ok(())
    }

    fn is_over_limits(&self, info: &SegmentInfo) -> bool {
        let (_, total) = self.segments.count_and_bytes();
        let closed_at = info.closed_at_ms.unwrap_or(u64::MAX);
        total > self.config.retention_bytes
            || closed_at.saturating_add(self.age_limit_ms()) <= self.now_wall_ms
    }

    fn drop_segment(&mut self, number: u32) -> io::Result<()> {
        let ends: Vec<PendingFrame> = self
            .attempts_in(number)
            .into_iter()
            .filter_map(|attempt| {
                let position = self.index.drop_through(attempt, number)?;
                Some(PendingFrame::retention_anchor(attempt, position.end))
            })
            .collect();
        let stored = self.store_unless_full(&ends)?;
        self.segments.remove(number);
        remove(&segment_path(&self.segments.dir, number))?;
        remove(&index_path(&self.segments.dir, number))?;
        // On a full disk there is room for the ends only now.
        if !stored && !self.store_unless_full(&ends)? {
            tracing::warn!(
                attempts = ends.len(),
                "disk full: output ends of running attempts are kept in memory only"
            );
        }
        Ok(())
    }

    /// Stores the frames; false if the disk was full.
    fn store_unless_full(&mut self, frames: &[PendingFrame]) -> io::Result<bool> {
        match self.store(frames) {
            Ok(()) => Ok(true),
            Err(error) if is_disk_full_error(&error) => {
                self.active.truncate_to_len().map(|()| false)
            }
            Err(error) => Err(error),
        }
    }

    fn attempts_in(&self, number: u32) -> Vec<Uuid> {
        let saved = load_contents(&self.segments.dir, number);
        match saved {
            Some(saved) => saved.contents.parts.into_keys().collect(),
            None => self.index.ids(|output| {
                output
                    .extents
                    .first()
                    .is_some_and(|first| first.segment <= number)
            }),
        }
    }
}

fn remove(path: &std::path::Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
