//! How operators look at what is in no record. Their verbs on tasks are in `force.rs`, those on daemons in `fleet.rs`.

use std::sync::Arc;

use crate::conversation::ConversationKey;
use crate::core::{Core, Turn};
use crate::diagnose::{self, Diagnosis, Facts};
use crate::effects::{
    After, Connected, DaemonView, DeadlineView, HeldView, Paused, Reply, TaskView, WaitsFor,
};
use crate::fences::{Fence, Guard};
use crate::heartbeats::renew_every_ms;
use crate::id::{AttemptId, DaemonId, DaemonRef, RequestId, TaskId, TenantId, TenantScope};
use crate::live::{Live, wall_of};
use crate::record::{DaemonRecord, FailureCode, Pause, State};
use crate::reject::Rejection;
use crate::requirements::{Need, Requirements};
use crate::roster::{Daemon, Presence};
use crate::time::{Moment, Now, Wall};
use crate::timers::{Armed, TimerKey};

/// Daemons that one sentence names.
const NAMED_AT_MOST: usize = 3;

impl Core {
    /// A tenant sees the daemons that work for it.
    pub(crate) fn list_daemons(
        &self,
        request: RequestId,
        scope: &TenantScope,
        turn: &mut Turn<'_>,
    ) {
        let seen = self.daemons.values().filter(|record| sees(scope, record));
        let views = seen
            .filter_map(|record| self.daemon_view(record.daemon, turn.now))
            .collect();
        turn.reply(request, After::Everything, Reply::Daemons(views));
    }

    /// Nobody hears of daemons that are not theirs to see, not even that a name is taken twice.
    pub(crate) fn find_daemon(
        &self,
        request: RequestId,
        scope: &TenantScope,
        named: &DaemonRef,
        shown: bool,
        turn: &mut Turn<'_>,
    ) {
        let mut found = self.daemons.named(named).filter(|one| sees(scope, one));
        let daemon = match (found.next(), found.next()) {
            (Some(one), None) => one.daemon,
            (None, _) => return turn.refuse(request, Rejection::UnknownDaemon),
            (Some(_), Some(_)) => return turn.refuse(request, Rejection::AmbiguousDaemon),
        };
        if !shown {
            return turn.reply(request, After::Nothing, Reply::FoundDaemon(daemon));
        }
        match self.daemon_view(daemon, turn.now) {
            Some(view) => turn.reply(request, After::Everything, Reply::Daemon(Box::new(view))),
            None => turn.refuse(request, Rejection::UnknownDaemon),
        }
    }

    pub(crate) fn daemon_view(&self, daemon: DaemonId, now: Now) -> Option<DaemonView> {
        let record = Arc::clone(self.daemons.get(daemon)?);
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
            behind: self.behind(live, turn.now.at),
            unmet: self.unmet(live, |daemon| self.roster.session_of(daemon.id).is_some()),
            pause: self.waits_for_pause(live),
            diagnoses: self.diagnose(live, turn.now.at),
        };
        turn.reply(request, After::Task(task), Reply::Inspected(Box::new(view)));
    }

    /// The turn whose end it waits for.
    fn behind(&self, live: &Live, now: Moment) -> Option<TaskId> {
        let key = ConversationKey::of(&live.spec);
        let waits = live.newest().state == State::Queued;
        let fence = self.fences.may_lease(live.id(), key.as_ref(), now).err();
        let other = fence.map(|fence| fence.task);
        other.filter(|task| waits && *task != live.id())
    }

    /// The narrowest pause that it waits for.
    fn waits_for_pause(&self, live: &Live) -> Option<(Paused, Pause)> {
        let tenant = self.pauses.of(&live.spec.tenant);
        let own = live.record().paused.as_ref().map(|own| (Paused::Task, own));
        let wider = tenant.map(|pause| (Paused::Tenant, pause));
        let all = self.scheduler.paused.as_ref();
        let found = own.or(wider).or(all.map(|all| (Paused::Scheduler, all)));
        found.map(|(paused, pause)| (paused, pause.clone()))
    }

    fn diagnose(&self, live: &Live, now: Moment) -> Vec<Diagnosis> {
        let nobody = self.unmet(live, |_| true);
        let since = |at: Option<Moment>| at.or(live.confirmed_at).map(|at| now.since(at));
        let facts = Facts {
            away: self.session_of(live).is_none(),
            quiet_ms: since(live.heard_at),
            unrenewed_ms: since(live.renewed_at),
            heartbeat_ms: self.renewed_every_ms(live),
            nobody: nobody.as_deref(),
            durable: None,
        };
        diagnose::diagnose(live.record(), &facts)
    }

    /// An agent that holds its lease itself has no heartbeat of a daemon's.
    fn renewed_every_ms(&self, live: &Live) -> u64 {
        let ttl_ms = live.spec.lease_ttl_ms;
        match live.newest().agent() {
            Some(_) => renew_every_ms(ttl_ms),
            None => self.config.heartbeat_for(ttl_ms),
        }
    }

    /// The first need that keeps every such daemon out, counting only those that met the needs before it.
    fn unmet(&self, live: &Live, among: impl Fn(&Daemon) -> bool) -> Option<String> {
        if live.spec.agent_held {
            return None;
        }
        let requirements = Requirements::of(&live.spec);
        let known = self.daemons.values();
        let mut left: Vec<&Daemon> = known
            .filter_map(|record| self.roster.get(record.daemon))
            .filter(|daemon| among(daemon))
            .collect();
        for need in requirements.needs() {
            if !left.iter().any(|daemon| requirements.has(daemon, need)) {
                return Some(self.in_words(need, &live.spec.tenant, &left));
            }
            left.retain(|daemon| requirements.has(daemon, need));
        }
        None
    }

    /// A need with what people know: a daemon's name, and on which of these daemons an agent is not in order.
    fn in_words(&self, need: Need<'_>, tenant: &TenantId, left: &[&Daemon]) -> String {
        match need {
            Need::Daemon(id) => match self.daemons.get(id) {
                Some(wanted) if wanted.scope.covers(tenant) => format!("is {}", wanted.name),
                Some(_) | None => need.to_string(),
            },
            Need::Agent(name) => {
                let records = left.iter().filter_map(|daemon| self.daemons.get(daemon.id));
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
                let broken: Vec<String> = broken.take(NAMED_AT_MOST).collect();
                if broken.is_empty() {
                    return need.to_string();
                }
                format!("{need} in working order ({})", broken.join(", "))
            }
            Need::Tenant | Need::Label(..) | Need::Capability(_) | Need::Workspace(_) => {
                need.to_string()
            }
        }
    }

    /// What it waits for, and until when at most where time alone ends that.
    fn waits_for(&self, live: &Live, now: Moment) -> Option<(WaitsFor, Option<Moment>)> {
        if live.record().attention.is_some() || live.newest().state == State::WaitingInput {
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

/// A tenant sees its own daemons and the shared ones.
fn sees(scope: &TenantScope, record: &DaemonRecord) -> bool {
    match scope {
        TenantScope::All => true,
        TenantScope::One(tenant) => record.scope.covers(tenant),
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
            greeted: presence.is_greeted(),
        }),
    }
}

fn deadline_view(armed: Armed, now: Now) -> DeadlineView {
    let (key, limit_ms, remaining_ms, at) = match armed {
        Armed::Running {
            key,
            limit_ms,
            limit_at,
            ..
        } => {
            let at = wall_of(limit_at, now);
            (key, limit_ms, limit_at.since(now.at), Some(at))
        }
        Armed::Paused {
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
