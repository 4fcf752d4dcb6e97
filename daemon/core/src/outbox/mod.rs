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

pub use entry::{
    AckedPosition, ControlBody, LoggedEntry, OutboxEntry, OutboxNumbering, OutputCutReason,
    ProgressChange, QueuedRecord, RequiredDurability, TranscriptProgress,
};
pub use log::{DurablePosition, OutboxLog};

use entry::PendingRecord;

/// Unacknowledged output kept per attempt.
pub const OUTPUT_LIMIT: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub struct Outbox<C, L, T> {
    records: VecDeque<PendingRecord<C, L, T>>,
    /// Records at the front that went out on the present stream.
    sent_count: usize,
    last_control_seq: u64,
    /// Offset of the next output byte.
    end_offset: u64,
    acked: AckedPosition,
    /// The disk does not know of the newest acknowledgement. It is told with the next change: what is replayed for want of it
    /// is dropped by the relay.
    acked_unlogged: bool,
    /// Another daemon appended up to this number, and the relay has not said since what it has.
    taken_over_at: Option<u64>,
    progress: TranscriptProgress,
    output_bytes: usize,
    /// Charged for control frames.
    control_bytes: usize,
    limit: usize,
    log: OutboxLog<C, L, T>,
}

impl<C: ControlBody, L: Clone, T: Clone> Outbox<C, L, T> {
    /// Nothing leaves before the disk has it.
    pub fn new(limit: usize) -> Self {
        Self::with_log(limit, OutboxLog::on_disk())
    }

    /// The disk is not asked: for what may be lost with the daemon.
    pub fn in_memory(limit: usize) -> Self {
        Self::with_log(limit, OutboxLog::in_memory())
    }

    fn with_log(limit: usize, log: OutboxLog<C, L, T>) -> Self {
        Self {
            records: VecDeque::new(),
            sent_count: 0,
            last_control_seq: 0,
            end_offset: 0,
            acked: AckedPosition::default(),
            acked_unlogged: false,
            taken_over_at: None,
            progress: TranscriptProgress::default(),
            output_bytes: 0,
            control_bytes: 0,
            limit,
            log,
        }
    }

    /// What another daemon left on the disk, taken over by this one. Nothing of it leaves before the disk is asked again: what
    /// was written may not have been synced.
    pub fn restore(limit: usize, entries: impl IntoIterator<Item = LoggedEntry<C, L, T>>) -> Self {
        let mut outbox = Self::new(limit);
        for logged in entries {
            outbox.log.on_replayed(logged.serial);
            outbox.progress.apply_change(logged.progress);
            outbox.apply(logged.entry, logged.serial, logged.required_durability);
        }
        outbox.log.finish_replay(&outbox.progress);
        outbox.commit(OutboxEntry::TakenOver, RequiredDurability::Written);
        outbox.cut_to_limit();
        outbox
    }

    /// Numbers a control frame and keeps it; the number is returned.
    pub fn push_control(&mut self, body: C, observed_at: T, leaves: RequiredDurability) -> u64 {
        let seq = self.last_control_seq + 1;
        let record = QueuedRecord::Control {
            seq,
            observed_at,
            body,
        };
        self.commit(OutboxEntry::Frame(record), leaves);
        seq
    }

    pub fn push_output(&mut self, label: L, bytes: Bytes, observed_at: T) {
        if bytes.is_empty() {
            return;
        }
        let record = QueuedRecord::Output {
            offset: self.end_offset,
            after_control_seq: self.last_control_seq,
            observed_at,
            label,
            bytes,
        };
        self.commit(OutboxEntry::Frame(record), RequiredDurability::Written);
        self.cut_to_limit();
    }

    /// The next `length` bytes of output will never come.
    pub fn push_cut(&mut self, length: u64, why: OutputCutReason, observed_at: T) {
        if length == 0 {
            return;
        }
        let record = QueuedRecord::Cut {
            offset: self.end_offset,
            length,
            reason: why,
            after_control_seq: self.last_control_seq,
            observed_at,
        };
        self.commit(OutboxEntry::Frame(record), RequiredDurability::Written);
    }

    /// How far the transcript is folded once the next record is in; stored with that record. Where one step of the fold comes to
    /// several records, the position moves with the last of them and the snapshot with each, or a crash in between loses the rest.
    pub fn set_progress(&mut self, progress: TranscriptProgress) {
        self.progress = progress;
    }

    /// Stores how far the transcript is folded, also where that came to no frame.
    pub fn store_progress(&mut self) {
        if self.log.is_progress_unlogged(&self.progress) {
            self.commit(OutboxEntry::ProgressOnly, RequiredDurability::Written);
        }
    }

    pub fn progress(&self) -> &TranscriptProgress {
        &self.progress
    }

    /// The next record to put on the wire, in order; none while the disk does not have it.
    pub fn next_unsent(&self) -> Option<&QueuedRecord<C, L, T>> {
        let kept = self.records.get(self.sent_count)?;
        self.log
            .may_send(kept.serial, kept.required_durability)
            .then_some(&kept.record)
    }

