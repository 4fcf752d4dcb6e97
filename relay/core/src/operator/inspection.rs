//! Inspection of state that is in no record. Operations on tasks are in `task_operation.rs`,
//! those on daemons in `daemon_operation.rs`.

use std::sync::Arc;

use crate::attempt::fences::{Fence, FenceGuard};
use crate::attempt::timers::{ArmedTimerView, TimerKey};
use crate::core_state::{Core, CoreTurn};
use crate::fleet::heartbeat::agent_renewal_ms;
use crate::fleet::roster::{DaemonPresence, RosterDaemon};
use crate::ids::{AttemptId, DaemonId, DaemonRef, TaskId, TenantId, TenantScope};
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::{
    ConnectionView, DaemonView, DeadlineView, HeldAttemptView, PauseLevel, TaskView, WaitReason,
};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::StoredRecords;
use crate::record::{AttemptState, DaemonRecord, FailureCode, PauseMark};
use crate::schedule::conversation::ConversationKey;
use crate::schedule::requirements::{DaemonNeed, TaskRequirements};
use crate::task::diagnosis;
use crate::task::diagnosis::{DiagnosisFacts, TaskDiagnosis};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::time::{ClockReading, MonotonicTime, WallTime};

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
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let known = core.daemon_registry.values();
        let seen = known.filter(|record| may_see_daemon(&self.scope, record));
        let views = seen.filter_map(|record| core.daemon_view(record.daemon, turn.now));
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
        core: &mut Core,
        _stored: StoredRecords,
        _turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let daemon = core.find_daemon(&self.scope, &self.named)?;
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
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let daemon = core.find_daemon(&self.scope, &self.named)?;
        let view = core.daemon_view(daemon, turn.now);
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
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let live = core.tasks.get(&self.task);
        let own = live.filter(|live| live.record().tenant == self.tenant);
        let view = core.task_view(own.ok_or(Rejection::UnknownTask)?, turn.now);
        Ok(CommandReply::after_task(self.task, Box::new(view)))
    }
}

impl Core {
    /// Finds a daemon. Daemons that the caller may not see are ignored, also when a name is
    /// ambiguous.
    fn find_daemon(&self, scope: &TenantScope, named: &DaemonRef) -> Result<DaemonId, Rejection> {
        let mut found = self
            .daemon_registry
            .find_by_ref(named)
            .filter(|record| may_see_daemon(scope, record));
        match (found.next(), found.next()) {
            (Some(record), None) => Ok(record.daemon),
            (None, _) => Err(Rejection::UnknownDaemon),
            (Some(_), Some(_)) => Err(Rejection::AmbiguousDaemon),
        }
    }

