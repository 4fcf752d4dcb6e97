//! The supervisor and the disk: jobs are submitted to the writer as far as it has room, and its
//! reports allow frames to be sent. A disk that refuses writes is a state of the daemon. The loop
//! never waits for the disk.

use std::collections::VecDeque;
use std::io::ErrorKind;

use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, warn};

use super::Supervisor;
use super::attempt_table::AttemptTable;
use crate::clock::BootTime;
use crate::machine::disk_monitor::DiskState;
use crate::outbox::{OutboxJob, OutboxReport, OutboxWriter};
use crate::storage::attempt_dir::AttemptId;
use crate::storage::conversation_store::ConversationStore;
use crate::storage::relay_epochs::RelayEpochs;
use crate::supervised_attempt::StopReason;

/// The writer thread, and the directories that it still has to remove.
pub(super) struct DiskJobs {
    writer: OutboxWriter,
    dirs_to_remove: VecDeque<AttemptId>,
}

impl DiskJobs {
    pub(super) fn new(writer: OutboxWriter) -> Self {
        Self {
            writer,
            dirs_to_remove: VecDeque::new(),
        }
    }

    /// Cancel safe.
    pub(super) async fn next_report(&mut self) -> Option<OutboxReport> {
        self.writer.reports.recv().await
    }

    pub(super) fn remove_dirs(&mut self, ids: impl IntoIterator<Item = AttemptId>) {
        self.dirs_to_remove.extend(ids);
    }

    fn has_removals(&self) -> bool {
        !self.dirs_to_remove.is_empty()
    }

    fn is_writer_dead(&self) -> bool {
        self.writer.jobs.is_closed()
    }

    /// False when the writer has no room for more.
    fn submit_removals(&mut self) -> bool {
        while let Some(id) = self.dirs_to_remove.front() {
            let removal = OutboxJob::Remove { id: *id };
            if self.writer.jobs.try_send(removal).is_err() {
                return false;
            }
            self.dirs_to_remove.pop_front();
        }
        true
    }

    /// False when the writer has no room for more.
    fn submit_conversations(&self, conversations: &mut ConversationStore) -> bool {
        while conversations.has_unsaved() {
            let Ok(room) = self.writer.jobs.try_reserve() else {
                return false;
            };
            if let Some(change) = conversations.take_unsaved() {
                room.send(OutboxJob::StoreConversation(change));
            }
        }
        true
    }

    /// False when the writer has no room for more.
    fn submit_epochs(&self, epochs: &mut RelayEpochs) -> bool {
        if !epochs.has_unsaved() {
            return true;
        }
        let Ok(room) = self.writer.jobs.try_reserve() else {
            return false;
        };
        if let Some(text) = epochs.take_unsaved() {
            room.send(OutboxJob::StoreEpochs(text));
        }
        true
    }

    /// False when the writer has no room for more.
    fn submit_frames(&self, attempts: &mut AttemptTable) -> bool {
        for attempt in attempts.values_mut() {
            while attempt.has_disk_job() {
                let Ok(room) = self.writer.jobs.try_reserve() else {
                    return false;
                };
                match attempt.next_disk_job() {
                    Some(job) => room.send(job),
                    None => break,
                }
            }
        }
        true
    }

    /// The disk accepts writes: frames that are only in memory are written. What finds no room now
    /// is submitted after the next check.
    fn submit_repairs(&self, attempts: &mut AttemptTable) {
        for attempt in attempts
            .values_mut()
            .filter(|attempt| attempt.needs_repair())
        {
            let Ok(room) = self.writer.jobs.try_reserve() else {
                return;
            };
            if let Some(job) = attempt.repair_job() {
                room.send(job);
            }
        }
    }

    /// False when the writer has died. A writer without room reports on the disk by its other jobs.
    fn submit_check(&self, probe: bool) -> bool {
        let check = self.writer.jobs.try_send(OutboxJob::CheckDisk { probe });
        !matches!(check, Err(TrySendError::Closed(_)))
    }
}