    pub fn mark_sent(&mut self) {
        self.sent_count = (self.sent_count + 1).min(self.records.len());
    }

    /// Whatever is not acknowledged goes out again.
    pub fn resend_unacked(&mut self) {
        if mutant!(ReplaySkipped) {
            return;
        }
        self.sent_count = 0;
    }

    /// A new stream, and what the relay has. After a take-over, what was appended since is numbered after that: the relay may know
    /// frames that the disk has lost.
    pub fn apply_settlement(&mut self, acked: AckedPosition) {
        if let Some(at) = self.taken_over_at {
            let known = if mutant!(NumbersReused) {
                0
            } else {
                acked.control_seq
            };
            let raised_by = known.saturating_sub(at);
            self.commit(
                OutboxEntry::Renumbered { raised_by },
                RequiredDurability::Synced,
            );
        }
        self.resend_unacked();
        self.ack(acked);
    }

    /// Cumulative per numbering. Older or impossible numbers change nothing.
    pub fn ack(&mut self, acked: AckedPosition) {
        let taken = acked.control_seq + u64::from(mutant!(AckTakesUnacked));
        let control_seq = taken.min(self.last_control_seq);
        let output_offset = acked.output_offset.min(self.end_offset);
        let newest = AckedPosition {
            control_seq: control_seq.max(self.acked.control_seq),
            output_offset: output_offset.max(self.acked.output_offset),
        };
        if newest != self.acked {
            self.acked_unlogged = true;
            self.apply_acked(newest);
        }
    }

    /// Nobody wants what is left: forgets it, and goes on numbering after it.
    pub fn discard_unacked(&mut self) {
        self.ack(AckedPosition {
            control_seq: self.last_control_seq,
            output_offset: self.end_offset,
        });
    }

    /// Of the control frames only the last is still wanted, and goes out again with all output.
    pub fn drop_all_but_last_control(&mut self) {
        let control_before = self.last_control_seq;
        self.commit(
            OutboxEntry::ControlFramesDropped { control_before },
            RequiredDurability::Written,
        );
        self.resend_unacked();
    }

    /// Forgets everything and numbers the next control frame `seq`.
    pub fn restart_at(&mut self, seq: u64) {
        let last = seq.saturating_sub(1);
        let acked = AckedPosition {
            control_seq: last,
            output_offset: self.end_offset,
        };
        self.acked_unlogged = false;
        let base = OutboxNumbering {
            last_control_seq: last,
            end_offset: self.end_offset,
            acked,
            taken_over_at: None,
        };
        self.commit(OutboxEntry::Reset(base), RequiredDurability::Written);
    }

    pub fn acked(&self) -> AckedPosition {
        self.acked
    }

    pub fn last_control_seq(&self) -> u64 {
        self.last_control_seq
    }

    pub fn end_offset(&self) -> u64 {
        self.end_offset
    }

    /// Bytes of memory held by output that nobody acknowledged.
    pub fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    /// Bytes of memory held by control frames that nobody acknowledged. They are never dropped, so whoever has more to say is held
    /// back by this.
    pub fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    /// Smallest offset that can still be replayed as bytes.
    pub fn oldest_output_offset(&self) -> u64 {
        let held = self.records.iter().find_map(|kept| match kept.record {
            QueuedRecord::Output { offset, .. } => Some(offset),
            QueuedRecord::Control { .. } | QueuedRecord::Cut { .. } => None,
        });
        held.unwrap_or(self.end_offset)
    }

    /// What is to be written, and how the writing goes.
    pub fn log(&self) -> &OutboxLog<C, L, T> {
        &self.log
    }

    pub fn log_mut(&mut self) -> &mut OutboxLog<C, L, T> {
        &mut self.log
    }

