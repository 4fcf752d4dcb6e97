//! Reads sled's files without sled, which cannot open them without writing to them. Contains
//! the format of the pinned version: a log of segments, the messages in them, and a snapshot
//! with the position of each page. Changes nothing.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) const SEGMENT: usize = 512 * 1024;
pub(crate) const SEGMENT_HEAD: usize = 20;
/// Length and checksum at the end of a snapshot.
const SNAPSHOT_END: usize = 12;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SledSegmentHead {
    Empty,
    Damaged,
    /// The position of its messages in the log, and the stable end of the log when it was
    /// begun.
    Whole {
        lsn: i64,
        stable: i64,
    },
}

impl SledSegmentHead {
    fn read(bytes: &[u8]) -> Self {
        let number = |at: usize| {
            let raw = bytes.get(at..).and_then(|rest| rest.first_chunk());
            raw.map(|raw| i64::from_le_bytes(*raw) ^ i64::MAX)
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return Self::Empty;
        }
        match (number(4), number(12)) {
            (Some(lsn), Some(stable))
                if Self::encode(lsn, stable) == *bytes && lsn >= 0 && segment_start(lsn) == lsn =>
            {
                Self::Whole { lsn, stable }
            }
            (Some(_), _) | (None, _) => Self::Damaged,
        }
    }

    pub(crate) fn encode(lsn: i64, stable: i64) -> [u8; SEGMENT_HEAD] {
        let mut bytes = [0; SEGMENT_HEAD];
        bytes[4..12].copy_from_slice(&(lsn ^ i64::MAX).to_le_bytes());
        bytes[12..].copy_from_slice(&(stable ^ i64::MAX).to_le_bytes());
        let crc = !crc32fast::hash(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// The beginning of the segment that contains a position of the log.
pub(crate) fn segment_start(lsn: i64) -> i64 {
    lsn - lsn % SEGMENT as i64
}

/// The effect of a message on its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageEffect {
    /// No effect: padding and sled's own marks.
    None,
    /// The last message of its segment.
    Cap,
    Replace,
    Link,
}

const CANCELED: u8 = 1;
const CAP: u8 = 2;

/// A message whose checksum matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SledMessage {
    pub(crate) effect: PageEffect,
    pub(crate) page: u64,
    /// Its segment's position in the log, which distinguishes it from leftovers in a reused
    /// segment.
    pub(crate) segment: u64,
    /// Length including the head.
    pub(crate) len: usize,
}

impl SledMessage {
    /// No message begins closer than this to the end of a segment.
    pub(crate) const RED_ZONE: usize = 32;

    pub(crate) fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let (message, head) = Self::head(bytes, at)?;
        let rest = &bytes[at..at + message.len];
        let mut hash = crc32fast::Hasher::new();
        hash.update(&rest[head..]);
        hash.update(&rest[4..head]);
        // Only padding follows a cap, so damage there does no harm.
        let pads = message.effect == PageEffect::Cap && message.page == u64::MAX;
        let pads = pads && at + Self::RED_ZONE + message.len - head == SEGMENT;
        (pads || rest.starts_with(&(!hash.finalize()).to_le_bytes())).then_some(message)
    }

    /// Decodes the head of a damaged message that fills all bytes from here on.
    pub(crate) fn read_unchecked(bytes: &[u8], at: usize) -> Option<Self> {
        let (message, _) = Self::head(bytes, at)?;
        (at + message.len == bytes.len()).then_some(message)
    }

    /// Decodes the head without checking the checksum; also returns the head's length.
    fn head(bytes: &[u8], at: usize) -> Option<(Self, usize)> {
        if at + Self::RED_ZONE > SEGMENT {
            return None;
        }
        let rest = bytes.get(at..)?;
        let effect = match *rest.get(4)? {
            CANCELED | 3 => PageEffect::None,
            CAP => PageEffect::Cap,
            4..=9 => PageEffect::Replace,
            10 | 11 => PageEffect::Link,
            _no_kind => return None,
        };
        let mut head = FIXED_HEAD_BYTES;
        let mut next = || varint(rest, &mut head);
        let (len, segment, page) = (next()?, next()?, next()?);
        let len = head.checked_add(usize::try_from(len).ok()?)?;
        let message = Self {
            effect,
            page,
            segment,
            len,
        };
        (len <= rest.len()).then_some((message, head))
    }

