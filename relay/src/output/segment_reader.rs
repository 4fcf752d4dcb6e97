//! Reads output: turns the index's plan into pieces, with positioned reads on shared handles.
//! No lock is kept over a read.
//!
//! Every byte is verified again. What cannot be read becomes a cut, never a shorter result.

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

/// Attempts to read while retention removes segments. Each sees a newer index.
const TRIES: usize = 8;

#[derive(Debug)]
pub(crate) struct OutputSegmentReader {
    index: Arc<OutputIndex>,
    segments: Arc<SegmentTable>,
    /// Damage met while reading, counted each time it is met.
    pub(crate) corrupt: AtomicU64,
}

/// The pieces collected so far, without gap or overlap from the start of the request.
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
                // Retention removed the segment first. The index has been updated, so plan
                // again.
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
        let mut collector = PieceCollector {
            at: from,
            weight: 0,
            max_bytes,
            pieces: Vec::new(),
        };
        collector.cut(plan.base, CutReason::Retention);
        for extent in &plan.extents {
            if collector.is_full() {
                break;
            }
            match extent.content {
                ExtentContent::Cut(reason) => {
                    collector.cut(extent.end(), reason);
                }
                ExtentContent::Stored => self.fetch_stored(attempt, extent, &mut collector)?,
            }
        }
        Ok(collector.pieces)
    }

    fn fetch_stored(
        &self,
        attempt: Uuid,
        extent: &StoredExtent,
        collector: &mut PieceCollector,
    ) -> io::Result<()> {
        let (file, salt) = self.segments.reading(extent.segment)?;
        let mut raw = BytesMut::zeroed(extent.span as usize);
        let whole = read_available(&file, &mut raw, u64::from(extent.pos))?;
        raw.truncate(whole);
        let raw = raw.freeze();
        let mut damaged = false;
        for scanned in SegmentFrameScan::new(&raw, salt, 0) {
            let ScannedFrame::Frame(frame) = scanned else {
                continue;
            };
            if frame.header.attempt != attempt
                || !matches!(frame.header.class, SegmentFrameClass::Bytes { .. })
            {
                continue;
            }
            if collector.is_full() {
                break;
            }
            damaged |= collector.cut(frame.header.offset.min(extent.end()), CutReason::Corrupt);
            if frame.is_payload_intact(&raw, salt) {
                collector.bytes(&frame, &raw);
            } else {
                damaged |= collector.cut(
                    frame.header.offset + frame.header.covers(),
                    CutReason::Corrupt,
                );
            }
        }
        if !collector.is_full() {
            damaged |= collector.cut(extent.end(), CutReason::Corrupt);
        }
        self.corrupt
            .fetch_add(u64::from(damaged), Ordering::Relaxed);
        Ok(())
    }
}

/// Reads as much as the file has. A file that is shorter than before is damage, not an error.
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

    /// Adds a cut from the present position up to `to`; returns whether there was anything to
    /// cut.
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

    /// Adds the part of the frame that was not added yet; shares the buffer that was read.
    fn bytes(&mut self, frame: &SegmentFrame, raw: &Bytes) {
        let header = &frame.header;
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
            bytes: raw.slice(frame.payload_range()),
        };
        let piece = piece.starting_at(self.at);
        self.weight += piece.payload_bytes();
        self.at = piece.end();
        self.pieces.push(piece);
    }
}
