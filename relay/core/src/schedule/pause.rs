//! Pauses of one task, of a tenant, or of all dispatch. Running attempts continue; queued ones
//! wait, and their queue timers stop.

use std::sync::Arc;

use crate::attempt::timers::TimerFact;
use crate::config::Config;
use crate::core_state::CoreOwners;
use crate::ids::{TaskId, TenantId, TenantScope};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::effects::RecordChange;
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::StoredRecords;
use crate::record::{AttemptState, PauseMark, TimelineEventKind};
use crate::schedule::Schedule;
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::LiveTasks;
use crate::time::MonotonicTime;
use crate::turn::CoreTurn;

/// Stops new dispatch for all tenants or for one. Running attempts continue.
#[derive(Debug)]
pub struct PauseScheduler {
    pub scope: TenantScope,
    pub by: RequestActor,
    pub reason: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseOutcome {
    Paused,
    AlreadyPaused,
}

impl Command for PauseScheduler {
    type Reply = PauseOutcome;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        if self.reason.trim().is_empty() {
            return Err(Rejection::ReasonMissing);
        }
        let target = (&self.scope).into();
        core.operators
            .admit(self.by.token, target, turn.now.monotonic)?;
        let (tasks, schedule) = (&mut *core.tasks, &mut *core.schedule);
        if schedule.exact_pause(&self.scope).is_some() {
            return Ok(CommandReply::after_everything(PauseOutcome::AlreadyPaused));
        }
        if let TenantScope::One(tenant) = &self.scope
            && !schedule.can_pause_tenant(tenant)
        {
            return Err(Rejection::TooManyPauses);
        }
        let moving = tasks_with_running_queue_timer(tasks, schedule, &self.scope);
        let pause = PauseMark {
            by: self.by.name,
            reason: self.reason,
            since: turn.now.wall,
        };
        schedule.begin_pause(&self.scope, pause, turn);
        for task in moving {
            let (config, now) = (turn.config, turn.now.monotonic);
            tasks.update_queue_timer(task, &TimerFact::Paused, config, now);
        }
        if let TenantScope::One(_) = &self.scope
            && !mutant!(TenantPauseIgnored)
        {
            // The tasks leave the queue, so that they never delay the work of other tenants.
            for task in tasks.queued_tasks(&self.scope) {
                schedule.dequeue(task);
            }
        }
        Ok(CommandReply::after_everything(PauseOutcome::Paused))
    }
}

#[derive(Debug)]
pub struct UnpauseScheduler {
    pub scope: TenantScope,
    pub by: RequestActor,
    pub reason: Option<Arc<str>>,
}

impl Command for UnpauseScheduler {
    type Reply = ();

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let scope = &self.scope;
        core.operators
            .admit(self.by.token, scope.into(), turn.now.monotonic)?;
        let (tasks, schedule) = (&mut *core.tasks, &mut *core.schedule);
        if schedule.exact_pause(scope).is_none() {
            return Err(Rejection::NotPaused);
        }
        let mark = PauseMark {
            by: self.by.name,
            reason: self.reason.unwrap_or_default(),
            since: turn.now.wall,
        };
        schedule.end_pause(scope, mark, turn);
        for task in tasks_with_running_queue_timer(tasks, schedule, scope) {
            let (config, now) = (turn.config, turn.now.monotonic);
            tasks.update_queue_timer(task, &TimerFact::Unpaused, config, now);
        }
        if let TenantScope::One(_) = scope {
            enqueue_tasks(tasks, schedule, scope);
        }
        Ok(CommandReply::after_everything(()))
    }
}

impl Schedule {
    pub(crate) fn pause_task(
        &mut self,
        live: &mut LiveTask,
        by: RequestActor,
        reason: Arc<str>,
        turn: &mut CoreTurn<'_>,
    ) {
        live.record_mut().paused = Some(PauseMark {
            by: by.name,
            reason: Arc::clone(&reason),
            since: turn.now.wall,
        });
        if !mutant!(PauseIgnored) {
            self.queue.remove(live.id());
        }
        update_queue_timer(live, &TimerFact::Paused, turn.config, turn.now.monotonic);
        live.add_event(TimelineEventKind::Paused, Some(reason));
    }

    pub(crate) fn unpause_task(
        &mut self,
        live: &mut LiveTask,
        reason: Arc<str>,
        turn: &mut CoreTurn<'_>,
    ) {
        live.record_mut().paused = None;
        if !self.is_queue_timer_paused(live) {
            update_queue_timer(live, &TimerFact::Unpaused, turn.config, turn.now.monotonic);
        }
        if live.newest_attempt().state == AttemptState::Queued {
            self.enqueue_task(live);
        }
        live.add_event(
            TimelineEventKind::Unpaused,
            Some(reason).filter(|r| !r.is_empty()),
        );
    }

    pub(crate) fn is_paused(&self, live: &LiveTask) -> bool {
        self.effective_pause(&live.spec.tenant).is_some() || live.record().paused.is_some()
    }

    /// Whether waiting time does not count against the queue deadline now: during a pause, or
    /// during the suspension of inherited tasks.
    pub(crate) fn is_queue_timer_paused(&self, live: &LiveTask) -> bool {
        self.is_paused(live) || self.scheduler.suspension_of(live.id()).is_some()
    }