    /// Bytes that [`SledMessage::cancel`] needs.
    pub(crate) fn min_bytes(segment: u64) -> usize {
        FIXED_HEAD_BYTES + 1 + position(segment).len()
    }

    /// Turns `place` into a message without effect; `None` if there is no room for its head.
    pub(crate) fn cancel(place: &mut [u8], segment: u64) -> Option<()> {
        encode(place, CANCELED, segment)
    }

    /// The checksum that would make a damaged message valid, if its head is plausible and it
    /// concerns a page.
    pub(crate) fn checksum_if_whole(place: &[u8]) -> Option<[u8; 4]> {
        let (message, head) = Self::head(place, 0)?;
        let of_page = matches!(message.effect, PageEffect::Replace | PageEffect::Link);
        let mut hash = crc32fast::Hasher::new();
        hash.update(&place[head..]);
        hash.update(&place[4..head]);
        let crc = !hash.finalize();
        (of_page && message.len == place.len()).then_some(crc.to_le_bytes())
    }

    /// Writes the end of a segment that contains nothing else.
    pub(crate) fn cap(place: &mut [u8], segment: u64) -> Option<()> {
        encode(place, CAP, segment)
    }
}

/// Bytes of a message's head before its numbers.
const FIXED_HEAD_BYTES: usize = 5;

/// The encoded segment number and a page number of zero.
fn position(segment: u64) -> Vec<u8> {
    match u8::try_from(segment) {
        Ok(small @ 0..=240) => vec![small, 0],
        Ok(_) | Err(_) => [&[255][..], &segment.to_le_bytes(), &[0]].concat(),
    }
}

fn encode(place: &mut [u8], kind: u8, segment: u64) -> Option<()> {
    let body_len = place.len().checked_sub(SledMessage::min_bytes(segment))?;
    let mut head = vec![0, 0, 0, 0, kind];
    match u8::try_from(body_len) {
        Ok(short @ 0..=240) => head.push(short),
        // A marker and three bytes, which are enough for a length within a segment.
        Ok(_) | Err(_) => {
            head.push(250);
            head.extend_from_slice(&u32::try_from(body_len - 3).ok()?.to_le_bytes()[..3]);
        }
    }
    head.append(&mut position(segment));
    let mut hash = crc32fast::Hasher::new();
    hash.update(&place[head.len()..]);
    hash.update(&head[4..]);
    let crc = !hash.finalize();
    head[..4].copy_from_slice(&crc.to_le_bytes());
    place[..head.len()].copy_from_slice(&head);
    Some(())
}

/// A number in sled's encoding, of one to nine bytes.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let rest = bytes.get(*at..)?;
    let byte = |at: usize| rest.get(at).copied().map(u64::from);
    let (number, len) = match *rest.first()? {
        first @ 0..=240 => (u64::from(first), 1),
        first @ 241..=248 => (240 + 256 * (u64::from(first) - 241) + byte(1)?, 2),
        249 => (2288 + 256 * byte(1)? + byte(2)?, 3),
        first => {
            let len = usize::from(first) - 247;
            let mut raw = [0; 8];
            raw[..len].copy_from_slice(rest.get(1..=len)?);
            (u64::from_le_bytes(raw), len + 1)
        }
    };
    *at += len;
    Some(number)
}

/// Where sled's recovery begins: the position of each page as of some position in the log.
#[derive(Debug)]
pub(crate) struct SledSnapshot {
    pub(crate) end: i64,
    /// The segment in the file that contains `end`.
    pub(crate) active: Option<u64>,
    /// Segments in the file that contain a part of the page, by page number.
    pub(crate) pages: Vec<Vec<u64>>,
}

/// Whether sled would accept a file as a valid snapshot.
pub(crate) fn is_whole_snapshot(path: &Path) -> io::Result<bool> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let bytes = fs::read(path)?;
    let end = bytes.len().checked_sub(4).and_then(|at| bytes.get(at..));
    let crc = end.and_then(|end| end.first_chunk()).copied();
    let body = bytes.len().checked_sub(SNAPSHOT_END).filter(|len| *len > 0);
    Ok(!name.ends_with(".generating")
        && body
            .is_some_and(|len| crc.map(u32::from_le_bytes) == Some(crc32fast::hash(&bytes[..len]))))
}

