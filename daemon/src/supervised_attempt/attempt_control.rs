//! What the supervisor holds of a running attempt: the lines to its task, and what that task has said of its shim.

use std::collections::VecDeque;

use baton_daemon_core::lease_clock::LeaseClock;
use tokio::sync::{mpsc, watch};

use crate::attempt::{EventProgress, InputResponse, StopRequest};
use crate::clock::BootTime;

/// Answers of people that are on their way to the attempt's task at once.
const ANSWER_QUEUE: usize = 64;

/// How the attempt's shim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShimReach {
    /// It is there, or is being started.
    Linked,
    /// An earlier daemon started it, and it does not answer: it may be alive, and is not renewed.
    Unreachable,
    /// Nothing runs any more. The rest of the output is on its way, and then the last word.
    Ended,
}

pub(super) struct AttemptControl {
    stop: watch::Sender<Option<StopRequest>>,
    pause_output: watch::Sender<bool>,
    lease: watch::Sender<Option<LeaseClock>>,
    received_position: watch::Sender<u64>,
    consumed: watch::Sender<u64>,
    stored_answers: watch::Sender<u64>,
    outcome_fixed: watch::Sender<bool>,
    answers: mpsc::Sender<InputResponse>,
    /// Answers that found no room. One for each input that is open, at most.
    queued_answers: VecDeque<InputResponse>,
    lease_delivered: watch::Receiver<Option<BootTime>>,
    /// Of the lease that it began with here.
    first_limit: Option<BootTime>,
    /// Answers on their way to the disk: the entry that holds them, and how many they are with it.
    unstored_answers: VecDeque<(u64, u64)>,
    pub(super) reach: ShimReach,
    /// The relay has not acknowledged half of what is kept, and must come far below that before the child goes on.
    pub(super) is_behind: bool,
    /// Positions that are not stored yet, each with what the shim may forget when more than it is.
    unstored_positions: VecDeque<(u64, u64)>,
}

/// The other ends, for the attempt's task.
#[derive(Debug)]
pub(crate) struct AttemptControlReceivers {
    pub(crate) stop: watch::Receiver<Option<StopRequest>>,
    pub(crate) pause_output: watch::Receiver<bool>,
    pub(crate) lease: watch::Receiver<Option<LeaseClock>>,
    pub(crate) received_position: watch::Receiver<u64>,
    pub(crate) consumed: watch::Receiver<u64>,
    pub(crate) stored_answers: watch::Receiver<u64>,
    pub(crate) outcome_fixed: watch::Receiver<bool>,
    pub(crate) answers: mpsc::Receiver<InputResponse>,
    pub(crate) lease_delivered: watch::Sender<Option<BootTime>>,
}

/// A lease on its way to a shim.
pub(crate) struct LeaseDelivery {
    delivered: watch::Receiver<Option<BootTime>>,
    limit: BootTime,
}

impl LeaseDelivery {
    /// Completes when the shim has it. An attempt whose task is over never does: its end is an event of its own.
    pub(crate) async fn completed(mut self) {
        let limit = Some(self.limit);
        let told = self.delivered.wait_for(|told| *told >= limit).await.is_ok();
        if !told {
            std::future::pending().await
        }
    }
}

impl AttemptControl {
    /// `position` is where the fold begins.
    pub(super) fn new(
        lease: Option<LeaseClock>,
        reach: ShimReach,
        position: u64,
    ) -> (Self, AttemptControlReceivers) {
        let (stop, stop_bit) = watch::channel(None);
        let (hold_back, hold_back_bit) = watch::channel(false);
        let first_limit = lease.map(|lease| lease.limit());
        let (lease, lease_bit) = watch::channel(lease);
        let (heard, heard_bit) = watch::channel(position);
        let (consumed, consumed_bit) = watch::channel(0);
        let (answered, answered_bit) = watch::channel(0);
        let (fixed, fixed_bit) = watch::channel(false);
        let (words, words_bit) = mpsc::channel(ANSWER_QUEUE);
        let (told_bit, told) = watch::channel(None);
        let reins = Self {
            stop,
            pause_output: hold_back,
            lease,
            received_position: heard,
            consumed,
            stored_answers: answered,
            outcome_fixed: fixed,
            answers: words,
            queued_answers: VecDeque::new(),
            lease_delivered: told,
            first_limit,
            unstored_answers: VecDeque::new(),
            reach,
            is_behind: false,
            unstored_positions: VecDeque::new(),
        };
        let bits = AttemptControlReceivers {
            stop: stop_bit,
            pause_output: hold_back_bit,
            lease: lease_bit,
            received_position: heard_bit,
            consumed: consumed_bit,
            stored_answers: answered_bit,
            outcome_fixed: fixed_bit,
            answers: words_bit,
            lease_delivered: told_bit,
        };
        (reins, bits)
    }

    /// A later order can only bring KILL forward.
    pub(super) fn order_stop(&self, stop: StopRequest) {
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
        self.flush_answers();
    }

    /// To wait until the shim has this lease, while it has not.
    pub(super) fn pending_lease_delivery(&self, lease: LeaseClock) -> Option<LeaseDelivery> {
        let has_it = *self.lease_delivered.borrow() >= Some(lease.limit());
        (!has_it).then(|| LeaseDelivery {
            delivered: self.lease_delivered.clone(),
            limit: lease.limit(),
        })
    }

