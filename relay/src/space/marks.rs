//! Decides what to do about the free disk space, from the free bytes, the ballast and the
//! previous level. Pure.
//!
//! ```text
//! free space     ▲
//!   low × 5/4    │  and room for the ballast: refill it, accept work again
//!   low          │  below: accept and dispatch nothing new; running attempts continue
//!   low / 4      │  below: remove the first half of the ballast, so that attempts can end
//!   low / 8      │  below: refuse output too; the remaining space is for records
//!   nothing      │  sled fails: the relay restarts and uses the second half
//! ```

use baton_proto::low_disk_space_threshold;

/// The ballast has two pieces: one for a running relay, one for its next start.
pub(crate) const PIECES: u32 = 2;
/// Size of both pieces. Enough to store the ends of thousands of attempts, and for sled to open
/// a large database.
const BALLAST: u64 = 32 << 20;
/// On a small disk the ballast is at most this fraction of it.
const BALLAST_DISK_DIVISOR: u64 = 8;
/// sled writes a snapshot when it opens. Its size is the database's size divided by about this.
const PER_SNAPSHOT_BYTE: u64 = 256;

/// The thresholds of one disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceMarks {
    pub(crate) low: u64,
    /// Size of one piece of the ballast.
    pub(crate) piece: u64,
}

/// A measurement of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceMeasurement {
    pub(crate) free: u64,
    pub(crate) total: u64,
    /// Pieces of the ballast on the disk.
    pub(crate) ballast_pieces: u32,
}

/// How much the relay accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceLevel {
    /// Accept everything.
    Roomy,
    /// Accept nothing new; running attempts continue.
    Low,
    /// Refuse output as well.
    Bare,
}

impl SpaceLevel {
    /// The level's name in the counters.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Roomy => "roomy",
            Self::Low => "low",
            Self::Bare => "bare",
        }
    }
}

/// What to do with the ballast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BallastAction {
    Keep,
    /// Remove one piece.
    GiveUp,
    /// Create one piece.
    Refill,
}

/// What to do before the store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartAction {
    Open,
    GiveUp,
    Wait,
}

impl SpaceMarks {
    pub(crate) fn of(total: u64) -> Self {
        Self {
            low: low_disk_space_threshold(total),
            piece: BALLAST.min(total / BALLAST_DISK_DIVISOR) / u64::from(PIECES),
        }
    }

    fn tight(self) -> u64 {
        self.low / 4
    }

    fn bare(self) -> u64 {
        self.low / 8
    }

    /// Higher than the low mark, or a disk near the mark would switch back and forth all the
    /// time.
    pub(crate) fn reopen_bytes(self, pieces: u32) -> u64 {
        let missing = u64::from(PIECES.saturating_sub(pieces)) * self.piece;
        self.low + self.low / 4 + missing
    }
}

impl SpaceMeasurement {
    pub(crate) fn marks(self) -> SpaceMarks {
        SpaceMarks::of(self.total)
    }

    /// Decides while the relay runs.
    pub(crate) fn decide(self, before: SpaceLevel) -> (SpaceLevel, BallastAction) {
        (self.level(before), self.ballast())
    }

    fn level(self, before: SpaceLevel) -> SpaceLevel {
        let marks = self.marks();
        let whole = self.ballast_pieces == PIECES;
        let opens = whole && self.free >= marks.reopen_bytes(self.ballast_pieces);
        match before {
            SpaceLevel::Roomy if self.free >= marks.low => SpaceLevel::Roomy,
            SpaceLevel::Low | SpaceLevel::Bare if opens => SpaceLevel::Roomy,
            SpaceLevel::Bare if self.free < marks.tight() => SpaceLevel::Bare,
            SpaceLevel::Roomy | SpaceLevel::Low | SpaceLevel::Bare if self.free < marks.bare() => {
                SpaceLevel::Bare
            }
            SpaceLevel::Roomy | SpaceLevel::Low | SpaceLevel::Bare => SpaceLevel::Low,
        }
    }

    fn ballast(self) -> BallastAction {
        let marks = self.marks();
        if self.free < marks.tight() && self.ballast_pieces == PIECES {
            BallastAction::GiveUp
        } else if self.ballast_pieces < PIECES
            && self.free >= marks.reopen_bytes(self.ballast_pieces)
        {
            BallastAction::Refill
        } else {
            BallastAction::Keep
        }
    }

    /// Decides whether a database of this size can be opened.
    pub(crate) fn start(self, database: u64) -> StartAction {
        let marks = self.marks();
        let needed = marks.bare() + database / PER_SNAPSHOT_BYTE;
        if self.free >= marks.tight().max(needed) {
            StartAction::Open
        } else if self.ballast_pieces > 0 {
            StartAction::GiveUp
        } else if self.free >= needed {
            StartAction::Open
        } else {
            StartAction::Wait
        }
    }

