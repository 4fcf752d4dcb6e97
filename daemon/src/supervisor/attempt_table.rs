//! Every attempt of this daemon: the slots they take up, and which of them sends next.
//!
//! Attempts with unsent frames are in one queue, each once, and are served one frame at a time, so
//! that much output of one does not delay the others.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use baton_daemon_core::reconnect_urgency::ReconnectUrgency;
use baton_proto::v1::{ActiveAttempt, AttemptRef, DaemonFrame, RenewEntry};
use tokio::sync::mpsc;

use crate::attempt::LeaseDelivery;
use crate::clock::{BootTime, Clock};
use crate::storage::attempt_dir::AttemptId;
use crate::supervised_attempt::SupervisedAttempt;

/// Finished attempts that are remembered, so that a repeated dispatch does not run them again.
const FINISHED_IDS_MAX: usize = 1024;

pub(super) struct AttemptTable {
    slots: u32,
    clock: Clock,
    attempts: BTreeMap<String, SupervisedAttempt>,
    /// Attempts that may have unsent frames, each once; served in turn.
    send_queue: VecDeque<String>,
    /// The same ids as in `send_queue`.
    queued: HashSet<String>,
    finished_ids: VecDeque<String>,
}

impl AttemptTable {
    pub(super) fn new(slots: u32, clock: Clock) -> Self {
        Self {
            slots,
            clock,
            attempts: BTreeMap::new(),
            send_queue: VecDeque::new(),
            queued: HashSet::new(),
            finished_ids: VecDeque::new(),
        }
    }

    pub(super) fn insert(&mut self, id: &str, attempt: SupervisedAttempt) {
        self.attempts.insert(id.to_owned(), attempt);
        self.enqueue(id);
    }

