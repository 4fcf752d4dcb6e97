//! The live tasks, with what is indexed by them: idempotency keys, open-task limits, parked tasks
//! and deadlines.
//!
//! A task is taken out while it is changed, so nothing sees it half-way; `put_back_task` writes
//! what changed and brings every index in line.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::attempt::timers::{DeadlineIndex, TimerFact};
use crate::config::Config;
use crate::fleet::roster::DaemonRoster;
use crate::goal::parked_tasks::{ParkedListCursor, ParkedTasks};
use crate::ids::{TaskId, TenantId, TenantScope};
use crate::io::command::AgentPrincipal;
use crate::io::effects::RecordChange;
use crate::io::rejection::{ExceededBound, Rejection};
use crate::record::{AttemptState, IdempotencyRecord, ResumeInstructions, TaskRecord};
use crate::schedule::Schedule;
use crate::schedule::open_task_limits::{OpenTaskCounts, OpenTaskLimits};
use crate::schedule::pause::update_queue_timer;
use crate::task::live_task::LiveTask;
use crate::task::spec::TaskSpec;
use crate::task::timer_invariant::has_timer_or_waits_for_person;
use crate::time::{MonotonicTime, WallTime};
use crate::turn::CoreTurn;

#[derive(Debug, Default)]
pub(crate) struct LiveTasks {
    live: HashMap<TaskId, Box<LiveTask>>,
    idempotency_keys: BTreeMap<(TenantId, String), IdempotencyRecord>,
    open_limits: OpenTaskLimits,
    parked: ParkedTasks,
    deadlines: DeadlineIndex<TaskId>,
}

impl LiveTasks {
    pub(crate) fn get(&self, task: TaskId) -> Option<&LiveTask> {
        self.live.get(&task).map(|live| &**live)
    }

    /// For what is not stored: renewals and counters of heartbeats.
    pub(crate) fn get_mut(&mut self, task: TaskId) -> Option<&mut LiveTask> {
        self.live.get_mut(&task).map(|live| &mut **live)
    }

