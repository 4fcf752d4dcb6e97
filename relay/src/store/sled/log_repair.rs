//! Makes sled's log readable to its end: around damage, which is only done on copies, and
//! across a gap that sled itself has made.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::log_format::{SEGMENT, SEGMENT_HEAD, SledLog, SledMessage, SledSegmentHead};
use super::recovery_survey::LogDamage;

/// Enough for a head and a cap.
const BRIDGE_BYTES: usize = 64;

/// Repairs a log without a snapshot. In that case sled reads from the newest head up to where
/// the log was stable. If the segment at that position is missing, sled treats the whole log as
/// empty and zeroes it. But sled's own last open may have zeroed that segment because all its
/// pages had moved. An empty segment at that position is what sled expects, and sled zeroes it
/// again. If a head is damaged, it is unknown what is missing, so nothing is changed.
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
        .ok_or_else(|| io::Error::other("no room for a segment cap"))?;
    let db = OpenOptions::new().write(true).open(path)?;
    let end = (number + 1) * SEGMENT as u64;
    if end > log.len {
        db.set_len(end)?;
    }
    db.write_all_at(&segment, number * SEGMENT as u64)?;
    tracing::warn!(position, "repaired a gap in a sled log without a snapshot");
    db.sync_data()
}

/// How to handle a damaged message in a read-only copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DamageHandling {
    /// As if it did not exist, so that its page has its earlier state.
    Skip,
    /// As intact until sled has recovered; a later read of its page then finds the damage. sled
    /// cannot open a log that has no message at all for one of its pages, and skipping a page's
    /// first message would cause that.
    TreatAsIntact,
}

/// The original checksum bytes of a patched copy, by their offset.
pub(crate) type PatchedChecksums = Vec<(u64, [u8; 4])>;

/// Makes sled continue after what it cannot read. Only for a read-only copy, because the
/// damaged bytes are overwritten. Returns what to restore once sled has recovered.
pub(crate) fn patch_damage(
    path: &Path,
    log: &SledLog,
    damage: &[LogDamage],
    handling: DamageHandling,
) -> io::Result<PatchedChecksums> {
    let db = OpenOptions::new().write(true).open(path)?;
    let mut patched = PatchedChecksums::new();
    for found in damage {
        match *found {
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
                    .filter(|_| handling == DamageHandling::TreatAsIntact);
                if let (Some(crc), Some(original)) = (whole, place.first_chunk()) {
                    db.write_all_at(&crc, at)?;
                    patched.push((at, *original));
                } else if SledMessage::cancel(place, segment).is_some() {
                    db.write_all_at(place, at)?;
                }
                // Bytes too short for a message stay, and sled takes them for the segment's
                // end.
            }
        }
    }
    db.sync_data()?;
    Ok(patched)
}

/// Restores the damaged checksums, so that sled detects the damage in reads.
pub(crate) fn restore_checksums(path: &Path, patched: &PatchedChecksums) -> io::Result<()> {
    let db = OpenOptions::new().write(true).open(path)?;
    for (at, original) in patched {
        db.write_all_at(original, *at)?;
    }
    db.sync_data()
}
