//! The state of the core, and its entry points `handle` and `next_deadline`.
//!
//! One turn runs in a fixed order: stall credit, the input, placement. What each input does is
//! decided in the folder of its subject. A task is removed from the map while it is changed and
//! put back together with its record changes, so no other code sees a half-changed task.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::attempt::fences::Fences;
use crate::attempt::timers::DeadlineIndex;
use crate::config::Config;
use crate::fleet::daemon_registry::DaemonRegistry;
use crate::fleet::roster::DaemonRoster;
use crate::goal::parked_tasks::ParkedTasks;
use crate::ids::{AttemptId, SessionId, TaskId, TenantId, TokenId};
use crate::io::command::CoreInput;
use crate::io::effects::{
    CommitDependency, DaemonMessage, Delivery, Effects, GatedDelivery, RecordChange,
};
use crate::io::session_input::SessionInput;
use crate::io::stored_lookup::StoredTasks;
use crate::operator::rate_limit::OperatorRateLimit;
use crate::record::{
    AttemptState, DaemonChangesRecord, DaemonRecord, FenceRecord, ForgottenDaemonsRecord,
    IdempotencyRecord, PausesRecord, SchedulerRecord, TaskRecord, TimelineEvent,
};
use crate::recovery::damage::RecordDamage;
use crate::schedule::conversation::ConversationAffinity;
use crate::schedule::open_task_limits::OpenTaskLimits;
use crate::schedule::queue::TaskQueue;
use crate::task::live_task::{AttemptContext, LiveTask};
use crate::task::spec::TaskSpec;
use crate::task::timer_invariant::has_timer_or_waits_for_person;
use crate::time::{ClockReading, IdSource, MonotonicTime, WallTime};

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
    pub(crate) config: Config,
    pub(crate) tasks: HashMap<TaskId, Box<LiveTask>>,
    /// The task of each leased attempt.
    pub(crate) leased_attempts: HashMap<AttemptId, TaskId>,
    /// Leased attempts held by agents, by the credential of the agent.
    pub(crate) agent_leases: BTreeMap<(TokenId, AttemptId), TaskId>,
    pub(crate) idempotency_keys: BTreeMap<(TenantId, String), IdempotencyRecord>,
    pub(crate) open_limits: OpenTaskLimits,
    pub(crate) queue: TaskQueue,
    pub(crate) roster: DaemonRoster,
    pub(crate) fences: Fences,
    pub(crate) affinity: ConversationAffinity,
    pub(crate) parked_tasks: ParkedTasks,
    pub(crate) deadlines: DeadlineIndex<TaskId>,
    pub(crate) daemon_registry: DaemonRegistry,
    pub(crate) scheduler: SchedulerRecord,
    pub(crate) pauses: PausesRecord,
    pub(crate) forgotten_daemons: ForgottenDaemonsRecord,
    pub(crate) daemon_changes: DaemonChangesRecord,
    /// Limits how often operators may force changes.
    pub(crate) operator_limit: OperatorRateLimit,
    /// New leases are suspended; existing ones continue.
    pub(crate) dispatch_suspended: bool,
    /// When this run began, and the uptime of all earlier runs.
    pub(crate) started_at: MonotonicTime,
    pub(crate) earlier_uptime_ms: u64,
    pub(crate) uptime_written_at: MonotonicTime,
    pub(crate) last_turn_at: MonotonicTime,
}

/// The context of one turn: its time, its id source and the effects collected so far.
#[expect(missing_debug_implementations, reason = "lives for one turn only")]
pub struct CoreTurn<'a> {
    pub(crate) now: ClockReading,
    pub(crate) id_source: &'a mut dyn IdSource,
    pub(crate) effects: Effects,
}

impl CoreTurn<'_> {
    pub(crate) fn push_delivery(&mut self, after: CommitDependency, send: Delivery) {
        self.effects.deliveries.push(GatedDelivery {
            depends_on: after,
            delivery: send,
        });
    }

    pub(crate) fn send_to_session(
        &mut self,
        after: CommitDependency,
        session: SessionId,
        message: DaemonMessage,
    ) {
        self.push_delivery(after, Delivery::ToSession { session, message });
    }

    pub(crate) fn push_change(&mut self, write: RecordChange) {
        self.effects.changes.push(write);
    }

    fn publish_events(
        &mut self,
        record: Arc<TaskRecord>,
        spec: Arc<TaskSpec>,
        events: Vec<Arc<TimelineEvent>>,
    ) {
        if !events.is_empty() {
            let after = CommitDependency::Task(record.task);
            self.push_delivery(
                after.unless_broken(mutant!(PublishBeforePersist)),
                Delivery::Published {
                    record,
                    spec,
                    events,
                },
            );
        }
    }
}

impl Core {
    /// Decides one input. `now` never goes back; the shell reads both clocks once per input.
    /// Finished tasks that the input names are read from `store`.
    pub fn handle(
        &mut self,
        input: CoreInput,
        store: &dyn StoredTasks,
        now: ClockReading,
        id_source: &mut dyn IdSource,
    ) -> Effects {
        let mut turn = CoreTurn {
            now,
            id_source,
            effects: Effects::default(),
        };
        self.credit_stall(&mut turn);
        match input {
            CoreInput::Command(command) => {
                let needs = command.stored_needs();
                let stored = needs.load(|task| self.is_live(task), store);
                let reply = command.run(self, stored, &mut turn);
                turn.effects.deliveries.push(reply);
            }
            CoreInput::Session(input) => self.handle_session_input(input, store, &mut turn),
            CoreInput::SuspendDispatch { suspended } => self.dispatch_suspended = suspended,
            CoreInput::Tick => self.tick(&mut turn),
        }
        self.place_queued_tasks(&mut turn);
        self.write_uptime(&mut turn);
        self.last_turn_at = now.monotonic;
        turn.effects
    }

