//! What one attempt has to say and the relay has not yet acknowledged. Pure and in memory; the disk
//! outbox takes this place later. Two numberings: control frames by `control_seq`, output by byte
//! offset. Records leave in the order in which they were appended, are kept until acknowledged and
//! are replayed after a reconnect. Control frames are never dropped. Output is bounded: the oldest
//! goes first, and what went is itself a record.

use std::collections::VecDeque;

use bytes::Bytes;

/// Unacknowledged output kept per attempt.
pub(crate) const OUTPUT_LIMIT: usize = 16 * 1024 * 1024;
/// Bookkeeping charged per record, so that many tiny chunks are bounded too.
const RECORD_COST: usize = 128;

/// Which pipe of the child the bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputKind {
    Stdout,
    Stderr,
}

/// One record. `T` is when it was observed, `C` the body of a control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record<C, T> {
    Control {
        seq: u64,
        observed_at: T,
        body: C,
    },
    Output {
        offset: u64,
        after_control_seq: u64,
        observed_at: T,
        kind: OutputKind,
        bytes: Bytes,
    },
    /// `length` bytes from `offset` on are gone for good.
    Cut {
        offset: u64,
        length: u64,
        after_control_seq: u64,
        observed_at: T,
    },
}

/// What the relay has in its keeping: everything up to and including these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acked {
    pub(crate) control_seq: u64,
    pub(crate) output_offset: u64,
}

#[derive(Debug)]
pub(crate) struct Outbox<C, T> {
    records: VecDeque<Record<C, T>>,
    /// Records at the front that went out on the present stream.
    sent: usize,
    last_control_seq: u64,
    /// Offset of the next output byte.
    end_offset: u64,
    acked: Acked,
    held: usize,
    limit: usize,
}