    /// Free bytes that a waiting start needs.
    pub(crate) fn needed_to_start(self, database: u64) -> u64 {
        self.marks().bare() + database / PER_SNAPSHOT_BYTE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const TOTAL: u64 = 1 << 30;

    fn measurement(free: u64, pieces: u32) -> SpaceMeasurement {
        SpaceMeasurement {
            free: free * MIB,
            total: TOTAL,
            ballast_pieces: pieces,
        }
    }

    #[test]
    fn the_ballast_is_32_mib_or_an_eighth_of_the_disk() {
        assert_eq!(SpaceMarks::of(TOTAL).piece, 16 * MIB);
        assert_eq!(SpaceMarks::of(128 * MIB).piece, 8 * MIB);
        assert_eq!(SpaceMarks::of(0).piece, 0);
    }

    #[test]
    fn a_filling_disk_stops_work_then_removes_ballast_then_refuses_output() {
        let decide = |free, pieces, before| measurement(free, pieces).decide(before);
        assert_eq!(
            decide(64, 2, SpaceLevel::Roomy),
            (SpaceLevel::Roomy, BallastAction::Keep)
        );
        assert_eq!(
            decide(63, 2, SpaceLevel::Roomy),
            (SpaceLevel::Low, BallastAction::Keep)
        );
        assert_eq!(
            decide(16, 2, SpaceLevel::Low),
            (SpaceLevel::Low, BallastAction::Keep)
        );
        assert_eq!(
            decide(15, 2, SpaceLevel::Low),
            (SpaceLevel::Low, BallastAction::GiveUp)
        );
        assert_eq!(
            decide(15, 1, SpaceLevel::Low),
            (SpaceLevel::Low, BallastAction::Keep),
            "the second piece is reserved for a start"
        );
        assert_eq!(
            decide(7, 1, SpaceLevel::Low),
            (SpaceLevel::Bare, BallastAction::Keep)
        );
        assert_eq!(
            decide(0, 2, SpaceLevel::Roomy),
            (SpaceLevel::Bare, BallastAction::GiveUp)
        );
    }

    #[test]
    fn work_is_accepted_again_only_after_the_ballast_is_refilled() {
        let decide = |free, pieces, before| measurement(free, pieces).decide(before);
        assert_eq!(
            decide(9, 1, SpaceLevel::Bare),
            (SpaceLevel::Bare, BallastAction::Keep)
        );
        assert_eq!(
            decide(16, 1, SpaceLevel::Bare),
            (SpaceLevel::Low, BallastAction::Keep)
        );
        assert_eq!(
            decide(95, 1, SpaceLevel::Low),
            (SpaceLevel::Low, BallastAction::Keep)
        );
        assert_eq!(
            decide(96, 1, SpaceLevel::Low),
            (SpaceLevel::Low, BallastAction::Refill)
        );
        assert_eq!(
            decide(80, 2, SpaceLevel::Low),
            (SpaceLevel::Roomy, BallastAction::Keep)
        );
        assert_eq!(
            decide(79, 2, SpaceLevel::Low),
            (SpaceLevel::Low, BallastAction::Keep)
        );
    }

    #[test]
    fn a_refilled_ballast_piece_is_not_removed_at_once() {
        for before in [SpaceLevel::Roomy, SpaceLevel::Low, SpaceLevel::Bare] {
            for pieces in 0..=PIECES {
                for free in 0..200 {
                    let (level, ballast) = measurement(free, pieces).decide(before);
                    if ballast == BallastAction::Refill {
                        let after = measurement(free - 16, pieces + 1);
                        assert_ne!(
                            after.decide(level).1,
                            BallastAction::GiveUp,
                            "{free}, {pieces}"
                        );
                    }
                    assert!(level != SpaceLevel::Roomy || free >= 64, "{free}, {pieces}");
                }
            }
        }
    }

    #[test]
    fn a_start_removes_the_ballast_and_then_waits() {
        assert_eq!(measurement(16, 0).start(0), StartAction::Open);
        assert_eq!(measurement(15, 2).start(0), StartAction::GiveUp);
        assert_eq!(measurement(8, 0).start(0), StartAction::Open);
        assert_eq!(measurement(7, 1).start(0), StartAction::GiveUp);
        assert_eq!(measurement(7, 0).start(0), StartAction::Wait);
        let large = 10 << 30;
        assert_eq!(measurement(47, 0).start(large), StartAction::Wait);
        assert_eq!(measurement(48, 0).start(large), StartAction::Open);
    }
}
