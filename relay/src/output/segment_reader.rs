//! Reading: from the index's plan to pieces, by positioned reads on shared handles. No lock is held over a read.
//!
//! Every byte is checked again on the way out. What cannot be read becomes a cut, never a shorter answer.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::attempt::index::{OutputIndex, OutputReadPlan};
use super::error::OutputReadError;
use super::piece::{CutReason, OutputPiece};
use super::segment::extent::{ExtentContent, StoredExtent};
use super::segment::file::SegmentTable;
use super::segment::frame::{ScannedFrame, SegmentFrame, SegmentFrameClass, SegmentFrameScan};

/// Each try sees a newer index; more would mean that segments go faster than one read.
const TRIES: usize = 8;

#[derive(Debug)]
pub(crate) struct OutputSegmentReader {
    index: Arc<OutputIndex>,
    segments: Arc<SegmentTable>,
    /// Damage met while reading, each time it was met.
    pub(crate) corrupt: AtomicU64,
}

/// Pieces so far, without gap or overlap from where the request began.
struct PieceCollector {
    at: u64,
    weight: usize,
    max_bytes: usize,
    pieces: Vec<OutputPiece>,
}

impl OutputSegmentReader {
    pub(crate) fn new(index: Arc<OutputIndex>, segments: Arc<SegmentTable>) -> Self {
        Self {
            index,
            segments,
            corrupt: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(
        &self,
        attempt: Uuid,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<OutputPiece>, OutputReadError> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for _ in 0..TRIES {
            let plan = self
                .index
                .plan_read(attempt, from, max_bytes.max(1) as u64)
                .ok_or(OutputReadError::Unknown)?;
            match self.fetch(attempt, from, max_bytes, &plan) {
                // Retention was quicker; the index says so by now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
                other => return Ok(other?),
            }
        }
        Err(last.into())
    }

    fn fetch(
        &self,
        attempt: Uuid,
        from: u64,
        max_bytes: usize,
        plan: &OutputReadPlan,
    ) -> io::Result<Vec<OutputPiece>> {
        let mut answer = PieceCollector {
            at: from,
            weight: 0,
            max_bytes,
            pieces: Vec::new(),
        };
        answer.cut(plan.base, CutReason::Retention);
        for extent in &plan.extents {
            if answer.is_full() {
                break;
            }
            match extent.content {
                ExtentContent::Cut(reason) => {
                    answer.cut(extent.end(), reason);
                }
                ExtentContent::Stored => self.fetch_stored(attempt, extent, &mut answer)?,
            }
        }
        Ok(answer.pieces)
    }

    fn fetch_stored(
        &self,
        attempt: Uuid,
        extent: &StoredExtent,
        answer: &mut PieceCollector,
    ) -> io::Result<()> {
        let (file, salt) = self.segments.reading(extent.segment)?;
        let mut raw = BytesMut::zeroed(extent.span as usize);
        let whole = read_available(&file, &mut raw, u64::from(extent.pos))?;
        raw.truncate(whole);
        let raw = raw.freeze();
        let mut damaged = false;
        for one in SegmentFrameScan::new(&raw, salt, 0) {
            let ScannedFrame::Frame(found) = one else {
                continue;
            };
            if found.header.attempt != attempt
                || !matches!(found.header.class, SegmentFrameClass::Bytes { .. })
            {
                continue;
            }
            if answer.is_full() {
                break;
            }
            damaged |= answer.cut(found.header.offset.min(extent.end()), CutReason::Corrupt);
            if found.is_payload_intact(&raw, salt) {
                answer.bytes(&found, &raw);
            } else {
                damaged |= answer.cut(
                    found.header.offset + found.header.covers(),
                    CutReason::Corrupt,
                );
            }
        }
        if !answer.is_full() {
            damaged |= answer.cut(extent.end(), CutReason::Corrupt);
        }
        self.corrupt
            .fetch_add(u64::from(damaged), Ordering::Relaxed);
        Ok(())
    }
}

/// A file that is shorter than it was is damage, not an error.
fn read_available(file: &std::fs::File, raw: &mut [u8], pos: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < raw.len() {
        match file.read_at(&mut raw[done..], pos + done as u64) {
            Ok(0) => break,
            Ok(some) => done += some,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl PieceCollector {
    fn is_full(&self) -> bool {
        self.weight >= self.max_bytes && !self.pieces.is_empty()
    }

    /// Cuts from where the answer is up to `to`; true when there was anything to cut.
    fn cut(&mut self, to: u64, why: CutReason) -> bool {
        if to <= self.at {
            return false;
        }
        match self.pieces.last_mut() {
            Some(OutputPiece::Cut {
                to: end, reason, ..
            }) if *reason == why => *end = to,
            Some(_) | None => self.pieces.push(OutputPiece::Cut {
                from: self.at,
                to,
                reason: why,
            }),
        }
        self.at = to;
        true
    }

    /// Adds the frame's part that is not there yet; shares the buffer that was read.
    fn bytes(&mut self, found: &SegmentFrame, raw: &Bytes) {
        let header = &found.header;
        let (
            SegmentFrameClass::Bytes {
                kind,
                observed_at_ms,
            },
            true,
        ) = (header.class, header.offset + header.covers() > self.at)
        else {
            return;
        };
        let piece = OutputPiece::Bytes {
            offset: header.offset,
            observed_at_ms,
            after_control_seq: header.after_control_seq,
            kind,
            bytes: raw.slice(found.payload_range()),
        };
        let piece = piece.starting_at(self.at);
        self.weight += piece.payload_bytes();
        self.at = piece.end();
        self.pieces.push(piece);
    }
}
