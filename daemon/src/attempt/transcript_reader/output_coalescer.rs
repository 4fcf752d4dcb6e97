//! Joins small reads into chunks: 4 KiB or 32 ms, whichever comes first, never more than 64
//! KiB, one kind per chunk, no byte lost or reordered. Pure. Thousands of tiny unread frames
//! would make HTTP/2 drop the connection.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::clock::BootTime;
use crate::outbox::OutputLabel;

const FLUSH_BYTES: usize = 4 * 1024;
const MAX_CHUNK_BYTES: usize = 64 * 1024;
const MAX_DELAY: Duration = Duration::from_millis(32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoalescedChunk {
    pub(crate) label: OutputLabel,
    pub(crate) bytes: Bytes,
    /// The transcript position up to which this chunk covers what was pushed. When one push
    /// makes several chunks, only the last one ends there; the others end where the push began.
    pub(crate) end_position: u64,
}

#[derive(Debug, Default)]
pub(crate) struct OutputCoalescer {
    ready: VecDeque<CoalescedChunk>,
    open: Option<OpenChunk>,
}

#[derive(Debug)]
struct OpenChunk {
    label: OutputLabel,
    bytes: BytesMut,
    since: BootTime,
    start_position: u64,
    end_position: u64,
}

impl OutputCoalescer {
    /// `span` is the part of the transcript that the bytes come from.
    pub(crate) fn push(
        &mut self,
        label: OutputLabel,
        bytes: &[u8],
        span: Range<u64>,
        now: BootTime,
    ) {
        if self.open.as_ref().is_some_and(|open| open.label != label) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| OpenChunk {
            label,
            bytes: BytesMut::new(),
            since: now,
            start_position: span.start,
            end_position: span.end,
        });
        open.bytes.extend_from_slice(bytes);
        open.end_position = span.end;
        if open.bytes.len() >= FLUSH_BYTES {
            self.close();
        }
    }

    /// When the open chunk has waited long enough.
    pub(crate) fn due_at(&self) -> Option<BootTime> {
        self.open.as_ref().map(|open| open.since.after(MAX_DELAY))
    }

    /// The next chunk that is full or due.
    pub(crate) fn take_due(&mut self, now: BootTime) -> Option<CoalescedChunk> {
        if self.ready.is_empty() && self.due_at().is_some_and(|due| due <= now) {
            self.close();
        }
        self.ready.pop_front()
    }

    /// The next chunk, due or not, for the end of the output.
    pub(crate) fn take_rest(&mut self) -> Option<CoalescedChunk> {
        self.close();
        self.ready.pop_front()
    }

    fn close(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        while !open.bytes.is_empty() {
            let bytes = open
                .bytes
                .split_to(open.bytes.len().min(MAX_CHUNK_BYTES))
                .freeze();
            let is_last = open.bytes.is_empty();
            self.ready.push_back(CoalescedChunk {
                label: open.label.clone(),
                bytes,
                end_position: if is_last {
                    open.end_position
                } else {
                    open.start_position
                },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::ChildPipe;
    use proptest::prelude::*;

    fn at(millis: u64) -> BootTime {
        BootTime::from_millis(millis)
    }

    fn push(coalescer: &mut OutputCoalescer, kind: ChildPipe, bytes: &[u8], millis: u64) {
        coalescer.push(kind.into(), bytes, 0..0, at(millis));
    }

    #[test]
    fn small_reads_are_joined_for_32_ms_or_4_kib() {
        let mut coalescer = OutputCoalescer::default();
        push(&mut coalescer, ChildPipe::Stdout, b"a", 0);
        push(&mut coalescer, ChildPipe::Stdout, b"b", 31);
        assert_eq!(coalescer.take_due(at(31)), None);
        assert_eq!(coalescer.due_at(), Some(at(32)));
        assert_eq!(&coalescer.take_due(at(32)).unwrap().bytes[..], b"ab");
        push(&mut coalescer, ChildPipe::Stdout, &[b'x'; FLUSH_BYTES], 40);
        assert_eq!(coalescer.take_due(at(40)).unwrap().bytes.len(), FLUSH_BYTES);
        push(&mut coalescer, ChildPipe::Stdout, b"out", 50);
        push(&mut coalescer, ChildPipe::Stderr, b"err", 51);
        assert_eq!(
            coalescer.take_due(at(51)).unwrap().label,
            ChildPipe::Stdout.into()
        );
        assert_eq!(coalescer.take_due(at(51)), None);
        assert_eq!(
            coalescer.take_rest().unwrap().label,
            ChildPipe::Stderr.into()
        );
        assert_eq!((coalescer.take_rest(), coalescer.due_at()), (None, None));
    }

    proptest! {
        #[test]
        fn bytes_are_neither_lost_nor_reordered_nor_too_many_per_chunk(
            reads in prop::collection::vec((any::<bool>(), 0usize..150_000, 0u64..50), 0..8)
        ) {
            let mut coalescer = OutputCoalescer::default();
            let (mut sent, mut got, mut now) = (Vec::new(), Vec::new(), 0);
            for (index, (is_error, length, wait)) in reads.into_iter().enumerate() {
                let kind = if is_error { ChildPipe::Stderr } else { ChildPipe::Stdout };
                let bytes = vec![index as u8; length];
                sent.extend(bytes.iter().map(|byte| (kind == ChildPipe::Stderr, *byte)));
                now += wait;
                push(&mut coalescer, kind, &bytes, now);
                while let Some(chunk) = coalescer.take_due(at(now)) {
                    prop_assert!(!chunk.bytes.is_empty() && chunk.bytes.len() <= MAX_CHUNK_BYTES);
                    got.extend(chunk.bytes.iter().map(|b| (chunk.label.is_stderr(), *b)));
                }
            }
            while let Some(chunk) = coalescer.take_rest() {
                got.extend(chunk.bytes.iter().map(|b| (chunk.label.is_stderr(), *b)));
            }
            prop_assert_eq!(sent, got);
        }
    }
}