impl SledSnapshot {
    /// Reads a valid snapshot file; `None` if its content is not as expected.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let bytes = fs::read(path)?;
        let body = bytes.len().checked_sub(SNAPSHOT_END);
        Ok(body.and_then(|len| Self::decode(&bytes[..len])))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let end = i64::from_le_bytes(*bytes.first_chunk()?).checked_sub(1)?;
        let mut at = 8;
        let active = varint(bytes, &mut at)?.checked_sub(1);
        let mut pages = Vec::new();
        while at < bytes.len() {
            let parts = bytes[at];
            at += 1;
            let page: Option<Vec<u64>> = (0..parts.max(1))
                .map(|_| pointer(bytes, &mut at, parts > 0))
                .collect();
            pages.push(page?);
        }
        (end >= 0).then_some(Self {
            end,
            active: active.map(|at| at / SEGMENT as u64),
            pages,
        })
    }
}

/// The segment of one part of a page. A freed page has no size.
fn pointer(bytes: &[u8], at: &mut usize, sized: bool) -> Option<u64> {
    *at += 8;
    let blob = match bytes.get(*at)? {
        0 => 0,
        1 => 8,
        _other => return None,
    };
    *at += 1;
    let place = varint(bytes, at)?;
    *at += blob;
    if sized {
        varint(bytes, at)?;
    }
    (*at <= bytes.len()).then_some(place / SEGMENT as u64)
}

/// sled's data file.
#[derive(Debug)]
pub(crate) struct SledLog {
    db: File,
    pub(crate) len: u64,
    pub(crate) heads: Vec<SledSegmentHead>,
}

impl SledLog {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let db = File::open(path)?;
        let len = db.metadata()?.len();
        let mut log = Self {
            db,
            len,
            heads: Vec::new(),
        };
        for number in 0..len.div_ceil(SEGMENT as u64) {
            let mut head = vec![0; SEGMENT_HEAD];
            let read = log.read(number, &mut head)?;
            log.heads.push(SledSegmentHead::read(&head[..read]));
        }
        Ok(log)
    }

    /// All bytes of a segment; the last one may be shorter.
    pub(crate) fn segment(&self, number: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; SEGMENT];
        let read = self.read(number, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn read(&self, number: u64, into: &mut [u8]) -> io::Result<usize> {
        let (start, mut filled) = (number * SEGMENT as u64, 0);
        while filled < into.len() {
            match self
                .db
                .read_at(&mut into[filled..], start + filled as u64)?
            {
                0 => break,
                more => filled += more,
            }
        }
        Ok(filled)
    }

    /// The beginning of the segment from which on sled checks that none is missing.
    pub(crate) fn stable(&self) -> i64 {
        let stable = self.heads.iter().filter_map(|head| match head {
            SledSegmentHead::Whole { stable, .. } => Some(*stable),
            SledSegmentHead::Empty | SledSegmentHead::Damaged => None,
        });
        segment_start(stable.max().unwrap_or(0).max(0))
    }

    /// The header of the segment with this number in the file.
    pub(crate) fn head(&self, number: u64) -> Option<SledSegmentHead> {
        self.heads.get(usize::try_from(number).ok()?).copied()
    }

    pub(crate) fn has_segment_at(&self, wanted: i64) -> bool {
        self.heads
            .iter()
            .any(|head| matches!(head, SledSegmentHead::Whole { lsn, .. } if *lsn == wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_sled_messages_are_read_back_and_bit_flips_are_detected() {
        for (len, segment) in [
            (8, 77),
            (247, 77),
            (248, 77),
            (251, 77),
            (70_000, 77),
            (16, 999),
        ] {
            let mut place: Vec<u8> = (0..len).map(|at| at as u8).collect();
            SledMessage::cancel(&mut place, segment).unwrap();
            let message = SledMessage::read(&place, 0).unwrap();
            assert_eq!((message.len, message.segment), (len, segment));
            assert_eq!(message.effect, PageEffect::None);
            for bit in [0, 41, len * 8 - 1] {
                place[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SledMessage::read(&place, 0), None, "bit {bit} of {len}");
                place[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert_eq!(SledMessage::cancel(&mut [0; 7], 77), None);
        let (lsn, stable) = (7 * SEGMENT as i64, -1);
        let mut head = SledSegmentHead::encode(lsn, stable);
        assert_eq!(
            SledSegmentHead::read(&head),
            SledSegmentHead::Whole { lsn, stable }
        );
        head[9] ^= 4;
        assert_eq!(SledSegmentHead::read(&head), SledSegmentHead::Damaged);
        assert_eq!(
            SledSegmentHead::read(&[0; SEGMENT_HEAD]),
            SledSegmentHead::Empty
        );
    }
}
