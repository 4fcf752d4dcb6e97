//! The supervisor and the disk: what is to be written goes to the writer as far as there is room, what it reports opens the gate for
//! frames, and a disk that refuses is a state of the daemon. The loop never waits for the disk.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, info, warn};

use super::Supervisor;
use crate::clock::BootTime;
use crate::machine::disk_monitor::DiskState;
use crate::machine::memory_monitor::MachineUsage;
use crate::outbox::{OutboxJob, OutboxReport};
use crate::storage::attempt_dir::AttemptId;
use crate::supervised_attempt::StopReason;

/// How often the free space is looked at, and while there is too little.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(5);
const LOW_DISK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Hands over what waits for the disk.
    pub(super) fn submit_jobs(&mut self) {
        if self.submit_small_jobs() && self.submit_attempt_jobs() {
            return;
        }
        if self.writer.jobs.is_closed() {
            self.on_writer_died();
        }
        // Full: the next report makes room.
    }

    fn submit_small_jobs(&mut self) -> bool {
        while let Some(id) = self.dirs_to_remove.front() {
            if self
                .writer
                .jobs
                .try_send(OutboxJob::Remove { id: *id })
                .is_err()
            {
                return false;
            }
            self.dirs_to_remove.pop_front();
        }
        // Ahead of the frames that tell the ends of their turns.
        while self.conversations.has_unsaved() {
            let Ok(room) = self.writer.jobs.try_reserve() else {
                return false;
            };
            if let Some(note) = self.conversations.take_unsaved() {
                room.send(OutboxJob::StoreConversation(note));
            }
        }
        if !self.epochs.has_unsaved() {
            return true;
        }
        let Ok(room) = self.writer.jobs.try_reserve() else {
            return false;
        };
        if let Some(text) = self.epochs.take_unsaved() {
            room.send(OutboxJob::StoreEpochs(text));
        }
        true
    }

    fn submit_attempt_jobs(&mut self) -> bool {
        for held in self.supervised.values_mut() {
            while held.has_disk_job() {
                let Ok(room) = self.writer.jobs.try_reserve() else {
                    return false;
                };
                match held.next_disk_job() {
                    Some(job) => room.send(job),
                    None => break,
                }
            }
        }
        true
    }

    pub(super) fn on_writer_report(&mut self, report: OutboxReport) {
        match report {
            OutboxReport::Stored { id, durable } => {
                let (id, keeping_up) = (id.to_string(), self.is_relay_expected());
                if let Some(held) = self.supervised.get_mut(&id) {
                    held.outbox.log_mut().on_durable(durable);
                    held.on_stored();
                    held.update_backpressure(keeping_up);
                    self.enqueue(&id);
                }
            }
            OutboxReport::NotReplaced { id } => {
                if let Some(held) = self.supervised.get_mut(&id.to_string()) {
                    held.outbox.log_mut().on_replaced();
                }
            }
            OutboxReport::Failed { id, error } => {
                warn!(attempt_id = %id, %error, "the attempt fails because its frames cannot be stored");
                let before = self.disk.state();
                let why = match error.kind() {
                    // What no disk would take says nothing about this one.
                    ErrorKind::InvalidData => StopReason::TooLong,
                    _ => {
                        self.disk.on_write_failed();
                        StopReason::DiskFull
                    }
                };
                self.on_disk_state(before);
                self.disk_check_at = self.clock.now();
                self.on_attempt_write_failed(id, why);
            }
            OutboxReport::DiskChecked {
                space,
                is_writable,
                machine,
            } => {
                let before = self.disk.state();
                self.disk.on_measured(space, is_writable);
                self.on_disk_state(before);
                self.on_machine_usage(machine);
            }
        }
    }

    fn on_attempt_write_failed(&mut self, id: AttemptId, why: StopReason) {
        let key = id.to_string();
        if let Some(held) = self.supervised.get_mut(&key) {
            self.dirs_to_remove
                .extend(held.on_disk_failed(why, &self.clock));
            self.enqueue(&key);
        }
    }

    fn on_machine_usage(&mut self, machine: MachineUsage) {
        let was_low = self.memory.is_low();
        self.memory.on_measured(machine);
        match (was_low, self.memory.is_low()) {
            (false, true) => warn!(memory = %self.memory, "new work is refused"),
            (true, false) => info!(memory = %self.memory, "taking new work again"),
            (false, false) | (true, true) => {}
        }
    }

    fn on_disk_state(&mut self, before: DiskState) {
        let state = self.disk.state();
        match state {
            DiskState::Fine => self.rewrite_unstored(),
            DiskState::Low | DiskState::Failing => {}
        }
        if state == before {
            return;
        }
        match state {
            DiskState::Fine => {
                info!(disk = %self.disk, "taking new work again");
                self.epochs.mark_unsaved();
            }
            DiskState::Low | DiskState::Failing => {
                warn!(disk = %self.disk, "new work is refused; free some space");
            }
        }
    }

    /// There is room again: whatever is only in memory is written down.
    fn rewrite_unstored(&mut self) {
        for held in self
            .supervised
            .values_mut()
            .filter(|held| held.needs_repair())
        {
            let Ok(room) = self.writer.jobs.try_reserve() else {
                return; // The next look tries again.
            };
            if let Some(job) = held.repair_job() {
                room.send(job);
            }
        }
    }

    pub(super) fn request_disk_check(&mut self, now: BootTime) {
        let state = self.disk.state();
        let every = match state {
            DiskState::Fine => DISK_CHECK_INTERVAL,
            DiskState::Low | DiskState::Failing => LOW_DISK_CHECK_INTERVAL,
        };
        self.disk_check_at = now.after(every);
        let probe = state == DiskState::Failing;
        match self.writer.jobs.try_send(OutboxJob::CheckDisk { probe }) {
            // Full: it has enough to do, and its reports say how that goes.
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Closed(_)) => self.on_writer_died(),
        }
    }

    /// The writer is gone: as if the disk refused everything, for good.
    fn on_writer_died(&mut self) {
        if self.disk.state() != DiskState::Failing {
            error!("the thread that writes the outboxes has died; restart the daemon");
        }
        self.disk.on_write_failed();
        self.update_all(|held, clock| {
            if held.has_disk_job() {
                held.on_disk_failed(StopReason::DiskFull, clock);
            }
        });
    }

    /// On the way out: what is not acknowledged is the next daemon's to say, so it must be on the disk.
    pub(super) async fn finish_writing(mut self) {
        let limit = self.shutdown_plan.write_time_left(self.clock.now());
        let finished = tokio::time::timeout(limit, async {
            loop {
                self.submit_jobs();
                let small = !self.dirs_to_remove.is_empty() || self.conversations.has_unsaved();
                if small || self.supervised.values().any(|held| held.has_disk_job()) {
                    let Some(report) = self.writer.reports.recv().await else {
                        return;
                    };
                    self.on_writer_report(report);
                } else {
                    return self.writer.finish().await;
                }
            }
        });
        if finished.await.is_err() {
            warn!("the disk is slow: not all frames of unfinished attempts are written");
        }
    }
}
