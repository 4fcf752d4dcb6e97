//! Boot: builds the core's state from the durable records.
//!
//! The relay does not know how long it was down, so leases and fences are armed in full. The
//! time that a hard deadline had used before stays used.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::timers::{StoredTimers, TimerFact, TimerKey, TimerSet};
use crate::core_state::{CoreOwners, RecoveredState};
use crate::ids::{TaskId, TenantId};
use crate::record::{AttemptRecord, AttemptState, LeaseHolder, TaskRecord, TimerBudget, TimerKind};
use crate::recovery::damage::{drop_damaged_fences, min_uptime_ms};
use crate::schedule::Schedule;
use crate::task::live_task::LiveTask;
use crate::task::spec::TaskSpec;
use crate::turn::CoreTurn;

/// Restores what is durable into empty owners. The effects of the turn are the first of this run.
pub(crate) fn restore(
    core: &mut CoreOwners<'_>,
    recovered: RecoveredState,
    turn: &mut CoreTurn<'_>,
) {
    for record in recovered.daemons {
        core.fleet.restore(record);
    }
    for fence in recovered
        .fences
        .iter()
        .filter(|_| !mutant!(FenceForgottenAtBoot))
    {
        core.schedule.restore_fence(fence, turn.now.monotonic);
    }
    for (tenant, key, record) in recovered.idempotency {
        core.tasks.insert_idempotency(tenant, key, record);
    }
    let mut tasks = recovered.tasks;
    // Ids rise with time: first come, first served holds over a restart.
    tasks.sort_by_key(|(_, record)| record.task);
    let ids: Vec<TaskId> = tasks.iter().map(|(_, record)| record.task).collect();
    core.schedule.pause_for_damage(&recovered.damage, turn);
    let suspension_ms = if recovered.damage.may_hide_grants() {
        turn.config.longest_grant_ms()
    } else {
        turn.config.inherited_suspension_ms
    };
    core.schedule.suspend_inherited(suspension_ms, &ids, turn);
    drop_damaged_fences(&recovered.damage, turn);
    let tenants: BTreeSet<&TenantId> = tasks.iter().map(|(_, record)| &record.tenant).collect();
    core.schedule
        .prune_paused_tenants(|tenant| tenants.contains(tenant));
    for (spec, record) in tasks {
        restore_task(core, spec, record, turn);
    }
}

fn restore_task(
    core: &mut CoreOwners<'_>,
    spec: Arc<TaskSpec>,
    mut record: Arc<TaskRecord>,
    turn: &mut CoreTurn<'_>,
) {
    if let Some(lease) = Arc::make_mut(&mut record)
        .attempts
        .last_mut()
        .and_then(|a| a.lease.as_mut())
    {
        // Whether LeaseConfirmed left before the crash is unknown, so a process may exist.
        lease.confirmed = true;
    }
    let Some(newest) = record.newest_attempt() else {
        return;
    };
    let timers = restore_timers(core.schedule, newest, &spec, &record, turn);
    let mut live = Box::new(LiveTask::new(spec, record, timers));
    core.schedule.fence_inherited(&live, turn);
    live.retry_at = live
        .record()
        .retry
        .as_ref()
        .map(|retry| turn.now.monotonic + retry.remaining_ms);
    if live.is_newest_leased() {
        restore_lease(&mut core.attempt(), &mut live, turn);
    } else if live.newest_attempt().state == AttemptState::Queued
        && turn.config.inherited_suspension_ms > 0
        && !mutant!(InheritedIdReused)
    {
        core.attempt().replace_queued_attempt(&mut live, turn);
    } else if live.newest_attempt().state == AttemptState::Queued {
        core.schedule.enqueue_task(&live);
    }
    core.put_back_task(live, turn);
}

fn restore_lease(owners: &mut AttemptOwners<'_>, live: &mut LiveTask, turn: &CoreTurn<'_>) {
    let Some(holder) = live.newest_attempt().holder.clone() else {
        return;
    };
    let attempt = live.newest_attempt().id;
    match &holder {
        LeaseHolder::Daemon(holder) => {
            owners.leases.insert_daemon_lease(attempt, live.id());
            owners
                .roster
                .assign_attempt(holder.daemon, attempt, turn.now.monotonic);
        }
        LeaseHolder::Agent(holder) => {
            owners
                .leases
                .insert_agent_lease(holder.token, attempt, live.id());
        }
    }
    owners.schedule.raise_lease_fence(live, &holder);
    live.confirmed_at = Some(turn.now.monotonic);
}

