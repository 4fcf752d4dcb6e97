//! Operators' verbs: pausing tasks and the scheduler, draining daemons, and looking at what is in no record.

use std::sync::Arc;

use crate::conversation::ConversationKey;
use crate::core::{Core, Turn};
use crate::effects::{
    After, Connected, DaemonView, DeadlineView, Downstream, HeldView, Reply, TaskView, WaitsFor,
    Write,
};
use crate::fences::{Fence, Guard};
use crate::id::{AttemptId, DaemonId, RequestId, TaskId, TenantId, TenantScope};
use crate::input::Actor;
use crate::live::{Live, wall_of};
use crate::record::{DrainMark, EventKind, Pause, State};
use crate::reject::Rejection;
use crate::requirements::Requirements;
use crate::roster::{Daemon, Presence};
use crate::time::{Moment, Now, Wall};
use crate::timers::{Armed, Fact, TimerKey};

impl Core {
    /// Stops its next dispatch; what runs goes on.
    pub(crate) fn pause_task(
        &mut self,
        request: RequestId,
        tenant: &TenantId,
        task: TaskId,
        by: Actor,
        reason: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        let Some(mut live) = self.take(tenant, task) else {
            return turn.refuse(request, Rejection::UnknownTask);
        };
        if live.record().paused.is_none() {
            let pause = Pause {
                by: by.name,
                reason: Arc::clone(&reason),
                since: turn.now.wall,
            };
            live.record_mut().paused = Some(pause);
            if !mutant!(PauseIgnored) {
                self.queue.remove(task);
            }
            self.tell_queued(&mut live, &Fact::Paused, turn.now.at);
            live.note(EventKind::Paused, Some(reason));
        }
        let record = self.keep(live, turn);
        turn.reply(request, After::Task(task), Reply::Task(record));
    }

    pub(crate) fn unpause_task(
        &mut self,
        request: RequestId,
        tenant: &TenantId,
        task: TaskId,
        turn: &mut Turn<'_>,
    ) {
        let Some(mut live) = self.take(tenant, task) else {
            return turn.refuse(request, Rejection::UnknownTask);
        };
        if live.record().paused.is_none() {
            self.keep(live, turn);
            return turn.refuse(request, Rejection::NotPaused);
        }
        live.record_mut().paused = None;
        if !self.queue_stands_still(&live) {
            self.tell_queued(&mut live, &Fact::Unpaused, turn.now.at);
        }
        if live.newest().state == State::Queued {
            self.line_up(&live);
        }
        live.note(EventKind::Unpaused, None);
        let record = self.keep(live, turn);
        turn.reply(request, After::Task(task), Reply::Task(record));
    }

    /// Only the queue timer stands still while paused, and only a queued attempt has one.
    fn tell_queued(&self, live: &mut Live, fact: &Fact, now: Moment) {
        if live.newest().state == State::Queued {
            let limits = Live::limits(&live.spec, &self.config);
            live.timers.on_fact(fact, now, &limits);
        }
    }

    pub(crate) fn is_paused(&self, live: &Live) -> bool {
        self.scheduler.paused.is_some() || live.record().paused.is_some()
    }

    /// Whether waiting for a daemon counts against nobody now: a pause, or the hold after an import.
    pub(crate) fn queue_stands_still(&self, live: &Live) -> bool {
        self.is_paused(live) || self.scheduler.hold_of(live.id()).is_some()
    }

    pub(crate) fn pause_scheduler(
        &mut self,
        request: RequestId,
        by: Actor,
        reason: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        if self.scheduler.paused.is_none() {
            self.scheduler.paused = Some(Pause {
                by: by.name,
                reason,
                since: turn.now.wall,
            });
            self.scheduler.paused_at_ms = Some(self.uptime_ms(turn.now));
            self.store_scheduler(turn);
            self.tell_all_queued(&Fact::Paused, turn.now.at);
        }
        turn.reply(request, After::Everything, Reply::Done);
    }

    pub(crate) fn unpause_scheduler(&mut self, request: RequestId, turn: &mut Turn<'_>) {
        if self.scheduler.paused.take().is_some() {
            let uptime_ms = self.uptime_ms(turn.now);
            let since = self.scheduler.paused_at_ms.take().unwrap_or(uptime_ms);
            self.scheduler.paused_ms += uptime_ms.saturating_sub(since);
            self.store_scheduler(turn);
            self.tell_all_queued(&Fact::Unpaused, turn.now.at);
        }
        turn.reply(request, After::Everything, Reply::Done);
    }

