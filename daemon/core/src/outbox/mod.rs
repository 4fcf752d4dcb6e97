//! Frames of one attempt that the relay has not acknowledged yet. Pure: no I/O, no clock.
//!
//! There are two numberings: control frames by `control_seq`, output by byte offset. Records
//! are sent in the order in which they were appended, once they are on disk (`log` decides
//! that). They are kept until acknowledged and sent again after a reconnect. Control frames are
//! never dropped. Output is bounded: the oldest is dropped first, and a cut record takes its
//! place.
//!
//! Every change is an [`OutboxEntry`]: one call applies it here and queues it for the disk, and
//! `restore` applies stored entries with the same code. So memory and disk cannot disagree.

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
    /// Records at the front that were sent on the current stream.
    sent_count: usize,
    last_control_seq: u64,
    /// Offset of the next output byte.
    end_offset: u64,
    acked: AckedPosition,
    /// The newest acknowledgement is not logged yet. It is logged with the next change. A crash
    /// before that only replays records that the relay then drops.
    acked_unlogged: bool,
    /// The last number that an earlier daemon appended. `None` once the relay has reported what
    /// it has.
    taken_over_at: Option<u64>,
    progress: TranscriptProgress,
    output_bytes: usize,
    /// Memory charged for control frames.
    control_bytes: usize,
    limit: usize,
    log: OutboxLog<C, L, T>,
}

impl<C: ControlBody, L: Clone, T: Clone> Outbox<C, L, T> {
    /// An outbox with a file: a record is sent only after it is on disk.
    pub fn new(limit: usize) -> Self {
        Self::with_log(limit, OutboxLog::on_disk())
    }

    /// An outbox without a file, for frames that may be lost with the daemon.
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

    /// Takes over an outbox that an earlier daemon left on disk. Nothing is sent before the
    /// disk has confirmed it again, because a written entry may not have been synced.
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

    /// Appends a control frame and returns its number.
    pub fn push_control(&mut self, body: C, observed_at: T, durability: RequiredDurability) -> u64 {
        let seq = self.last_control_seq + 1;
        let record = QueuedRecord::Control {
            seq,
            observed_at,
            body,
        };
        self.commit(OutboxEntry::Frame(record), durability);
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

    /// Records that the next `length` bytes of output will never come.
    pub fn push_cut(&mut self, length: u64, reason: OutputCutReason, observed_at: T) {
        if length == 0 {
            return;
        }
        let record = QueuedRecord::Cut {
            offset: self.end_offset,
            length,
            reason,
            after_control_seq: self.last_control_seq,
            observed_at,
        };
        self.commit(OutboxEntry::Frame(record), RequiredDurability::Written);
    }

    /// Sets the transcript progress that is stored with the next record. If one step of the
    /// transcript produces several records, the position moves with the last of them and the
    /// snapshot with each. Otherwise a crash between them would lose the rest.
    pub fn set_progress(&mut self, progress: TranscriptProgress) {
        self.progress = progress;
    }

    /// Stores the progress when it changed without producing a frame.
    pub fn store_progress(&mut self) {
        if self.log.is_progress_unlogged(&self.progress) {
            self.commit(OutboxEntry::ProgressOnly, RequiredDurability::Written);
        }
    }

    pub fn progress(&self) -> &TranscriptProgress {
        &self.progress
    }

    /// The next record to send, in order; `None` while it is not durable enough.
    pub fn next_unsent(&self) -> Option<&QueuedRecord<C, L, T>> {
        let pending = self.records.get(self.sent_count)?;
        self.log
            .may_send(pending.serial, pending.required_durability)
            .then_some(&pending.record)
    }

    pub fn mark_sent(&mut self) {
        self.sent_count = (self.sent_count + 1).min(self.records.len());
    }

    /// Sends every unacknowledged record again.
    pub fn resend_unacked(&mut self) {
        if mutant!(ReplaySkipped) {
            return;
        }
        self.sent_count = 0;
    }

    /// Starts a new stream with what the relay reports to have. After a take-over, frames
    /// appended since then are renumbered to follow the relay's last number: the relay may have
    /// frames that the disk has lost.
    pub fn apply_settlement(&mut self, acked: AckedPosition) {
        if let Some(at) = self.taken_over_at {
            let relay_seq = if mutant!(NumbersReused) {
                0
            } else {
                acked.control_seq
            };
            let raised_by = relay_seq.saturating_sub(at);
            self.commit(
                OutboxEntry::Renumbered { raised_by },
                RequiredDurability::Synced,
            );
        }
        self.resend_unacked();
        self.ack(acked);
    }

    /// Applies a cumulative acknowledgement of each numbering. Older or impossible numbers
    /// change nothing.
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

    /// Drops all unacknowledged records; numbering continues after them.
    pub fn discard_unacked(&mut self) {
        self.ack(AckedPosition {
            control_seq: self.last_control_seq,
            output_offset: self.end_offset,
        });
    }

    /// Drops all control frames except the last, which is sent again with all output.
    pub fn drop_all_but_last_control(&mut self) {
        let control_before = self.last_control_seq;
        self.commit(
            OutboxEntry::ControlFramesDropped { control_before },
            RequiredDurability::Written,
        );
        self.resend_unacked();
    }

    /// Drops everything and gives the next control frame the number `seq`.
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

    /// Memory of unacknowledged output.
    pub fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    /// Memory of unacknowledged control frames. They are never dropped, so the agent's input is
    /// throttled by this.
    pub fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    /// Smallest offset that can still be replayed as bytes.
    pub fn oldest_output_offset(&self) -> u64 {
        let oldest = self
            .records
            .iter()
            .find_map(|pending| match pending.record {
                QueuedRecord::Output { offset, .. } => Some(offset),
                QueuedRecord::Control { .. } | QueuedRecord::Cut { .. } => None,
            });
        oldest.unwrap_or(self.end_offset)
    }

    /// The outbox's view of its file.
    pub fn log(&self) -> &OutboxLog<C, L, T> {
        &self.log
    }

    pub fn log_mut(&mut self) -> &mut OutboxLog<C, L, T> {
        &mut self.log
    }

    /// All buffered records as the content of a new file, including those not written yet.
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
            .map(|pending| {
                (
                    OutboxEntry::Frame(pending.record.clone()),
                    pending.required_durability,
                )
            });
        let entries =
            std::iter::once((OutboxEntry::Reset(base), RequiredDurability::Synced)).chain(frames);
        self.log.replace_all(entries, &self.progress)
    }

