//! Joins small reads into chunks: 4 KiB or 32 ms, whichever comes first, never more than 64 KiB, one
//! kind per chunk, no byte lost or reordered. Pure. Thousands of tiny unread frames would make HTTP/2
//! drop the connection.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::clock::Moment;
use crate::outbox::OutputKind;

const ENOUGH: usize = 4 * 1024;
const LARGEST: usize = 64 * 1024;
const LONGEST: Duration = Duration::from_millis(32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) kind: OutputKind,
    pub(crate) bytes: Bytes,
}

#[derive(Debug, Default)]
pub(crate) struct Coalescer {
    ready: VecDeque<Chunk>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    kind: OutputKind,
    bytes: BytesMut,
    since: Moment,
}

impl Coalescer {
    pub(crate) fn push(&mut self, kind: OutputKind, bytes: &[u8], now: Moment) {
        if self.open.as_ref().is_some_and(|open| open.kind != kind) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| Open {
            kind,
            bytes: BytesMut::new(),
            since: now,
        });
        open.bytes.extend_from_slice(bytes);
        if open.bytes.len() >= ENOUGH {
            self.close();
        }
    }

    /// When the open chunk has waited long enough.
    pub(crate) fn due_at(&self) -> Option<Moment> {
        self.open.as_ref().map(|open| open.since.after(LONGEST))
    }

    /// The next chunk that is full or due.
    pub(crate) fn take_due(&mut self, now: Moment) -> Option<Chunk> {
        if self.ready.is_empty() && self.due_at().is_some_and(|due| due <= now) {
            self.close();
        }
        self.ready.pop_front()
    }

    /// The next chunk, due or not: at the end of the output.
    pub(crate) fn take_rest(&mut self) -> Option<Chunk> {
        self.close();
        self.ready.pop_front()
    }

    fn close(&mut self) {
        let Some(Open {
            kind, mut bytes, ..
        }) = self.open.take()
        else {
            return;
        };
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(LARGEST)).freeze();
            self.ready.push_back(Chunk { kind, bytes: chunk });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn small_reads_wait_32_ms_or_4_kib_and_kinds_keep_their_order() {
        let mut coalescer = Coalescer::default();
        coalescer.push(OutputKind::Stdout, b"a", at(0));
        coalescer.push(OutputKind::Stdout, b"b", at(31));
        assert_eq!(coalescer.take_due(at(31)), None);
        assert_eq!(coalescer.due_at(), Some(at(32)));
        assert_eq!(&coalescer.take_due(at(32)).unwrap().bytes[..], b"ab");
        coalescer.push(OutputKind::Stdout, &[b'x'; ENOUGH], at(40));
        assert_eq!(coalescer.take_due(at(40)).unwrap().bytes.len(), ENOUGH);
        coalescer.push(OutputKind::Stdout, b"out", at(50));
        coalescer.push(OutputKind::Stderr, b"err", at(51));
        assert_eq!(coalescer.take_due(at(51)).unwrap().kind, OutputKind::Stdout);
        assert_eq!(coalescer.take_due(at(51)), None);
        assert_eq!(coalescer.take_rest().unwrap().kind, OutputKind::Stderr);
        assert_eq!((coalescer.take_rest(), coalescer.due_at()), (None, None));
    }

    proptest! {
        #[test]
        fn bytes_are_neither_lost_nor_reordered_nor_too_many_per_chunk(
            reads in prop::collection::vec((any::<bool>(), 0usize..150_000, 0u64..50), 0..8)
        ) {
            let mut coalescer = Coalescer::default();
            let (mut sent, mut got, mut now) = (Vec::new(), Vec::new(), 0);
            for (index, (is_error, length, wait)) in reads.into_iter().enumerate() {
                let kind = if is_error { OutputKind::Stderr } else { OutputKind::Stdout };
                let bytes = vec![index as u8; length];
                sent.extend(bytes.iter().map(|byte| (kind == OutputKind::Stderr, *byte)));
                now += wait;
                coalescer.push(kind, &bytes, at(now));
                while let Some(chunk) = coalescer.take_due(at(now)) {
                    prop_assert!(!chunk.bytes.is_empty() && chunk.bytes.len() <= LARGEST);
                    got.extend(chunk.bytes.iter().map(|b| (chunk.kind == OutputKind::Stderr, *b)));
                }
            }
            while let Some(chunk) = coalescer.take_rest() {
                got.extend(chunk.bytes.iter().map(|b| (chunk.kind == OutputKind::Stderr, *b)));
            }
            prop_assert_eq!(sent, got);
        }
    }
}
