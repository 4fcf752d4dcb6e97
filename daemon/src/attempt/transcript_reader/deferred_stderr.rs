//! Stderr that arrives inside a line of stdout waits for the end of that line, because a
//! position inside a line cannot be resumed. It is bounded; what exceeds the bound is counted.

use super::stderr_tail::StderrTail;

/// Bytes that wait unchanged.
pub(super) const MAX_DEFERRED_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct DeferredStderr {
    pub(super) bytes: Vec<u8>,
    /// The number of bytes after those.
    pub(super) overflow_bytes: u64,
    /// The end of them, for the failure report.
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
