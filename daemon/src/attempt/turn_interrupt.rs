//! Before its process is told to end, a coding agent is asked to end its turn, in the words of its own wire: then it can
//! close what it has open and say what it has used. That takes half of the grace at most, and nothing of what follows
//! comes later for it.

use super::{AttemptTask, EndCause};
use crate::clock::BootTime;
use crate::deadlines::DeadlineKind;

impl AttemptTask {
    /// Once, when it is decided that it ends.
    pub(super) fn interrupt_turn(&mut self) {
        let now = self.environment.clock.now();
        let Some(half) = self.kill_at.map(|kill_at| now.until(kill_at) / 2) else {
            return;
        };
        let can_hear = match &self.cause {
            Some(EndCause::Stopped) => self
                .control
                .orders()
                .stop
                .is_some_and(|stop| stop.may_interrupt_turn),
            // One that does not take its prompt takes nothing else.
            Some(EndCause::Deadline(kind)) => *kind != DeadlineKind::PromptWrite,
            Some(_) | None => false,
        };
        if can_hear && !half.is_zero() && self.transcript_reader.interrupt_turn(now) {
            self.interrupt_until = Some(now.after(half));
        }
    }

    /// Somebody wants it dead by a moment. What it was asked then has half of the time that is left.
    pub(super) fn kill_by(&mut self, wanted: BootTime) {
        if self.kill_at.is_some_and(|kill_at| kill_at <= wanted) {
            return;
        }
        self.kill_at = Some(wanted);
        let now = self.environment.clock.now();
        let half = now.after(now.until(wanted) / 2);
        self.interrupt_until = self.interrupt_until.map(|until| until.min(half));
    }

    /// It has still time to end by itself.
    pub(super) fn is_interrupting(&self) -> bool {
        let now = self.environment.clock.now();
        self.interrupt_until.is_some_and(|until| now < until)
    }

    /// A process that ended because its turn was ended did not end by itself: what was decided stands.
    pub(super) fn ended_by_interrupt(&self) -> bool {
        self.interrupt_until.is_some() && !self.transcript_reader.turn_ended_unprompted()
    }
}
