//! Joins small reads into chunks: 4 KiB or 32 ms, whichever comes first, never more than 64 KiB, one
//! kind per chunk, no byte lost or reordered. Pure. Thousands of tiny unread frames would make HTTP/2
//! drop the connection.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::clock::Moment;
use crate::outbox::Label;

const ENOUGH: usize = 4 * 1024;
const LARGEST: usize = 64 * 1024;
const LONGEST: Duration = Duration::from_millis(32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) label: Label,
    pub(crate) bytes: Bytes,
    /// End of what it came from, as it was pushed with its last bytes. Of a read that makes several chunks only the
    /// last one ends there; the others end where it began.
    pub(crate) upto: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Coalescer {
    ready: VecDeque<Chunk>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    label: Label,
    bytes: BytesMut,
    since: Moment,
    from: u64,
    upto: u64,
}

impl Coalescer {
    /// `span`: where in the transcript the bytes come from.
    pub(crate) fn push(&mut self, label: Label, bytes: &[u8], span: Range<u64>, now: Moment) {
        if self.open.as_ref().is_some_and(|open| open.label != label) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| Open {
            label,
            bytes: BytesMut::new(),
            since: now,
            from: span.start,
            upto: span.end,
        });
        open.bytes.extend_from_slice(bytes);
        open.upto = span.end;
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
        let Some(mut open) = self.open.take() else {
            return;
        };
        while !open.bytes.is_empty() {
            let bytes = open.bytes.split_to(open.bytes.len().min(LARGEST)).freeze();
            let is_last = open.bytes.is_empty();
            self.ready.push_back(Chunk {
                label: open.label.clone(),
                bytes,
                upto: if is_last { open.upto } else { open.from },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::OutputKind;
    use proptest::prelude::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn push(coalescer: &mut Coalescer, kind: OutputKind, bytes: &[u8], millis: u64) {
        coalescer.push(kind.into(), bytes, 0..0, at(millis));
    }

    #[test]
    fn small_reads_wait_32_ms_or_4_kib_and_kinds_keep_their_order() {
        let mut coalescer = Coalescer::default();
        push(&mut coalescer, OutputKind::Stdout, b"a", 0);
        push(&mut coalescer, OutputKind::Stdout, b"b", 31);
        assert_eq!(coalescer.take_due(at(31)), None);
        assert_eq!(coalescer.due_at(), Some(at(32)));
        assert_eq!(&coalescer.take_due(at(32)).unwrap().bytes[..], b"ab");
        push(&mut coalescer, OutputKind::Stdout, &[b'x'; ENOUGH], 40);
        assert_eq!(coalescer.take_due(at(40)).unwrap().bytes.len(), ENOUGH);
        push(&mut coalescer, OutputKind::Stdout, b"out", 50);
        push(&mut coalescer, OutputKind::Stderr, b"err", 51);
        assert_eq!(
            coalescer.take_due(at(51)).unwrap().label,
            OutputKind::Stdout.into()
        );
        assert_eq!(coalescer.take_due(at(51)), None);
        assert_eq!(
            coalescer.take_rest().unwrap().label,
            OutputKind::Stderr.into()
        );
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
                push(&mut coalescer, kind, &bytes, now);
                while let Some(chunk) = coalescer.take_due(at(now)) {
                    prop_assert!(!chunk.bytes.is_empty() && chunk.bytes.len() <= LARGEST);
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