    /// The shim has not read the lease as it stands, and what it has is more than half over: it is stopped or hangs, and
    /// will end the child at the limit that it knows.
    pub(super) fn is_unresponsive(&self, lease: LeaseClock, now: BootTime) -> bool {
        let told = *self.lease_delivered.borrow();
        let limit = told.or(self.first_limit);
        limit.is_some_and(|limit| limit < lease.limit() && now.until(limit) < lease.ttl() / 2)
    }

    pub(super) fn set_output_paused(&self, wanted: bool) {
        self.pause_output
            .send_if_modified(|held| std::mem::replace(held, wanted) != wanted);
    }

    /// An event that consumed the transcript so far has come: the task may read on.
    pub(super) fn on_progress(&mut self, progress: &EventProgress) {
        self.received_position.send_replace(progress.position);
        self.flush_answers();
    }

    /// What somebody says to what the agent asked. The relay says it again after a reconnect only, so without room it waits.
    pub(super) fn deliver_answer(&mut self, word: InputResponse) {
        let is_new = |waiting: &InputResponse| waiting.input_id() != word.input_id();
        if self.queued_answers.iter().all(is_new) {
            self.queued_answers.push_back(word);
        }
        self.flush_answers();
    }

    fn flush_answers(&mut self) {
        while let Ok(room) = self.answers.try_reserve() {
            let Some(word) = self.queued_answers.pop_front() else {
                return;
            };
            room.send(word);
        }
    }

    /// The agent has said how it ends: it needs no further turn.
    pub(super) fn fix_outcome(&self) {
        self.outcome_fixed.send_replace(true);
    }

    /// The entry `serial` holds so many answers.
    pub(super) fn track_answers(&mut self, serial: u64, answers: u64) {
        self.unstored_answers.push_back((serial, answers));
    }

    /// Entries up to this one survive the daemon: what they hold may go to the agent.
    pub(super) fn on_written(&mut self, serial: u64) {
        while let Some((_, answers)) = self.unstored_answers.pop_front_if(|(at, _)| *at <= serial) {
            self.stored_answers.send_if_modified(|stored| {
                let more = answers > *stored;
                *stored = answers.max(*stored);
                more
            });
        }
    }

    /// It is on its way to the disk.
    pub(super) fn track_position(&mut self, progress: &EventProgress) {
        let step = (progress.position, progress.retain_from);
        let latest = self.unstored_positions.back().copied();
        if latest.is_none_or(|(_, keep_from)| keep_from < progress.retain_from) {
            self.unstored_positions.push_back(step);
        }
    }

    /// Everything up to this position is stored. Of the position itself the state may not be, so what ends right
    /// there is kept until more is stored.
    pub(super) fn on_stored(&mut self, position: u64) {
        let mut forget = None;
        while let Some((_, keep_from)) = self
            .unstored_positions
            .pop_front_if(|(at, _)| *at < position)
        {
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

    fn progress(position: u64, keep_from: u64) -> EventProgress {
        EventProgress {
            position,
            retain_from: keep_from,
            snapshot: None,
            answer_count: 0,
        }
    }

    #[test]
    fn a_shim_is_unresponsive_when_half_its_lease_passed_without_a_renewal() {
        let at = BootTime::from_millis;
        let ttl = std::time::Duration::from_secs(30);
        let first = LeaseClock::from_grant(at(0), ttl);
        let (reins, bits) = AttemptControl::new(Some(first), ShimReach::Linked, 0);
        // No renewal was granted: that is the relay's silence and not the shim's.
        assert!(!reins.is_unresponsive(first, at(29_000)));
        let renewed = LeaseClock::from_grant(at(10_000), ttl);
        assert!(!reins.is_unresponsive(renewed, at(15_000)));
        assert!(reins.is_unresponsive(renewed, at(15_001)));
        bits.lease_delivered.send_replace(Some(renewed.limit()));
        assert!(!reins.is_unresponsive(renewed, at(39_000)));
    }

    fn answer(number: usize) -> InputResponse {
        InputResponse::Answer(baton_proto::v1::QuestionAnswer {
            input_id: number.to_string(),
            ..Default::default()
        })
    }

    #[test]
    fn answers_without_room_are_queued_and_delivered_once() {
        let (mut reins, mut bits) = AttemptControl::new(None, ShimReach::Linked, 0);
        for number in (0..2 * ANSWER_QUEUE).chain(ANSWER_QUEUE..2 * ANSWER_QUEUE) {
            reins.deliver_answer(answer(number));
        }
        let mut told = Vec::new();
        for _ in 0..3 {
            while let Ok(word) = bits.answers.try_recv() {
                told.push(word.input_id().to_owned());
            }
            reins.on_progress(&progress(1, 1));
        }
        let all: Vec<String> = (0..2 * ANSWER_QUEUE)
            .map(|number| number.to_string())
            .collect();
        assert_eq!(told, all);
    }

    #[test]
    fn the_shim_drops_only_the_transcript_before_a_stored_state() {
        let (mut reins, bits) = AttemptControl::new(None, ShimReach::Linked, 0);
        // Output, then stderr from 10 on that only the snapshot at 40 covers.
        for (position, keep_from) in [(10, 10), (20, 10), (30, 10), (40, 40), (50, 50)] {
            reins.track_position(&progress(position, keep_from));
        }
        let consumed = |reins: &mut AttemptControl, position| {
            reins.on_stored(position);
            *bits.consumed.borrow()
        };
        assert_eq!(consumed(&mut reins, 10), 0);
        assert_eq!(consumed(&mut reins, 30), 10);
        assert_eq!(consumed(&mut reins, 40), 10);
        assert_eq!(consumed(&mut reins, 41), 40);
        assert_eq!(consumed(&mut reins, 1_000), 50);
    }
}
