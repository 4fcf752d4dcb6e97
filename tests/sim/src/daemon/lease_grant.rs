//! Lease grants of the relay: the daemon counts them with its own lease clock, and the check of
//! S14 counts them independently.

use std::time::Duration;

use baton_core::ids::AttemptId;
use baton_core::io::effects::LeaseRenewal;
use baton_daemon_core::lease_clock::LeaseClock;
use baton_daemon_core::time::BootTime;

use crate::daemon::sim_attempt::monotonic_time;
use crate::simulation::{ScheduledEvent, Simulation};

/// A grant, counted from the send time that the daemon recorded, and from the true one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedLeaseGrant {
    sent_at: BootTime,
    true_sent_at: u64,
    granted_ms: u64,
}

impl CountedLeaseGrant {
    pub(crate) fn from_send_time(sent: u64, granted_ms: u64) -> Self {
        Self {
            sent_at: monotonic_time(sent),
            true_sent_at: sent,
            granted_ms,
        }
    }
}

impl Simulation {
    pub(crate) fn handle_heartbeat_ack(
        &mut self,
        index: usize,
        seq: u64,
        heartbeat_ms: u64,
        results: Vec<(AttemptId, LeaseRenewal)>,
    ) {
        let now = monotonic_time(self.now);
        let daemon = &mut self.daemons[index];
        let every = Duration::from_millis(heartbeat_ms);
        daemon.heartbeats.set_interval(every, now);
        let truly_at = daemon.heartbeats_sent_at.get(&seq).copied();
        daemon.heartbeats_sent_at.retain(|known, _| *known > seq);
        let answered = daemon.heartbeats.record_answer(seq);
        let (Some(sent_at), Some(truly_at)) = (answered, truly_at) else {
            return;
        };
        for (attempt, renewal) in results {
            match renewal {
                LeaseRenewal::Renewed { granted_ms, .. } => {
                    let grant = CountedLeaseGrant {
                        sent_at,
                        true_sent_at: truly_at,
                        granted_ms,
                    };
                    self.renew_lease(index, attempt, grant);
                }
                LeaseRenewal::Revoked { .. } => self.abandon_attempt(index, attempt),
            }
        }
    }

    /// The lease extension is durable: the daemon may restart, and its processes continue
    /// alone.
    pub(crate) fn handle_lease_extension_ack(
        &mut self,
        index: usize,
        request: u64,
        results: Vec<(AttemptId, LeaseRenewal)>,
    ) {
        let Some(hold) = self.daemons[index]
            .planned_restart
            .filter(|hold| hold.request == request)
        else {
            return;
        };
        self.counts.holds_granted += 1;
        for (attempt, renewal) in results {
            match renewal {
                LeaseRenewal::Renewed { granted_ms, .. } => {
                    self.renew_lease(
                        index,
                        attempt,
                        CountedLeaseGrant::from_send_time(hold.requested_at, granted_ms),
                    );
                }
                LeaseRenewal::Revoked { .. } => self.abandon_attempt(index, attempt),
            }
        }
        self.crash_daemon(index, false);
    }

    /// Renews an existing lease: its limit moves, and its shim gets the new one.
    fn renew_lease(&mut self, index: usize, attempt: AttemptId, grant: CountedLeaseGrant) {
        let held = self.daemons[index].attempts.get(&attempt);
        if held.is_some_and(|held| held.lease.is_some()) {
            self.apply_grant(index, attempt, grant);
        }
    }

    pub(crate) fn apply_grant(
        &mut self,
        index: usize,
        attempt: AttemptId,
        grant: CountedLeaseGrant,
    ) {
        let now = monotonic_time(self.now);
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        if held.ended {
            return;
        }
        let span = Duration::from_millis(grant.granted_ms);
        let lease = match held.lease {
            Some(mut lease) => {
                lease.renew(grant.sent_at, span);
                lease
            }
            None => LeaseClock::from_grant(grant.sent_at, span),
        };
        held.lease = Some(lease);
        if let Some(shim) = held.shim.as_mut().filter(|_| held.reachable) {
            shim.shutdown_plan
                .on_lease(lease.shim_deadlines(held.cleanup_term), now);
        }
        let rights = &mut held.granted_time;
        rights.until = rights.until.max(grant.true_sent_at + grant.granted_ms);
        rights.shortest_grant_ms = rights.shortest_grant_ms.min(grant.granted_ms);
        let until = rights.until;
        self.schedule(
            until,
            ScheduledEvent::LeaseLimit {
                daemon: index,
                attempt,
            },
        );
    }
}
