//! What happens when time passes: expired timers, due retries, expired fences and sessions
//! without heartbeats.

use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::TimerKey;
use crate::core_state::CoreOwners;
use crate::ids::TaskId;
use crate::io::effects::CloseReason;
use crate::recovery::inherited_tasks::end_due_suspension;
use crate::schedule::Schedule;
use crate::task::live_task::LiveTask;
use crate::turn::CoreTurn;

/// Limit on tasks processed in one turn, so that a turn stays short. The rest follow in the
/// next one.
const MAX_TASKS_PER_TICK: usize = 1_000;

/// Shortest interval for writing the uptime together with other record changes.
const UPTIME_WITH_WRITES_MS: u64 = 1_000;

pub(crate) fn tick(core: &mut CoreOwners<'_>, turn: &mut CoreTurn<'_>) {
    for _ in 0..MAX_TASKS_PER_TICK {
        let Some(task) = core.tasks.take_due(turn.now.monotonic) else {
            break;
        };
        expire_task_timers(core, task, turn);
    }
    end_due_suspension(core.tasks, core.schedule, turn);
    core.schedule.remove_expired_fences(turn);
    for (_, session) in core.fleet.roster_mut().tick(turn.now.monotonic) {
        core.fleet.close_session(session, CloseReason::Silent, turn);
    }
}

fn expire_task_timers(core: &mut CoreOwners<'_>, task: TaskId, turn: &mut CoreTurn<'_>) {
    let Some(mut live) = core.tasks.take_any(task) else {
        return;
    };
    while let Some(key) = live.timers.take_due(turn.now.monotonic) {
        let asked = if let TimerKey::UserInput(input) = &key {
            Some(*input)
        } else {
            None
        };
        let mut owners = core.attempt();
        owners.apply_event(&mut live, MachineEvent::TimerExpired(key), None, turn);
        if let Some(input) = asked {
            // No person answered, and the policy may have answered for them.
            owners.send_answer(&live, input, turn);
        }
    }
    if live.retry_at.is_some_and(|at| at <= turn.now.monotonic) {
        start_due_retry(core.schedule, &mut live, turn);
    }
    core.put_back_task(live, turn);
}

fn start_due_retry(schedule: &mut Schedule, live: &mut LiveTask, turn: &mut CoreTurn<'_>) {
    live.retry_at = None;
    if live.record().retry.is_some() && live.record().cancel.is_none() {
        schedule.queue_attempt(live, false, turn);
    }
}

/// One write for all budgets: with it a boot knows how much time every running timer has used.
pub(crate) fn write_uptime(schedule: &mut Schedule, turn: &mut CoreTurn<'_>) {
    // Along with other writes it costs next to nothing.
    let often = if turn.effects.changes.is_empty() {
        turn.config.budget_write_ms
    } else {
        UPTIME_WITH_WRITES_MS
    };
    let written_at = schedule.scheduler_written_at();
    if turn.now.monotonic.since(written_at) >= often {
        schedule.store_scheduler(turn);
    }
}
