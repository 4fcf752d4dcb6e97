//! When the next heartbeat is due, which ones are unanswered, and since when a stream counts as dead.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::BootTime;

/// What the second unanswered heartbeat gets for its answer, when heartbeats are further apart than that. The relay is
/// given up within two heartbeats and a second of its last word, however long a heartbeat is.
const SECOND_ANSWER_TIMEOUT: Duration = Duration::from_millis(750);
/// However short a lease is, heartbeats come no closer together.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Which heartbeats are out.
#[derive(Debug)]
pub struct HeartbeatTracker {
    interval: Duration,
    last_seq: u64,
    /// The newest one whose answer came; the relay learns from it that this daemon hears.
    last_answered_seq: u64,
    unanswered: VecDeque<(u64, BootTime)>,
    next_at: BootTime,
}

impl HeartbeatTracker {
    pub fn new(interval: Duration, now: BootTime) -> Self {
        let interval = interval.max(MIN_INTERVAL);
        Self {
            interval,
            last_seq: 0,
            last_answered_seq: 0,
            unanswered: VecDeque::new(),
            next_at: now,
        }
    }

    /// When there is something to do: one is to be sent, or the stream is dead. A short lease brings the next one
    /// forward: a third of its ttl at most.
    pub fn next_action_at(&self) -> BootTime {
        self.dead_at()
            .map_or(self.next_at, |dead| dead.min(self.next_at))
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    pub fn last_answered_seq(&self) -> u64 {
        self.last_answered_seq
    }

    /// The relay follows the shortest lease that is held.
    pub fn set_interval(&mut self, interval: Duration, now: BootTime) {
        self.interval = interval.max(MIN_INTERVAL);
        self.next_at = self.next_at.min(now.after(self.interval));
    }

    /// A lease of this length is held now.
    pub fn shorten_for_lease(&mut self, ttl: Duration, now: BootTime) {
        let interval = (ttl / 3).max(MIN_INTERVAL);
        self.next_at = self.next_at.min(now.after(interval));
    }

    /// Two are out and neither was answered in its time: nobody is listening.
    pub fn is_dead(&self, now: BootTime) -> bool {
        self.dead_at().is_some_and(|at| at <= now) && !mutant!(DeadStreamKept)
    }

    /// The second one gets its time from when it was due, so that one sent earlier shortens nobody's, and from when it was
    /// sent, so that a machine that slept may hear an answer.
    fn dead_at(&self) -> Option<BootTime> {
        let (_, oldest) = self.unanswered.front()?;
        let (_, second) = self.unanswered.get(1)?;
        let from = oldest.after(self.interval).max(*second);
        Some(from.after(self.interval.min(SECOND_ANSWER_TIMEOUT)))
    }

    /// Numbers the heartbeat that is sent now.
    pub fn record_sent(&mut self, now: BootTime) -> u64 {
        self.last_seq += 1;
        self.unanswered.push_back((self.last_seq, now));
        self.next_at = now.after(self.interval);
        self.last_seq
    }

    /// When the heartbeat was sent that is answered here; later ones stay out.
    pub fn record_answer(&mut self, seq: u64) -> Option<BootTime> {
        let at = self.unanswered.iter().position(|(sent, _)| *sent == seq)?;
        let at = match mutant!(LeaseFromNewestBeat) {
            true => self.unanswered.len() - 1,
            false => at,
        };
        self.last_answered_seq = seq;
        self.unanswered
            .drain(..=at)
            .next_back()
            .map(|(_, sent_at)| sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootTime {
        BootTime::from_millis(millis)
    }

    #[test]
    fn two_unanswered_heartbeats_mean_a_dead_stream_and_an_answer_revives_it() {
        let mut beats = HeartbeatTracker::new(Duration::from_secs(5), at(0));
        assert_eq!(beats.next_action_at(), at(0));
        assert_eq!(
            (beats.record_sent(at(0)), beats.next_action_at()),
            (1, at(5_000))
        );
        beats.shorten_for_lease(Duration::from_secs(6), at(1_000));
        assert_eq!(beats.next_action_at(), at(2_000 + 1_000));
        beats.record_sent(at(3_000));
        assert_eq!(
            beats.next_action_at(),
            at(5_750),
            "two are out; the first is overdue"
        );
        assert!(!beats.is_dead(at(5_749)) && beats.is_dead(at(5_750)));
        assert_eq!(beats.record_answer(2), Some(at(3_000)));
        assert!(!beats.is_dead(at(60_000)));
        assert_eq!(
            (beats.record_answer(1), beats.record_answer(9)),
            (None, None)
        );
        assert_eq!(beats.last_answered_seq(), 2);
    }

    #[test]
    fn a_wire_that_drops_everything_is_found_within_two_heartbeats_and_a_second() {
        for interval in [100, 1_666, 5_000] {
            let every = Duration::from_millis(interval);
            let mut beats = HeartbeatTracker::new(every, at(0));
            beats.record_sent(at(0));
            beats.record_answer(1);
            // From here on nothing arrives; whatever falls due is sent.
            let mut now = beats.next_action_at();
            let mut sent = 0;
            while !beats.is_dead(now) {
                beats.record_sent(now);
                sent += 1;
                now = beats.next_action_at();
            }
            assert_eq!(sent, 2, "{interval}");
            assert!(now <= at(2 * interval + 1_000), "{interval}: {now:?}");
        }
    }

    #[test]
    fn neither_one_more_heartbeat_nor_a_suspend_makes_a_stream_dead_before_an_answer_could_come() {
        let mut beats = HeartbeatTracker::new(Duration::from_secs(5), at(0));
        beats.record_sent(at(0));
        beats.record_sent(at(1));
        assert!(!beats.is_dead(at(5_749)) && beats.is_dead(at(5_750)));
        beats.record_answer(2);
        beats.record_sent(at(6_000));
        assert_eq!(beats.next_action_at(), at(11_000));
        // The machine slept for an hour.
        beats.record_sent(at(3_600_000));
        assert!(!beats.is_dead(at(3_600_749)) && beats.is_dead(at(3_600_750)));
    }
}