fn restore_timers(
    schedule: &Schedule,
    newest: &AttemptRecord,
    spec: &TaskSpec,
    record: &TaskRecord,
    turn: &CoreTurn<'_>,
) -> TimerSet {
    let limits = LiveTask::attempt_timer_limits(newest, spec, turn.config);
    let clock_ms = if newest.state == AttemptState::Queued {
        schedule.queue_clock_of(&spec.tenant, record.task, turn.uptime_ms)
    } else {
        turn.uptime_ms
    };
    let budgets = current_budgets(newest, clock_ms, record.paused.is_some());
    let stored = StoredTimers {
        budgets: &budgets,
        furthest_phase: newest.furthest_phase,
        tools: newest
            .open_tools
            .iter()
            .map(|tool| Arc::clone(&tool.id))
            .collect(),
        inputs: open_inputs(newest),
        cleaning: matches!(newest.state, AttemptState::CleaningUp { .. }),
        paused: schedule.effective_pause(&spec.tenant).is_some()
            || record.paused.is_some()
            || schedule.is_suspended(record.task),
        lease_ms: newest
            .lease
            .as_ref()
            .map_or(spec.lease_ttl_ms, |lease| lease.granted_ms),
        floor_ms: turn.config.accept_ms,
    };
    if mutant!(TimersNotRestored) {
        return TimerSet::default();
    }
    let mut timers = TimerSet::restore(&stored, turn.now.monotonic, &limits);
    // A record without the timer that its state needs gets it in full: nothing may wait for ever.
    if newest.state.is_leased() && !timers.is_armed(&TimerKey::Lease) {
        timers.on_fact(&TimerFact::LeaseConfirmed, turn.now.monotonic, &limits);
    }
    if newest.state == AttemptState::Queued && !timers.is_armed(&TimerKey::Queue) {
        timers.on_fact(&TimerFact::Queued, turn.now.monotonic, &limits);
    }
    timers
}

/// The uptime that earlier runs had.
pub(crate) fn earlier_uptime_ms(recovered: &RecoveredState) -> u64 {
    let known_ms = recovered.scheduler.uptime_ms;
    if !recovered.damage.scheduler {
        return known_ms;
    }
    known_ms.max(min_uptime_ms(
        recovered.tasks.iter().map(|(_, record)| &**record),
    ))
}

fn open_inputs(attempt: &AttemptRecord) -> Vec<crate::ids::InputId> {
    let open = attempt.inputs.iter().filter(|i| i.state.is_pending());
    open.map(|input| input.id).collect()
}

/// Adds the time that the relay ran after the budgets were written. This applies only to hard
/// deadlines: the others start over or get a minimum. Whether the queue timer was stopped
/// follows from the task's record, which contains each of its pauses; pauses of the scheduler
/// are already part of the clock.
fn current_budgets(attempt: &AttemptRecord, clock_ms: u64, task_paused: bool) -> Vec<TimerBudget> {
    let ran_ms = clock_ms.saturating_sub(attempt.budgets_at_ms);
    let add = |budget: &TimerBudget| {
        let runs = match budget.timer {
            TimerKind::Queue => !task_paused,
            TimerKind::Total | TimerKind::UserInput => !budget.paused,
            TimerKind::Accept
            | TimerKind::ProcessStart
            | TimerKind::PromptWrite
            | TimerKind::FirstEvent
            | TimerKind::FirstVisibleEvent
            | TimerKind::StreamIdle
            | TimerKind::ToolIdle
            | TimerKind::CleanupTerm
            | TimerKind::Lease => false,
        };
        let ran_ms = if runs { ran_ms } else { 0 };
        TimerBudget {
            consumed_ms: budget.consumed_ms.saturating_add(ran_ms),
            ..budget.clone()
        }
    };
    attempt.budgets.iter().map(add).collect()
}
