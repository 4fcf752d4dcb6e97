//! Boot: the state is built from what is durable, by the same rules as always.
//!
//! The relay does not know how long it was away, so leases and fences are armed in full; but what a hard deadline had
//! used up before counts for ever.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::config::Config;
use crate::conversation::Affinity;
use crate::core::{Core, Recovered, Turn};
use crate::damage::least_uptime_ms;
use crate::effects::Effects;
use crate::fences::Fences;
use crate::force_limit::ForceLimit;
use crate::id::{TaskId, TenantId};
use crate::known_daemons::KnownDaemons;
use crate::live::Live;
use crate::open::Open;
use crate::parked::ParkedTasks;
use crate::queue::Queue;
use crate::record::{AttemptRecord, Budget, Holder, State, TaskRecord, TimerKind};
use crate::roster::Roster;
use crate::spec::TaskSpec;
use crate::time::{Mint, Now};
use crate::timers::{Deadlines, Fact, Stored, TimerKey, TimerSet};

impl Core {
    /// Builds the state from what is durable. The effects are the first of this run.
    pub fn recover(
        recovered: Recovered,
        config: Config,
        now: Now,
        mint: &mut dyn Mint,
    ) -> (Core, Effects) {
        let mut core = Core::empty(config, &recovered, now);
        let mut turn = Turn {
            now,
            mint,
            fx: Effects::default(),
        };
        for record in recovered.daemons {
            core.roster.know(&record);
            core.daemons.insert(record);
        }
        for fence in recovered
            .fences
            .iter()
            .filter(|_| !mutant!(FenceForgottenAtBoot))
        {
            core.fences.restore(fence, now.at);
        }
        for (tenant, key, record) in recovered.idempotency {
            core.keys.insert((tenant, key), record);
        }
        let mut tasks = recovered.tasks;
        // Ids rise with time: first come, first served holds over a restart.
        tasks.sort_by_key(|(_, record)| record.task);
        let ids: Vec<TaskId> = tasks.iter().map(|(_, record)| record.task).collect();
        core.pause_what_may_be(&recovered.damage, &mut turn);
        let hold_ms = if recovered.damage.hides_grants() {
            core.config.longest_grant_ms()
        } else {
            core.config.inherited_hold_ms
        };
        core.hold_inherited(hold_ms, &ids, &mut turn);
        core.drop_damaged_fences(&recovered.damage, &mut turn);
        let tenants: BTreeSet<&TenantId> = tasks.iter().map(|(_, record)| &record.tenant).collect();
        core.pauses.forget(|tenant| tenants.contains(tenant));
        for (spec, record) in tasks {
            core.restore(spec, record, &mut turn);
        }
        (core, turn.fx)
    }

    fn empty(config: Config, recovered: &Recovered, now: Now) -> Core {
        Core {
            tasks: HashMap::new(),
            attempts: HashMap::new(),
            held: BTreeMap::new(),
            keys: BTreeMap::new(),
            open: Open::default(),
            queue: Queue::default(),
            roster: Roster::new(&config),
            fences: Fences::default(),
            parked: ParkedTasks::default(),
            affinity: Affinity::default(),
            deadlines: Deadlines::default(),
            daemons: KnownDaemons::default(),
            scheduler: recovered.scheduler.clone(),
            pauses: recovered.pauses.clone(),
            forgotten: recovered.forgotten.clone(),
            daemon_changes: recovered.daemon_changes.clone(),
            started: now.at,
            earlier_ms: earlier_ms(recovered),
            dispatch_held: false,
            forced: ForceLimit::default(),
            uptime_written: now.at,
            last: now.at,
            config,
        }
    }

