//! What happens when time passes: expired timers, due retries, expired fences and sessions
//! without heartbeats.

use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::TimerKey;
use crate::core_state::{Core, CoreTurn};
use crate::ids::TaskId;
use crate::io::effects::{CloseReason, RecordChange};
use crate::task::live_task::LiveTask;

/// Limit on tasks processed in one turn, so that a turn stays short. The rest follow in the
/// next one.
const MAX_TASKS_PER_TICK: usize = 1_000;

/// Shortest interval for writing the uptime together with other record changes.
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
            let expired_input = if let TimerKey::UserInput(input) = &key {
                Some(*input)
            } else {
                None
            };
            self.apply_event(&mut live, MachineEvent::TimerExpired(key), None, turn);
            if let Some(input) = expired_input {
                // The input timed out. The policy of the task may have produced an answer,
                // which the daemon needs.
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

    /// Writes the uptime. A boot computes the consumed time of every running timer from it, so
    /// that one small write serves all tasks.
    pub(crate) fn write_uptime(&mut self, turn: &mut CoreTurn<'_>) {
        // Together with other record changes the write costs almost nothing, so it is done more
        // often.
        let interval_ms = if turn.effects.changes.is_empty() {
            self.config.budget_write_ms
        } else {
            UPTIME_WITH_WRITES_MS
        };
        let due = turn.now.monotonic.since(self.uptime_written_at) >= interval_ms;
        if due && !self.tasks.is_empty() {
            self.uptime_written_at = turn.now.monotonic;
            self.scheduler.uptime_ms = self.uptime_ms(turn.now);
            turn.push_change(RecordChange::PutScheduler(self.scheduler.clone()));
        }
    }
}