impl Supervisor {
    /// Submits what waits for the disk. Conversations go before frames, so that the end of a turn
    /// is not reported before its conversation is stored.
    pub(super) fn submit_jobs(&mut self) {
        let submitted = self.disk.submit_removals()
            && self.disk.submit_conversations(&mut self.conversations)
            && self.disk.submit_epochs(&mut self.epochs)
            && self.disk.submit_frames(&mut self.attempts);
        // When the queue is full, the next report makes room.
        if !submitted && self.disk.is_writer_dead() {
            self.on_writer_died();
        }
    }

    pub(super) fn on_writer_report(&mut self, report: OutboxReport) {
        let relay_expected = self.relay.is_expected();
        match report {
            OutboxReport::Stored { id, durable } => {
                self.attempts.update(&id.to_string(), |attempt, _| {
                    attempt.on_durable(durable);
                    attempt.update_backpressure(relay_expected);
                });
            }
            OutboxReport::NotReplaced { id } => {
                if let Some(attempt) = self.attempts.get_mut(&id.to_string()) {
                    attempt.on_not_replaced();
                }
            }
            OutboxReport::Failed { id, error } => {
                warn!(attempt_id = %id, %error, "the attempt fails: its frames cannot be stored");
                let before = self.resources.disk_state();
                let why = match error.kind() {
                    // A frame that is too large for any disk is no fault of this one.
                    ErrorKind::InvalidData => StopReason::TooLong,
                    _ => {
                        self.resources.on_write_failed();
                        StopReason::DiskFull
                    }
                };
                self.on_disk_state(before);
                self.resources.check_now(self.clock.now());
                let failed = self.attempts.update(&id.to_string(), |attempt, clock| {
                    attempt.on_disk_failed(why, clock)
                });
                self.disk.remove_dirs(failed.flatten());
            }
            OutboxReport::DiskChecked {
                space,
                is_writable,
                machine,
            } => {
                let before = self.resources.disk_state();
                self.resources.on_disk_measured(space, is_writable);
                self.on_disk_state(before);
                self.resources.on_machine_measured(machine);
            }
        }
    }

    fn on_disk_state(&mut self, before: DiskState) {
        let state = self.resources.disk_state();
        if state == DiskState::Fine {
            self.disk.submit_repairs(&mut self.attempts);
            if before != DiskState::Fine {
                self.epochs.mark_unsaved();
            }
        }
        self.resources.log_disk_change(before);
    }

    pub(super) fn check_disk_if_due(&mut self, now: BootTime) {
        if self.resources.check_at() > now {
            return;
        }
        let probe = self.resources.begin_check(now);
        if !self.disk.submit_check(probe) {
            self.on_writer_died();
        }
    }

    /// Without the writer thread nothing can be stored any more, as on a disk that fails for good.
    fn on_writer_died(&mut self) {
        if self.resources.disk_state() != DiskState::Failing {
            error!("the thread that writes the outboxes has died; restart the daemon");
        }
        self.resources.on_write_failed();
        self.attempts.update_all(|attempt, clock| {
            if attempt.has_disk_job() {
                attempt.on_disk_failed(StopReason::DiskFull, clock);
            }
        });
    }

    /// Writes everything before the daemon exits: the next daemon sends what is unacknowledged, so
    /// it must be on the disk.
    pub(super) async fn finish_writing(mut self) {
        let limit = self.shutdown.write_time_left(self.clock.now());
        let finished = tokio::time::timeout(limit, async {
            loop {
                self.submit_jobs();
                let has_jobs = self.disk.has_removals()
                    || self.conversations.has_unsaved()
                    || self.attempts.values().any(|attempt| attempt.has_disk_job());
                if !has_jobs {
                    return self.disk.writer.finish().await;
                }
                let Some(report) = self.disk.next_report().await else {
                    return;
                };
                self.on_writer_report(report);
            }
        });
        if finished.await.is_err() {
            warn!("the disk is slow: not all frames of unfinished attempts are written");
        }
    }
}