    pub(super) fn get(&self, id: &str) -> Option<&SupervisedAttempt> {
        self.attempts.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut SupervisedAttempt> {
        self.attempts.get_mut(id)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &SupervisedAttempt> {
        self.attempts.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut SupervisedAttempt> {
        self.attempts.values_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.attempts.len()
    }

    /// Changes one attempt and queues it for sending; `None` when there is no such attempt.
    pub(super) fn update<R>(
        &mut self,
        id: &str,
        change: impl FnOnce(&mut SupervisedAttempt, &Clock) -> R,
    ) -> Option<R> {
        let result = change(self.attempts.get_mut(id)?, &self.clock);
        self.enqueue(id);
        Some(result)
    }

    /// Changes all attempts and queues those that have unsent frames afterwards.
    pub(super) fn update_all(&mut self, mut change: impl FnMut(&mut SupervisedAttempt, &Clock)) {
        for (id, attempt) in &mut self.attempts {
            change(attempt, &self.clock);
            if attempt.has_unsent() && self.queued.insert(id.clone()) {
                self.send_queue.push_back(id.clone());
            }
        }
    }

    pub(super) fn update_backpressure(&mut self, connected: bool) {
        for attempt in self.attempts.values_mut() {
            attempt.update_backpressure(connected);
        }
    }

    pub(super) fn enqueue(&mut self, id: &str) {
        if self.queued.insert(id.to_owned()) {
            self.send_queue.push_back(id.to_owned());
        }
    }

    /// Sends as many frames as there is room for, one per attempt in turn.
    pub(super) fn send_frames(&mut self, frames: &mpsc::Sender<DaemonFrame>) {
        let now = self.clock.now();
        while let Some(id) = self.send_queue.front() {
            let attempt = self.attempts.get_mut(id);
            let next = attempt.and_then(|attempt| Some((attempt.next_frame(now)?, attempt)));
            let Some((frame, attempt)) = next else {
                self.queued.remove(id);
                self.send_queue.pop_front();
                continue;
            };
            if frames.try_send(frame).is_err() {
                // Full: the supervisor waits for room. Closed: the link reports it next.
                return;
            }
            attempt.mark_sent();
            self.send_queue.rotate_left(1);
        }
    }

    /// Whether frames are still unsent because there was no room for them.
    pub(super) fn has_queued(&self) -> bool {
        !self.send_queue.is_empty()
    }

    /// Removes an attempt and remembers its id. Returns the directory to remove.
    pub(super) fn remove(&mut self, id: &str) -> Option<AttemptId> {
        let attempt = self.attempts.remove(id)?;
        self.finished_ids.push_back(id.to_owned());
        if self.finished_ids.len() > FINISHED_IDS_MAX {
            self.finished_ids.pop_front();
        }
        attempt.dir_id()
    }

    /// Removes an attempt whose terminal frame the relay has acknowledged.
    pub(super) fn remove_if_settled(&mut self, id: &str) -> Option<AttemptId> {
        self.get(id)?.is_settled().then(|| self.remove(id))?
    }

    /// Whether an attempt of this id has run here and was removed.
    pub(super) fn was_removed(&self, id: &str) -> bool {
        self.finished_ids.iter().any(|finished| finished == id)
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    pub(super) fn used_slots(&self) -> usize {
        self.values().filter(|attempt| attempt.uses_slot()).count()
    }

    pub(super) fn free_slots(&self) -> u32 {
        let used = u32::try_from(self.used_slots()).unwrap_or(u32::MAX);
        self.slots.saturating_sub(used)
    }

    /// Attempts whose terminal frame is still to come, also where no process is left. The relay
    /// counts the same way.
    pub(super) fn unfinished(&self) -> u32 {
        let unfinished = self.values().filter(|attempt| !attempt.is_finished());
        u32::try_from(unfinished.count()).unwrap_or(u32::MAX)
    }

    pub(super) fn shortest_ttl(&self) -> Option<Duration> {
        let leases = self.values().filter_map(SupervisedAttempt::lease);
        leases.map(|lease| lease.ttl()).min()
    }

    pub(super) fn next_wake(&self) -> Option<BootTime> {
        self.values().filter_map(SupervisedAttempt::next_wake).min()
    }

    pub(super) fn reconnect_urgency(&self) -> ReconnectUrgency {
        ReconnectUrgency::from_attempts(self.values().map(SupervisedAttempt::reconnect_urgency))
    }

    /// For Hello.
    pub(super) fn active_attempts(&self, now: BootTime) -> Vec<ActiveAttempt> {
        self.values()
            .map(|attempt| attempt.to_active_attempt(now))
            .collect()
    }

    /// For a heartbeat.
    pub(super) fn renew_entries(&self, now: BootTime) -> Vec<RenewEntry> {
        self.values()
            .filter_map(|attempt| attempt.renew_entry(now))
            .collect()
    }

    /// For a lease extension: only attempts that still run need one.
    pub(super) fn extension_entries(&self, now: BootTime) -> Vec<RenewEntry> {
        self.values()
            .filter(|attempt| attempt.uses_slot())
            .filter_map(|attempt| attempt.renew_entry(now))
            .collect()
    }

    pub(super) fn unacked_output(&self) -> usize {
        self.values().map(SupervisedAttempt::unacked_output).sum()
    }

    /// The attempt that has this directory to itself.
    pub(super) fn occupant_of(&self, root: &Path) -> Option<&AttemptRef> {
        self.values()
            .find(|attempt| attempt.occupies_root(root))
            .map(SupervisedAttempt::attempt)
    }

    pub(super) fn can_all_outlive_daemon(&self) -> bool {
        self.values().all(SupervisedAttempt::can_outlive_daemon)
    }

    /// Whether every attempt still runs, so that no terminal frame waits for its acknowledgement.
    pub(super) fn all_use_slots(&self) -> bool {
        self.values().all(SupervisedAttempt::uses_slot)
    }

    /// Leases that their shims do not have yet.
    pub(super) fn pending_lease_deliveries(&self) -> Vec<LeaseDelivery> {
        self.values()
            .filter_map(SupervisedAttempt::pending_lease_delivery)
            .collect()
    }
}
