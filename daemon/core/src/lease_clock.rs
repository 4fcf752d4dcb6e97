//! The lease of one attempt as the daemon counts it. Pure.
//!
//! The relay counts from the time it *received* a renewal and adds a grace period. The daemon
//! counts from the time it *sent* the acknowledged renewal. So the daemon's limit always comes
//! first, and its processes are gone before another attempt may start.

use std::time::Duration;

use crate::child_lifecycle::LeaseDeadlines;
use crate::time::{BootTime, whole_millis};

/// Time reserved for KILL before the limit, so that KILL has taken effect at the limit.
const KILL_LEAD: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseClock {
    limit: BootTime,
    granted: Duration,
}

impl LeaseClock {
    /// `sent_at` is when the frame was sent that this grant answers.
    pub fn from_grant(sent_at: BootTime, granted: Duration) -> Self {
        Self {
            limit: limit_from(sent_at, granted),
            granted,
        }
    }

    /// A lease that an earlier daemon left with its shim or on disk.
    pub fn from_stored(limit: BootTime, granted: Duration) -> Self {
        Self { limit, granted }
    }

    /// The deadlines that are sent to the shim.
    pub fn shim_deadlines(&self, cleanup_term: Duration) -> LeaseDeadlines {
        LeaseDeadlines {
            term_at: self.term_at(cleanup_term),
            kill_at: self.kill_at(),
            limit: self.limit,
            granted_ms: whole_millis(self.granted),
        }
    }

    /// An answer never shortens the lease: an earlier, larger grant still counts.
    pub fn renew(&mut self, sent_at: BootTime, granted: Duration) {
        self.granted = granted;
        self.limit = self.limit.max(limit_from(sent_at, granted));
    }

    pub fn limit(&self) -> BootTime {
        self.limit
    }

    /// No process of the attempt may run, and the relay accepts no frame for it.
    pub fn is_expired(&self, now: BootTime) -> bool {
        self.limit <= now && !mutant!(LostRightIgnored)
    }

    pub fn ttl(&self) -> Duration {
        self.granted
    }

    /// When TERM is sent unless a renewal is acknowledged first. A short `cleanup_term` fits
    /// entirely before KILL, which itself comes before the limit.
    pub fn term_at(&self, cleanup_term: Duration) -> BootTime {
        if mutant!(TermTooLate) {
            return self.kill_at();
        }
        let least = self.kill_lead() + cleanup_term.min(self.kill_lead());
        let lead = cleanup_term.min(self.granted / 4).max(least);
        self.limit.before(lead)
    }

    /// When KILL is sent after TERM, so that no process is left at the limit.
    pub fn kill_at(&self) -> BootTime {
        if mutant!(KillAtLimit) {
            return self.limit;
        }
        self.limit.before(self.kill_lead())
    }

    fn kill_lead(&self) -> Duration {
        KILL_LEAD.min(self.granted / 8)
    }
}

fn limit_from(sent_at: BootTime, granted: Duration) -> BootTime {
    if mutant!(LeaseWithGrace) {
        return sent_at.after(granted + granted / 4);
    }
    sent_at.after(granted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> BootTime {
        BootTime::from_millis(millis)
    }

    #[test]
    fn limit_counts_from_the_send_time_and_never_moves_back() {
        let mut lease = LeaseClock::from_grant(ms(1_000), Duration::from_secs(30));
        assert_eq!(lease.limit(), ms(31_000));
        lease.renew(ms(11_000), Duration::from_secs(30));
        assert_eq!(lease.limit(), ms(41_000));
        // A lease extension of ten minutes outlasts the ordinary renewal that follows it.
        lease.renew(ms(12_000), Duration::from_secs(600));
        lease.renew(ms(13_000), Duration::from_secs(30));
        assert_eq!(lease.limit(), ms(612_000));
        assert!(!lease.is_expired(ms(611_999)) && lease.is_expired(ms(612_000)));
    }

    #[test]
    fn term_leads_by_cleanup_term_or_a_quarter_and_kill_is_before_the_limit() {
        let lease = LeaseClock::from_grant(ms(0), Duration::from_secs(30));
        assert_eq!(lease.term_at(Duration::from_secs(2)), ms(28_000));
        assert_eq!(lease.term_at(Duration::from_secs(60)), ms(22_500));
        assert_eq!(lease.kill_at(), ms(29_800));
        let short = LeaseClock::from_grant(ms(0), Duration::from_millis(800));
        assert_eq!(short.term_at(Duration::from_secs(2)), ms(600));
        assert_eq!(short.kill_at(), ms(700));
        assert_eq!(short.term_at(Duration::ZERO), short.kill_at());
    }

    #[test]
    fn a_short_cleanup_term_is_kept_between_term_and_kill() {
        for granted in [800, 5_000, 30_000] {
            let lease = LeaseClock::from_grant(ms(0), Duration::from_millis(granted));
            for term in [1, 50, 100, 199, 200, 201, 400, 10_000] {
                let (term_at, kill_at) =
                    (lease.term_at(Duration::from_millis(term)), lease.kill_at());
                let least = Duration::from_millis(term.min(200).min(granted / 8));
                assert!(term_at.until(kill_at) >= least, "{granted} {term}");
                assert!(term_at >= lease.limit().before(Duration::from_millis(granted / 4)));
            }
        }
    }

    #[test]
    fn a_lease_restored_from_the_shim_equals_the_original() {
        let lease = LeaseClock::from_grant(ms(5_000), Duration::from_secs(30));
        let deadlines = lease.shim_deadlines(Duration::from_secs(2));
        assert_eq!(
            (deadlines.term_at, deadlines.kill_at),
            (ms(33_000), ms(34_800))
        );
        let granted = Duration::from_millis(deadlines.granted_ms);
        assert_eq!(LeaseClock::from_stored(deadlines.limit, granted), lease);
    }
}
