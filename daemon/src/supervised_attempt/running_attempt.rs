//! A running attempt as the supervisor sees it: the control handle of its task, how reachable its
//! shim is, and what still has to be stored before the task may go on.

use std::collections::VecDeque;

use baton_daemon_core::lease_clock::LeaseClock;

use crate::attempt::{
    AttemptControl, AttemptControlReceiver, EventProgress, InputResponse, LeaseDelivery,
    StopRequest,
};
use crate::clock::BootTime;
use crate::outbox::OUTPUT_LIMIT;

/// Unacknowledged output at which a child is paused, and at which it goes on.
const PAUSE_OUTPUT_ABOVE: usize = OUTPUT_LIMIT / 2;
const RESUME_OUTPUT_BELOW: usize = OUTPUT_LIMIT / 4;
/// Unacknowledged control frames at which a child is paused, connected or not: they are never
/// dropped.
pub(super) const UNACKED_CONTROL_MAX: usize = 8 * 1024 * 1024;
const UNACKED_CONTROL_RESUME: usize = UNACKED_CONTROL_MAX / 2;
/// Bytes waiting to be written to the disk at which a child is paused.
const UNWRITTEN_MAX: usize = 1024 * 1024;

/// Whether the attempt's shim can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShimReach {
    /// It is connected, or is being started.
    Linked,
    /// An earlier daemon started it and it does not answer. It may be alive, so its lease is not
    /// renewed.
    Unreachable,
    /// No process is left. The rest of the output is still being read, and the terminal frame
    /// follows.
    Ended,
}

/// The outbox's backlog of one attempt, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutboxBacklog {
    pub(super) unacked_output: usize,
    pub(super) unacked_control: usize,
    pub(super) unwritten: usize,
}

#[derive(Debug)]
pub(super) struct RunningAttemptState {
    control: AttemptControl,
    reach: ShimReach,
    /// The limit of the lease that the task began with.
    first_limit: Option<BootTime>,
    /// Too much is unacknowledged. The child goes on only when the backlog is far smaller.
    is_behind: bool,
    /// Answers that found no room; at most one for each open input.
    queued_answers: VecDeque<InputResponse>,
    /// Answers that are not stored yet: the serial of the entry that holds them, and the number of
    /// answers up to and including it.
    unstored_answers: VecDeque<(u64, u64)>,
    /// Transcript positions that are not stored yet, each with the position from which the shim
    /// must retain the transcript once more than that is stored.
    unstored_positions: VecDeque<(u64, u64)>,
}

impl RunningAttemptState {
    /// `position` is where the task begins to read the transcript.
    pub(super) fn new(
        lease: Option<LeaseClock>,
        reach: ShimReach,
        position: u64,
    ) -> (Self, AttemptControlReceiver) {
        let (control, receiver) = AttemptControl::new(lease, position);
        let running = Self {
            control,
            reach,
            first_limit: lease.map(|lease| lease.limit()),
            is_behind: false,
            queued_answers: VecDeque::new(),
            unstored_answers: VecDeque::new(),
            unstored_positions: VecDeque::new(),
        };
        (running, receiver)
    }

    pub(super) fn reach(&self) -> ShimReach {
        self.reach
    }

    pub(super) fn has_ended(&self) -> bool {
        self.reach == ShimReach::Ended
    }

    pub(super) fn is_linked(&self) -> bool {
        self.reach == ShimReach::Linked
    }

    /// No process is left; the rest of the output is still to come.
    pub(super) fn on_processes_gone(&mut self) {
        self.reach = ShimReach::Ended;
    }

    /// A shim that did not answer has been reached.
    pub(super) fn on_shim_reached(&mut self, lease: Option<LeaseClock>) {
        self.reach = ShimReach::Linked;
        if let Some(lease) = lease {
            self.renew(lease);
        }
    }

    pub(super) fn stop(&self, stop: StopRequest) {
        self.control.stop(stop);
    }

    pub(super) fn renew(&mut self, lease: LeaseClock) {
        self.control.renew(lease);
        self.flush_answers();
    }

    /// The agent has reported its outcome: it needs no further turn.
    pub(super) fn fix_outcome(&self) {
        self.control.fix_outcome();
    }

    /// A way to wait until the shim has this lease; `None` when it has it already.
    pub(super) fn pending_lease_delivery(&self, lease: LeaseClock) -> Option<LeaseDelivery> {
        self.control.pending_lease_delivery(lease)
    }

    /// The shim has not confirmed the current lease, and more than half of the one it has is over:
    /// it is stopped or hangs, and will end the child at the limit that it has.
    pub(super) fn is_unresponsive(&self, lease: LeaseClock, now: BootTime) -> bool {
        let limit = self.control.delivered_limit().or(self.first_limit);
        limit.is_some_and(|limit| limit < lease.limit() && now.until(limit) < lease.ttl() / 2)
    }

    /// Pauses the child while the relay or the disk cannot keep up. Without a stream the backlog
    /// could never shrink, so the child goes on and the outbox cuts its output. The output of an
    /// attempt that has ended stays on the disk until it can be sent, and control frames are never
    /// cut, so both wait also without a stream.
    pub(super) fn update_backpressure(&mut self, backlog: OutboxBacklog, connected: bool) {
        let (output_max, control_max) = if self.is_behind {
            (RESUME_OUTPUT_BELOW, UNACKED_CONTROL_RESUME)
        } else {
            (PAUSE_OUTPUT_ABOVE, UNACKED_CONTROL_MAX)
        };
        let waits_for_relay = connected || self.has_ended();
        self.is_behind = (waits_for_relay && backlog.unacked_output > output_max)
            || backlog.unacked_control > control_max;
        self.control
            .set_output_paused(self.is_behind || backlog.unwritten > UNWRITTEN_MAX);
    }

