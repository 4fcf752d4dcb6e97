//! Brings sled's log into a shape that sled reads to its end: around what is damaged, which is only for copies, and over a
//! gap that sled itself has made.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::log_format::{SEGMENT, SEGMENT_HEAD, SledLog, SledMessage, SledSegmentHead};
use super::recovery_survey::LogDamage;

/// Enough for a head and a cap.
const BRIDGE_BYTES: usize = 64;

/// For a log that has no snapshot. sled then asks the newest head up to where the log was stable, and takes the whole log
/// for empty, and zeroes it, if the segment around that position is gone. But its own last open may have zeroed that one,
/// because all of its pages had moved on. A segment with nothing in it, in its place, is what sled expects to find; sled
/// zeroes it again. Where a head is damaged nobody knows what is gone, and nothing is done.
pub(crate) fn write_bridge_segment(path: &Path, log: &SledLog) -> io::Result<()> {
    let wanted = log.stable();
    let damaged = log.heads.contains(&SledSegmentHead::Damaged);
    if damaged
        || log.has_segment_at(wanted)
        || !log.heads.iter().any(|head| *head != SledSegmentHead::Empty)
    {
        return Ok(());
    }
    let empty = log
        .heads
        .iter()
        .position(|head| *head == SledSegmentHead::Empty);
    let number = empty.unwrap_or(log.heads.len()) as u64;
    let mut segment = [0; BRIDGE_BYTES];
    segment[..SEGMENT_HEAD].copy_from_slice(&SledSegmentHead::encode(wanted, -1));
    let position = wanted.unsigned_abs() / SEGMENT as u64;
    SledMessage::cap(&mut segment[SEGMENT_HEAD..], position)
        .ok_or_else(|| io::Error::other("a cap does not fit"))?;
    let db = OpenOptions::new().write(true).open(path)?;
    let end = (number + 1) * SEGMENT as u64;
    if end > log.len {
        db.set_len(end)?;
    }
    db.write_all_at(&segment, number * SEGMENT as u64)?;
    tracing::warn!(position, "closed a gap in a log that has no snapshot");
    db.sync_data()
}

/// How a damaged message is taken in a copy that is only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DamageHandling {
    /// As if it were not there, so its page is as it was before.
    Skip,
    /// For whole, until sled has recovered: who reads its page then finds that it is not. sled knows the number of every page
    /// and cannot open where it has nothing at all of one, which is what becomes of a page whose first message is taken for
    /// nothing.
    TreatAsIntact,
}

/// Bytes of a copy that are not what they were, by their place.
pub(crate) type PatchedChecksums = Vec<(u64, [u8; 4])>;

/// Makes sled read on behind what it cannot read: in a copy that is only looked at, for what was there is gone then. Returns
/// what is to be put back once sled has recovered.
pub(crate) fn patch_damage(
    path: &Path,
    log: &SledLog,
    damage: &[LogDamage],
    taken: DamageHandling,
) -> io::Result<PatchedChecksums> {
    let db = OpenOptions::new().write(true).open(path)?;
    let mut claimed = PatchedChecksums::new();
    for one in damage {
        match *one {
            LogDamage::Head { number, lsn } => {
                db.write_all_at(&SledSegmentHead::encode(lsn, -1), number * SEGMENT as u64)?;
            }
            LogDamage::Messages {
                number,
                segment,
                from,
                to,
            } => {
                let mut bytes = log.segment(number)?;
                let place = &mut bytes[from..to];
                let at = number * SEGMENT as u64 + from as u64;
                let whole = SledMessage::checksum_if_whole(place)
                    .filter(|_| taken == DamageHandling::TreatAsIntact);
                if let (Some(crc), Some(was)) = (whole, place.first_chunk()) {
                    db.write_all_at(&crc, at)?;
                    claimed.push((at, *was));
                } else if SledMessage::cancel(place, segment).is_some() {
                    db.write_all_at(place, at)?;
                }
                // What is too short for a message stays, and sled takes it for the segment's end.
            }
        }
    }
    db.sync_data()?;
    Ok(claimed)
}

/// From here on sled finds the damage where it is.
pub(crate) fn restore_checksums(path: &Path, claimed: &PatchedChecksums) -> io::Result<()> {
    let db = OpenOptions::new().write(true).open(path)?;
    for (at, was) in claimed {
        db.write_all_at(was, *at)?;
    }
    db.sync_data()
}
