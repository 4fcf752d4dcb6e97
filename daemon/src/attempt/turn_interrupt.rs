//! Before its process is signaled, a coding agent is asked through its own protocol to end its
//! turn, so that it can finish open work and report its usage. That takes at most half of the
//! grace and does not delay what follows.

use super::{AttemptTask, EndCause};
use crate::clock::BootTime;
use crate::deadlines::DeadlineKind;

impl AttemptTask {
    /// Called once, when the end is decided.
    pub(super) fn interrupt_turn(&mut self) {
        let now = self.environment.clock.now();
        let Some(half) = self.kill_at.map(|kill_at| now.until(kill_at) / 2) else {
            return;
        };
        let can_interrupt = match &self.cause {
            Some(EndCause::Stopped) => self
                .control
                .orders()
                .stop
                .is_some_and(|stop| stop.may_interrupt_turn),
            // An agent that does not read its prompt does not read an interrupt either.
            Some(EndCause::Deadline(kind)) => *kind != DeadlineKind::PromptWrite,
            Some(_) | None => false,
        };
        if can_interrupt && !half.is_zero() && self.transcript_reader.interrupt_turn(now) {
            self.interrupt_until = Some(now.after(half));
        }
    }

    /// Brings SIGKILL forward. A running interrupt then has half of the time that is left.
    pub(super) fn kill_by(&mut self, kill_by: BootTime) {
        if self.kill_at.is_some_and(|kill_at| kill_at <= kill_by) {
            return;
        }
        self.kill_at = Some(kill_by);
        let now = self.environment.clock.now();
        let half = now.after(now.until(kill_by) / 2);
        self.interrupt_until = self.interrupt_until.map(|until| until.min(half));
    }

    /// Whether the agent still has time to end its turn by itself.
    pub(super) fn is_interrupting(&self) -> bool {
        let now = self.environment.clock.now();
        self.interrupt_until.is_some_and(|until| now < until)
    }

    /// Whether the process exited because its turn was interrupted: then the cause that was
    /// decided before counts, and not the exit.
    pub(super) fn ended_by_interrupt(&self) -> bool {
        self.interrupt_until.is_some() && !self.transcript_reader.turn_ended_unprompted()
    }
}
