//! What the supervisor holds of a running attempt: the lines to its task, and what that task has said of its shim.

use std::collections::VecDeque;

use baton_daemon_core::lease::LeaseClock;
use tokio::sync::{mpsc, watch};

use crate::attempt::{Progress, Stop, Word};
use crate::clock::Moment;

/// Answers of people that are on their way to the attempt's task at once.
const WORDS: usize = 64;

/// How the attempt's shim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is there, or is being started.
    Linked,
    /// An earlier daemon started it, and it does not answer: it may be alive, and is not renewed.
    Unreachable,
    /// Nothing runs any more. The rest of the output is on its way, and then the last word.
    Over,
}

pub(super) struct Reins {
    stop: watch::Sender<Option<Stop>>,
    hold_back: watch::Sender<bool>,
    lease: watch::Sender<Option<LeaseClock>>,
    heard: watch::Sender<u64>,
    consumed: watch::Sender<u64>,
    answered: watch::Sender<u64>,
    fixed: watch::Sender<bool>,
    words: mpsc::Sender<Word>,
    /// Answers that found no room. One for each input that is open, at most.
    waiting_words: VecDeque<Word>,
    told: watch::Receiver<Option<Moment>>,
    /// Of the lease that it began with here.
    first_limit: Option<Moment>,
    /// Answers on their way to the disk: the entry that holds them, and how many they are with it.
    unstored_answers: VecDeque<(u64, u64)>,
    pub(super) reach: Reach,
    /// The relay has not acknowledged half of what is kept, and must come far below that before the child goes on.
    pub(super) is_behind: bool,
    /// Positions that are not stored yet, each with what the shim may forget when more than it is.
    unstored: VecDeque<(u64, u64)>,
}

/// The other ends, for the attempt's task.
#[derive(Debug)]
pub(crate) struct Bits {
    pub(crate) stop: watch::Receiver<Option<Stop>>,
    pub(crate) hold_back: watch::Receiver<bool>,
    pub(crate) lease: watch::Receiver<Option<LeaseClock>>,
    pub(crate) heard: watch::Receiver<u64>,
    pub(crate) consumed: watch::Receiver<u64>,
    pub(crate) answered: watch::Receiver<u64>,
    pub(crate) fixed: watch::Receiver<bool>,
    pub(crate) words: mpsc::Receiver<Word>,
    pub(crate) told: watch::Sender<Option<Moment>>,
}

/// A lease on its way to a shim.
pub(crate) struct Telling {
    told: watch::Receiver<Option<Moment>>,
    limit: Moment,
}

impl Telling {
    /// Completes when the shim has it. An attempt whose task is over never does: its end is an event of its own.
    pub(crate) async fn done(mut self) {
        let limit = Some(self.limit);
        let told = self.told.wait_for(|told| *told >= limit).await.is_ok();
        if !told {
            std::future::pending().await
        }
    }
}

impl Reins {
    /// `position` is where the fold begins.
    pub(super) fn new(lease: Option<LeaseClock>, reach: Reach, position: u64) -> (Self, Bits) {
        let (stop, stop_bit) = watch::channel(None);
        let (hold_back, hold_back_bit) = watch::channel(false);
        let first_limit = lease.map(|lease| lease.limit());
        let (lease, lease_bit) = watch::channel(lease);
        let (heard, heard_bit) = watch::channel(position);
        let (consumed, consumed_bit) = watch::channel(0);
        let (answered, answered_bit) = watch::channel(0);
        let (fixed, fixed_bit) = watch::channel(false);
        let (words, words_bit) = mpsc::channel(WORDS);
        let (told_bit, told) = watch::channel(None);
        let reins = Self {
            stop,
            hold_back,
            lease,
            heard,
            consumed,
            answered,
            fixed,
            words,
            waiting_words: VecDeque::new(),
            told,
            first_limit,
            unstored_answers: VecDeque::new(),
            reach,
            is_behind: false,
            unstored: VecDeque::new(),
        };
        let bits = Bits {
            stop: stop_bit,
            hold_back: hold_back_bit,
            lease: lease_bit,
            heard: heard_bit,
            consumed: consumed_bit,
            answered: answered_bit,
            fixed: fixed_bit,
            words: words_bit,
            told: told_bit,
        };
        (reins, bits)
    }

    /// A later order can only bring KILL forward.
    pub(super) fn order_stop(&self, stop: Stop) {
        self.stop.send_if_modified(|order| {
            let sooner = order.is_none_or(|order| stop.kill_at < order.kill_at);
            if sooner {
                *order = Some(stop);
            }
            sooner
        });
    }

    pub(super) fn renew(&mut self, lease: LeaseClock) {
        self.lease.send_replace(Some(lease));
        self.pass_words_on();
    }

    /// To wait until the shim has this lease, while it has not.
    pub(super) fn telling(&self, lease: LeaseClock) -> Option<Telling> {
        let has_it = *self.told.borrow() >= Some(lease.limit());
        (!has_it).then(|| Telling {
            told: self.told.clone(),
            limit: lease.limit(),
        })
    }

    /// The shim has not read the lease as it stands, and what it has is more than half over: it is stopped or hangs, and
    /// will end the child at the limit that it knows.
    pub(super) fn is_deaf(&self, lease: LeaseClock, now: Moment) -> bool {
        let told = *self.told.borrow();
        let limit = told.or(self.first_limit);
        limit.is_some_and(|limit| limit < lease.limit() && now.until(limit) < lease.ttl() / 2)
    }

