//! Boot: builds the core's state from the durable records.
//!
//! The relay does not know how long it was down, so leases and fences are armed in full. The
//! time that a hard deadline had used before stays used.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::attempt::fences::Fences;
use crate::attempt::timers::{DeadlineIndex, StoredTimers, TimerFact, TimerKey, TimerSet};
use crate::config::Config;
use crate::core_state::{Core, CoreTurn, RecoveredState};
use crate::fleet::daemon_registry::DaemonRegistry;
use crate::fleet::roster::DaemonRoster;
use crate::goal::parked_tasks::ParkedTasks;
use crate::ids::{TaskId, TenantId};
use crate::io::effects::Effects;
use crate::operator::rate_limit::OperatorRateLimit;
use crate::record::{AttemptRecord, AttemptState, LeaseHolder, TaskRecord, TimerBudget, TimerKind};
use crate::recovery::damage::min_uptime_ms;
use crate::schedule::conversation::ConversationAffinity;
use crate::schedule::open_task_limits::OpenTaskLimits;
use crate::schedule::queue::TaskQueue;
use crate::task::live_task::LiveTask;
use crate::task::spec::TaskSpec;
use crate::time::{ClockReading, IdSource};

impl Core {
    /// Builds the state from the durable records and returns it with the first effects of this
    /// run.
    pub fn recover(
        recovered: RecoveredState,
        config: Config,
        now: ClockReading,
        id_source: &mut dyn IdSource,
    ) -> (Core, Effects) {
        let mut core = Core::new_empty(config, &recovered, now);
        let mut turn = CoreTurn {
            now,
            id_source,
            effects: Effects::default(),
        };
        for record in recovered.daemons {
            core.roster.insert_record(&record);
            core.daemon_registry.insert(record);
        }
        for fence in recovered
            .fences
            .iter()
            .filter(|_| !mutant!(FenceForgottenAtBoot))
        {
            core.fences.restore(fence, now.monotonic);
        }
        for (tenant, key, record) in recovered.idempotency {
            core.idempotency_keys.insert((tenant, key), record);
        }
        let mut tasks = recovered.tasks;
        // Ids rise with time: sorting by id keeps the queue order over a restart.
        tasks.sort_by_key(|(_, record)| record.task);
        let ids: Vec<TaskId> = tasks.iter().map(|(_, record)| record.task).collect();
        core.pause_for_damage(&recovered.damage, &mut turn);
        let suspension_ms = if recovered.damage.may_hide_grants() {
            core.config.longest_grant_ms()
        } else {
            core.config.inherited_suspension_ms
        };
        core.suspend_inherited(suspension_ms, &ids, &mut turn);
        core.drop_damaged_fences(&recovered.damage, &mut turn);
        let tenants: BTreeSet<&TenantId> = tasks.iter().map(|(_, record)| &record.tenant).collect();
        core.pauses.prune_tenants(|tenant| tenants.contains(tenant));
        for (spec, record) in tasks {
            core.restore_task(spec, record, &mut turn);
        }
        (core, turn.effects)
    }

    fn new_empty(config: Config, recovered: &RecoveredState, now: ClockReading) -> Core {
        Core {
            tasks: HashMap::new(),
            leased_attempts: HashMap::new(),
            agent_leases: BTreeMap::new(),
            idempotency_keys: BTreeMap::new(),
            open_limits: OpenTaskLimits::default(),
            queue: TaskQueue::default(),
            roster: DaemonRoster::new(&config),
            fences: Fences::default(),
            parked_tasks: ParkedTasks::default(),
            affinity: ConversationAffinity::default(),
            deadlines: DeadlineIndex::default(),
            daemon_registry: DaemonRegistry::default(),
            scheduler: recovered.scheduler.clone(),
            pauses: recovered.pauses.clone(),
            forgotten_daemons: recovered.forgotten.clone(),
            daemon_changes: recovered.daemon_changes.clone(),
            started_at: now.monotonic,
            earlier_uptime_ms: earlier_uptime_ms(recovered),
            dispatch_suspended: false,
            operator_limit: OperatorRateLimit::default(),
            uptime_written_at: now.monotonic,
            last_turn_at: now.monotonic,
            config,
        }
    }

