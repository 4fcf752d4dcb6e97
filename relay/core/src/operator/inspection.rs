//! Inspection of state that is in no record. Operations on tasks are in `task_operation.rs`,
//! those on daemons in `daemon_operation.rs`.

use std::sync::Arc;

use crate::attempt::attempt_owners::holder_session;
use crate::attempt::lease_index::LeaseIndex;
use crate::attempt::timers::{ArmedTimerView, TimerKey};
use crate::config::Config;
use crate::core_state::CoreOwners;
use crate::fleet::Fleet;
use crate::fleet::heartbeat::agent_renewal_ms;
use crate::fleet::roster::{DaemonPresence, RosterDaemon};
use crate::ids::{AttemptId, DaemonId, DaemonRef, TaskId, TenantId, TenantScope};
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::{ConnectionView, DaemonView, DeadlineView, HeldAttemptView, TaskView};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::StoredRecords;
use crate::record::{DaemonRecord, FailureCode};
use crate::schedule::Schedule;
use crate::schedule::requirements::{DaemonNeed, TaskRequirements};
use crate::task::diagnosis;
use crate::task::diagnosis::{DiagnosisFacts, TaskDiagnosis};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::live_tasks::LiveTasks;
use crate::time::{ClockReading, MonotonicTime, WallTime};
use crate::turn::CoreTurn;

/// The number of daemons that one message names.
const MAX_NAMED_DAEMONS: usize = 3;

/// Lists the daemons that the caller may see, including disconnected ones.
#[derive(Debug)]
pub struct ListDaemons {
    pub scope: TenantScope,
}

impl Command for ListDaemons {
    type Reply = Vec<DaemonView>;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let known = core.fleet.records();
        let seen = known.filter(|record| may_see_daemon(&self.scope, record));
        let views = seen.filter_map(|record| {
            daemon_view(core.fleet, core.tasks, core.leases, record.daemon, turn.now)
        });
        Ok(CommandReply::after_everything(views.collect()))
    }
}

/// Finds the id of a daemon that the caller may see, by its id or by a unique name.
#[derive(Debug)]
pub struct FindDaemon {
    pub scope: TenantScope,
    pub named: DaemonRef,
}

impl Command for FindDaemon {
    type Reply = DaemonId;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        _turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let daemon = find_daemon(core.fleet, &self.scope, &self.named)?;
        Ok(CommandReply::immediate(daemon))
    }
}

/// Finds a daemon in the same way and returns its view.
#[derive(Debug)]
pub struct ShowDaemon {
    pub scope: TenantScope,
    pub named: DaemonRef,
}

impl Command for ShowDaemon {
    type Reply = Box<DaemonView>;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let daemon = find_daemon(core.fleet, &self.scope, &self.named)?;
        let view = daemon_view(core.fleet, core.tasks, core.leases, daemon, turn.now);
        let view = view.ok_or(Rejection::UnknownDaemon)?;
        Ok(CommandReply::after_everything(Box::new(view)))
    }
}

/// Returns a live task with state that only the core has: its armed deadlines and why it waits.
#[derive(Debug)]
pub struct InspectTask {
    pub tenant: TenantId,
    pub task: TaskId,
}

impl Command for InspectTask {
    type Reply = Box<TaskView>;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let live = core.tasks.get(self.task);
        let own = live.filter(|live| live.record().tenant == self.tenant);
        let view = task_view(
            core.fleet,
            core.schedule,
            own.ok_or(Rejection::UnknownTask)?,
            turn,
        );
        Ok(CommandReply::after_task(self.task, Box::new(view)))
    }
}

/// Daemons that the caller may not see do not exist for them, not even where a name is used twice.
fn find_daemon(
    fleet: &Fleet,
    scope: &TenantScope,
    named: &DaemonRef,
) -> Result<DaemonId, Rejection> {
    let mut found = fleet
        .find_by_ref(named)
        .filter(|one| may_see_daemon(scope, one));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one.daemon),
        (None, _) => Err(Rejection::UnknownDaemon),
        (Some(_), Some(_)) => Err(Rejection::AmbiguousDaemon),
    }
}

pub(crate) fn daemon_view(
    fleet: &Fleet,
    tasks: &LiveTasks,
    leases: &LeaseIndex,
    daemon: DaemonId,
    now: ClockReading,
) -> Option<DaemonView> {
    let record = Arc::clone(fleet.record(daemon)?);
    let live: &RosterDaemon = fleet.roster().get(daemon)?;
    Some(DaemonView {
        record,
        connected: connection_view(&live.presence, now),
        draining: live.draining || live.drained,
        is_sick: live.is_sick(now.monotonic) || live.is_unfit(),
        free_slots: live.free_slots(),
        consecutive_failures: live.consecutive_failures,
        load: live.load,
        viewed_at: now.wall,
        held_attempts: live
            .held_attempts
            .iter()
            .filter_map(|id| held_attempt_view(tasks, leases, *id))
            .collect(),
    })
}

fn held_attempt_view(
    tasks: &LiveTasks,
    leases: &LeaseIndex,
    attempt: AttemptId,
) -> Option<HeldAttemptView> {
    let live = tasks.get(leases.task_of(attempt)?)?;
    let newest = live.newest_attempt();
    Some(HeldAttemptView {
        task: live.id(),
        attempt,
        number: newest.number,
        state: newest.state.kind(),
        phase: newest.phase,
        agent: live.spec.agent.clone(),
        since: newest.stage_times.offered,
        tool: newest.open_tools.last().map(|tool| tool.name.clone()),
    })
}

