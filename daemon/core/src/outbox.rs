//! What one attempt has to say and the relay has not yet acknowledged. Pure: no I/O, no clock. Two numberings: control frames
//! by `control_seq`, output by byte offset. Records leave in the order in which they were appended, once the disk has them
//! (`log` is the gate), are kept until acknowledged and are replayed after a reconnect. Control frames are never dropped. Output
//! is bounded: the oldest goes first, and what went is itself a record.
//!
//! Every change is an [`Entry`]: it is applied here and handed to the disk by the same call, and `restore` applies what the disk
//! has by the same code, so that there is no second truth.

use std::collections::VecDeque;

use bytes::Bytes;

mod entry;
mod log;

pub use entry::{Acked, Base, Body, CutWhy, Entry, Leaves, Logged, Progress, Record, Step};
pub use log::{Durable, Log};

use entry::Kept;

/// Unacknowledged output kept per attempt.
pub const OUTPUT_LIMIT: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub struct Outbox<C, L, T> {
    records: VecDeque<Kept<C, L, T>>,
    /// Records at the front that went out on the present stream.
    sent: usize,
    last_control_seq: u64,
    /// Offset of the next output byte.
    end_offset: u64,
    acked: Acked,
    /// The disk does not know of the newest acknowledgement. It is told with the next change: what is replayed for want of it
    /// is dropped by the relay.
    acked_unlogged: bool,
    /// Another daemon appended up to this number, and the relay has not said since what it has.
    taken_over_at: Option<u64>,
    progress: Progress,
    held: usize,
    /// Charged for control frames.
    untold: usize,
    limit: usize,
    log: Log<C, L, T>,
}

impl<C: Body, L: Clone, T: Clone> Outbox<C, L, T> {
    /// Nothing leaves before the disk has it.
    pub fn new(limit: usize) -> Self {
        Self::with(limit, Log::on_disk())
    }

    /// The disk is not asked: for what may be lost with the daemon.
    pub fn in_memory(limit: usize) -> Self {
        Self::with(limit, Log::in_memory())
    }

    fn with(limit: usize, log: Log<C, L, T>) -> Self {
        Self {
            records: VecDeque::new(),
            sent: 0,
            last_control_seq: 0,
            end_offset: 0,
            acked: Acked::default(),
            acked_unlogged: false,
            taken_over_at: None,
            progress: Progress::default(),
            held: 0,
            untold: 0,
            limit,
            log,
        }
    }

    /// What another daemon left on the disk, taken over by this one. Nothing of it leaves before the disk is asked again: what
    /// was written may not have been synced.
    pub fn restore(limit: usize, entries: impl IntoIterator<Item = Logged<C, L, T>>) -> Self {
        let mut outbox = Self::new(limit);
        for logged in entries {
            outbox.log.replayed(logged.serial);
            outbox.progress.replay(logged.progress);
            outbox.apply(logged.entry, logged.serial, logged.leaves);
        }
        outbox.log.replayed_all(&outbox.progress);
        outbox.commit(Entry::TakenOver, Leaves::Written);
        outbox.cut_to_limit();
        outbox
    }

    /// Numbers a control frame and keeps it; the number is returned.
    pub fn push_control(&mut self, body: C, observed_at: T, leaves: Leaves) -> u64 {
        let seq = self.last_control_seq + 1;
        let record = Record::Control {
            seq,
            observed_at,
            body,
        };
        self.commit(Entry::Frame(record), leaves);
        seq
    }

    pub fn push_output(&mut self, label: L, bytes: Bytes, observed_at: T) {
        if bytes.is_empty() {
            return;
        }
        let record = Record::Output {
            offset: self.end_offset,
            after_control_seq: self.last_control_seq,
            observed_at,
            label,
            bytes,
        };
        self.commit(Entry::Frame(record), Leaves::Written);
        self.cut_to_limit();
    }

    /// The next `length` bytes of output will never come.
    pub fn push_cut(&mut self, length: u64, why: CutWhy, observed_at: T) {
        if length == 0 {
            return;
        }
        let record = Record::Cut {
            offset: self.end_offset,
            length,
            why,
            after_control_seq: self.last_control_seq,
            observed_at,
        };
        self.commit(Entry::Frame(record), Leaves::Written);
    }

    /// How far the transcript is folded once the next record is in; stored with that record. Where one step of the fold comes to
    /// several records, the position moves with the last of them and the snapshot with each, or a crash in between loses the rest.
    pub fn advance(&mut self, progress: Progress) {
        self.progress = progress;
    }

