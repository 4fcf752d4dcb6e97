//! Heartbeats: one frame renews every lease and shows the relay that the daemon lives. The relay's
//! answer shows the daemon that the stream is alive.

use std::time::Duration;

use baton_proto::v1::{self, Heartbeat, HeartbeatAck, RejectCode, RenewResult, renew_result};
use prost_types::Timestamp;
use tracing::warn;

use super::Supervisor;
use crate::clock::BootTime;

impl Supervisor {
    pub(super) fn on_heartbeat_ack(&mut self, ack: HeartbeatAck) {
        let now = self.clock.now();
        if let Some(sent_at) = self.relay.on_heartbeat_ack(&ack, now) {
            self.apply_renewals(ack.results, sent_at);
        }
    }

    /// Applies the relay's answer to a request that was sent at `sent_at`.
    pub(super) fn apply_renewals(&mut self, results: Vec<RenewResult>, sent_at: BootTime) {
        for entry in results {
            let id = entry.attempt_id;
            let Some(attempt) = self.attempts.get_mut(&id) else {
                continue;
            };
            match entry.result {
                Some(renew_result::Result::Renewed(renewed)) => {
                    attempt.renew(sent_at, Duration::from_millis(renewed.granted_ms));
                }
                // A finished attempt only has no lease any more; the relay still accepts its
                // last frames.
                Some(renew_result::Result::Revoked(_)) if !attempt.uses_slot() => {}
                Some(renew_result::Result::Revoked(revoked)) => {
                    warn!(attempt_id = id, code = ?revoked.code(), "the lease was revoked");
                    self.attempts
                        .update(&id, |attempt, clock| attempt.fence(clock));
                }
                // Neither renewed nor revoked: the lease goes on unchanged.
                None => self.relay.count_unknown(),
            }
        }
    }

    pub(super) fn on_heartbeat_due(&mut self, now: BootTime) {
        if self.relay.is_dead(now) {
            warn!("two heartbeats went unanswered; dialing again");
            self.close_session();
        } else {
            self.send_heartbeat();
        }
    }

    pub(super) fn send_heartbeat(&mut self) {
        let now = self.clock.now();
        let status = if self.shutdown.accepts_work() {
            v1::DaemonStatus::Online
        } else {
            v1::DaemonStatus::Draining
        };
        let refusal = self.resources.refusal();
        let refuses = refusal.map_or(RejectCode::Unspecified, |refusal| refusal.code);
        let heartbeat = Heartbeat {
            // Numbered when it is sent.
            seq: 0,
            heard_seq: None,
            sent_at: Some(Timestamp::from(self.clock.wall())),
            free_slots: self.attempts.free_slots(),
            status: status.into(),
            renew: self.attempts.renew_entries(now),
            load: Some(self.resources.load(self.attempts.unacked_output())),
            refuses: refuses.into(),
        };
        let shortest_ttl = self.attempts.shortest_ttl();
        self.relay.send_heartbeat(heartbeat, shortest_ttl, now);
    }
}