fn task_view(fleet: &Fleet, schedule: &Schedule, live: &LiveTask, turn: &CoreTurn<'_>) -> TaskView {
    let now = turn.now;
    let waits = schedule.wait_reason(live, now.monotonic);
    TaskView {
        record: live.shared_record(),
        spec: Arc::clone(&live.spec),
        deadlines: live
            .timers
            .armed_timers()
            .map(|armed| deadline_view(armed, now))
            .collect(),
        wait_reason: waits.map(|(waits, _)| waits),
        max_wait_ms: waits.and_then(|(_, until)| Some(until?.since(now.monotonic))),
        waits_for_task: schedule.blocking_turn(live, now.monotonic),
        unmet_need: first_unmet_need(fleet, live, |daemon| fleet.is_connected(daemon.id)),
        pause: schedule.blocking_pause(live),
        diagnoses: diagnose_task(fleet, live, turn),
    }
}

fn diagnose_task(fleet: &Fleet, live: &LiveTask, turn: &CoreTurn<'_>) -> Vec<TaskDiagnosis> {
    let now = turn.now.monotonic;
    let nobody = first_unmet_need(fleet, live, |_| true);
    let since = |at: Option<MonotonicTime>| at.or(live.confirmed_at).map(|at| now.since(at));
    let facts = DiagnosisFacts {
        holder_disconnected: holder_session(fleet.roster(), live).is_none(),
        quiet_ms: since(live.last_frame_at),
        unrenewed_ms: since(live.renewed_at),
        heartbeat_ms: renewal_interval_ms(live, turn.config),
        unmet_need: nobody.as_deref(),
        stored_output_bytes: None,
    };
    diagnosis::diagnose(live.record(), &facts)
}

/// An agent that holds its lease itself has no heartbeat of a daemon's.
fn renewal_interval_ms(live: &LiveTask, config: &Config) -> u64 {
    let ttl_ms = live.spec.lease_ttl_ms;
    match live.newest_attempt().agent_holder() {
        Some(_) => agent_renewal_ms(ttl_ms),
        None => config.heartbeat_ms_for(ttl_ms),
    }
}

/// The first need that keeps every such daemon out, counting only those that met the needs before
/// it.
fn first_unmet_need(
    fleet: &Fleet,
    live: &LiveTask,
    among: impl Fn(&RosterDaemon) -> bool,
) -> Option<String> {
    if live.spec.agent_held {
        return None;
    }
    let requirements = TaskRequirements::from_spec(&live.spec);
    let known = fleet.records();
    let mut left: Vec<&RosterDaemon> = known
        .filter_map(|record| fleet.roster().get(record.daemon))
        .filter(|daemon| among(daemon))
        .collect();
    for need in requirements.needs() {
        if !left
            .iter()
            .any(|daemon| requirements.meets_need(daemon, need))
        {
            return Some(describe_need(fleet, need, &live.spec.tenant, &left));
        }
        left.retain(|daemon| requirements.meets_need(daemon, need));
    }
    None
}

/// A need with what people know: a daemon's name, and on which of these daemons an agent is not in
/// order.
fn describe_need(
    fleet: &Fleet,
    need: DaemonNeed<'_>,
    tenant: &TenantId,
    left: &[&RosterDaemon],
) -> String {
    match need {
        DaemonNeed::Daemon(id) => match fleet.record(id) {
            Some(wanted) if wanted.scope.covers(tenant) => format!("is {}", wanted.name),
            Some(_) | None => need.to_string(),
        },
        DaemonNeed::Agent(name) => {
            let records = left.iter().filter_map(|daemon| fleet.record(daemon.id));
            let broken = records.filter_map(|record| {
                let agent = record.agents.iter().find(|agent| agent.name == name)?;
                let problem = match agent.problem.as_deref()? {
                    missing if missing == FailureCode::ProviderMissing.as_str() => {
                        "its program is missing"
                    }
                    other => other,
                };
                Some(format!("on {}: {problem}", record.name))
            });
            let broken: Vec<String> = broken.take(MAX_NAMED_DAEMONS).collect();
            if broken.is_empty() {
                return need.to_string();
            }
            format!("{need} in working order ({})", broken.join(", "))
        }
        DaemonNeed::Tenant
        | DaemonNeed::Label(..)
        | DaemonNeed::Capability(_)
        | DaemonNeed::Workspace(_) => need.to_string(),
    }
}

/// A tenant sees its own daemons and the shared ones.
fn may_see_daemon(scope: &TenantScope, record: &DaemonRecord) -> bool {
    match scope {
        TenantScope::All => true,
        TenantScope::One(tenant) => record.scope.covers(tenant),
    }
}

fn connection_view(presence: &DaemonPresence, now: ClockReading) -> Option<ConnectionView> {
    match *presence {
        DaemonPresence::NeverConnected | DaemonPresence::Disconnected { .. } => None,
        DaemonPresence::Connected {
            since,
            last_received_at,
            ..
        } => Some(ConnectionView {
            since: WallTime(now.wall.0.saturating_sub(now.monotonic.since(since))),
            last_received: WallTime(
                now.wall
                    .0
                    .saturating_sub(now.monotonic.since(last_received_at)),
            ),
            heartbeat_seen: presence.has_sent_heartbeat(),
        }),
    }
}

fn deadline_view(armed: ArmedTimerView, now: ClockReading) -> DeadlineView {
    let (key, limit_ms, remaining_ms, at) = match armed {
        ArmedTimerView::Running {
            key,
            limit_ms,
            limit_at,
            ..
        } => {
            let at = wall_time_at(limit_at, now);
            (key, limit_ms, limit_at.since(now.monotonic), Some(at))
        }
        ArmedTimerView::Paused {
            key,
            limit_ms,
            left_ms,
        } => (key, limit_ms, left_ms, None),
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
        limit_ms,
        remaining_ms,
        at,
    }
}
