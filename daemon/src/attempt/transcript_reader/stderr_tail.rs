//! The end of stderr, kept for the failure report.

use std::collections::VecDeque;

use bytes::Bytes;

const TAIL_BYTES: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct StderrTail(VecDeque<u8>);

impl StderrTail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let fresh = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let surplus = (self.0.len() + fresh.len()).saturating_sub(TAIL_BYTES);
        self.0.drain(..surplus.min(self.0.len()));
        self.0.extend(fresh);
    }

    pub(super) fn bytes(&self) -> Bytes {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_16_kib_are_kept() {
        let text: Vec<u8> = (0..40_000_u32).map(|n| n as u8).collect();
        for step in [1, 100, TAIL_BYTES, 40_000] {
            let mut tail = StderrTail::default();
            text.chunks(step).for_each(|bytes| tail.push(bytes));
            assert_eq!(tail.bytes(), text[text.len() - TAIL_BYTES..], "{step}");
        }
    }
}