    pub(super) fn hold_back(&self, wanted: bool) {
        self.hold_back
            .send_if_modified(|held| std::mem::replace(held, wanted) != wanted);
    }

    /// An event that consumed the transcript so far has come: the task may read on.
    pub(super) fn hear(&mut self, progress: &Progress) {
        self.heard.send_replace(progress.position);
        self.pass_words_on();
    }

    /// What somebody says to what the agent asked. The relay says it again after a reconnect only, so without room it waits.
    pub(super) fn pass_on(&mut self, word: Word) {
        let is_new = |waiting: &Word| waiting.input_id() != word.input_id();
        if self.waiting_words.iter().all(is_new) {
            self.waiting_words.push_back(word);
        }
        self.pass_words_on();
    }

    fn pass_words_on(&mut self) {
        while let Ok(room) = self.words.try_reserve() {
            let Some(word) = self.waiting_words.pop_front() else {
                return;
            };
            room.send(word);
        }
    }

    /// The agent has said how it ends: it needs no further turn.
    pub(super) fn fix(&self) {
        self.fixed.send_replace(true);
    }

    /// The entry `serial` holds so many answers.
    pub(super) fn answers_in(&mut self, serial: u64, answers: u64) {
        self.unstored_answers.push_back((serial, answers));
    }

    /// Entries up to this one survive the daemon: what they hold may go to the agent.
    pub(super) fn written(&mut self, serial: u64) {
        while let Some((_, answers)) = self.unstored_answers.pop_front_if(|(at, _)| *at <= serial) {
            self.answered.send_if_modified(|stored| {
                let more = answers > *stored;
                *stored = answers.max(*stored);
                more
            });
        }
    }

    /// It is on its way to the disk.
    pub(super) fn advance(&mut self, progress: &Progress) {
        let step = (progress.position, progress.keep_from);
        let latest = self.unstored.back().copied();
        if latest.is_none_or(|(_, keep_from)| keep_from < progress.keep_from) {
            self.unstored.push_back(step);
        }
    }

    /// Everything up to this position is stored. Of the position itself the state may not be, so what ends right
    /// there is kept until more is stored.
    pub(super) fn stored(&mut self, position: u64) {
        let mut forget = None;
        while let Some((_, keep_from)) = self.unstored.pop_front_if(|(at, _)| *at < position) {
            forget = Some(keep_from);
        }
        if let Some(keep_from) = forget {
            self.consumed.send_if_modified(|consumed| {
                let more = keep_from > *consumed;
                *consumed = keep_from.max(*consumed);
                more
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(position: u64, keep_from: u64) -> Progress {
        Progress {
            position,
            keep_from,
            snapshot: None,
            answers: 0,
        }
    }

    #[test]
    fn a_shim_is_deaf_when_it_lacks_a_renewal_and_half_of_what_it_has_is_over() {
        let at = Moment::from_millis;
        let ttl = std::time::Duration::from_secs(30);
        let first = LeaseClock::granted(at(0), ttl);
        let (reins, bits) = Reins::new(Some(first), Reach::Linked, 0);
        // No renewal was granted: that is the relay's silence and not the shim's.
        assert!(!reins.is_deaf(first, at(29_000)));
        let renewed = LeaseClock::granted(at(10_000), ttl);
        assert!(!reins.is_deaf(renewed, at(15_000)));
        assert!(reins.is_deaf(renewed, at(15_001)));
        bits.told.send_replace(Some(renewed.limit()));
        assert!(!reins.is_deaf(renewed, at(39_000)));
    }

    fn answer(number: usize) -> Word {
        Word::Answer(baton_proto::v1::QuestionAnswer {
            input_id: number.to_string(),
            ..Default::default()
        })
    }

    #[test]
    fn answers_that_find_no_room_wait_and_are_told_once() {
        let (mut reins, mut bits) = Reins::new(None, Reach::Linked, 0);
        for number in (0..2 * WORDS).chain(WORDS..2 * WORDS) {
            reins.pass_on(answer(number));
        }
        let mut told = Vec::new();
        for _ in 0..3 {
            while let Ok(word) = bits.words.try_recv() {
                told.push(word.input_id().to_owned());
            }
            reins.hear(&progress(1, 1));
        }
        let all: Vec<String> = (0..2 * WORDS).map(|number| number.to_string()).collect();
        assert_eq!(told, all);
    }

    #[test]
    fn the_shim_forgets_only_what_lies_before_a_stored_state() {
        let (mut reins, bits) = Reins::new(None, Reach::Linked, 0);
        // Output, then stderr from 10 on that only the snapshot at 40 covers.
        for (position, keep_from) in [(10, 10), (20, 10), (30, 10), (40, 40), (50, 50)] {
            reins.advance(&progress(position, keep_from));
        }
        let consumed = |reins: &mut Reins, position| {
            reins.stored(position);
            *bits.consumed.borrow()
        };
        assert_eq!(consumed(&mut reins, 10), 0);
        assert_eq!(consumed(&mut reins, 30), 10);
        assert_eq!(consumed(&mut reins, 40), 10);
        assert_eq!(consumed(&mut reins, 41), 40);
        assert_eq!(consumed(&mut reins, 1_000), 50);
    }
}