    pub(crate) fn daemon_view(&self, daemon: DaemonId, now: ClockReading) -> Option<DaemonView> {
        let record = Arc::clone(self.daemon_registry.get(daemon)?);
        let live: &RosterDaemon = self.roster.get(daemon)?;
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
                .filter_map(|id| self.held_attempt_view(*id))
                .collect(),
        })
    }

    fn held_attempt_view(&self, attempt: AttemptId) -> Option<HeldAttemptView> {
        let live = self.tasks.get(self.leased_attempts.get(&attempt)?)?;
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

    fn task_view(&self, live: &LiveTask, now: ClockReading) -> TaskView {
        let waits = self.wait_reason(live, now.monotonic);
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
            waits_for_task: self.blocking_turn(live, now.monotonic),
            unmet_need: self
                .first_unmet_need(live, |daemon| self.roster.session_of(daemon.id).is_some()),
            pause: self.blocking_pause(live),
            diagnoses: self.diagnose_task(live, now.monotonic),
        }
    }

    /// The earlier turn whose end the task waits for.
    fn blocking_turn(&self, live: &LiveTask, now: MonotonicTime) -> Option<TaskId> {
        let key = ConversationKey::from_spec(&live.spec);
        let waits = live.newest_attempt().state == AttemptState::Queued;
        let fence = self.fences.check_lease(live.id(), key.as_ref(), now).err();
        let other = fence.map(|fence| fence.task);
        other.filter(|task| waits && *task != live.id())
    }

    /// The narrowest pause that prevents its dispatch.
    fn blocking_pause(&self, live: &LiveTask) -> Option<(PauseLevel, PauseMark)> {
        let tenant = self.pauses.pause_of_tenant(&live.spec.tenant);
        let own = live
            .record()
            .paused
            .as_ref()
            .map(|own| (PauseLevel::Task, own));
        let wider = tenant.map(|pause| (PauseLevel::Tenant, pause));
        let all = self.scheduler.paused.as_ref();
        let found = own
            .or(wider)
            .or(all.map(|all| (PauseLevel::Scheduler, all)));
        found.map(|(paused, pause)| (paused, pause.clone()))
    }

    fn diagnose_task(&self, live: &LiveTask, now: MonotonicTime) -> Vec<TaskDiagnosis> {
        let unmet_need = self.first_unmet_need(live, |_| true);
        let since = |at: Option<MonotonicTime>| at.or(live.confirmed_at).map(|at| now.since(at));
        let facts = DiagnosisFacts {
            holder_disconnected: self.session_of(live).is_none(),
            quiet_ms: since(live.last_frame_at),
            unrenewed_ms: since(live.renewed_at),
            heartbeat_ms: self.renewal_interval_ms(live),
            unmet_need: unmet_need.as_deref(),
            stored_output_bytes: None,
        };
        diagnosis::diagnose(live.record(), &facts)
    }

    /// The expected renewal interval. An agent that holds its lease has no heartbeats.
    fn renewal_interval_ms(&self, live: &LiveTask) -> u64 {
        let ttl_ms = live.spec.lease_ttl_ms;
        match live.newest_attempt().agent_holder() {
            Some(_) => agent_renewal_ms(ttl_ms),
            None => self.config.heartbeat_ms_for(ttl_ms),
        }
    }

    /// The first need that excludes every such daemon, counting only daemons that met the needs
    /// before it.
    fn first_unmet_need(
        &self,
        live: &LiveTask,
        among: impl Fn(&RosterDaemon) -> bool,
    ) -> Option<String> {
        if live.spec.agent_held {
            return None;
        }
        let requirements = TaskRequirements::from_spec(&live.spec);
        let known = self.daemon_registry.values();
        let mut left: Vec<&RosterDaemon> = known
            .filter_map(|record| self.roster.get(record.daemon))
            .filter(|daemon| among(daemon))
            .collect();
        for need in requirements.needs() {
            if !left
                .iter()
                .any(|daemon| requirements.meets_need(daemon, need))
            {
                return Some(self.describe_need(need, &live.spec.tenant, &left));
            }
            left.retain(|daemon| requirements.meets_need(daemon, need));
        }
        None
    }

    /// Describes a need with a daemon's name, or with the daemons on which the agent does not
    /// work.
    fn describe_need(
        &self,
        need: DaemonNeed<'_>,
        tenant: &TenantId,
        left: &[&RosterDaemon],
    ) -> String {
        match need {
            DaemonNeed::Daemon(id) => match self.daemon_registry.get(id) {
                Some(wanted) if wanted.scope.covers(tenant) => format!("is {}", wanted.name),
                Some(_) | None => need.to_string(),
            },
            DaemonNeed::Agent(name) => {
                let records = left
                    .iter()
                    .filter_map(|daemon| self.daemon_registry.get(daemon.id));
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

    /// What the task waits for, and until when at most if only time ends the wait.
    fn wait_reason(
        &self,
        live: &LiveTask,
        now: MonotonicTime,
    ) -> Option<(WaitReason, Option<MonotonicTime>)> {
        if live.record().attention.is_some()
            || live.newest_attempt().state == AttemptState::WaitingInput
        {
            return Some((WaitReason::Person, None));
        }
        if let Some(retry_at) = live.retry_at {
            return Some((WaitReason::Backoff, Some(retry_at)));
        }
        if live.newest_attempt().state != AttemptState::Queued {
            return None;
        }
        if self.is_paused(live) {
            return Some((WaitReason::Pause, None));
        }
        if self.dispatch_suspended {
            return Some((WaitReason::DiskSpace, None));
        }
        let key = ConversationKey::from_spec(&live.spec);
        match self.fences.check_lease(live.id(), key.as_ref(), now) {
            Err(fence) => Some(fence_wait(fence)),
            Ok(()) if live.spec.agent_held => Some((WaitReason::Agent, None)),
            Ok(()) => Some((WaitReason::Daemon, None)),
        }
    }
}

/// A tenant sees its own daemons and the shared ones.
fn may_see_daemon(scope: &TenantScope, record: &DaemonRecord) -> bool {
    match scope {
        TenantScope::All => true,
        TenantScope::One(tenant) => record.scope.covers(tenant),
    }
}

fn fence_wait(fence: &Fence) -> (WaitReason, Option<MonotonicTime>) {
    match fence.guard {
        FenceGuard::Leased => (WaitReason::Conversation, None),
        FenceGuard::Until(at) if fence.is_inherited() => (WaitReason::Inheritance, Some(at)),
        FenceGuard::Until(at) => (WaitReason::Fence, Some(at)),
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
