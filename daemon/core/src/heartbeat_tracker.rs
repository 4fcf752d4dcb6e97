//! Schedule of heartbeats: when the next one is due, which are unanswered, and when a stream
//! counts as dead.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::BootTime;

/// Time for the second unanswered heartbeat's answer when the interval is longer than this. A
/// dead stream is then found within two intervals and one second of the relay's last answer,
/// for every interval.
const SECOND_ANSWER_TIMEOUT: Duration = Duration::from_millis(750);
/// Lower bound of the interval, however short the lease.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Heartbeats that were sent on one stream and their answers.
#[derive(Debug)]
pub struct HeartbeatTracker {
    interval: Duration,
    last_seq: u64,
    /// The newest heartbeat that was answered. It is sent to the relay as proof that its
    /// answers arrive.
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

    /// When to act next: send a heartbeat or close a dead stream. A short lease moves the next
    /// heartbeat forward, to at most a third of its ttl.
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

    /// The relay chooses the interval from the shortest lease that is held.
    pub fn set_interval(&mut self, interval: Duration, now: BootTime) {
        self.interval = interval.max(MIN_INTERVAL);
        self.next_at = self.next_at.min(now.after(self.interval));
    }

    /// A lease of this length is now held.
    pub fn shorten_for_lease(&mut self, ttl: Duration, now: BootTime) {
        let interval = (ttl / 3).max(MIN_INTERVAL);
        self.next_at = self.next_at.min(now.after(interval));
    }

    /// Two heartbeats are unanswered and their time is over.
    pub fn is_dead(&self, now: BootTime) -> bool {
        self.dead_at().is_some_and(|at| at <= now) && !mutant!(DeadStreamKept)
    }

    /// The second heartbeat's timeout starts when it was due, so that sending it early does not
    /// shorten it, and not before it was sent, so that an answer can still arrive after a
    /// suspend.
    fn dead_at(&self) -> Option<BootTime> {
        let (_, oldest) = self.unanswered.front()?;
        let (_, second) = self.unanswered.get(1)?;
        let from = oldest.after(self.interval).max(*second);
        Some(from.after(self.interval.min(SECOND_ANSWER_TIMEOUT)))
    }

    /// Records a heartbeat that is sent now and returns its number.
    pub fn record_sent(&mut self, now: BootTime) -> u64 {
        self.last_seq += 1;
        self.unanswered.push_back((self.last_seq, now));
        self.next_at = now.after(self.interval);
        self.last_seq
    }

    /// When the answered heartbeat was sent. Later heartbeats stay unanswered.
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
    fn two_unanswered_heartbeats_mean_a_dead_stream_until_an_answer_comes() {
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
            "two heartbeats are unanswered; the first is overdue"
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
    fn a_silent_stream_is_dead_within_two_heartbeats_and_a_second() {
        for interval in [100, 1_666, 5_000] {
            let every = Duration::from_millis(interval);
            let mut beats = HeartbeatTracker::new(every, at(0));
            beats.record_sent(at(0));
            beats.record_answer(1);
            // From here on no answer arrives, and every heartbeat is sent when it is due.
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
    fn an_early_heartbeat_or_a_suspend_leaves_time_for_an_answer() {
        let mut beats = HeartbeatTracker::new(Duration::from_secs(5), at(0));
        beats.record_sent(at(0));
        beats.record_sent(at(1));
        assert!(!beats.is_dead(at(5_749)) && beats.is_dead(at(5_750)));
        beats.record_answer(2);
        beats.record_sent(at(6_000));
        assert_eq!(beats.next_action_at(), at(11_000));
        // The machine was suspended for an hour.
        beats.record_sent(at(3_600_000));
        assert!(!beats.is_dead(at(3_600_749)) && beats.is_dead(at(3_600_750)));
    }
}