    pub(crate) fn is_live(&self, task: TaskId) -> bool {
        self.live.contains_key(&task)
    }

    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// In no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &LiveTask> {
        self.live.values().map(|live| &**live)
    }

    /// Takes a live task of this tenant out for a change; another tenant's does not exist.
    pub(crate) fn take(&mut self, tenant: &TenantId, task: TaskId) -> Option<Box<LiveTask>> {
        if self.live.get(&task)?.record().tenant != *tenant && !mutant!(TenantIgnored) {
            return None;
        }
        self.live.remove(&task)
    }

    /// The same for a daemon or the clock, whose right is checked otherwise.
    pub(crate) fn take_any(&mut self, task: TaskId) -> Option<Box<LiveTask>> {
        self.live.remove(&task)
    }

    /// Takes a live task out that this agent may have; any other one does not exist for it.
    pub(crate) fn take_for_agent(
        &mut self,
        agent: &AgentPrincipal,
        task: TaskId,
    ) -> Option<Box<LiveTask>> {
        let known = self.live.get(&task)?;
        if !agent.may_have(&known.spec) {
            return None;
        }
        self.take(&agent.tenant, task)
    }

    pub(crate) fn idempotency(&self, tenant: &TenantId, key: &str) -> Option<&IdempotencyRecord> {
        self.idempotency_keys.get(&(tenant.clone(), key.to_owned()))
    }

    pub(crate) fn insert_idempotency(
        &mut self,
        tenant: TenantId,
        key: String,
        record: IdempotencyRecord,
    ) {
        self.idempotency_keys.insert((tenant, key), record);
    }

    /// The bounds on open tasks, for whatever opens one.
    pub(crate) fn check_open_limits(
        &self,
        spec: &TaskSpec,
        config: &Config,
    ) -> Result<(), Rejection> {
        if self.live.len() >= config.max_open_tasks && !mutant!(BoundIgnored) {
            return Err(Rejection::QueueFull(ExceededBound::Tasks));
        }
        self.open_limits.check_room_for_task(spec, config)?;
        if self.open_limits.open_count_of(&spec.tenant) >= config.max_open_tasks_per_tenant {
            return Err(Rejection::TenantQueueFull(ExceededBound::Tasks));
        }
        Ok(())
    }

    pub(crate) fn check_room_for_resume(
        &self,
        tenant: &TenantId,
        resume: &ResumeInstructions,
        config: &Config,
    ) -> Result<(), Rejection> {
        self.open_limits
            .check_room_for_resume(tenant, resume, config)
    }

    pub(crate) fn counts(&self, scope: &TenantScope) -> (OpenTaskCounts, Option<WallTime>) {
        self.open_limits.counts(scope)
    }

    /// The tenant's parked tasks behind `after`.
    pub(crate) fn parked_after(
        &self,
        tenant: &TenantId,
        after: Option<ParkedListCursor>,
    ) -> impl Iterator<Item = &LiveTask> {
        let parked = self.parked.after_cursor(tenant, after);
        parked.filter_map(|task| self.get(task))
    }

    pub(crate) fn next_due_at(&self) -> Option<MonotonicTime> {
        self.deadlines.next_due_at()
    }

    /// A task with a timer that ran out; it is out of the index until it is put back.
    pub(crate) fn take_due(&mut self, now: MonotonicTime) -> Option<TaskId> {
        self.deadlines.take_due(now)
    }

    /// Waiting tasks within this scope, in the order in which they came.
    pub(crate) fn queued_tasks(&self, scope: &TenantScope) -> Vec<TaskId> {
        let within = |live: &&LiveTask| {
            scope.covers(&live.spec.tenant) && live.newest_attempt().state == AttemptState::Queued
        };
        let mut ids: Vec<TaskId> = self.iter().filter(within).map(LiveTask::id).collect();
        ids.sort_unstable();
        ids
    }

    /// Stops or restarts the queue timer of a waiting task. Not stored: a boot works it out.
    pub(crate) fn update_queue_timer(
        &mut self,
        task: TaskId,
        fact: &TimerFact,
        config: &Config,
        now: MonotonicTime,
    ) {
        let Some(live) = self.live.get_mut(&task) else {
            return;
        };
        update_queue_timer(live, fact, config, now);
        if let Some(at) = live.next_due() {
            self.deadlines.arm(task, at);
        }
    }

    /// A task that no timer will ever reach and that waits for no person; there must be none.
    pub(crate) fn find_untimed(&self) -> Option<TaskId> {
        let reached = |live: &LiveTask| live.next_due().is_none() || self.deadlines.has(live.id());
        let mut tasks = self.iter();
        let forgotten = tasks.find(|live| !has_timer_or_waits_for_person(live) || !reached(live));
        forgotten.map(LiveTask::id)
    }

    /// For checks: whether the counts are those of the live tasks.
    pub(crate) fn counts_are_true(&self, schedule: &Schedule) -> bool {
        let mut recount = OpenTaskLimits::default();
        for live in self.iter() {
            // Once no suspension is active, the mark is neither updated nor shown.
            let inherited = if schedule.has_active_suspension() {
                schedule.is_suspended(live.id())
            } else {
                self.open_limits.is_inherited(live.id())
            };
            recount.update_task(&live.spec, live.record(), inherited);
        }
        self.open_limits.equals_recount(&recount)
    }

    fn insert_open(&mut self, live: Box<LiveTask>, inherited: bool) {
        self.parked.update_task(live.record());
        self.open_limits
            .update_task(&live.spec, live.record(), inherited);
        debug_assert!(
            has_timer_or_waits_for_person(&live),
            "waits for ever: {:?}",
            live.record()
        );
        match live.next_due() {
            Some(at) => self.deadlines.arm(live.id(), at),
            None => self.deadlines.disarm(live.id()),
        }
        self.live.insert(live.id(), live);
    }

    fn remove_ended(&mut self, live: &LiveTask) {
        let (tenant, task) = (&live.spec.tenant, live.id());
        self.deadlines.disarm(task);
        self.parked.remove_task(tenant, task);
        if let Some(key) = &live.spec.idempotency_key {
            self.idempotency_keys.remove(&(tenant.clone(), key.clone()));
        }
        self.open_limits.remove(tenant, task);
    }
}

/// Puts a task back: writes what changed, publishes it, arms what comes next, or lets it go if it
/// has ended.
pub(crate) fn put_back_task(
    tasks: &mut LiveTasks,
    roster: &mut DaemonRoster,
    schedule: &mut Schedule,
    mut live: Box<LiveTask>,
    turn: &mut CoreTurn<'_>,
) -> Arc<TaskRecord> {
    let change = live.finish_change(turn.now, schedule.budget_clock_ms(&live, turn.uptime_ms));
    let ended = live.record().state.is_terminal();
    if let Some(change) = change {
        let record = Arc::clone(&change.record);
        turn.push_change(match (ended, live.take_reopened()) {
            (true, _) => RecordChange::PutDone(record),
            (false, true) => RecordChange::Reopen(record),
            (false, false) => RecordChange::PutLive(record),
        });
        turn.publish_events(change.record, Arc::clone(&live.spec), change.events);
    }
    let record = live.shared_record();
    if ended {
        roster.forget_task(live.id());
        schedule.dequeue(live.id());
        tasks.remove_ended(&live);
    } else {
        let inherited = schedule.is_suspended(live.id());
        tasks.insert_open(live, inherited);
    }
    record
}

/// Writes a finished task that changed once more (late evidence, an adopted result).
pub(crate) fn store_finished_task(live: &mut LiveTask, turn: &mut CoreTurn<'_>) {
    if let Some(change) = live.finish_change(turn.now, turn.uptime_ms) {
        turn.push_change(RecordChange::PutDone(Arc::clone(&change.record)));
        if !mutant!(LateWordUnpublished) {
            turn.publish_events(change.record, Arc::clone(&live.spec), change.events);
        }
    }
}