    /// An event that covers the transcript up to here has arrived: the task may read on.
    pub(super) fn on_progress(&mut self, progress: &EventProgress) {
        self.control.set_received_position(progress.position);
        self.flush_answers();
    }

    /// An answer to a request of the agent. The relay repeats it only after a reconnect, so an
    /// answer that finds no room is queued here.
    pub(super) fn deliver_answer(&mut self, answer: InputResponse) {
        let differs = |queued: &InputResponse| queued.input_id() != answer.input_id();
        if self.queued_answers.iter().all(differs) {
            self.queued_answers.push_back(answer);
        }
        self.flush_answers();
    }

    fn flush_answers(&mut self) {
        while let Some(answer) = self.queued_answers.pop_front() {
            if let Err(answer) = self.control.answer(answer) {
                self.queued_answers.push_front(answer);
                return;
            }
        }
    }

    /// The outbox entry `serial` holds the answers up to this count.
    pub(super) fn track_answers(&mut self, serial: u64, answers: u64) {
        self.unstored_answers.push_back((serial, answers));
    }

    /// Entries up to this serial survive the daemon: the answers in them may go to the agent.
    pub(super) fn on_written(&mut self, serial: u64) {
        while let Some((_, answers)) = self.unstored_answers.pop_front_if(|(at, _)| *at <= serial) {
            self.control.raise_stored_answers(answers);
        }
    }

    /// An entry with this progress is waiting to be written.
    pub(super) fn track_position(&mut self, progress: &EventProgress) {
        let latest = self.unstored_positions.back().copied();
        if latest.is_none_or(|(_, retain_from)| retain_from < progress.retain_from) {
            self.unstored_positions
                .push_back((progress.position, progress.retain_from));
        }
    }

    /// Everything up to this position is stored. The reader's state at the position itself may not
    /// be, so the transcript that ends right there is retained until more is stored.
    pub(super) fn on_stored(&mut self, position: u64) {
        while let Some((_, retain_from)) = self
            .unstored_positions
            .pop_front_if(|(at, _)| *at < position)
        {
            self.control.raise_consumed(retain_from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::ANSWER_QUEUE;

    fn progress(position: u64, retain_from: u64) -> EventProgress {
        EventProgress {
            position,
            retain_from,
            snapshot: None,
            answer_count: 0,
        }
    }

    #[test]
    fn a_shim_is_unresponsive_when_half_its_lease_passed_without_a_renewal() {
        let at = BootTime::from_millis;
        let ttl = std::time::Duration::from_secs(30);
        let first = LeaseClock::from_grant(at(0), ttl);
        let (running, receiver) = RunningAttemptState::new(Some(first), ShimReach::Linked, 0);
        // The relay has not renewed the lease, so the shim is not missing anything.
        assert!(!running.is_unresponsive(first, at(29_000)));
        let renewed = LeaseClock::from_grant(at(10_000), ttl);
        assert!(!running.is_unresponsive(renewed, at(15_000)));
        assert!(running.is_unresponsive(renewed, at(15_001)));
        receiver.confirm_lease(Some(renewed.limit()));
        assert!(!running.is_unresponsive(renewed, at(39_000)));
    }

    fn answer(number: usize) -> InputResponse {
        InputResponse::Answer(baton_proto::v1::QuestionAnswer {
            input_id: number.to_string(),
            ..Default::default()
        })
    }

    #[test]
    fn answers_without_room_are_queued_and_delivered_once() {
        let (mut running, mut receiver) = RunningAttemptState::new(None, ShimReach::Linked, 0);
        for number in (0..2 * ANSWER_QUEUE).chain(ANSWER_QUEUE..2 * ANSWER_QUEUE) {
            running.deliver_answer(answer(number));
        }
        let mut received = Vec::new();
        for _ in 0..3 {
            while let Some(answer) = receiver.try_next_answer() {
                received.push(answer.input_id().to_owned());
            }
            running.on_progress(&progress(1, 1));
        }
        let all: Vec<String> = (0..2 * ANSWER_QUEUE)
            .map(|number| number.to_string())
            .collect();
        assert_eq!(received, all);
    }

    #[test]
    fn the_shim_drops_only_the_transcript_before_a_stored_state() {
        let (mut running, receiver) = RunningAttemptState::new(None, ShimReach::Linked, 0);
        // Output, then stderr from 10 on that only the snapshot at 40 covers.
        for (position, retain_from) in [(10, 10), (20, 10), (30, 10), (40, 40), (50, 50)] {
            running.track_position(&progress(position, retain_from));
        }
        let consumed = |running: &mut RunningAttemptState, position| {
            running.on_stored(position);
            receiver.orders().consumed
        };
        assert_eq!(consumed(&mut running, 10), 0);
        assert_eq!(consumed(&mut running, 30), 10);
        assert_eq!(consumed(&mut running, 40), 10);
        assert_eq!(consumed(&mut running, 41), 40);
        assert_eq!(consumed(&mut running, 1_000), 50);
    }
}