    /// When the shell must send the next `CoreInput::Tick`.
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        // While attempts are leased, turns must be frequent: a stall is detected by the gap
        // between two turns.
        let beat = (!self.leased_attempts.is_empty())
            .then(|| self.last_turn_at + self.config.stall_ms / 2);
        let uptime =
            (!self.tasks.is_empty()).then(|| self.uptime_written_at + self.config.budget_write_ms);
        let sources = [
            self.deadlines.next_due_at(),
            self.fences.next_end_at(),
            self.queue.next_requeue_at(),
            self.roster.next_change_at(),
            beat,
            uptime,
        ];
        sources.into_iter().flatten().min()
    }

    /// Whether the task is not finished.
    pub fn is_live(&self, task: TaskId) -> bool {
        self.tasks.contains_key(&task)
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number of tasks that are not finished.
    pub fn open_task_count(&self) -> usize {
        self.tasks.len()
    }

    fn handle_session_input(
        &mut self,
        input: SessionInput,
        store: &dyn StoredTasks,
        turn: &mut CoreTurn<'_>,
    ) {
        match input {
            SessionInput::Opened { session, mut hello } => {
                self.look_up_ended_tasks(&mut hello, store);
                self.open_session(session, *hello, turn);
            }
            SessionInput::Closed { session } => self.session_ended(session, turn),
            SessionInput::Heartbeat { session, heartbeat } => {
                self.handle_heartbeat(session, heartbeat, turn);
            }
            SessionInput::Frame(frame) => {
                let stored = self.load_frame_records(&frame, store);
                self.handle_frame(*frame, stored, turn);
            }
            SessionInput::Activity(activity) => self.handle_activity(activity, turn),
            SessionInput::ExtendLeases {
                session,
                request,
                attempts,
                granted_ms,
            } => self.extend_leases(session, request, attempts, granted_ms, turn),
            SessionInput::DeliveryFailed { session, attempt } => {
                self.delivery_failed(session, attempt, turn);
            }
        }
    }

    /// Removes a live task of this tenant from the map so that it can be changed. A task of
    /// another tenant counts as unknown.
    pub(crate) fn take_task(&mut self, tenant: &TenantId, task: TaskId) -> Option<Box<LiveTask>> {
        if self.tasks.get(&task)?.record().tenant != *tenant && !mutant!(TenantIgnored) {
            return None;
        }
        self.tasks.remove(&task)
    }

    /// Puts a changed task back: writes and publishes the change, then arms the next deadline,
    /// or removes the task if it has ended.
    pub(crate) fn put_back_task(
        &mut self,
        mut live: Box<LiveTask>,
        turn: &mut CoreTurn<'_>,
    ) -> Arc<TaskRecord> {
        let change = live.finish_change(turn.now, self.budget_clock_ms(&live, turn.now));
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
        self.parked_tasks.update_task(&record);
        if ended {
            self.remove_ended_task(&live);
            return record;
        }
        let inherited = self.scheduler.suspension_of(live.id()).is_some();
        self.open_limits.update_task(&live.spec, &record, inherited);
        debug_assert!(
            has_timer_or_waits_for_person(&live),
            "task has no timer and waits for no person: {:?}",
            live.record()
        );
        match live.next_due() {
            Some(at) => self.deadlines.arm(live.id(), at),
            None => self.deadlines.disarm(live.id()),
        }
        self.tasks.insert(live.id(), live);
        record
    }

    /// Writes a finished task that changed after its end (late evidence or an adopted result).
    pub(crate) fn store_finished_task(&mut self, live: &mut LiveTask, turn: &mut CoreTurn<'_>) {
        if let Some(change) = live.finish_change(turn.now, self.uptime_ms(turn.now)) {
            turn.push_change(RecordChange::PutDone(Arc::clone(&change.record)));
            if !mutant!(LateWordUnpublished) {
                turn.publish_events(change.record, Arc::clone(&live.spec), change.events);
            }
        }
    }

    fn remove_ended_task(&mut self, live: &LiveTask) {
        let task = live.id();
        self.deadlines.disarm(task);
        self.roster.forget_task(task);
        self.queue.remove(task);
        self.parked_tasks.remove_task(&live.spec.tenant, task);
        if let Some(key) = &live.spec.idempotency_key {
            self.idempotency_keys
                .remove(&(live.spec.tenant.clone(), key.clone()));
        }
        self.open_limits.remove(&live.spec.tenant, task);
    }

    pub(crate) fn attempt_context(
        &self,
        live: &LiveTask,
        now: ClockReading,
        observed: Option<WallTime>,
    ) -> AttemptContext<'_> {
        AttemptContext {
            config: &self.config,
            connected: self.session_of(live).is_some(),
            now,
            uptime_ms: self.uptime_ms(now),
            observed,
        }
    }

    /// The session of the daemon that holds the newest attempt.
    pub(crate) fn session_of(&self, live: &LiveTask) -> Option<SessionId> {
        let holder = live.newest_attempt().daemon_holder()?;
        self.roster.session_of(holder.daemon)
    }

    pub(crate) fn uptime_ms(&self, now: ClockReading) -> u64 {
        self.earlier_uptime_ms
            .saturating_add(now.monotonic.since(self.started_at))
    }

    /// The clock against which the budgets of a task are stored. A queued attempt has only its
    /// queue timer, which stops during a pause.
    fn budget_clock_ms(&self, live: &LiveTask, now: ClockReading) -> u64 {
        let uptime_ms = self.uptime_ms(now);
        if live.newest_attempt().state == AttemptState::Queued {
            self.queue_clock_of(&live.spec.tenant, live.id(), uptime_ms)
        } else {
            uptime_ms
        }
    }
}