    /// Logs one change and applies it.
    fn commit(&mut self, entry: OutboxEntry<C, L, T>, durability: RequiredDurability) {
        if std::mem::take(&mut self.acked_unlogged) {
            // Keeps the earlier progress: the disk may store this entry and fail before the
            // next one.
            let acked = OutboxEntry::Acked(self.acked);
            self.log.append(&acked, RequiredDurability::Written, None);
        }
        let serial = self.log.append(&entry, durability, Some(&self.progress));
        self.apply(entry, serial, durability);
    }

    fn apply(&mut self, entry: OutboxEntry<C, L, T>, serial: u64, durability: RequiredDurability) {
        match entry {
            OutboxEntry::Frame(record) => self.apply_frame(PendingRecord {
                control_memory: record.control_memory(),
                record,
                serial,
                required_durability: durability,
            }),
            OutboxEntry::Acked(acked) => self.apply_acked(acked),
            OutboxEntry::Reset(base) => self.apply_reset(base),
            OutboxEntry::ControlFramesDropped { control_before } => {
                self.records
                    .retain(|pending| !pending.record.is_control_before(control_before));
                self.control_bytes = self
                    .records
                    .iter()
                    .map(|pending| pending.control_memory)
                    .sum();
                self.sent_count = 0;
            }
            OutboxEntry::TakenOver => {
                self.taken_over_at.get_or_insert(self.last_control_seq);
            }
            OutboxEntry::Renumbered { raised_by } => self.apply_renumbering(raised_by, serial),
            OutboxEntry::ProgressOnly => {}
        }
    }

    fn apply_frame(&mut self, pending: PendingRecord<C, L, T>) {
        match &pending.record {
            QueuedRecord::Control { seq, .. } => {
                self.last_control_seq = self.last_control_seq.max(*seq);
                self.control_bytes += pending.control_memory;
                self.records.push_back(pending);
            }
            QueuedRecord::Output { offset, bytes, .. } => {
                self.end_offset = self.end_offset.max(offset + bytes.len() as u64);
                self.output_bytes += pending.record.output_memory();
                self.records.push_back(pending);
            }
            QueuedRecord::Cut { offset, length, .. } => {
                self.end_offset = self.end_offset.max(offset + length);
                self.insert_cut(pending);
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

    /// The new numbers must be on disk before a frame is sent with them. Otherwise the next
    /// daemon would raise them again.
    fn apply_renumbering(&mut self, raised_by: u64, serial: u64) {
        let Some(above) = self.taken_over_at.take() else {
            return;
        };
        for pending in &mut self.records {
            if pending.record.renumber(above, raised_by) {
                (pending.serial, pending.required_durability) =
                    (serial, RequiredDurability::Synced);
            }
        }
        self.last_control_seq += raised_by;
    }

    fn apply_acked(&mut self, acked: AckedPosition) {
        self.acked = acked;
        let mut still_sent = 0;
        let (mut output_bytes, mut control_bytes) = (0, 0);
        let mut left = VecDeque::with_capacity(self.records.len());
        for (index, pending) in self.records.drain(..).enumerate() {
            let Some(record) = pending.record.unacked_part(acked) else {
                continue;
            };
            still_sent += usize::from(index < self.sent_count);
            output_bytes += record.output_memory();
            control_bytes += pending.control_memory;
            left.push_back(PendingRecord { record, ..pending });
        }
        (self.records, self.sent_count) = (left, still_sent);
        (self.output_bytes, self.control_bytes) = (output_bytes, control_bytes);
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
        let cut = older.find_map(|pending| pending.record.to_cut(OutputCutReason::Overflow));
        match cut {
            Some(cut) => {
                self.commit(OutboxEntry::Frame(cut), RequiredDurability::Written);
                true
            }
            None => false,
        }
    }

    /// A cut replaces the output that it covers. If that output is not buffered, the cut is
    /// appended.
    fn insert_cut(&mut self, cut: PendingRecord<C, L, T>) {
        let covered = self
            .records
            .iter()
            .position(|pending| pending.record.is_covered_by(&cut.record));
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

    /// Joins the cut at `index` to a cut directly before it, unless only one of them was sent.
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
