//! What the attempt's task tells becomes frames, and what stands between it and the relay holds it back.

use baton_proto::v1::TurnKind;

use super::{Held, Reach, Stage, StopWhy};
use crate::attempt::{AttemptEvent, Word};
use crate::clock::{Clock, Moment};
use crate::frames::{self, PhaseReport};
use crate::outbox::OUTPUT_LIMIT;
use crate::phases::OncePhase;
use crate::timers::DeadlineKind;

/// Unacknowledged output at which a connected child is held back, and at which it goes on.
const HOLD_BACK_ABOVE: usize = OUTPUT_LIMIT / 2;
const GO_ON_BELOW: usize = OUTPUT_LIMIT / 4;
/// Unacknowledged control frames at which a child is held back, connected or not: they are never dropped.
const UNTOLD_MOST: usize = 8 * 1024 * 1024;
const UNTOLD_AGAIN: usize = UNTOLD_MOST / 2;
/// Bytes on their way to the disk at which a child is held back.
const UNWRITTEN_MOST: usize = 1024 * 1024;

impl Held {
    pub(crate) fn on_event(&mut self, event: AttemptEvent, clock: &Clock) {
        let fenced = self.stopping == Some(StopWhy::Fenced);
        if let (Stage::Running(reins), Some(progress)) = (&mut self.stage, event.progress()) {
            reins.hear(progress);
        }
        match event {
            AttemptEvent::Ended(ending) => self.on_ended(&ending, clock),
            AttemptEvent::Reached { token, lease } => self.on_reached(token, lease),
            AttemptEvent::Placed(report) => self.workspace = Some(*report),
            AttemptEvent::Over => {
                if let Stage::Running(reins) = &mut self.stage {
                    reins.reach = Reach::Over;
                }
            }
            // Nobody wants to hear it.
            AttemptEvent::Entered { .. }
            | AttemptEvent::Output { .. }
            | AttemptEvent::Said { .. }
            | AttemptEvent::Missed { .. }
            | AttemptEvent::Waits { .. }
            | AttemptEvent::Read { .. }
                if fenced => {}
            AttemptEvent::Waits { message } => self.say(frames::waits(message), clock),
            AttemptEvent::Output { chunk, progress } => {
                let answers = progress.answers;
                self.advance(progress);
                let mut label = chunk.label;
                // What is done behind the scenes is nothing for users to read.
                label.visible &= self.attempt.turn_kind() != TurnKind::Control;
                self.outbox.push_output(label, chunk.bytes, clock.wall());
                self.note_answers(answers);
            }
            AttemptEvent::Said { said, progress } => {
                let answers = progress.answers;
                self.advance(progress);
                self.say(frames::said(said), clock);
                self.note_answers(answers);
            }
            AttemptEvent::Missed {
                length,
                why,
                progress,
            } => {
                self.advance(progress);
                self.outbox.push_cut(length, why, clock.wall());
            }
            AttemptEvent::Read { progress } => {
                let answers = progress.answers;
                self.advance(progress);
                self.outbox.store_progress();
                self.note_answers(answers);
            }
            AttemptEvent::Entered {
                phase,
                pid,
                next_deadline,
                passed,
                progress,
            } => {
                let answers = progress.answers;
                self.advance(progress);
                self.enter(phase, pid, (next_deadline, passed), clock);
                self.note_answers(answers);
            }
        }
    }

    /// What was just said holds answers of people, or what was found for the agent; they go to it when that is stored.
    fn note_answers(&mut self, answers: u64) {
        if answers == 0 {
            return;
        }
        let serial = self.outbox.log().last_serial();
        if let Stage::Running(reins) = &mut self.stage {
            reins.answers_in(serial, answers);
            reins.written(self.outbox.log().written_through());
        }
    }

    /// What somebody says to what the agent asked.
    pub(crate) fn hear_word(&mut self, word: Word) {
        if let Stage::Running(reins) = &mut self.stage {
            reins.pass_on(word);
        }
    }

    /// Whether its agent may say more through its tools.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.untold() <= UNTOLD_MOST
    }

    fn enter(
        &mut self,
        phase: OncePhase,
        pid: Option<i32>,
        (next_deadline, passed): (Option<Moment>, Option<DeadlineKind>),
        clock: &Clock,
    ) {
        let (now, wall) = (clock.now(), clock.wall());
        let started_at = *self.started_at.get_or_insert(now);
        self.phase = frames::wire_phase(phase);
        let report = PhaseReport {
            phase,
            pid,
            deadline_at: next_deadline.map(|at| wall + now.until(at)),
            elapsed: started_at.until(now),
            wall,
            workspace: self.workspace.clone(),
            deadline: passed,
        };
        self.say(frames::phase(report), clock);
    }

    /// Holds the child back while the relay or the disk cannot keep up. Without a stream nobody could ever catch up,
    /// so the child runs on and the outbox cuts its output; but what has ended stays on the disk until it can be told, and so
    /// does what is no output.
    pub(crate) fn balance(&mut self, connected: bool) {
        let (unacked, unwritten) = (self.outbox.held(), self.outbox.log().unwritten());
        let untold = self.outbox.untold();
        let Stage::Running(reins) = &mut self.stage else {
            return;
        };
        let (most, most_untold) = if reins.is_behind {
            (GO_ON_BELOW, UNTOLD_AGAIN)
        } else {
            (HOLD_BACK_ABOVE, UNTOLD_MOST)
        };
        let waits_for_relay = connected || reins.reach == Reach::Over;
        reins.is_behind = (waits_for_relay && unacked > most) || untold > most_untold;
        reins.hold_back(reins.is_behind || unwritten > UNWRITTEN_MOST);
    }
}