    /// Everything that is kept as the content of a new file; what was to be written before is in it.
    pub fn rewrite_entries(&mut self) -> Vec<LoggedEntry<C, L, T>> {
        let base = OutboxNumbering {
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
            .map(|kept| {
                (
                    OutboxEntry::Frame(kept.record.clone()),
                    kept.required_durability,
                )
            });
        let entries =
            std::iter::once((OutboxEntry::Reset(base), RequiredDurability::Synced)).chain(frames);
        self.log.replace_all(entries, &self.progress)
    }

    /// One change: to the disk and to this outbox.
    fn commit(&mut self, entry: OutboxEntry<C, L, T>, leaves: RequiredDurability) {
        if std::mem::take(&mut self.acked_unlogged) {
            // With the progress of before: the disk may stop between the two.
            let acked = OutboxEntry::Acked(self.acked);
            self.log.append(&acked, RequiredDurability::Written, None);
        }
        let serial = self.log.append(&entry, leaves, Some(&self.progress));
        self.apply(entry, serial, leaves);
    }

    fn apply(&mut self, entry: OutboxEntry<C, L, T>, serial: u64, leaves: RequiredDurability) {
        match entry {
            OutboxEntry::Frame(record) => self.apply_frame(PendingRecord {
                control_memory: record.control_memory(),
                record,
                serial,
                required_durability: leaves,
            }),
            OutboxEntry::Acked(acked) => self.apply_acked(acked),
            OutboxEntry::Reset(base) => self.apply_reset(base),
            OutboxEntry::ControlFramesDropped { control_before } => {
                self.records
                    .retain(|kept| !kept.record.is_control_before(control_before));
                self.control_bytes = self.records.iter().map(|kept| kept.control_memory).sum();
                self.sent_count = 0;
            }
            OutboxEntry::TakenOver => {
                self.taken_over_at.get_or_insert(self.last_control_seq);
            }
            OutboxEntry::Renumbered { raised_by } => self.apply_renumbering(raised_by, serial),
            OutboxEntry::ProgressOnly => {}
        }
    }

    fn apply_frame(&mut self, kept: PendingRecord<C, L, T>) {
        match &kept.record {
            QueuedRecord::Control { seq, .. } => {
                self.last_control_seq = self.last_control_seq.max(*seq);
                self.control_bytes += kept.control_memory;
                self.records.push_back(kept);
            }
            QueuedRecord::Output { offset, bytes, .. } => {
                self.end_offset = self.end_offset.max(offset + bytes.len() as u64);
                self.output_bytes += kept.record.output_memory();
                self.records.push_back(kept);
            }
            QueuedRecord::Cut { offset, length, .. } => {
                self.end_offset = self.end_offset.max(offset + length);
                self.insert_cut(kept);
            }
        }
    }

    fn apply_reset(&mut self, base: OutboxNumbering) {
        self.records.clear();
        (self.sent_count, self.output_bytes, self.control_bytes) = (0, 0, 0);
        self.last_control_seq = base.last_control_seq;
        self.end_offset = base.end_offset;
        self.acked = base.acked;
        self.taken_over_at = base.taken_over_at;
    }

    /// The new numbers must be on the disk before anything leaves under them, or the next daemon would raise them again.
    fn apply_renumbering(&mut self, raised_by: u64, serial: u64) {
        let Some(above) = self.taken_over_at.take() else {
            return;
        };
        for kept in &mut self.records {
            if kept.record.renumber(above, raised_by) {
                (kept.serial, kept.required_durability) = (serial, RequiredDurability::Synced);
            }
        }
        self.last_control_seq += raised_by;
    }

    fn apply_acked(&mut self, acked: AckedPosition) {
        self.acked = acked;
        let mut kept_sent = 0;
        let (mut held, mut untold) = (0, 0);
        let mut left = VecDeque::with_capacity(self.records.len());
        for (index, kept) in self.records.drain(..).enumerate() {
            let Some(record) = kept.record.unacked_part(acked) else {
                continue;
            };
            kept_sent += usize::from(index < self.sent_count);
            held += record.output_memory();
            untold += kept.control_memory;
            left.push_back(PendingRecord { record, ..kept });
        }
        (self.records, self.sent_count) = (left, kept_sent);
        (self.output_bytes, self.control_bytes) = (held, untold);
    }

    fn cut_to_limit(&mut self) {
        while self.output_bytes > self.limit
            && !mutant!(OutputUnbounded)
            && self.cut_oldest_output()
        {}
    }

    /// The newest record always stays: a chunk is far smaller than the limit.
    fn cut_oldest_output(&mut self) -> bool {
        let count = self.records.len();
        let mut older = self.records.iter().take(count.saturating_sub(1));
        let cut = older.find_map(|kept| kept.record.to_cut(OutputCutReason::Overflow));
        match cut {
            Some(cut) => {
                self.commit(OutboxEntry::Frame(cut), RequiredDurability::Written);
                true
            }
            None => false,
        }
    }

    /// A cut takes the place of the output that it covers; where none is kept it stands behind everything.
    fn insert_cut(&mut self, cut: PendingRecord<C, L, T>) {
        let covered = self
            .records
            .iter()
            .position(|kept| kept.record.is_covered_by(&cut.record));
        let Some(index) = covered else {
            self.records.push_back(cut);
            return;
        };
        self.output_bytes -= self.records[index].record.output_memory();
        if mutant!(CutNotRecorded) {
            self.records.remove(index);
            return;
        }
        self.records[index] = cut;
        self.merge_cut(index);
    }

    /// Joins the cut at `index` to a cut right before it, unless one of them is already on the wire.
    fn merge_cut(&mut self, index: usize) {
        let both_sent = index < self.sent_count;
        let neither_sent = index > self.sent_count;
        if index == 0 || !(both_sent || neither_sent) {
            return;
        }
        let (serial, later) = (
            self.records[index].serial,
            self.records[index].record.clone(),
        );
        let before = &mut self.records[index - 1];
        if before.record.merge_cut(&later) {
            before.serial = before.serial.max(serial);
            self.records.remove(index);
            self.sent_count -= usize::from(both_sent);
        }
    }
}

#[cfg(test)]
mod tests;
