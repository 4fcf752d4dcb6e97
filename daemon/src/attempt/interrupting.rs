//! Before its process is told to end, a coding agent is asked to end its turn, in the words of its own wire: then it can
//! close what it has open and say what it has used. That takes half of the grace at most, and nothing of what follows
//! comes later for it.

use super::{Attempt, Cause};
use crate::clock::Moment;
use crate::timers::DeadlineKind;

impl Attempt {
    /// Once, when it is decided that it ends.
    pub(super) fn ask_to_end(&mut self) {
        let now = self.workshop.clock.now();
        let Some(half) = self.kill_at.map(|kill_at| now.until(kill_at) / 2) else {
            return;
        };
        let can_hear = match &self.cause {
            Some(Cause::Stopped) => self.lines.stop.borrow().is_some_and(|stop| stop.may_ask),
            // One that does not take its prompt takes nothing else.
            Some(Cause::Deadline(kind)) => *kind != DeadlineKind::PromptWrite,
            Some(_) | None => false,
        };
        if can_hear && !half.is_zero() && self.fold.interrupt(now) {
            self.asked_until = Some(now.after(half));
        }
    }

    /// Somebody wants it dead by a moment. What it was asked then has half of the time that is left.
    pub(super) fn kill_by(&mut self, wanted: Moment) {
        if self.kill_at.is_some_and(|kill_at| kill_at <= wanted) {
            return;
        }
        self.kill_at = Some(wanted);
        let now = self.workshop.clock.now();
        let half = now.after(now.until(wanted) / 2);
        self.asked_until = self.asked_until.map(|until| until.min(half));
    }

    /// It has still time to end by itself.
    pub(super) fn is_being_asked(&self) -> bool {
        let now = self.workshop.clock.now();
        self.asked_until.is_some_and(|until| now < until)
    }

    /// A process that ended because its turn was ended did not end by itself: what was decided stands.
    pub(super) fn ended_as_asked(&self) -> bool {
        self.asked_until.is_some() && !self.fold.ended_by_itself()
    }
}