impl<C: Clone, T: Clone> Outbox<C, T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            records: VecDeque::new(),
            sent: 0,
            last_control_seq: 0,
            end_offset: 0,
            acked: Acked::default(),
            held: 0,
            limit,
        }
    }

    /// Numbers a control frame and keeps it; the number is returned.
    pub(crate) fn push_control(&mut self, body: C, observed_at: T) -> u64 {
        self.last_control_seq += 1;
        let seq = self.last_control_seq;
        self.records.push_back(Record::Control {
            seq,
            observed_at,
            body,
        });
        seq
    }

    pub(crate) fn push_output(&mut self, kind: OutputKind, bytes: Bytes, observed_at: T) {
        if bytes.is_empty() {
            return;
        }
        let offset = self.end_offset;
        self.end_offset += bytes.len() as u64;
        self.held += bytes.len() + RECORD_COST;
        let after_control_seq = self.last_control_seq;
        self.records.push_back(Record::Output {
            offset,
            after_control_seq,
            observed_at,
            kind,
            bytes,
        });
        while self.held > self.limit && self.drop_oldest_output() {}
    }

    /// The next record to put on the wire, in order.
    pub(crate) fn next_unsent(&self) -> Option<&Record<C, T>> {
        self.records.get(self.sent)
    }

    pub(crate) fn mark_sent(&mut self) {
        self.sent = (self.sent + 1).min(self.records.len());
    }

    /// A new stream: whatever is not acknowledged goes out again.
    pub(crate) fn rewind(&mut self, acked: Acked) {
        self.sent = 0;
        self.ack(acked);
    }

    /// Cumulative per numbering. Older or impossible numbers change nothing.
    pub(crate) fn ack(&mut self, acked: Acked) {
        let control_seq = acked.control_seq.min(self.last_control_seq);
        let output_offset = acked.output_offset.min(self.end_offset);
        self.acked.control_seq = self.acked.control_seq.max(control_seq);
        self.acked.output_offset = self.acked.output_offset.max(output_offset);
        self.trim();
    }

    /// Nobody wants what is left: forgets it, and goes on numbering after it.
    pub(crate) fn drop_unacked(&mut self) {
        self.ack(Acked {
            control_seq: self.last_control_seq,
            output_offset: self.end_offset,
        });
    }

    /// Only the last control frame is still wanted, and goes out again.
    pub(crate) fn keep_last_control(&mut self) {
        let last = self.last_control_seq;
        self.records
            .retain(|record| matches!(record, Record::Control { seq, .. } if *seq == last));
        self.sent = 0;
        self.held = 0;
    }

    /// Forgets everything and numbers the next control frame `seq`.
    pub(crate) fn restart_at(&mut self, seq: u64) {
        self.drop_unacked();
        self.last_control_seq = seq.saturating_sub(1);
        self.acked.control_seq = self.last_control_seq;
    }

    pub(crate) fn acked(&self) -> Acked {
        self.acked
    }

    pub(crate) fn last_control_seq(&self) -> u64 {
        self.last_control_seq
    }

    pub(crate) fn end_offset(&self) -> u64 {
        self.end_offset
    }

    /// Bytes of memory held by output that nobody acknowledged.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Smallest offset that can still be replayed as bytes.
    pub(crate) fn oldest_output(&self) -> u64 {
        let held = self.records.iter().find_map(|record| match record {
            Record::Output { offset, .. } => Some(*offset),
            Record::Control { .. } | Record::Cut { .. } => None,
        });
        held.unwrap_or(self.end_offset)
    }

    fn trim(&mut self) {
        let acked = self.acked;
        let mut kept_sent = 0;
        let mut held = 0;
        let mut kept = VecDeque::with_capacity(self.records.len());
        for (index, record) in self.records.drain(..).enumerate() {
            let Some(rest) = unacked_part(record, acked) else {
                continue;
            };
            kept_sent += usize::from(index < self.sent);
            held += output_cost(&rest);
            kept.push_back(rest);
        }
        self.records = kept;
        self.sent = kept_sent;
        self.held = held;
    }

    fn drop_oldest_output(&mut self) -> bool {
        let oldest = self
            .records
            .iter()
            .position(|r| matches!(r, Record::Output { .. }));
        // The newest record always stays: a chunk is far smaller than the limit.
        let Some(index) = oldest.filter(|index| index + 1 < self.records.len()) else {
            return false;
        };
        let record = &mut self.records[index];
        self.held -= output_cost(record);
        if let Record::Output {
            offset,
            after_control_seq,
            observed_at,
            bytes,
            ..
        } = record
        {
            *record = Record::Cut {
                offset: *offset,
                length: bytes.len() as u64,
                after_control_seq: *after_control_seq,
                observed_at: observed_at.clone(),
            };
        }
        self.merge_cut(index);
        true
    }

    /// Joins the cut at `index` to a cut right before it, unless one of them is already on the wire.
    fn merge_cut(&mut self, index: usize) {
        let both_sent = index < self.sent;
        let neither_sent = index > self.sent;
        if index == 0 || !(both_sent || neither_sent) {
            return;
        }
        let Record::Cut { length: added, .. } = self.records[index] else {
            return;
        };
        if let Record::Cut { length, .. } = &mut self.records[index - 1] {
            *length += added;
            self.records.remove(index);
            self.sent -= usize::from(both_sent);
        }
    }
}

fn output_cost<C, T>(record: &Record<C, T>) -> usize {
    match record {
        Record::Output { bytes, .. } => bytes.len() + RECORD_COST,
        Record::Control { .. } | Record::Cut { .. } => 0,
    }
}

/// What of `record` lies beyond `acked`; an acknowledgement may end inside a chunk.
fn unacked_part<C, T>(record: Record<C, T>, acked: Acked) -> Option<Record<C, T>> {
    match record {
        Record::Control {
            seq,
            observed_at,
            body,
        } => (seq > acked.control_seq).then_some(Record::Control {
            seq,
            observed_at,
            body,
        }),
        Record::Output {
            offset,
            after_control_seq,
            observed_at,
            kind,
            mut bytes,
        } => {
            let known = acked
                .output_offset
                .saturating_sub(offset)
                .min(bytes.len() as u64);
            let bytes = bytes.split_off(usize::try_from(known).unwrap_or(bytes.len()));
            let offset = offset + known;
            (!bytes.is_empty()).then_some(Record::Output {
                offset,
                after_control_seq,
                observed_at,
                kind,
                bytes,
            })
        }
        Record::Cut {
            offset,
            length,
            after_control_seq,
            observed_at,
        } => {
            let known = acked.output_offset.saturating_sub(offset).min(length);
            let (offset, length) = (offset + known, length - known);
            (length > 0).then_some(Record::Cut {
                offset,
                length,
                after_control_seq,
                observed_at,
            })
        }
    }
}

#[cfg(test)]
mod tests;