    pub(crate) fn begin_pause(
        &mut self,
        scope: &TenantScope,
        pause: PauseMark,
        turn: &mut CoreTurn<'_>,
    ) {
        let uptime_ms = turn.uptime_ms;
        match scope {
            TenantScope::All => {
                self.scheduler.paused = Some(pause.clone());
                self.scheduler.paused_at_ms = Some(uptime_ms);
                self.store_scheduler(turn);
            }
            TenantScope::One(tenant) => {
                let clock_ms = self.scheduler.queue_clock_ms(uptime_ms);
                self.pauses.pause(tenant, pause.clone(), clock_ms);
            }
        }
        self.record_pause_change(scope, true, pause, turn);
    }

    /// `mark` records who ended the pause, why and when.
    fn end_pause(&mut self, scope: &TenantScope, mark: PauseMark, turn: &mut CoreTurn<'_>) {
        let uptime_ms = turn.uptime_ms;
        match scope {
            TenantScope::All => {
                self.scheduler.paused = None;
                let since = self.scheduler.paused_at_ms.take().unwrap_or(uptime_ms);
                self.scheduler.paused_ms += uptime_ms.saturating_sub(since);
                self.store_scheduler(turn);
            }
            TenantScope::One(tenant) => {
                let clock_ms = self.scheduler.queue_clock_ms(uptime_ms);
                self.pauses.unpause(tenant, clock_ms);
            }
        }
        self.record_pause_change(scope, false, mark, turn);
    }

    pub(crate) fn record_pause_change(
        &mut self,
        scope: &TenantScope,
        paused: bool,
        mark: PauseMark,
        turn: &mut CoreTurn<'_>,
    ) {
        self.pauses.record_change(scope.clone(), paused, mark);
        turn.push_change(RecordChange::PutPauses(self.pauses.clone()));
    }

    /// The pause of exactly this scope: all dispatch, or one tenant.
    fn exact_pause(&self, scope: &TenantScope) -> Option<&PauseMark> {
        match scope {
            TenantScope::All => self.scheduler.paused.as_ref(),
            TenantScope::One(tenant) => self.pauses.pause_of_tenant(tenant),
        }
    }

    /// The pause that stops the dispatch of this tenant, its own or the one of all dispatch.
    pub(crate) fn effective_pause(&self, tenant: &TenantId) -> Option<&PauseMark> {
        self.scheduler
            .paused
            .as_ref()
            .or(self.pauses.pause_of_tenant(tenant))
    }

    /// The clock for the queue budget of this task. It also stops while the task is suspended
    /// or its tenant is paused. Time in which both apply is subtracted twice, so such a task
    /// may wait a little longer.
    pub(crate) fn queue_clock_of(&self, tenant: &TenantId, task: TaskId, uptime_ms: u64) -> u64 {
        let all_ms = self.scheduler.queue_clock_ms(uptime_ms);
        let clock_ms = self.scheduler.queue_clock_of(task, uptime_ms);
        clock_ms.saturating_sub(self.pauses.paused_ms(tenant, all_ms))
    }

    pub(crate) fn store_scheduler(&mut self, turn: &mut CoreTurn<'_>) {
        self.scheduler.uptime_ms = turn.uptime_ms;
        self.scheduler_written_at = turn.now.monotonic;
        turn.push_change(RecordChange::PutScheduler(self.scheduler.clone()));
    }

    /// Queued tasks of this scope, oldest first.
    pub(crate) fn budget_clock_ms(&self, live: &LiveTask, uptime_ms: u64) -> u64 {
        if live.newest_attempt().state == AttemptState::Queued {
            self.queue_clock_of(&live.spec.tenant, live.id(), uptime_ms)
        } else {
            uptime_ms
        }
    }

    pub(crate) fn can_pause_tenant(&self, tenant: &TenantId) -> bool {
        self.pauses.can_pause_tenant(tenant)
    }

    pub(crate) fn prune_paused_tenants(&mut self, is_known: impl Fn(&TenantId) -> bool) {
        self.pauses.prune_tenants(is_known);
    }

    pub(crate) fn is_scheduler_paused(&self) -> bool {
        self.scheduler.paused.is_some()
    }

    /// When the uptime was last written.
    pub(crate) fn scheduler_written_at(&self) -> MonotonicTime {
        self.scheduler_written_at
    }
}

/// Only the queue timer stands still while paused, and only a queued attempt has one.
pub(crate) fn update_queue_timer(
    live: &mut LiveTask,
    fact: &TimerFact,
    config: &Config,
    now: MonotonicTime,
) {
    if live.newest_attempt().state == AttemptState::Queued {
        let limits = LiveTask::timer_limits(&live.spec, config);
        live.timers.on_fact(fact, now, &limits);
    }
}

/// Waiting tasks within this scope whose queue timer runs.
fn tasks_with_running_queue_timer(
    tasks: &LiveTasks,
    schedule: &Schedule,
    scope: &TenantScope,
) -> Vec<TaskId> {
    let runs = |task: &TaskId| {
        let live = tasks.get(*task);
        live.is_some_and(|live| !schedule.is_queue_timer_paused(live))
    };
    let mut ids = tasks.queued_tasks(scope);
    ids.retain(runs);
    ids
}

fn enqueue_tasks(tasks: &LiveTasks, schedule: &mut Schedule, scope: &TenantScope) {
    for task in tasks.queued_tasks(scope) {
        if let Some(live) = tasks.get(task) {
            schedule.enqueue_task(live);
        }
    }
}