    fn restore_task(
        &mut self,
        spec: Arc<TaskSpec>,
        mut record: Arc<TaskRecord>,
        turn: &mut CoreTurn<'_>,
    ) {
        if let Some(lease) = Arc::make_mut(&mut record)
            .attempts
            .last_mut()
            .and_then(|a| a.lease.as_mut())
        {
            // LeaseConfirmed may have been sent before the crash, so a process may exist.
            lease.confirmed = true;
        }
        let Some(newest) = record.newest_attempt() else {
            return;
        };
        let timers = self.restore_timers(newest, &spec, &record, turn.now);
        let mut live = Box::new(LiveTask::new(spec, record, timers));
        self.fence_inherited(&live, turn.now);
        live.retry_at = live
            .record()
            .retry
            .as_ref()
            .map(|retry| turn.now.monotonic + retry.remaining_ms);
        if live.is_newest_leased() {
            self.restore_lease(&mut live, turn);
        } else if live.newest_attempt().state == AttemptState::Queued
            && self.config.inherited_suspension_ms > 0
            && !mutant!(InheritedIdReused)
        {
            self.replace_queued_attempt(&mut live, turn);
        } else if live.newest_attempt().state == AttemptState::Queued {
            self.enqueue_task(&live);
        }
        self.put_back_task(live, turn);
    }

    fn restore_lease(&mut self, live: &mut LiveTask, turn: &CoreTurn<'_>) {
        let Some(holder) = live.newest_attempt().holder.clone() else {
            return;
        };
        let attempt = live.newest_attempt().id;
        self.leased_attempts.insert(attempt, live.id());
        match &holder {
            LeaseHolder::Daemon(holder) => {
                self.roster
                    .assign_attempt(holder.daemon, attempt, turn.now.monotonic)
            }
            LeaseHolder::Agent(holder) => {
                self.agent_leases.insert((holder.token, attempt), live.id());
            }
        }
        self.raise_lease_fence(live, &holder);
        live.confirmed_at = Some(turn.now.monotonic);
    }

    fn restore_timers(
        &self,
        newest: &AttemptRecord,
        spec: &TaskSpec,
        record: &TaskRecord,
        now: ClockReading,
    ) -> TimerSet {
        let limits = LiveTask::attempt_timer_limits(newest, spec, &self.config);
        let clock_ms = if newest.state == AttemptState::Queued {
            self.queue_clock_of(&spec.tenant, record.task, self.earlier_uptime_ms)
        } else {
            self.earlier_uptime_ms
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
            paused: self.effective_pause(&spec.tenant).is_some()
                || record.paused.is_some()
                || self.scheduler.suspension_of(record.task).is_some(),
            lease_ms: newest
                .lease
                .as_ref()
                .map_or(spec.lease_ttl_ms, |lease| lease.granted_ms),
            floor_ms: self.config.accept_ms,
        };
        if mutant!(TimersNotRestored) {
            return TimerSet::default();
        }
        let mut timers = TimerSet::restore(&stored, now.monotonic, &limits);
        // A record without the timer that its state needs gets the full time, so that nothing
        // waits for ever.
        if newest.state.is_leased() && !timers.is_armed(&TimerKey::Lease) {
            timers.on_fact(&TimerFact::LeaseConfirmed, now.monotonic, &limits);
        }
        if newest.state == AttemptState::Queued && !timers.is_armed(&TimerKey::Queue) {
            timers.on_fact(&TimerFact::Queued, now.monotonic, &limits);
        }
        timers
    }
}

fn earlier_uptime_ms(recovered: &RecoveredState) -> u64 {
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
