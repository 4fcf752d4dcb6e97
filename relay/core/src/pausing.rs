//! Pauses: of one task, of a tenant, of all dispatching. What runs goes on; what waits stands still, its queue timer too.

use std::sync::Arc;

use crate::core::{Core, Turn};
use crate::effects::{After, Reply, Write};
use crate::id::{RequestId, TaskId, TenantId, TenantScope};
use crate::input::Actor;
use crate::live::Live;
use crate::record::{EventKind, Pause, State};
use crate::reject::Rejection;
use crate::time::Moment;
use crate::timers::Fact;

impl Core {
    pub(crate) fn pause_task(
        &mut self,
        live: &mut Live,
        by: Actor,
        reason: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        live.record_mut().paused = Some(Pause {
            by: by.name,
            reason: Arc::clone(&reason),
            since: turn.now.wall,
        });
        if !mutant!(PauseIgnored) {
            self.queue.remove(live.id());
        }
        self.tell_queued(live, &Fact::Paused, turn.now.at);
        live.note(EventKind::Paused, Some(reason));
    }

    pub(crate) fn unpause_task(&mut self, live: &mut Live, reason: Arc<str>, turn: &mut Turn<'_>) {
        live.record_mut().paused = None;
        if !self.queue_stands_still(live) {
            self.tell_queued(live, &Fact::Unpaused, turn.now.at);
        }
        if live.newest().state == State::Queued {
            self.line_up(live);
        }
        live.note(EventKind::Unpaused, Some(reason).filter(|r| !r.is_empty()));
    }

    /// Only the queue timer stands still while paused, and only a queued attempt has one.
    fn tell_queued(&self, live: &mut Live, fact: &Fact, now: Moment) {
        if live.newest().state == State::Queued {
            let limits = Live::limits(&live.spec, &self.config);
            live.timers.on_fact(fact, now, &limits);
        }
    }

    pub(crate) fn is_paused(&self, live: &Live) -> bool {
        self.pause_of(&live.spec.tenant).is_some() || live.record().paused.is_some()
    }

    /// Whether waiting for a daemon counts against nobody now: a pause, or the hold after an import.
    pub(crate) fn queue_stands_still(&self, live: &Live) -> bool {
        self.is_paused(live) || self.scheduler.hold_of(live.id()).is_some()
    }

    pub(crate) fn pause_scheduler(
        &mut self,
        request: RequestId,
        scope: TenantScope,
        by: Actor,
        reason: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        if reason.trim().is_empty() {
            return turn.refuse(request, Rejection::ReasonMissing);
        }
        let admitted = self.forced.admit(by.token, (&scope).into(), turn.now.at);
        if let Err(code) = admitted {
            return turn.refuse(request, code);
        }
        if self.pause_on(&scope).is_some() {
            return turn.reply(request, After::Everything, Reply::Already);
        }
        if let TenantScope::One(tenant) = &scope
            && !self.pauses.has_room_for(tenant)
        {
            return turn.refuse(request, Rejection::TooManyPauses);
        }
        let moving = self.moving(&scope);
        let pause = Pause {
            by: by.name,
            reason,
            since: turn.now.wall,
        };
        self.begin_pause(&scope, pause, turn);
        for task in moving {
            self.tell_task(task, &Fact::Paused, turn.now.at);
        }
        if let TenantScope::One(_) = &scope
            && !mutant!(TenantPauseIgnored)
        {
            // Nobody else's work waits behind theirs.
            for task in self.queued(&scope) {
                self.queue.remove(task);
            }
        }
        turn.reply(request, After::Everything, Reply::Done);
    }

    pub(crate) fn unpause_scheduler(
        &mut self,
        request: RequestId,
        scope: &TenantScope,
        by: Actor,
        reason: Option<Arc<str>>,
        turn: &mut Turn<'_>,
    ) {
        if let Err(code) = self.forced.admit(by.token, scope.into(), turn.now.at) {
            return turn.refuse(request, code);
        }
        if self.pause_on(scope).is_none() {
            return turn.refuse(request, Rejection::NotPaused);
        }
        let over = Pause {
            by: by.name,
            reason: reason.unwrap_or_default(),
            since: turn.now.wall,
        };
        self.end_pause(scope, over, turn);
        for task in self.moving(scope) {
            self.tell_task(task, &Fact::Unpaused, turn.now.at);
        }
        if let TenantScope::One(_) = scope {
            self.line_up_all(scope);
        }
        turn.reply(request, After::Everything, Reply::Done);
    }

