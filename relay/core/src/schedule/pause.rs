//! Pauses: of one task, of a tenant, of all dispatching. What runs goes on; what waits stands still, its queue timer too.

use std::sync::Arc;

use crate::attempt::timers::TimerFact;
use crate::core_state::{Core, CoreTurn};
use crate::ids::{RequestId, TaskId, TenantId, TenantScope};
use crate::io::command::RequestActor;
use crate::io::effects::{CommitDependency, CoreReply, RecordChange};
use crate::io::rejection::Rejection;
use crate::record::{AttemptState, PauseMark, TimelineEventKind};
use crate::task::live_task::LiveTask;
use crate::time::MonotonicTime;

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

    /// Only the queue timer stands still while paused, and only a queued attempt has one.
    fn update_queue_timer(&self, live: &mut LiveTask, fact: &TimerFact, now: MonotonicTime) {
        if live.newest_attempt().state == AttemptState::Queued {
            let limits = LiveTask::timer_limits(&live.spec, &self.config);
            live.timers.on_fact(fact, now, &limits);
        }
    }

    pub(crate) fn is_paused(&self, live: &LiveTask) -> bool {
        self.effective_pause(&live.spec.tenant).is_some() || live.record().paused.is_some()
    }

    /// Whether waiting for a daemon counts against nobody now: a pause, or the hold after an import.
    pub(crate) fn is_queue_timer_paused(&self, live: &LiveTask) -> bool {
        self.is_paused(live) || self.scheduler.suspension_of(live.id()).is_some()
    }

    pub(crate) fn pause_scheduler(
        &mut self,
        request: RequestId,
        scope: TenantScope,
        by: RequestActor,
        reason: Arc<str>,
        turn: &mut CoreTurn<'_>,
    ) {
        if reason.trim().is_empty() {
            return turn.refuse(request, Rejection::ReasonMissing);
        }
        let admitted = self
            .operator_limit
            .admit(by.token, (&scope).into(), turn.now.monotonic);
        if let Err(code) = admitted {
            return turn.refuse(request, code);
        }
        if self.exact_pause(&scope).is_some() {
            return turn.reply(request, CommitDependency::Everything, CoreReply::Already);
        }
        if let TenantScope::One(tenant) = &scope
            && !self.pauses.can_pause_tenant(tenant)
        {
            return turn.refuse(request, Rejection::TooManyPauses);
        }
        let moving = self.tasks_with_running_queue_timer(&scope);
        let pause = PauseMark {
            by: by.name,
            reason,
            since: turn.now.wall,
        };
        self.begin_pause(&scope, pause, turn);
        for task in moving {
            self.update_task_queue_timer(task, &TimerFact::Paused, turn.now.monotonic);
        }
        if let TenantScope::One(_) = &scope
            && !mutant!(TenantPauseIgnored)
        {
            // Nobody else's work waits behind theirs.
            for task in self.queued_tasks(&scope) {
                self.queue.remove(task);
            }
        }
        turn.reply(request, CommitDependency::Everything, CoreReply::Done);
    }

    pub(crate) fn unpause_scheduler(
        &mut self,
        request: RequestId,
        scope: &TenantScope,
        by: RequestActor,
        reason: Option<Arc<str>>,
        turn: &mut CoreTurn<'_>,
    ) {
        if let Err(code) = self
            .operator_limit
            .admit(by.token, scope.into(), turn.now.monotonic)
        {
            return turn.refuse(request, code);
        }
        if self.exact_pause(scope).is_none() {
            return turn.refuse(request, Rejection::NotPaused);
        }
        let over = PauseMark {
            by: by.name,
            reason: reason.unwrap_or_default(),
            since: turn.now.wall,
        };
        self.end_pause(scope, over, turn);
        for task in self.tasks_with_running_queue_timer(scope) {
            self.update_task_queue_timer(task, &TimerFact::Unpaused, turn.now.monotonic);
        }
        if let TenantScope::One(_) = scope {
            self.enqueue_tasks(scope);
        }
        turn.reply(request, CommitDependency::Everything, CoreReply::Done);
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

    /// `over` says by whom, why and when.
    fn end_pause(&mut self, scope: &TenantScope, over: PauseMark, turn: &mut CoreTurn<'_>) {
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
        self.record_pause_change(scope, false, over, turn);
    }

    pub(crate) fn record_pause_change(
        &mut self,
        scope: &TenantScope,
        paused: bool,
        said: PauseMark,
        turn: &mut CoreTurn<'_>,
    ) {
        self.pauses.record_change(scope.clone(), paused, said);
        turn.push_change(RecordChange::PutPauses(self.pauses.clone()));
    }

    /// The pause of exactly this: all dispatching, or one tenant's.
    fn exact_pause(&self, scope: &TenantScope) -> Option<&PauseMark> {
        match scope {
            TenantScope::All => self.scheduler.paused.as_ref(),
            TenantScope::One(tenant) => self.pauses.pause_of_tenant(tenant),
        }
    }

    /// What keeps this tenant's work from being dispatched.
    pub(crate) fn effective_pause(&self, tenant: &TenantId) -> Option<&PauseMark> {
        self.scheduler
            .paused
            .as_ref()
            .or(self.pauses.pause_of_tenant(tenant))
    }

    /// The clock that the queue budget of this task is counted by: it stands still while the task is held or its tenant
    /// paused, too. Time that is both counts twice: such a task waits a little longer.
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

    /// Waiting tasks within this scope, in the order in which they came.
    fn queued_tasks(&self, scope: &TenantScope) -> Vec<TaskId> {
        let within = |live: &LiveTask| {
            scope.covers(&live.spec.tenant) && live.newest_attempt().state == AttemptState::Queued
        };
        let waiting = self.tasks.values().filter(|live| within(live));
        let mut ids: Vec<TaskId> = waiting.map(|live| live.id()).collect();
        ids.sort_unstable();
        ids
    }

    /// Those of them whose queue timer runs.
    fn tasks_with_running_queue_timer(&self, scope: &TenantScope) -> Vec<TaskId> {
        let moves = |task: &TaskId| {
            let live = self.tasks.get(task);
            live.is_some_and(|live| !self.is_queue_timer_paused(live))
        };
        let mut ids = self.queued_tasks(scope);
        ids.retain(moves);
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

    /// Tells a waiting task that its queue timer stands still or goes on. Not stored: a boot works it out.
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
