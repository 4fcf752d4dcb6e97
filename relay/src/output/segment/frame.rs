//! The frame: the format of a chunk, cut, seal or forget record in a segment file.
//!
//! A header of 64 bytes with its own checksum, then the payload. Checksums start from the
//! segment's random salt, so that bytes printed by an agent can never be taken for a frame when
//! a damaged region is skipped. No I/O here.

use crc32fast::Hasher;
use uuid::Uuid;

use crate::output::piece::CutReason;

pub(crate) const FRAME_HEADER: usize = 64;
const MAGIC: u16 = 0xB70A;
const NO_PAYLOAD: u32 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentFrameClass {
    Bytes { kind: u8, observed_at_ms: u64 },
    Cut { to: u64, reason: CutReason },
    Seal,
    Forget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentFrameHeader {
    pub(crate) attempt: Uuid,
    pub(crate) offset: u64,
    pub(crate) after_control_seq: u64,
    pub(crate) class: SegmentFrameClass,
    pub(crate) len: u32,
}

impl SegmentFrameHeader {
    /// Bytes of the attempt's output that the frame covers.
    pub(crate) fn covers(&self) -> u64 {
        match self.class {
            SegmentFrameClass::Bytes { .. } => u64::from(self.len),
            SegmentFrameClass::Cut { to, .. } => to.saturating_sub(self.offset),
            SegmentFrameClass::Seal | SegmentFrameClass::Forget => 0,
        }
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        FRAME_HEADER + self.len as usize
    }

    /// Encodes the header. `synced` is the length of the segment that was on disk when the
    /// frame was written: damage below it is lost data, damage above it was never acknowledged.
    pub(crate) fn encode(&self, salt: u32, synced: u32, payload: &[u8]) -> [u8; FRAME_HEADER] {
        let (class, kind, aux) = self.class.numbers();
        let mut raw = [0; FRAME_HEADER];
        raw[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        raw[2] = class;
        raw[3] = kind;
        raw[8..12].copy_from_slice(&checksum(salt, &[payload]).to_le_bytes());
        raw[12..16].copy_from_slice(&self.len.to_le_bytes());
        raw[16..32].copy_from_slice(self.attempt.as_bytes());
        raw[32..40].copy_from_slice(&self.offset.to_le_bytes());
        raw[40..48].copy_from_slice(&self.after_control_seq.to_le_bytes());
        raw[48..56].copy_from_slice(&aux.to_le_bytes());
        raw[56..60].copy_from_slice(&synced.to_le_bytes());
        let sum = checksum(salt, &[&raw[0..4], &raw[8..]]);
        raw[4..8].copy_from_slice(&sum.to_le_bytes());
        raw
    }
}

impl SegmentFrameClass {
    fn numbers(self) -> (u8, u8, u64) {
        match self {
            Self::Bytes {
                kind,
                observed_at_ms,
            } => (1, kind, observed_at_ms),
            Self::Cut { to, reason } => (2, reason_number(reason), to),
            Self::Seal => (3, 0, 0),
            Self::Forget => (4, 0, 0),
        }
    }

    fn from_numbers(class: u8, kind: u8, aux: u64) -> Option<Self> {
        match class {
            1 => Some(Self::Bytes {
                kind,
                observed_at_ms: aux,
            }),
            2 => Some(Self::Cut {
                to: aux,
                reason: reason_of(kind)?,
            }),
            3 => Some(Self::Seal),
            4 => Some(Self::Forget),
            0 | 5.. => None,
        }
    }
}

/// In the order of their numbers on disk: append only.
const REASONS: [CutReason; 10] = [
    CutReason::DaemonOverflow,
    CutReason::AttemptLimit,
    CutReason::Retention,
    CutReason::Corrupt,
    CutReason::NotReceived,
    CutReason::DiskFull,
    CutReason::LineTooLong,
    CutReason::WorkerCrash,
    CutReason::Unknown,
    CutReason::RecorderLost,
];

impl CutReason {
    /// The number of the reason on disk and in exports.
    pub(crate) fn number(self) -> u8 {
        reason_number(self)
    }

    pub(crate) fn of(number: u8) -> Option<Self> {
        reason_of(number)
    }
}

fn reason_number(reason: CutReason) -> u8 {
    match reason {
        CutReason::DaemonOverflow => 0,
        CutReason::AttemptLimit => 1,
        CutReason::Retention => 2,
        CutReason::Corrupt => 3,
        CutReason::NotReceived => 4,
        CutReason::DiskFull => 5,
        CutReason::LineTooLong => 6,
        CutReason::WorkerCrash => 7,
        CutReason::Unknown => 8,
        CutReason::RecorderLost => 9,
    }
}

fn reason_of(number: u8) -> Option<CutReason> {
    REASONS.get(usize::from(number)).copied()
}

pub(crate) fn checksum(salt: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new_with_initial(salt);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

pub(crate) fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(raw[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(raw[at..at + 8].try_into().expect("eight bytes"))
}

/// A frame whose header at `pos` is intact. The payload is checked separately, because readers
/// skip the frames of other attempts without reading their payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentFrame {
    pub(crate) pos: usize,
    pub(crate) header: SegmentFrameHeader,
    pub(crate) synced: u32,
    payload_sum: u32,
}

impl SegmentFrame {
    fn decode(raw: &[u8], pos: usize, salt: u32) -> Option<Self> {
        let raw = raw.get(pos..pos + FRAME_HEADER)?;
        if raw[0..2] != MAGIC.to_le_bytes()
            || checksum(salt, &[&raw[0..4], &raw[8..]]) != u32_at(raw, 4)
        {
            return None;
        }
        let header = SegmentFrameHeader {
            attempt: Uuid::from_slice(&raw[16..32]).expect("sixteen bytes"),
            offset: u64_at(raw, 32),
            after_control_seq: u64_at(raw, 40),
            class: SegmentFrameClass::from_numbers(raw[2], raw[3], u64_at(raw, 48))?,
            len: u32_at(raw, 12),
        };
        Some(Self {
            pos,
            header,
            synced: u32_at(raw, 56),
            payload_sum: u32_at(raw, 8),
        })
    }

    pub(crate) fn end(&self) -> usize {
        self.pos + self.header.frame_bytes()
    }

    pub(crate) fn payload_range(&self) -> std::ops::Range<usize> {
        self.pos + FRAME_HEADER..self.end()
    }

    pub(crate) fn is_payload_intact(&self, raw: &[u8], salt: u32) -> bool {
        self.header.len == NO_PAYLOAD
            || checksum(salt, &[&raw[self.payload_range()]]) == self.payload_sum
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ScannedFrame {
    Frame(SegmentFrame),
    /// No intact, complete frame starts in this range.
    Damaged {
        pos: usize,
        end: usize,
    },
}

/// Iterates over frames; after damage it continues at the next intact header.
#[derive(Debug)]
pub(crate) struct SegmentFrameScan<'a> {
    raw: &'a [u8],
    salt: u32,
    pos: usize,
}

impl<'a> SegmentFrameScan<'a> {
    pub(crate) fn new(raw: &'a [u8], salt: u32, pos: usize) -> Self {
        Self { raw, salt, pos }
    }

    fn decode_complete_frame(&self, pos: usize) -> Option<SegmentFrame> {
        SegmentFrame::decode(self.raw, pos, self.salt).filter(|frame| frame.end() <= self.raw.len())
    }
}

impl Iterator for SegmentFrameScan<'_> {
    type Item = ScannedFrame;

    fn next(&mut self) -> Option<ScannedFrame> {
        if self.pos >= self.raw.len() {
            return None;
        }
        if let Some(frame) = self.decode_complete_frame(self.pos) {
            self.pos = frame.end();
            return Some(ScannedFrame::Frame(frame));
        }
        let damaged = self.pos;
        self.pos = (damaged + 1..self.raw.len())
            .find(|&pos| self.decode_complete_frame(pos).is_some())
            .unwrap_or(self.raw.len());
        Some(ScannedFrame::Damaged {
            pos: damaged,
            end: self.pos,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: SegmentFrameClass, len: u32) -> SegmentFrameHeader {
        SegmentFrameHeader {
            attempt: Uuid::from_u128(7),
            offset: 5,
            after_control_seq: 9,
            class,
            len,
        }
    }

    #[test]
    fn every_frame_class_is_read_back_unchanged() {
        let classes = REASONS.map(|reason| SegmentFrameClass::Cut { to: 99, reason });
        let bytes = SegmentFrameClass::Bytes {
            kind: 3,
            observed_at_ms: 1_234,
        };
        for class in
            classes
                .into_iter()
                .chain([bytes, SegmentFrameClass::Seal, SegmentFrameClass::Forget])
        {
            let raw = header(class, 0).encode(42, 17, b"");
            let frame = SegmentFrame::decode(&raw, 0, 42).unwrap();
            assert_eq!((frame.header, frame.synced), (header(class, 0), 17));
            assert!(
                SegmentFrame::decode(&raw, 0, 43).is_none(),
                "the salt of another segment"
            );
        }
    }

    #[test]
    fn every_flipped_bit_is_detected_and_the_next_frame_is_found() {
        let payload = b"payload";
        let class = SegmentFrameClass::Bytes {
            kind: 0,
            observed_at_ms: 0,
        };
        let mut raw = header(class, 7).encode(1, 0, payload).to_vec();
        raw.extend_from_slice(payload);
        let first = raw.len();
        raw.extend_from_slice(&header(SegmentFrameClass::Seal, 0).encode(1, 0, b""));
        for bit in 0..first * 8 {
            raw[bit / 8] ^= 1 << (bit % 8);
            let seen: Vec<_> = SegmentFrameScan::new(&raw, 1, 0).collect();
            assert_eq!(seen.len(), 2, "bit {bit}");
            assert!(match seen[0] {
                ScannedFrame::Frame(frame) => !frame.is_payload_intact(&raw, 1),
                ScannedFrame::Damaged { pos, end } => (pos, end) == (0, first),
            });
            assert!(matches!(seen[1], ScannedFrame::Frame(frame) if frame.pos == first));
            raw[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
