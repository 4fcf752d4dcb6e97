//! The passing of time: timers that ran out, retries that are due, fences that are over, streams that fell silent.

use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::TimerKey;
use crate::core_state::{Core, CoreTurn};
use crate::ids::TaskId;
use crate::io::effects::{CloseReason, RecordChange};
use crate::task::live_task::LiveTask;

/// Tasks looked at in one turn; the rest wait for the next, so that one turn stays short.
const MAX_TASKS_PER_TICK: usize = 1_000;

/// How often the uptime joins other writes.
const UPTIME_WITH_WRITES_MS: u64 = 1_000;

impl Core {
    pub(crate) fn tick(&mut self, turn: &mut CoreTurn<'_>) {
        for _ in 0..MAX_TASKS_PER_TICK {
            let Some(task) = self.deadlines.take_due(turn.now.monotonic) else {
                break;
            };
            self.expire_task_timers(task, turn);
        }
        self.end_due_suspension(turn);
        while let Some(fence) = self.fences.take_expired(turn.now.monotonic) {
            self.remove_fallen_fence(&fence, turn);
        }
        for (_, session) in self.roster.tick(turn.now.monotonic) {
            self.close_session(session, CloseReason::Silent, turn);
        }
    }

    fn expire_task_timers(&mut self, task: TaskId, turn: &mut CoreTurn<'_>) {
        let Some(mut live) = self.tasks.remove(&task) else {
            return;
        };
        while let Some(key) = live.timers.take_due(turn.now.monotonic) {
            let asked = if let TimerKey::UserInput(input) = &key {
                Some(*input)
            } else {
                None
            };
            self.apply_event(&mut live, MachineEvent::TimerExpired(key), None, turn);
            if let Some(input) = asked {
                // Nobody answered, and the policy may have answered for them.
                self.send_answer(&live, input, turn);
            }
        }
        if live.retry_at.is_some_and(|at| at <= turn.now.monotonic) {
            self.start_due_retry(&mut live, turn);
        }
        self.put_back_task(live, turn);
    }

    fn start_due_retry(&mut self, live: &mut LiveTask, turn: &mut CoreTurn<'_>) {
        live.retry_at = None;
        if live.record().retry.is_some() && live.record().cancel.is_none() {
            self.queue_attempt(live, false, turn);
        }
    }

    /// One write for all budgets: with it a boot knows how much time every running timer has used.
    pub(crate) fn write_uptime(&mut self, turn: &mut CoreTurn<'_>) {
        // Along with other writes it costs next to nothing.
        let often = if turn.effects.changes.is_empty() {
            self.config.budget_write_ms
        } else {
            UPTIME_WITH_WRITES_MS
        };
        let due = turn.now.monotonic.since(self.uptime_written_at) >= often;
        if due && !self.tasks.is_empty() {
            self.uptime_written_at = turn.now.monotonic;
            self.scheduler.uptime_ms = self.uptime_ms(turn.now);
            turn.push_change(RecordChange::PutScheduler(self.scheduler.clone()));
        }
    }
}
