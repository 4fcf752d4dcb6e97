//! Standard error that comes inside a line of standard output waits for that line's end: a position in the middle of
//! a line is none. What waits is bounded, and what is beyond the bound is counted.

use super::stderr_tail::StderrTail;

/// So much waits as it is.
pub(super) const MAX_DEFERRED_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct DeferredStderr {
    pub(super) bytes: Vec<u8>,
    /// Bytes after those.
    pub(super) overflow_bytes: u64,
    /// The end of them, for the report: there the last words count.
    pub(super) overflow_tail: StderrTail,
}

impl DeferredStderr {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = MAX_DEFERRED_BYTES.saturating_sub(self.bytes.len());
        let (kept, rest) = bytes.split_at(room.min(bytes.len()));
        self.bytes.extend_from_slice(kept);
        self.overflow_bytes += rest.len() as u64;
        self.overflow_tail.push(rest);
    }
}