    pub(crate) fn store_scheduler(&mut self, turn: &mut Turn<'_>) {
        self.scheduler.uptime_ms = self.uptime_ms(turn.now);
        self.uptime_written = turn.now.at;
        turn.write(Write::PutScheduler(self.scheduler.clone()));
    }

    fn tell_all_queued(&mut self, fact: &Fact, now: Moment) {
        let mut ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let own_pause = self
                .tasks
                .get(&id)
                .is_some_and(|live| live.record().paused.is_some());
            if !own_pause && self.scheduler.hold_of(id).is_none() {
                self.tell_task(id, fact, now);
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

    pub(crate) fn drain(
        &mut self,
        request: RequestId,
        scope: &TenantScope,
        daemon: DaemonId,
        by: Actor,
        reason: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        if !self.may_run(scope, daemon) {
            return turn.refuse(request, Rejection::UnknownDaemon);
        }
        self.mark_drained(
            daemon,
            Some(DrainMark {
                by: by.name,
                reason,
                since: turn.now.wall,
            }),
            turn,
        );
        if let Some(session) = self.roster.session_of(daemon) {
            turn.tell(
                After::Everything,
                session,
                Downstream::Drain { withdrawn: false },
            );
        }
        self.reply_daemon(request, daemon, turn);
    }

    pub(crate) fn undrain(
        &mut self,
        request: RequestId,
        scope: &TenantScope,
        daemon: DaemonId,
        turn: &mut Turn<'_>,
    ) {
        if !self.may_run(scope, daemon) {
            return turn.refuse(request, Rejection::UnknownDaemon);
        }
        self.mark_drained(daemon, None, turn);
        // The daemon was told to rest, and says so in its heartbeats until it is told otherwise.
        if let Some(session) = self.roster.session_of(daemon) {
            turn.tell(
                After::Everything,
                session,
                Downstream::Drain { withdrawn: true },
            );
        }
        self.reply_daemon(request, daemon, turn);
    }

    /// A tenant runs only its own daemons; a shared one belongs to whoever may see all.
    pub(crate) fn may_run(&self, scope: &TenantScope, daemon: DaemonId) -> bool {
        let record = self.daemons.get(&daemon);
        record.is_some_and(|record| *scope == TenantScope::All || record.scope == *scope)
    }

    fn mark_drained(&mut self, daemon: DaemonId, mark: Option<DrainMark>, turn: &mut Turn<'_>) {
        let Some(record) = self.daemons.get_mut(&daemon) else {
            return;
        };
        if record.drained.is_some() == mark.is_some() {
            return;
        }
        self.roster.set_drained(daemon, mark.is_some(), turn.now.at);
        Arc::make_mut(record).drained = mark;
        turn.write(Write::PutDaemon(Arc::clone(record)));
    }

    fn reply_daemon(&mut self, request: RequestId, daemon: DaemonId, turn: &mut Turn<'_>) {
        match self.daemon_view(daemon, turn.now) {
            Some(view) => turn.reply(request, After::Everything, Reply::Daemon(Box::new(view))),
            None => turn.refuse(request, Rejection::UnknownDaemon),
        }
    }

    /// A tenant sees the daemons that work for it.
    pub(crate) fn list_daemons(
        &self,
        request: RequestId,
        scope: &TenantScope,
        turn: &mut Turn<'_>,
    ) {
        let seen = self.daemons.values().filter(|record| match scope {
            TenantScope::All => true,
            TenantScope::One(tenant) => record.scope.covers(tenant),
        });
        let views = seen
            .filter_map(|record| self.daemon_view(record.daemon, turn.now))
            .collect();
        turn.reply(request, After::Everything, Reply::Daemons(views));
    }

    pub(crate) fn daemon_view(&self, daemon: DaemonId, now: Now) -> Option<DaemonView> {
        let record = Arc::clone(self.daemons.get(&daemon)?);
        let live: &Daemon = self.roster.get(daemon)?;
        Some(DaemonView {
            record,
            connected: connected(&live.presence, now),
            draining: live.draining || live.drained,
            sick: live.is_sick(now.at) || live.is_unfit(),
            free_slots: live.free_slots(),
            failures: live.failures,
            load: live.load,
            now: now.wall,
            held: live
                .held
                .iter()
                .filter_map(|id| self.held_view(*id))
                .collect(),
        })
    }

    fn held_view(&self, attempt: AttemptId) -> Option<HeldView> {
        let live = self.tasks.get(self.attempts.get(&attempt)?)?;
        let newest = live.newest();
        Some(HeldView {
            task: live.id(),
            attempt,
            number: newest.number,
            state: newest.state.name(),
            phase: newest.phase,
            agent: live.spec.agent.clone(),
            since: newest.times.offered,
            tool: newest.tools.last().map(|tool| tool.name.clone()),
        })
    }

    pub(crate) fn inspect(
        &self,
        request: RequestId,
        tenant: &TenantId,
        task: TaskId,
        turn: &mut Turn<'_>,
    ) {
        let live = self
            .tasks
            .get(&task)
            .filter(|live| live.record().tenant == *tenant);
        let Some(live) = live else {
            return turn.refuse(request, Rejection::UnknownTask);
        };
        let waits = self.waits_for(live, turn.now.at);
        let view = TaskView {
            record: live.shared(),
            spec: Arc::clone(&live.spec),
            deadlines: live
                .timers
                .armed()
                .map(|armed| deadline_view(armed, turn.now))
                .collect(),
            waits_for: waits.map(|(waits, _)| waits),
            waits_ms: waits.and_then(|(_, until)| Some(until?.since(turn.now.at))),
            unmet: self.unmet(live),
        };
        turn.reply(request, After::Task(task), Reply::Inspected(Box::new(view)));
    }

    /// The first need that keeps every connected daemon out, counting only those that met the needs before it.
    fn unmet(&self, live: &Live) -> Option<String> {
        if live.spec.agent_held {
            return None;
        }
        let requirements = Requirements::of(&live.spec);
        let mut left: Vec<&Daemon> = self
            .daemons
            .keys()
            .filter(|daemon| self.roster.session_of(**daemon).is_some())
            .filter_map(|daemon| self.roster.get(*daemon))
            .collect();
        for need in requirements.needs() {
            left.retain(|daemon| requirements.has(daemon, need));
            if left.is_empty() {
                return Some(need.to_string());
            }
        }
        None
    }

    /// What it waits for, and until when at most where time alone ends that.
    fn waits_for(&self, live: &Live, now: Moment) -> Option<(WaitsFor, Option<Moment>)> {
        if live.record().attention.is_some() {
            return Some((WaitsFor::Person, None));
        }
        if let Some(retry_at) = live.retry_at {
            return Some((WaitsFor::Backoff, Some(retry_at)));
        }
        if live.newest().state != State::Queued {
            return None;
        }
        if self.is_paused(live) {
            return Some((WaitsFor::Pause, None));
        }
        if self.dispatch_held {
            return Some((WaitsFor::Space, None));
        }
        let key = ConversationKey::of(&live.spec);
        match self.fences.may_lease(live.id(), key.as_ref(), now) {
            Err(fence) => Some(behind(fence)),
            Ok(()) if live.spec.agent_held => Some((WaitsFor::Agent, None)),
            Ok(()) => Some((WaitsFor::Daemon, None)),
        }
    }
}

fn behind(fence: &Fence) -> (WaitsFor, Option<Moment>) {
    match fence.guard {
        Guard::Leased => (WaitsFor::Conversation, None),
        Guard::Until(at) if fence.is_inherited() => (WaitsFor::Inheritance, Some(at)),
        Guard::Until(at) => (WaitsFor::Fence, Some(at)),
    }
}

fn connected(presence: &Presence, now: Now) -> Option<Connected> {
    match *presence {
        Presence::Unheard | Presence::Away { .. } => None,
        Presence::Connected { since, heard, .. } => Some(Connected {
            since: Wall(now.wall.0.saturating_sub(now.at.since(since))),
            heard: Wall(now.wall.0.saturating_sub(now.at.since(heard))),
        }),
    }
}

fn deadline_view(armed: Armed, now: Now) -> DeadlineView {
    let (key, remaining_ms, at) = match armed {
        Armed::Running { key, limit_at, .. } => {
            (key, limit_at.since(now.at), Some(wall_of(limit_at, now)))
        }
        Armed::Paused { key, left_ms, .. } => (key, left_ms, None),
    };
    let timer = key.kind();
    let (tool, input) = match key {
        TimerKey::ToolIdle(tool) => (Some(tool), None),
        TimerKey::UserInput(input) => (None, Some(input)),
        TimerKey::Queue
        | TimerKey::Accept
        | TimerKey::ProcessStart
        | TimerKey::PromptWrite
        | TimerKey::FirstEvent
        | TimerKey::FirstVisibleEvent
        | TimerKey::StreamIdle
        | TimerKey::CleanupTerm
        | TimerKey::Total
        | TimerKey::Lease => (None, None),
    };
    DeadlineView {
        timer,
        tool,
        input,
        remaining_ms,
        at,
    }
}
