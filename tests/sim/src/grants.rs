//! What the relay grants: the daemon counts it with its own lease clock, and the judge of S14 by itself.

use std::time::Duration;

use baton_core::effects::Renewal;
use baton_core::id::AttemptId;
use baton_daemon_core::lease::LeaseClock;
use baton_daemon_core::time::Moment;

use crate::held::moment;
use crate::world::{Event, World};

/// What an answer of the relay gives: counted from a send as the daemon knows it, and as it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    sent_at: Moment,
    truly_at: u64,
    granted_ms: u64,
}

impl Grant {
    pub(crate) fn since(sent: u64, granted_ms: u64) -> Self {
        Self {
            sent_at: moment(sent),
            truly_at: sent,
            granted_ms,
        }
    }
}

impl World {
    pub(crate) fn beat_answered(
        &mut self,
        index: usize,
        seq: u64,
        heartbeat_ms: u64,
        results: Vec<(AttemptId, Renewal)>,
    ) {
        let now = moment(self.now);
        let daemon = &mut self.daemons[index];
        let every = Duration::from_millis(heartbeat_ms);
        daemon.beats.set_interval(every, now);
        let truly_at = daemon.beats_sent.get(&seq).copied();
        daemon.beats_sent.retain(|known, _| *known > seq);
        let answered = daemon.beats.answered(seq);
        let (Some(sent_at), Some(truly_at)) = (answered, truly_at) else {
            return;
        };
        for (attempt, renewal) in results {
            match renewal {
                Renewal::Renewed { granted_ms, .. } => {
                    let grant = Grant {
                        sent_at,
                        truly_at,
                        granted_ms,
                    };
                    self.renewed(index, attempt, grant);
                }
                Renewal::Revoked { .. } => self.give_up(index, attempt),
            }
        }
    }

    /// The hold is durable: now it may restart, and its processes go on alone.
    pub(crate) fn hold_answered(
        &mut self,
        index: usize,
        request: u64,
        results: Vec<(AttemptId, Renewal)>,
    ) {
        let Some(hold) = self.daemons[index]
            .hold
            .filter(|hold| hold.request == request)
        else {
            return;
        };
        self.counts.holds_granted += 1;
        for (attempt, renewal) in results {
            match renewal {
                Renewal::Renewed { granted_ms, .. } => {
                    self.renewed(index, attempt, Grant::since(hold.at, granted_ms));
                }
                Renewal::Revoked { .. } => self.give_up(index, attempt),
            }
        }
        self.crash_daemon(index, false);
    }

    /// Of one that is leased already: its limit moves, and its shim is told.
    fn renewed(&mut self, index: usize, attempt: AttemptId, grant: Grant) {
        let held = self.daemons[index].held.get(&attempt);
        if held.is_some_and(|held| held.lease.is_some()) {
            self.granted(index, attempt, grant);
        }
    }

    pub(crate) fn granted(&mut self, index: usize, attempt: AttemptId, grant: Grant) {
        let now = moment(self.now);
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
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
            None => LeaseClock::granted(grant.sent_at, span),
        };
        held.lease = Some(lease);
        if let Some(shim) = held.shim.as_mut().filter(|_| held.reachable) {
            shim.course.on_lease(lease.for_shim(held.cleanup_term), now);
        }
        let rights = &mut held.rights;
        rights.until = rights.until.max(grant.truly_at + grant.granted_ms);
        rights.least_granted = rights.least_granted.min(grant.granted_ms);
        let until = rights.until;
        self.at(
            until,
            Event::Limit {
                daemon: index,
                attempt,
            },
        );
    }
}
