//! When the next heartbeat is due, which ones are unanswered, and since when a stream counts as dead.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Moment;

/// What the second unanswered heartbeat gets for its answer, when heartbeats are further apart than that. The relay is
/// given up within two heartbeats and a second of its last word, however long a heartbeat is.
const LAST_ANSWER: Duration = Duration::from_millis(750);
/// However short a lease is, heartbeats come no closer together.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Which heartbeats are out.
#[derive(Debug)]
pub struct Heartbeats {
    interval: Duration,
    last_seq: u64,
    /// The newest one whose answer came; the relay learns from it that this daemon hears.
    heard_seq: u64,
    unanswered: VecDeque<(u64, Moment)>,
    next_at: Moment,
}

impl Heartbeats {
    pub fn new(interval: Duration, now: Moment) -> Self {
        let interval = interval.max(SHORTEST_INTERVAL);
        Self {
            interval,
            last_seq: 0,
            heard_seq: 0,
            unanswered: VecDeque::new(),
            next_at: now,
        }
    }

    /// When there is something to do: one is to be sent, or the stream is dead. A short lease brings the next one
    /// forward: a third of its ttl at most.
    pub fn due_at(&self) -> Moment {
        self.dead_at()
            .map_or(self.next_at, |dead| dead.min(self.next_at))
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    pub fn heard_seq(&self) -> u64 {
        self.heard_seq
    }

    /// The relay follows the shortest lease that is held.
    pub fn set_interval(&mut self, interval: Duration, now: Moment) {
        self.interval = interval.max(SHORTEST_INTERVAL);
        self.next_at = self.next_at.min(now.after(self.interval));
    }

    /// A lease of this length is held now.
    pub fn keep_alive(&mut self, ttl: Duration, now: Moment) {
        let interval = (ttl / 3).max(SHORTEST_INTERVAL);
        self.next_at = self.next_at.min(now.after(interval));
    }

    /// Two are out and neither was answered in its time: nobody is listening.
    pub fn is_dead(&self, now: Moment) -> bool {
        self.dead_at().is_some_and(|at| at <= now) && !mutant!(DeadStreamKept)
    }

    /// The second one gets its time from when it was due, so that one sent earlier shortens nobody's, and from when it was
    /// sent, so that a machine that slept may hear an answer.
    fn dead_at(&self) -> Option<Moment> {
        let (_, oldest) = self.unanswered.front()?;
        let (_, second) = self.unanswered.get(1)?;
        let from = oldest.after(self.interval).max(*second);
        Some(from.after(self.interval.min(LAST_ANSWER)))
    }

    /// Numbers the heartbeat that is sent now.
    pub fn sent(&mut self, now: Moment) -> u64 {
        self.last_seq += 1;
        self.unanswered.push_back((self.last_seq, now));
        self.next_at = now.after(self.interval);
        self.last_seq
    }

    /// When the heartbeat was sent that is answered here; later ones stay out.
    pub fn answered(&mut self, seq: u64) -> Option<Moment> {
        let at = self.unanswered.iter().position(|(sent, _)| *sent == seq)?;
        let at = match mutant!(LeaseFromNewestBeat) {
            true => self.unanswered.len() - 1,
            false => at,
        };
        self.heard_seq = seq;
        self.unanswered
            .drain(..=at)
            .next_back()
            .map(|(_, sent_at)| sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn two_unanswered_heartbeats_mean_a_dead_stream_and_an_answer_revives_it() {
        let mut beats = Heartbeats::new(Duration::from_secs(5), at(0));
        assert_eq!(beats.due_at(), at(0));
        assert_eq!((beats.sent(at(0)), beats.due_at()), (1, at(5_000)));
        beats.keep_alive(Duration::from_secs(6), at(1_000));
        assert_eq!(beats.due_at(), at(2_000 + 1_000));
        beats.sent(at(3_000));
        assert_eq!(
            beats.due_at(),
            at(5_750),
            "two are out; the first is overdue"
        );
        assert!(!beats.is_dead(at(5_749)) && beats.is_dead(at(5_750)));
        assert_eq!(beats.answered(2), Some(at(3_000)));
        assert!(!beats.is_dead(at(60_000)));
        assert_eq!((beats.answered(1), beats.answered(9)), (None, None));
        assert_eq!(beats.heard_seq(), 2);
    }

    #[test]
    fn a_wire_that_drops_everything_is_found_within_two_heartbeats_and_a_second() {
        for interval in [100, 1_666, 5_000] {
            let every = Duration::from_millis(interval);
            let mut beats = Heartbeats::new(every, at(0));
            beats.sent(at(0));
            beats.answered(1);
            // From here on nothing arrives; whatever falls due is sent.
            let mut now = beats.due_at();
            let mut sent = 0;
            while !beats.is_dead(now) {
                beats.sent(now);
                sent += 1;
                now = beats.due_at();
            }
            assert_eq!(sent, 2, "{interval}");
            assert!(now <= at(2 * interval + 1_000), "{interval}: {now:?}");
        }
    }

    #[test]
    fn neither_one_more_heartbeat_nor_a_suspend_makes_a_stream_dead_before_an_answer_could_come() {
        let mut beats = Heartbeats::new(Duration::from_secs(5), at(0));
        beats.sent(at(0));
        beats.sent(at(1));
        assert!(!beats.is_dead(at(5_749)) && beats.is_dead(at(5_750)));
        beats.answered(2);
        beats.sent(at(6_000));
        assert_eq!(beats.due_at(), at(11_000));
        // The machine slept for an hour.
        beats.sent(at(3_600_000));
        assert!(!beats.is_dead(at(3_600_749)) && beats.is_dead(at(3_600_750)));
    }
}
