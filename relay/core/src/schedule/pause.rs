//! Pauses of one task, of a tenant, or of all dispatch. Running attempts continue; queued ones
//! wait, and their queue timers stop.

use std::sync::Arc;

use crate::attempt::timers::TimerFact;
use crate::core_state::{Core, CoreTurn};
use crate::ids::{TaskId, TenantId, TenantScope};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::effects::RecordChange;
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::StoredRecords;
use crate::record::{AttemptState, PauseMark, TimelineEventKind};
use crate::task::live_task::LiveTask;
use crate::time::MonotonicTime;

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
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        if self.reason.trim().is_empty() {
            return Err(Rejection::ReasonMissing);
        }
        let target = (&self.scope).into();
        core.operator_limit
            .admit(self.by.token, target, turn.now.monotonic)?;
        if core.exact_pause(&self.scope).is_some() {
            return Ok(CommandReply::after_everything(PauseOutcome::AlreadyPaused));
        }
        if let TenantScope::One(tenant) = &self.scope
            && !core.pauses.can_pause_tenant(tenant)
        {
            return Err(Rejection::TooManyPauses);
        }
        let timed_tasks = core.tasks_with_running_queue_timer(&self.scope);
        let pause = PauseMark {
            by: self.by.name,
            reason: self.reason,
            since: turn.now.wall,
        };
        core.begin_pause(&self.scope, pause, turn);
        for task in timed_tasks {
            core.update_task_queue_timer(task, &TimerFact::Paused, turn.now.monotonic);
        }
        if let TenantScope::One(_) = &self.scope
            && !mutant!(TenantPauseIgnored)
        {
            // The tasks leave the queue, so that they never delay the work of other tenants.
            for task in core.queued_tasks(&self.scope) {
                core.queue.remove(task);
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
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let scope = &self.scope;
        core.operator_limit
            .admit(self.by.token, scope.into(), turn.now.monotonic)?;
        if core.exact_pause(scope).is_none() {
            return Err(Rejection::NotPaused);
        }
        let mark = PauseMark {
            by: self.by.name,
            reason: self.reason.unwrap_or_default(),
            since: turn.now.wall,
        };
        core.end_pause(scope, mark, turn);
        for task in core.tasks_with_running_queue_timer(scope) {
            core.update_task_queue_timer(task, &TimerFact::Unpaused, turn.now.monotonic);
        }
        if let TenantScope::One(_) = scope {
            core.enqueue_tasks(scope);
        }
        Ok(CommandReply::after_everything(()))
    }
}

impl Core {
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
        self.update_queue_timer(live, &TimerFact::Paused, turn.now.monotonic);
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
            self.update_queue_timer(live, &TimerFact::Unpaused, turn.now.monotonic);
        }
        if live.newest_attempt().state == AttemptState::Queued {
            self.enqueue_task(live);
        }
        live.add_event(
            TimelineEventKind::Unpaused,
            Some(reason).filter(|r| !r.is_empty()),
        );
    }

    /// A pause stops only the queue timer, and only a queued attempt has one.
    fn update_queue_timer(&self, live: &mut LiveTask, fact: &TimerFact, now: MonotonicTime) {
        if live.newest_attempt().state == AttemptState::Queued {
            let limits = LiveTask::timer_limits(&live.spec, &self.config);
            live.timers.on_fact(fact, now, &limits);
        }
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
        let uptime_ms = self.uptime_ms(turn.now);
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
        let uptime_ms = self.uptime_ms(turn.now);
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
        self.scheduler.uptime_ms = self.uptime_ms(turn.now);
        self.uptime_written_at = turn.now.monotonic;
        turn.push_change(RecordChange::PutScheduler(self.scheduler.clone()));
    }

    /// Queued tasks of this scope, oldest first.
    fn queued_tasks(&self, scope: &TenantScope) -> Vec<TaskId> {
        let is_queued = |live: &LiveTask| {
            scope.covers(&live.spec.tenant) && live.newest_attempt().state == AttemptState::Queued
        };
        let waiting = self.tasks.values().filter(|live| is_queued(live));
        let mut ids: Vec<TaskId> = waiting.map(|live| live.id()).collect();
        ids.sort_unstable();
        ids
    }

    /// Queued tasks of this scope whose queue timer runs.
    fn tasks_with_running_queue_timer(&self, scope: &TenantScope) -> Vec<TaskId> {
        let timer_runs = |task: &TaskId| {
            let live = self.tasks.get(task);
            live.is_some_and(|live| !self.is_queue_timer_paused(live))
        };
        let mut ids = self.queued_tasks(scope);
        ids.retain(timer_runs);
        ids
    }

    fn enqueue_tasks(&mut self, scope: &TenantScope) {
        for task in self.queued_tasks(scope) {
            if let Some(live) = self.tasks.remove(&task) {
                self.enqueue_task(&live);
                self.tasks.insert(task, live);
            }
        }
    }

    /// Stops or continues the queue timer of a queued task. This is not stored, because a boot
    /// derives it.
    pub(crate) fn update_task_queue_timer(
        &mut self,
        task: TaskId,
        fact: &TimerFact,
        now: MonotonicTime,
    ) {
        let Some(mut live) = self.tasks.remove(&task) else {
            return;
        };
        self.update_queue_timer(&mut live, fact, now);
        if let Some(at) = live.next_due() {
            self.deadlines.arm(task, at);
        }
        self.tasks.insert(task, live);
    }
}
