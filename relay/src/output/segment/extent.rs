//! Extents: a compact description of where an attempt's output is stored, and the contents of
//! one segment as written to its index file.
//!
//! An extent can be fetched with one read: frames of one attempt that lie close together in one
//! segment, with few bytes of other attempts between them. The allowed gap grows with the
//! number of extents, which limits them to a few hundred per attempt and segment.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::frame::{SegmentFrameClass, SegmentFrameHeader};
use crate::output::piece::CutReason;

/// The most bytes on disk in one extent, and so the most that one read fetches.
pub(crate) const EXTENT_SPAN_MAX: u32 = 256 * 1024;
const MIN_GAP_BYTES: u32 = 8 * 1024;
/// Added to the allowed gap for each extent that the attempt already has in the segment.
const GAP_BYTES_PER_EXTENT: u32 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExtentContent {
    Stored,
    Cut(CutReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredExtent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) segment: u32,
    pub(crate) pos: u32,
    /// Bytes on disk from `pos`, including frame headers and frames of other attempts.
    pub(crate) span: u32,
    pub(crate) content: ExtentContent,
}

impl StoredExtent {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }

    pub(crate) fn cut(offset: u64, to: u64, segment: u32, reason: CutReason) -> Self {
        Self {
            offset,
            len: to - offset,
            segment,
            pos: 0,
            span: 0,
            content: ExtentContent::Cut(reason),
        }
    }

    /// Bytes that readers will not get.
    pub(crate) fn cut_bytes(&self) -> u64 {
        match self.content {
            ExtentContent::Stored => 0,
            ExtentContent::Cut(_) => self.len,
        }
    }

    /// Bytes that stand for a cut of unknown length.
    pub(crate) fn open_bytes(&self) -> u64 {
        match self.content {
            ExtentContent::Cut(CutReason::RecorderLost) => self.len,
            ExtentContent::Stored | ExtentContent::Cut(_) => 0,
        }
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        match self.content {
            ExtentContent::Stored => self.len,
            ExtentContent::Cut(_) => 0,
        }
    }

    /// Whether both start at the same position in the same file; the newer one has grown.
    pub(crate) fn same_place(&self, other: &Self) -> bool {
        self.segment == other.segment && self.pos == other.pos && self.content == other.content
    }

    fn grow(&mut self, next: &Self, gap_allowed: u32) -> bool {
        let span = (next.pos + next.span) - self.pos;
        let near = match self.content {
            ExtentContent::Stored => {
                next.pos - (self.pos + self.span) <= gap_allowed && span <= EXTENT_SPAN_MAX
            }
            ExtentContent::Cut(_) => true,
        };
        let joins = self.content == next.content && self.end() == next.offset && near;
        if joins {
            self.len += next.len;
            self.span = span;
        }
        joins
    }
}

/// What one segment contains of one attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttemptExtents {
    pub(crate) extents: Vec<StoredExtent>,
    pub(crate) after_control_seq: u64,
    pub(crate) sealed_at: Option<u64>,
    pub(crate) forgotten: bool,
}

impl AttemptExtents {
    fn push(&mut self, extent: StoredExtent) -> StoredExtent {
        let gap = MIN_GAP_BYTES
            + GAP_BYTES_PER_EXTENT
                * u32::try_from(self.extents.len()).unwrap_or(u32::MAX / GAP_BYTES_PER_EXTENT / 2);
        if let Some(last) = self.extents.last_mut()
            && last.grow(&extent, gap)
        {
            return *last;
        }
        self.extents.push(extent);
        extent
    }
}

/// What one segment contains: updated while it is written, saved when it is closed, rebuilt by
/// a scan if the saved copy is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentContents {
    pub(crate) parts: HashMap<Uuid, AttemptExtents>,
}

impl SegmentContents {
    /// Records a frame at `pos`, and returns the extent that now contains it if it has output.
    pub(crate) fn note_frame(
        &mut self,
        segment: u32,
        pos: u32,
        header: &SegmentFrameHeader,
    ) -> Option<StoredExtent> {
        let content = match header.class {
            SegmentFrameClass::Bytes { .. } => ExtentContent::Stored,
            SegmentFrameClass::Cut { reason, .. } => ExtentContent::Cut(reason),
            SegmentFrameClass::Seal => {
                self.part(header).sealed_at = Some(header.offset);
                return None;
            }
            SegmentFrameClass::Forget => {
                self.part(header).forgotten = true;
                return None;
            }
        };
        Some(self.add_frame_extent(segment, pos, header, content))
    }

    /// Records a frame whose payload can no longer be read.
    pub(crate) fn note_corrupt(&mut self, segment: u32, pos: u32, header: &SegmentFrameHeader) {
        self.add_frame_extent(segment, pos, header, ExtentContent::Cut(CutReason::Corrupt));
    }

    fn add_frame_extent(
        &mut self,
        segment: u32,
        pos: u32,
        header: &SegmentFrameHeader,
        content: ExtentContent,
    ) -> StoredExtent {
        let extent = StoredExtent {
            offset: header.offset,
            len: header.covers(),
            segment,
            pos,
            span: u32::try_from(header.frame_bytes()).unwrap_or(u32::MAX - pos),
            content,
        };
        self.part(header).push(extent)
    }

    fn part(&mut self, header: &SegmentFrameHeader) -> &mut AttemptExtents {
        let part = self.parts.entry(header.attempt).or_default();
        part.after_control_seq = part.after_control_seq.max(header.after_control_seq);
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without joining, thousands of slow attempts that take turns would cost an index entry
    /// per frame.
    #[test]
    fn interleaved_attempts_have_few_extents_in_a_segment() {
        for (payload, others) in [(4096, 0), (100, 50), (100, 400), (100, 3_000), (4096, 100)] {
            let mut contents = SegmentContents::default();
            let (mut pos, mut offset, mut frames) = (64u32, 0u64, 0);
            while pos < 64 << 20 {
                let header = SegmentFrameHeader {
                    attempt: Uuid::nil(),
                    offset,
                    after_control_seq: 0,
                    class: SegmentFrameClass::Bytes {
                        kind: 0,
                        observed_at_ms: 0,
                    },
                    len: payload,
                };
                contents.note_frame(1, pos, &header);
                offset += u64::from(payload);
                frames += 1;
                pos += (payload + 64) * (1 + others);
            }
            let extents = &contents.parts[&Uuid::nil()].extents;
            let whole = extents.iter().map(|extent| extent.len).sum::<u64>();
            assert_eq!(whole, offset, "joining must not lose bytes");
            assert!(
                extents.len() <= 600.min(frames),
                "{} extents of {frames} frames",
                extents.len()
            );
        }
    }
}
