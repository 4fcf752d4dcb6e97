//! Standard error that comes inside a line of standard output waits for that line's end: a position in the middle of
//! a line is none. What waits is bounded, and what is beyond the bound is counted.

use super::super::tail::Tail;

/// So much waits as it is.
pub(super) const KEPT_MAX: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Behind {
    pub(super) kept: Vec<u8>,
    /// Bytes after those.
    pub(super) over: u64,
    /// The end of them, for the report: there the last words count.
    pub(super) last: Tail,
}

impl Behind {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = KEPT_MAX.saturating_sub(self.kept.len());
        let (kept, rest) = bytes.split_at(room.min(bytes.len()));
        self.kept.extend_from_slice(kept);
        self.over += rest.len() as u64;
        self.last.push(rest);
    }
}