    pub(crate) fn begin_pause(&mut self, scope: &TenantScope, pause: Pause, turn: &mut Turn<'_>) {
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
        self.note_pause(scope, true, pause, turn);
    }

    /// `over` says by whom, why and when.
    fn end_pause(&mut self, scope: &TenantScope, over: Pause, turn: &mut Turn<'_>) {
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
        self.note_pause(scope, false, over, turn);
    }

    pub(crate) fn note_pause(
        &mut self,
        scope: &TenantScope,
        paused: bool,
        said: Pause,
        turn: &mut Turn<'_>,
    ) {
        self.pauses.note(scope.clone(), paused, said);
        turn.write(Write::PutPauses(self.pauses.clone()));
    }

    /// The pause of exactly this: all dispatching, or one tenant's.
    fn pause_on(&self, scope: &TenantScope) -> Option<&Pause> {
        match scope {
            TenantScope::All => self.scheduler.paused.as_ref(),
            TenantScope::One(tenant) => self.pauses.of(tenant),
        }
    }

    /// What keeps this tenant's work from being dispatched.
    pub(crate) fn pause_of(&self, tenant: &TenantId) -> Option<&Pause> {
        self.scheduler.paused.as_ref().or(self.pauses.of(tenant))
    }

    /// The clock that the queue budget of this task is counted by: it stands still while the task is held or its tenant
    /// paused, too. Time that is both counts twice: such a task waits a little longer.
    pub(crate) fn queue_clock_of(&self, tenant: &TenantId, task: TaskId, uptime_ms: u64) -> u64 {
        let all_ms = self.scheduler.queue_clock_ms(uptime_ms);
        let clock_ms = self.scheduler.queue_clock_of(task, uptime_ms);
        clock_ms.saturating_sub(self.pauses.paused_ms(tenant, all_ms))
    }

    pub(crate) fn store_scheduler(&mut self, turn: &mut Turn<'_>) {
        self.scheduler.uptime_ms = self.uptime_ms(turn.now);
        self.uptime_written = turn.now.at;
        turn.write(Write::PutScheduler(self.scheduler.clone()));
    }

    /// Waiting tasks within this scope, in the order in which they came.
    fn queued(&self, scope: &TenantScope) -> Vec<TaskId> {
        let within =
            |live: &Live| scope.covers(&live.spec.tenant) && live.newest().state == State::Queued;
        let waiting = self.tasks.values().filter(|live| within(live));
        let mut ids: Vec<TaskId> = waiting.map(|live| live.id()).collect();
        ids.sort_unstable();
        ids
    }

    /// Those of them whose queue timer runs.
    fn moving(&self, scope: &TenantScope) -> Vec<TaskId> {
        let moves = |task: &TaskId| {
            let live = self.tasks.get(task);
            live.is_some_and(|live| !self.queue_stands_still(live))
        };
        let mut ids = self.queued(scope);
        ids.retain(moves);
        ids
    }

    fn line_up_all(&mut self, scope: &TenantScope) {
        for task in self.queued(scope) {
            if let Some(live) = self.tasks.remove(&task) {
                self.line_up(&live);
                self.tasks.insert(task, live);
            }
        }
    }

    /// Tells a waiting task that its queue timer stands still or goes on. Not stored: a boot works it out.
    pub(crate) fn tell_task(&mut self, task: TaskId, fact: &Fact, now: Moment) {
        let Some(mut live) = self.tasks.remove(&task) else {
            return;
        };
        self.tell_queued(&mut live, fact, now);
        if let Some(at) = live.next_due() {
            self.deadlines.arm(task, at);
        }
        self.tasks.insert(task, live);
    }
}
