//! The state of the core, and its entry points `handle` and `next_deadline`.
//!
//! One turn runs in a fixed order: stall credit, the input, placement. What each input does is
//! decided in the folder of its subject. A task is removed from the map while it is changed and
//! put back together with its record changes, so no other code sees a half-changed task.

use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::lease_index::LeaseIndex;
use crate::attempt::machine::MachineEvent;
use crate::config::Config;
use crate::fleet::Fleet;
use crate::fleet::frame::{handle_activity, handle_frame, load_frame_records};
use crate::fleet::heartbeat::{credit_stall, extend_leases, handle_heartbeat};
use crate::fleet::session::{delivery_failed, look_up_ended_tasks, open_session};
use crate::ids::{AttemptId, TaskId, TenantId};
use crate::io::command::CoreInput;
use crate::io::effects::Effects;
use crate::io::session_input::SessionInput;
use crate::io::stored_lookup::StoredTasks;
use crate::operator::rate_limit::OperatorRateLimit;
use crate::record::{
    DaemonChangesRecord, DaemonRecord, FenceRecord, ForgottenDaemonsRecord, IdempotencyRecord,
    PausesRecord, SchedulerRecord, TaskRecord,
};
use crate::recovery::boot::{earlier_uptime_ms, restore};
use crate::recovery::damage::RecordDamage;
use crate::schedule::Schedule;
use crate::schedule::dispatch::place_queued_tasks;
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::{LiveTasks, put_back_task};
use crate::task::spec::TaskSpec;
use crate::tick::{tick, write_uptime};
use crate::time::{ClockReading, IdSource, MonotonicTime};
use crate::turn::CoreTurn;

/// All durable state that a boot needs. Finished tasks stay in the store.
#[derive(Debug, Default)]
pub struct RecoveredState {
    pub tasks: Vec<(Arc<TaskSpec>, Arc<TaskRecord>)>,
    pub daemons: Vec<Arc<DaemonRecord>>,
    pub scheduler: SchedulerRecord,
    pub pauses: PausesRecord,
    pub forgotten: ForgottenDaemonsRecord,
    pub daemon_changes: DaemonChangesRecord,
    pub fences: Vec<FenceRecord>,
    /// Keys of live tasks only. Keys of finished tasks are read from the store on demand.
    pub idempotency: Vec<(TenantId, String, IdempotencyRecord)>,
    /// Records that could not be read and are therefore missing from the fields above.
    pub damage: RecordDamage,
}

/// All live state. Maps that are only looked up are hash maps; maps that are iterated are
/// ordered, so that a replay gives the same result.
#[derive(Debug)]
pub struct Core {
    config: Config,
    tasks: LiveTasks,
    leases: LeaseIndex,
    fleet: Fleet,
    schedule: Schedule,
    operators: OperatorRateLimit,
    /// When this run began, and the uptime that earlier runs had.
    started_at: MonotonicTime,
    earlier_uptime_ms: u64,
    last_turn_at: MonotonicTime,
}

/// The owners, for one command or one message of a session. What is decided about one attempt gets
/// `AttemptOwners` instead.
#[derive(Debug)]
pub struct CoreOwners<'a> {
    pub(crate) tasks: &'a mut LiveTasks,
    pub(crate) leases: &'a mut LeaseIndex,
    pub(crate) fleet: &'a mut Fleet,
    pub(crate) schedule: &'a mut Schedule,
    pub(crate) operators: &'a mut OperatorRateLimit,
}

impl CoreOwners<'_> {
    pub(crate) fn attempt(&mut self) -> AttemptOwners<'_> {
        AttemptOwners {
            leases: self.leases,
            roster: self.fleet.roster_mut(),
            schedule: self.schedule,
        }
    }

    pub(crate) fn put_back_task(
        &mut self,
        live: Box<LiveTask>,
        turn: &mut CoreTurn<'_>,
    ) -> Arc<TaskRecord> {
        let roster = self.fleet.roster_mut();
        put_back_task(self.tasks, roster, self.schedule, live, turn)
    }

    /// Applies an event to a leased attempt, whatever its task.
    pub(crate) fn apply_to_attempt(
        &mut self,
        attempt: AttemptId,
        event: MachineEvent,
        turn: &mut CoreTurn<'_>,
    ) {
        let task = self.leases.task_of(attempt);
        let Some(mut live) = task.and_then(|task| self.tasks.take_any(task)) else {
            return;
        };
        if live.newest_attempt().id == attempt {
            self.attempt().apply_event(&mut live, event, None, turn);
        }
        self.put_back_task(live, turn);
    }
}

