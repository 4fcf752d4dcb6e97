//! Heartbeats: they renew every lease in one frame, and show both sides that the other lives.

use std::time::Duration;

use baton_proto::v1::{
    self, DaemonLoad, Heartbeat, HeartbeatAck, RenewResult, daemon_frame, renew_result,
};
use prost_types::Timestamp;
use tracing::warn;

use super::Supervisor;
use super::relay_frames::{positive_millis, to_daemon_frame};
use crate::clock::BootTime;
use crate::machine::disk_monitor::{DiskState, FreeSpace};
use crate::machine::memory_monitor::AvailableMemory;
use crate::supervised_attempt::SupervisedAttempt;

impl Supervisor {
    pub(super) fn on_heartbeat_ack(&mut self, ack: HeartbeatAck) {
        let Some(live) = &mut self.live_session else {
            return;
        };
        let Some(sent_at) = live.heartbeats.record_answer(ack.seq) else {
            return;
        };
        let now = self.clock.now();
        live.last_answer_at = now;
        if let Some(interval) = positive_millis(ack.heartbeat_ms) {
            live.heartbeats.set_interval(interval, now);
        }
        self.apply_renewals(ack.results, sent_at);
    }

    /// What became of leases in a request that was sent at this moment.
    pub(super) fn apply_renewals(&mut self, results: Vec<RenewResult>, sent_at: BootTime) {
        for entry in results {
            let id = entry.attempt_id;
            let Some(held) = self.supervised.get_mut(&id) else {
                continue;
            };
            match entry.result {
                Some(renew_result::Result::Renewed(renewed)) => {
                    held.renew(sent_at, Duration::from_millis(renewed.granted_ms));
                }
                // A finished one is only no longer leased; its last frames are still wanted.
                Some(renew_result::Result::Revoked(_)) if !held.uses_slot() => {}
                Some(renew_result::Result::Revoked(revoked)) => {
                    warn!(attempt_id = id, code = ?revoked.code(), "the lease was revoked");
                    held.fence(&self.clock);
                    self.enqueue(&id);
                }
                // Neither renewed nor revoked: the lease goes on as it was.
                None => self.unknown_messages += 1,
            }
        }
    }

    pub(super) fn on_heartbeat_due(&mut self) {
        let now = self.clock.now();
        if self
            .live_session
            .as_ref()
            .is_some_and(|live| live.heartbeats.is_dead(now))
        {
            warn!("two heartbeats went unanswered; dialing again");
            self.close_session();
        } else {
            self.send_heartbeat();
        }
    }

    pub(super) fn send_heartbeat(&mut self) {
        let now = self.clock.now();
        let shortest = self.shortest_ttl();
        let status = if self.shutdown_plan.accepts_work() {
            v1::DaemonStatus::Online
        } else {
            v1::DaemonStatus::Draining
        };
        let unacked: usize = self
            .supervised
            .values()
            .map(|held| held.outbox.output_bytes())
            .sum();
        let machine = self.memory.latest();
        let mut heartbeat = Heartbeat {
            seq: 0,
            heard_seq: None,
            sent_at: Some(Timestamp::from(self.clock.wall())),
            free_slots: self.free_slots(),
            status: status.into(),
            renew: self
                .supervised
                .values()
                .filter_map(|held| held.renew_entry(now))
                .collect(),
            load: Some(DaemonLoad {
                memory_available_percent: machine.memory.map(AvailableMemory::available_percent),
                load_1m: machine.load_1m,
                disk_free_percent: self.disk.space().map(FreeSpace::free_percent),
                unacked_bytes: Some(unacked as u64),
            }),
            refuses: self.refusal_code().into(),
        };
        let Some(live) = &mut self.live_session else {
            return;
        };
        heartbeat.seq = live.heartbeats.record_sent(now);
        heartbeat.heard_seq = Some(live.heartbeats.last_answered_seq());
        if let Some(ttl) = shortest {
            live.heartbeats.shorten_for_lease(ttl, now);
        }
        live.session
            .send_urgent(to_daemon_frame(daemon_frame::Frame::Heartbeat(heartbeat)));
    }

    /// Why any work would be refused now, beside stopping.
    fn refusal_code(&self) -> v1::RejectCode {
        match self.disk.state() {
            DiskState::Fine if self.memory.is_low() => v1::RejectCode::LowMemory,
            DiskState::Fine => v1::RejectCode::Unspecified,
            DiskState::Low | DiskState::Failing => v1::RejectCode::DiskFull,
        }
    }

    pub(super) fn shortest_ttl(&self) -> Option<Duration> {
        self.supervised
            .values()
            .filter_map(SupervisedAttempt::lease)
            .map(|lease| lease.ttl())
            .min()
    }

    pub(super) fn free_slots(&self) -> u32 {
        let taken = self
            .supervised
            .values()
            .filter(|held| held.uses_slot())
            .count();
        self.description
            .slots
            .saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX))
    }
}