    /// Stores how far the transcript is folded, also where that came to no frame.
    pub fn store_progress(&mut self) {
        if self.log.lacks(&self.progress) {
            self.commit(Entry::Advanced, Leaves::Written);
        }
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The next record to put on the wire, in order; none while the disk does not have it.
    pub fn next_unsent(&self) -> Option<&Record<C, L, T>> {
        let kept = self.records.get(self.sent)?;
        self.log
            .lets_go(kept.serial, kept.leaves)
            .then_some(&kept.record)
    }

    pub fn mark_sent(&mut self) {
        self.sent = (self.sent + 1).min(self.records.len());
    }

    /// Whatever is not acknowledged goes out again.
    pub fn rewind(&mut self) {
        if mutant!(ReplaySkipped) {
            return;
        }
        self.sent = 0;
    }

    /// A new stream, and what the relay has. After a take-over, what was appended since is numbered after that: the relay may know
    /// frames that the disk has lost.
    pub fn settle(&mut self, acked: Acked) {
        if let Some(at) = self.taken_over_at {
            let known = if mutant!(NumbersReused) {
                0
            } else {
                acked.control_seq
            };
            let raised_by = known.saturating_sub(at);
            self.commit(Entry::Settled { raised_by }, Leaves::Synced);
        }
        self.rewind();
        self.ack(acked);
    }

    /// Cumulative per numbering. Older or impossible numbers change nothing.
    pub fn ack(&mut self, acked: Acked) {
        let taken = acked.control_seq + u64::from(mutant!(AckTakesUnacked));
        let control_seq = taken.min(self.last_control_seq);
        let output_offset = acked.output_offset.min(self.end_offset);
        let newest = Acked {
            control_seq: control_seq.max(self.acked.control_seq),
            output_offset: output_offset.max(self.acked.output_offset),
        };
        if newest != self.acked {
            self.acked_unlogged = true;
            self.apply_acked(newest);
        }
    }

    /// Nobody wants what is left: forgets it, and goes on numbering after it.
    pub fn drop_unacked(&mut self) {
        self.ack(Acked {
            control_seq: self.last_control_seq,
            output_offset: self.end_offset,
        });
    }

    /// Of the control frames only the last is still wanted, and goes out again with all output.
    pub fn keep_last_control(&mut self) {
        let control_before = self.last_control_seq;
        self.commit(Entry::Forgotten { control_before }, Leaves::Written);
        self.rewind();
    }

    /// Forgets everything and numbers the next control frame `seq`.
    pub fn restart_at(&mut self, seq: u64) {
        let last = seq.saturating_sub(1);
        let acked = Acked {
            control_seq: last,
            output_offset: self.end_offset,
        };
        self.acked_unlogged = false;
        let base = Base {
            last_control_seq: last,
            end_offset: self.end_offset,
            acked,
            taken_over_at: None,
        };
        self.commit(Entry::Base(base), Leaves::Written);
    }

    pub fn acked(&self) -> Acked {
        self.acked
    }

    pub fn last_control_seq(&self) -> u64 {
        self.last_control_seq
    }

    pub fn end_offset(&self) -> u64 {
        self.end_offset
    }

    /// Bytes of memory held by output that nobody acknowledged.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Bytes of memory held by control frames that nobody acknowledged. They are never dropped, so whoever has more to say is held
    /// back by this.
    pub fn untold(&self) -> usize {
        self.untold
    }

    /// Smallest offset that can still be replayed as bytes.
    pub fn oldest_output(&self) -> u64 {
        let held = self.records.iter().find_map(|kept| match kept.record {
            Record::Output { offset, .. } => Some(offset),
            Record::Control { .. } | Record::Cut { .. } => None,
        });
        held.unwrap_or(self.end_offset)
    }

    /// What is to be written, and how the writing goes.
    pub fn log(&self) -> &Log<C, L, T> {
        &self.log
    }

    pub fn log_mut(&mut self) -> &mut Log<C, L, T> {
        &mut self.log
    }

    /// Everything that is kept as the content of a new file; what was to be written before is in it.
    pub fn image(&mut self) -> Vec<Logged<C, L, T>> {
        let base = Base {
            last_control_seq: self.last_control_seq,
            end_offset: self.end_offset,
            acked: self.acked,
            taken_over_at: self.taken_over_at,
        };
        self.acked_unlogged = false;
        let frames = self
            .records
            .iter()
            .skip(usize::from(mutant!(ImageForgets)))
            .map(|kept| (Entry::Frame(kept.record.clone()), kept.leaves));
        let entries = std::iter::once((Entry::Base(base), Leaves::Synced)).chain(frames);
        self.log.replace_all(entries, &self.progress)
    }

    /// One change: to the disk and to this outbox.
    fn commit(&mut self, entry: Entry<C, L, T>, leaves: Leaves) {
        if std::mem::take(&mut self.acked_unlogged) {
            // With the progress of before: the disk may stop between the two.
            let acked = Entry::Acked(self.acked);
            self.log.append(&acked, Leaves::Written, None);
        }
        let serial = self.log.append(&entry, leaves, Some(&self.progress));
        self.apply(entry, serial, leaves);
    }

    fn apply(&mut self, entry: Entry<C, L, T>, serial: u64, leaves: Leaves) {
        match entry {
            Entry::Frame(record) => self.apply_frame(Kept {
                weight: record.weight(),
                record,
                serial,
                leaves,
            }),
            Entry::Acked(acked) => self.apply_acked(acked),
            Entry::Base(base) => self.apply_base(base),
            Entry::Forgotten { control_before } => {
                self.records
                    .retain(|kept| !kept.record.is_control_before(control_before));
                self.untold = self.records.iter().map(|kept| kept.weight).sum();
                self.sent = 0;
            }
            Entry::TakenOver => {
                self.taken_over_at.get_or_insert(self.last_control_seq);
            }
            Entry::Settled { raised_by } => self.apply_settled(raised_by, serial),
            Entry::Advanced => {}
        }
    }

    fn apply_frame(&mut self, kept: Kept<C, L, T>) {
        match &kept.record {
            Record::Control { seq, .. } => {
                self.last_control_seq = self.last_control_seq.max(*seq);
                self.untold += kept.weight;
                self.records.push_back(kept);
            }
            Record::Output { offset, bytes, .. } => {
                self.end_offset = self.end_offset.max(offset + bytes.len() as u64);
                self.held += kept.record.cost();
                self.records.push_back(kept);
            }
            Record::Cut { offset, length, .. } => {
                self.end_offset = self.end_offset.max(offset + length);
                self.place_cut(kept);
            }
        }
    }

    fn apply_base(&mut self, base: Base) {
        self.records.clear();
        (self.sent, self.held, self.untold) = (0, 0, 0);
        self.last_control_seq = base.last_control_seq;
        self.end_offset = base.end_offset;
        self.acked = base.acked;
        self.taken_over_at = base.taken_over_at;
    }

    /// The new numbers must be on the disk before anything leaves under them, or the next daemon would raise them again.
    fn apply_settled(&mut self, raised_by: u64, serial: u64) {
        let Some(above) = self.taken_over_at.take() else {
            return;
        };
        for kept in &mut self.records {
            if kept.record.raise(above, raised_by) {
                (kept.serial, kept.leaves) = (serial, Leaves::Synced);
            }
        }
        self.last_control_seq += raised_by;
    }

    fn apply_acked(&mut self, acked: Acked) {
        self.acked = acked;
        let mut kept_sent = 0;
        let (mut held, mut untold) = (0, 0);
        let mut left = VecDeque::with_capacity(self.records.len());
        for (index, kept) in self.records.drain(..).enumerate() {
            let Some(record) = kept.record.beyond(acked) else {
                continue;
            };
            kept_sent += usize::from(index < self.sent);
            held += record.cost();
            untold += kept.weight;
            left.push_back(Kept { record, ..kept });
        }
        (self.records, self.sent) = (left, kept_sent);
        (self.held, self.untold) = (held, untold);
    }

    fn cut_to_limit(&mut self) {
        while self.held > self.limit && !mutant!(OutputUnbounded) && self.cut_oldest_output() {}
    }

    /// The newest record always stays: a chunk is far smaller than the limit.
    fn cut_oldest_output(&mut self) -> bool {
        let count = self.records.len();
        let mut older = self.records.iter().take(count.saturating_sub(1));
        let cut = older.find_map(|kept| kept.record.as_cut(CutWhy::Overflow));
        match cut {
            Some(cut) => {
                self.commit(Entry::Frame(cut), Leaves::Written);
                true
            }
            None => false,
        }
    }

    /// A cut takes the place of the output that it covers; where none is kept it stands behind everything.
    fn place_cut(&mut self, cut: Kept<C, L, T>) {
        let covered = self
            .records
            .iter()
            .position(|kept| kept.record.is_covered_by(&cut.record));
        let Some(index) = covered else {
            self.records.push_back(cut);
            return;
        };
        self.held -= self.records[index].record.cost();
        if mutant!(CutNotRecorded) {
            self.records.remove(index);
            return;
        }
        self.records[index] = cut;
        self.merge_cut(index);
    }

    /// Joins the cut at `index` to a cut right before it, unless one of them is already on the wire.
    fn merge_cut(&mut self, index: usize) {
        let both_sent = index < self.sent;
        let neither_sent = index > self.sent;
        if index == 0 || !(both_sent || neither_sent) {
            return;
        }
        let (serial, later) = (
            self.records[index].serial,
            self.records[index].record.clone(),
        );
        let before = &mut self.records[index - 1];
        if before.record.join(&later) {
            before.serial = before.serial.max(serial);
            self.records.remove(index);
            self.sent -= usize::from(both_sent);
        }
    }
}

#[cfg(test)]
mod tests;