    fn restore(&mut self, spec: Arc<TaskSpec>, mut record: Arc<TaskRecord>, turn: &mut Turn<'_>) {
        if let Some(lease) = Arc::make_mut(&mut record)
            .attempts
            .last_mut()
            .and_then(|a| a.lease.as_mut())
        {
            // Whether LeaseConfirmed left before the crash is unknown, so a process may exist.
            lease.confirmed = true;
        }
        let Some(newest) = record.newest() else {
            return;
        };
        let timers = self.restore_timers(newest, &spec, &record, turn.now);
        let mut live = Box::new(Live::new(spec, record, timers));
        self.fence_inherited(&live, turn.now);
        live.retry_at = live
            .record()
            .retry
            .as_ref()
            .map(|retry| turn.now.at + retry.remaining_ms);
        if live.is_newest_leased() {
            self.restore_lease(&mut live, turn);
        } else if live.newest().state == State::Queued
            && self.config.inherited_hold_ms > 0
            && !mutant!(InheritedIdReused)
        {
            self.replace_queued(&mut live, turn);
        } else if live.newest().state == State::Queued {
            self.line_up(&live);
        }
        self.keep(live, turn);
    }

    fn restore_lease(&mut self, live: &mut Live, turn: &Turn<'_>) {
        let Some(holder) = live.newest().holder.clone() else {
            return;
        };
        let attempt = live.newest().id;
        self.attempts.insert(attempt, live.id());
        match &holder {
            Holder::Daemon(holder) => self.roster.hold(holder.daemon, attempt, turn.now.at),
            Holder::Agent(holder) => {
                self.held.insert((holder.token, attempt), live.id());
            }
        }
        self.guard(live, &holder);
        live.confirmed_at = Some(turn.now.at);
    }

    fn restore_timers(
        &self,
        newest: &AttemptRecord,
        spec: &TaskSpec,
        record: &TaskRecord,
        now: Now,
    ) -> TimerSet {
        let limits = Live::limits_of(newest, spec, &self.config);
        let clock_ms = if newest.state == State::Queued {
            self.queue_clock_of(&spec.tenant, record.task, self.earlier_ms)
        } else {
            self.earlier_ms
        };
        let budgets = up_to_date(newest, clock_ms, record.paused.is_some());
        let stored = Stored {
            budgets: &budgets,
            reached: newest.reached,
            tools: newest
                .tools
                .iter()
                .map(|tool| Arc::clone(&tool.id))
                .collect(),
            inputs: open_inputs(newest),
            cleaning: matches!(newest.state, State::CleaningUp { .. }),
            paused: self.pause_of(&spec.tenant).is_some()
                || record.paused.is_some()
                || self.scheduler.hold_of(record.task).is_some(),
            lease_ms: newest
                .lease
                .as_ref()
                .map_or(spec.lease_ttl_ms, |lease| lease.granted_ms),
            floor_ms: self.config.accept_ms,
        };
        if mutant!(TimersNotRestored) {
            return TimerSet::default();
        }
        let mut timers = TimerSet::restore(&stored, now.at, &limits);
        // A record without the timer that its state needs gets it in full: nothing may wait for ever.
        if newest.state.is_leased() && !timers.is_armed(&TimerKey::Lease) {
            timers.on_fact(&Fact::LeaseConfirmed, now.at, &limits);
        }
        if newest.state == State::Queued && !timers.is_armed(&TimerKey::Queue) {
            timers.on_fact(&Fact::Queued, now.at, &limits);
        }
        timers
    }
}

fn earlier_ms(recovered: &Recovered) -> u64 {
    let known_ms = recovered.scheduler.uptime_ms;
    if !recovered.damage.scheduler {
        return known_ms;
    }
    known_ms.max(least_uptime_ms(
        recovered.tasks.iter().map(|(_, record)| &**record),
    ))
}

fn open_inputs(attempt: &AttemptRecord) -> Vec<crate::id::InputId> {
    let open = attempt.inputs.iter().filter(|i| i.state.is_pending());
    open.map(|input| input.id).collect()
}

/// Adds the time that the relay ran after the budgets were written. Only hard deadlines: the others start over or are
/// given a floor. Whether the queue timer stood still is the task's to say, for each of its pauses is written; the
/// scheduler's are in the clock.
fn up_to_date(attempt: &AttemptRecord, clock_ms: u64, task_paused: bool) -> Vec<Budget> {
    let ran_ms = clock_ms.saturating_sub(attempt.budgets_at_ms);
    let add = |budget: &Budget| {
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
        Budget {
            consumed_ms: budget.consumed_ms.saturating_add(ran_ms),
            ..budget.clone()
        }
    };
    attempt.budgets.iter().map(add).collect()
}
