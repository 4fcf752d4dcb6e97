//! The supervisor and the disk: what is to be written goes to the writer as far as there is room, what it reports opens the gate for
//! frames, and a disk that refuses is a state of the daemon. The loop never waits for the disk.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, info, warn};

use super::Supervisor;
use crate::attempt_dir::AttemptId;
use crate::clock::Moment;
use crate::disk::DiskState;
use crate::held::StopWhy;
use crate::memory::Machine;
use crate::outbox::{Job, Report};

/// How often the free space is looked at, and while there is too little.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Hands over what waits for the disk.
    pub(super) fn save(&mut self) {
        if self.save_small() && self.save_attempts() {
            return;
        }
        if self.writer.jobs.is_closed() {
            self.lose_disk();
        }
        // Full: the next report makes room.
    }

    fn save_small(&mut self) -> bool {
        while let Some(id) = self.removals.front() {
            if self.writer.jobs.try_send(Job::Remove { id: *id }).is_err() {
                return false;
            }
            self.removals.pop_front();
        }
        // Ahead of the frames that tell the ends of their turns.
        while self.conversations.has_news() {
            let Ok(room) = self.writer.jobs.try_reserve() else {
                return false;
            };
            if let Some(note) = self.conversations.take_news() {
                room.send(Job::KeepConversation(note));
            }
        }
        if !self.epochs.has_news() {
            return true;
        }
        let Ok(room) = self.writer.jobs.try_reserve() else {
            return false;
        };
        if let Some(text) = self.epochs.take_news() {
            room.send(Job::KeepEpochs(text));
        }
        true
    }

    fn save_attempts(&mut self) -> bool {
        for held in self.held.values_mut() {
            while held.has_job() {
                let Ok(room) = self.writer.jobs.try_reserve() else {
                    return false;
                };
                match held.next_job() {
                    Some(job) => room.send(job),
                    None => break,
                }
            }
        }
        true
    }

    pub(super) fn on_report(&mut self, report: Report) {
        match report {
            Report::Stored { id, durable } => {
                let (id, keeping_up) = (id.to_string(), self.is_keeping_up());
                if let Some(held) = self.held.get_mut(&id) {
                    held.outbox.log_mut().on_durable(durable);
                    held.on_stored();
                    held.balance(keeping_up);
                    self.enqueue(&id);
                }
            }
            Report::NotReplaced { id } => {
                if let Some(held) = self.held.get_mut(&id.to_string()) {
                    held.outbox.log_mut().on_replaced();
                }
            }
            Report::Failed { id, error } => {
                warn!(attempt_id = %id, %error, "the attempt fails because its frames cannot be stored");
                let before = self.disk.state();
                let why = match error.kind() {
                    // What no disk would take says nothing about this one.
                    ErrorKind::InvalidData => StopWhy::TooLong,
                    _ => {
                        self.disk.on_failed_write();
                        StopWhy::DiskFull
                    }
                };
                self.on_disk_state(before);
                self.look_at = self.clock.now();
                self.on_refused(id, why);
            }
            Report::Looked {
                space,
                is_writable,
                machine,
            } => {
                let before = self.disk.state();
                self.disk.on_look(space, is_writable);
                self.on_disk_state(before);
                self.on_machine(machine);
            }
        }
    }

    fn on_refused(&mut self, id: AttemptId, why: StopWhy) {
        let key = id.to_string();
        if let Some(held) = self.held.get_mut(&key) {
            self.removals.extend(held.on_disk_failed(why, &self.clock));
            self.enqueue(&key);
        }
    }

    fn on_machine(&mut self, machine: Machine) {
        let was_low = self.memory.is_low();
        self.memory.on_look(machine);
        match (was_low, self.memory.is_low()) {
            (false, true) => warn!(memory = %self.memory, "new work is refused"),
            (true, false) => info!(memory = %self.memory, "taking new work again"),
            (false, false) | (true, true) => {}
        }
    }

    fn on_disk_state(&mut self, before: DiskState) {
        let state = self.disk.state();
        match state {
            DiskState::Fine => self.repair(),
            DiskState::Low | DiskState::Failing => {}
        }
        if state == before {
            return;
        }
        match state {
            DiskState::Fine => {
                info!(disk = %self.disk, "taking new work again");
                self.epochs.tell_again();
            }
            DiskState::Low | DiskState::Failing => {
                warn!(disk = %self.disk, "new work is refused; free some space");
            }
        }
    }

    /// There is room again: whatever is only in memory is written down.
    fn repair(&mut self) {
        for held in self.held.values_mut().filter(|held| held.needs_repair()) {
            let Ok(room) = self.writer.jobs.try_reserve() else {
                return; // The next look tries again.
            };
            if let Some(job) = held.repair_job() {
                room.send(job);
            }
        }
    }

    pub(super) fn look(&mut self, now: Moment) {
        let state = self.disk.state();
        let every = match state {
            DiskState::Fine => LOOK_EVERY,
            DiskState::Low | DiskState::Failing => LOOK_AGAIN,
        };
        self.look_at = now.after(every);
        let probe = state == DiskState::Failing;
        match self.writer.jobs.try_send(Job::Look { probe }) {
            // Full: it has enough to do, and its reports say how that goes.
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Closed(_)) => self.lose_disk(),
        }
    }

    /// The writer is gone: as if the disk refused everything, for good.
    fn lose_disk(&mut self) {
        if self.disk.state() != DiskState::Failing {
            error!("the thread that writes the outboxes has died; restart the daemon");
        }
        self.disk.on_failed_write();
        self.change_all(|held, clock| {
            if held.has_job() {
                held.on_disk_failed(StopWhy::DiskFull, clock);
            }
        });
    }

    /// On the way out: what is not acknowledged is the next daemon's to say, so it must be on the disk.
    pub(super) async fn finish_writing(mut self) {
        let limit = self.course.last_writes(self.clock.now());
        let finished = tokio::time::timeout(limit, async {
            loop {
                self.save();
                let small = !self.removals.is_empty() || self.conversations.has_news();
                if small || self.held.values().any(|held| held.has_job()) {
                    let Some(report) = self.writer.reports.recv().await else {
                        return;
                    };
                    self.on_report(report);
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
