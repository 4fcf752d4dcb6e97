//! The passing of time: timers that ran out, retries that are due, fences that are over, streams that fell silent.

use crate::attempt::Event;
use crate::core::{Core, Turn};
use crate::effects::{CloseReason, Write};
use crate::id::TaskId;
use crate::live::Live;
use crate::timers::TimerKey;

/// Tasks looked at in one turn; the rest wait for the next, so that one turn stays short.
const BATCH: usize = 1_000;

/// How often the uptime joins other writes.
const WITH_OTHERS_MS: u64 = 1_000;

impl Core {
    pub(crate) fn tick(&mut self, turn: &mut Turn<'_>) {
        for _ in 0..BATCH {
            let Some(task) = self.deadlines.take_due(turn.now.at) else {
                break;
            };
            self.task_due(task, turn);
        }
        self.end_hold_in_time(turn);
        while let Some(fence) = self.fences.take_over(turn.now.at) {
            self.fence_fell(&fence, turn);
        }
        for (_, session) in self.roster.tick(turn.now.at) {
            self.hang_up(session, CloseReason::Silent, turn);
        }
    }

    fn task_due(&mut self, task: TaskId, turn: &mut Turn<'_>) {
        let Some(mut live) = self.tasks.remove(&task) else {
            return;
        };
        while let Some(key) = live.timers.take_due(turn.now.at) {
            let asked = if let TimerKey::UserInput(input) = &key {
                Some(*input)
            } else {
                None
            };
            self.apply(&mut live, Event::Expired(key), None, turn);
            if let Some(input) = asked {
                // Nobody answered, and the policy may have answered for them.
                self.send_answer(&live, input, turn);
            }
        }
        if live.retry_at.is_some_and(|at| at <= turn.now.at) {
            self.retry_due(&mut live, turn);
        }
        self.keep(live, turn);
    }

    fn retry_due(&mut self, live: &mut Live, turn: &mut Turn<'_>) {
        live.retry_at = None;
        if live.record().retry.is_some() && live.record().cancel.is_none() {
            self.add_attempt(live, false, turn);
        }
    }

    /// One write for all budgets: with it a boot knows how much time every running timer has used.
    pub(crate) fn write_uptime(&mut self, turn: &mut Turn<'_>) {
        // Along with other writes it costs next to nothing.
        let often = if turn.fx.writes.is_empty() {
            self.config.budget_write_ms
        } else {
            WITH_OTHERS_MS
        };
        let due = turn.now.at.since(self.uptime_written) >= often;
        if due && !self.tasks.is_empty() {
            self.uptime_written = turn.now.at;
            self.scheduler.uptime_ms = self.uptime_ms(turn.now);
            turn.write(Write::PutScheduler(self.scheduler.clone()));
        }
    }
}