impl Core {
    /// Decides one input. `now` never goes back; the shell reads both clocks once per input.
    /// Finished tasks that the input names are read from `store`.
    pub fn recover(
        recovered: RecoveredState,
        config: Config,
        now: ClockReading,
        id_source: &mut dyn IdSource,
    ) -> (Core, Effects) {
        let (scheduler, pauses) = (recovered.scheduler.clone(), recovered.pauses.clone());
        let forgotten = recovered.forgotten.clone();
        let mut core = Core {
            tasks: LiveTasks::default(),
            leases: LeaseIndex::default(),
            fleet: Fleet::new(&config, forgotten, recovered.daemon_changes.clone()),
            schedule: Schedule::new(scheduler, pauses, now.monotonic),
            operators: OperatorRateLimit::default(),
            started_at: now.monotonic,
            earlier_uptime_ms: earlier_uptime_ms(&recovered),
            last_turn_at: now.monotonic,
            config,
        };
        let (mut owners, mut turn) = core.begin_turn(now, id_source);
        restore(&mut owners, recovered, &mut turn);
        let effects = turn.effects;
        (core, effects)
    }

    /// Decides one input. `now` never goes back; the shell reads both clocks once per input. What
    /// the input names and the core does not hold is read from `store`.
    pub fn handle(
        &mut self,
        input: CoreInput,
        store: &dyn StoredTasks,
        now: ClockReading,
        id_source: &mut dyn IdSource,
    ) -> Effects {
        let last_turn_at = std::mem::replace(&mut self.last_turn_at, now.monotonic);
        let (mut owners, mut turn) = self.begin_turn(now, id_source);
        credit_stall(&mut owners, last_turn_at, &mut turn);
        match input {
            CoreInput::Command(command) => {
                let needs = command.stored_needs();
                let stored = needs.load(|task| owners.tasks.is_live(task), store);
                let reply = command.run(&mut owners, stored, &mut turn);
                turn.effects.deliveries.push(reply);
            }
            CoreInput::Session(input) => {
                handle_session_input(&mut owners, input, store, &mut turn);
            }
            CoreInput::SuspendDispatch { suspended } => owners.schedule.suspend_dispatch(suspended),
            CoreInput::Tick => tick(&mut owners, &mut turn),
        }
        place_queued_tasks(&mut owners, &mut turn);
        if !owners.tasks.is_empty() {
            write_uptime(owners.schedule, &mut turn);
        }
        turn.effects
    }

    pub(crate) fn begin_turn<'a>(
        &'a mut self,
        now: ClockReading,
        id_source: &'a mut dyn IdSource,
    ) -> (CoreOwners<'a>, CoreTurn<'a>) {
        let run_ms = now.monotonic.since(self.started_at);
        let uptime_ms = self.earlier_uptime_ms.saturating_add(run_ms);
        let turn = CoreTurn::new(now, uptime_ms, &self.config, id_source);
        let owners = CoreOwners {
            tasks: &mut self.tasks,
            leases: &mut self.leases,
            fleet: &mut self.fleet,
            schedule: &mut self.schedule,
            operators: &mut self.operators,
        };
        (owners, turn)
    }

    /// When `CoreInput::Tick` is wanted next.
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        // A short interval while anything is leased: only so does a stall differ from an idle hour.
        let beat = (!self.leases.is_empty()).then(|| self.last_turn_at + self.config.stall_ms / 2);
        let written_at = self.schedule.scheduler_written_at();
        let uptime = (!self.tasks.is_empty()).then(|| written_at + self.config.budget_write_ms);
        let sources = [
            self.tasks.next_due_at(),
            self.schedule.next_change_at(),
            self.fleet.roster().next_change_at(),
            beat,
            uptime,
        ];
        sources.into_iter().flatten().min()
    }

    /// Whether the task is not finished.
    pub fn is_live(&self, task: TaskId) -> bool {
        self.tasks.is_live(task)
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number of tasks that are not finished.
    pub fn open_task_count(&self) -> usize {
        self.tasks.len()
    }

    /// For checks: a task that no timer will ever reach and that waits for no person; there must be
    /// none.
    pub fn find_untimed_task(&self) -> Option<TaskId> {
        self.tasks.find_untimed()
    }

    #[cfg(test)]
    pub(crate) fn tasks(&self) -> &LiveTasks {
        &self.tasks
    }

    #[cfg(test)]
    pub(crate) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// For checks: whether the counts that are kept are those of the live tasks.
    pub fn counts_are_true(&self) -> bool {
        self.tasks.counts_are_true(&self.schedule)
    }
}

fn handle_session_input(
    core: &mut CoreOwners<'_>,
    input: SessionInput,
    store: &dyn StoredTasks,
    turn: &mut CoreTurn<'_>,
) {
    match input {
        SessionInput::Opened { session, mut hello } => {
            look_up_ended_tasks(core.tasks, &mut hello, store);
            open_session(core, session, *hello, turn);
        }
        SessionInput::Closed { session } => core.fleet.session_ended(session, turn),
        SessionInput::Heartbeat { session, heartbeat } => {
            handle_heartbeat(core, session, heartbeat, turn);
        }
        SessionInput::Frame(frame) => {
            let stored = load_frame_records(core, &frame, store);
            handle_frame(core, *frame, stored, turn);
        }
        SessionInput::Activity(activity) => handle_activity(core, activity, turn),
        SessionInput::ExtendLeases(extension) => extend_leases(core, extension, turn),
        SessionInput::DeliveryFailed { session, attempt } => {
            delivery_failed(core, session, attempt, turn);
        }
    }
}
