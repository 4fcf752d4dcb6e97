//! What the attempt's task tells becomes frames, and what stands between it and the relay holds it back.

use baton_proto::v1::TurnKind;

use super::{Held, Reach, Stage, StopWhy};
use crate::attempt::{AttemptEvent, Word};
use crate::clock::{Clock, Moment};
use crate::frames::{self, PhaseReport};
use crate::outbox::{CutWhy, OUTPUT_LIMIT};
use crate::phases::OncePhase;
use crate::timers::DeadlineKind;

/// Unacknowledged output at which a connected child is held back, and at which it goes on.
const HOLD_BACK_ABOVE: usize = OUTPUT_LIMIT / 2;
const GO_ON_BELOW: usize = OUTPUT_LIMIT / 4;
/// Bytes on their way to the disk at which a child is held back.
const UNWRITTEN_MOST: usize = 1024 * 1024;

impl Held {
    pub(crate) fn on_event(&mut self, event: AttemptEvent, clock: &Clock) {
        let fenced = self.stopping == Some(StopWhy::Fenced);
        if let (Stage::Running(reins), Some(progress)) = (&self.stage, event.progress()) {
            reins.hear(progress);
        }
        match event {
            AttemptEvent::Ended(ending) => self.on_ended(&ending, clock),
            AttemptEvent::Reached { .. } => self.on_reached(event),
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
                match frames::said(said) {
                    Ok(body) => self.say(body, clock),
                    Err(length) => {
                        self.outbox
                            .push_cut(length, CutWhy::LineTooLong, clock.wall());
                    }
                }
                self.note_answers(answers);
            }
            AttemptEvent::Missed { length, progress } => {
                self.advance(progress);
                let (length, why) = match length {
                    Some(length) => (length, CutWhy::WorkerCrash),
                    None => (1, CutWhy::RecorderLost),
                };
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
    pub(crate) fn hear_word(&self, word: Word) {
        if let Stage::Running(reins) = &self.stage {
            reins.pass_on(word);
        }
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
    /// so the child runs on and the outbox cuts; but what has ended stays on the disk until it can be told.
    pub(crate) fn balance(&mut self, connected: bool) {
        let (unacked, unwritten) = (self.outbox.held(), self.outbox.log().unwritten());
        let Stage::Running(reins) = &mut self.stage else {
            return;
        };
        let limit = if reins.is_behind {
            GO_ON_BELOW
        } else {
            HOLD_BACK_ABOVE
        };
        reins.is_behind = (connected || reins.reach == Reach::Over) && unacked > limit;
        reins.hold_back(reins.is_behind || unwritten > UNWRITTEN_MOST);
    }
}
