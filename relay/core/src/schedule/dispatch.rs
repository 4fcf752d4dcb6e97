//! Leases queued attempts to daemons. This is the only place where a queued attempt gets a
//! holder, a token and a lease; all three are in one write that is durable before the Dispatch
//! is sent.

use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::TimerKey;
use crate::core_state::CoreOwners;
use crate::fleet::frame_check::token_hash;
use crate::fleet::roster::DaemonRoster;
use crate::ids::DaemonId;
use crate::io::effects::{AttemptDispatch, AttemptRef, CommitDependency, DaemonMessage};
use crate::io::session_input::LeaseToken;
use crate::record::{DaemonHolder, LeaseHolder, LeaseRecord, TaskRecord};
use crate::schedule::conversation::ConversationKey;
use crate::schedule::placement::TaskPlacement;
use crate::schedule::{Schedule, placement};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::time::MonotonicTime;
use crate::turn::CoreTurn;

/// Leases whatever can be leased now. Placement asks the successor rule for each.
pub(crate) fn place_queued_tasks(core: &mut CoreOwners<'_>, turn: &mut CoreTurn<'_>) {
    if core.schedule.is_leasing_suspended() {
        return;
    }
    let now = turn.now.monotonic;
    while let Some(placed) = core.schedule.place_next(core.fleet.roster_mut(), now) {
        let TaskPlacement { task, daemon } = placed;
        if let Some(mut live) = core.tasks.take_any(task) {
            core.attempt().lease_to_daemon(&mut live, daemon, turn);
            core.put_back_task(live, turn);
        }
    }
}

impl Schedule {
    fn place_next(
        &mut self,
        roster: &mut DaemonRoster,
        now: MonotonicTime,
    ) -> Option<TaskPlacement> {
        placement::place_next(&mut self.queue, roster, &self.fences, &self.affinity, now)
    }
}

impl AttemptOwners<'_> {
    fn lease_to_daemon(&mut self, live: &mut LiveTask, daemon: DaemonId, turn: &mut CoreTurn<'_>) {
        let Some(holder) = daemon_holder(self.roster, daemon) else {
            return;
        };
        let Some(session) = self.roster.session_of(daemon) else {
            return;
        };
        let (token, lease) = new_lease(live, false, turn);
        live.record_mut().counters.dispatches += 1;
        live.queue_remaining_ms = live.timers.left_ms(&TimerKey::Queue, turn.now.monotonic);
        self.schedule.raise_lease_fence(live, &holder);
        self.apply_event(live, MachineEvent::Offer { holder, lease }, None, turn);
        let attempt = live.newest_attempt().id;
        self.leases.insert_daemon_lease(attempt, live.id());
        self.roster
            .assign_attempt(daemon, attempt, turn.now.monotonic);
        let dispatch = build_dispatch(live, token, turn);
        turn.send_to_session(
            CommitDependency::Task(live.id()),
            session,
            DaemonMessage::Dispatch(Box::new(dispatch)),
        );
    }
}

fn daemon_holder(roster: &DaemonRoster, daemon: DaemonId) -> Option<LeaseHolder> {
    let daemon = roster.get(daemon)?;
    Some(LeaseHolder::Daemon(DaemonHolder {
        daemon: daemon.id,
        name: daemon.name.clone(),
        instance: daemon.instance?,
        boot_id: daemon.boot_id.clone(),
    }))
}

fn build_dispatch(live: &LiveTask, token: LeaseToken, turn: &CoreTurn<'_>) -> AttemptDispatch {
    let limits = LiveTask::timer_limits(&live.spec, turn.config);
    let (agent_session_id, fresh) = session_to_resume(live.record());
    AttemptDispatch {
        to: attempt_ref(live),
        token,
        spec: Arc::clone(&live.spec),
        granted_ms: live.spec.lease_ttl_ms,
        expires_at: wall_time_at(turn.now.monotonic + live.spec.lease_ttl_ms, turn.now),
        accept_ms: limits.accept_ms,
        total_ms: limits.total_ms,
        previous: live.newest_attempt().previous,
        checkpoint: Some(live.record().checkpoint_count).filter(|newest| *newest > 0),
        resume: live.newest_attempt().resume.clone(),
        agent_session_id,
        fresh_conversation: fresh,
        conversation_key: ConversationKey::from_spec(&live.spec).map(|key| key.digest()),
    }
}

pub(crate) fn attempt_ref(live: &LiveTask) -> AttemptRef {
    let (attempt, spec, trace) = (live.newest_attempt(), &live.spec, live.record().trace);
    AttemptRef {
        task: live.id(),
        attempt: attempt.id,
        number: attempt.number,
        conversation: spec.conversation_id.as_deref().map(Arc::from),
        channel: spec.channel_id.as_deref().map(Arc::from),
        turn_kind: spec.turn_kind,
        trace_id: trace.trace_id,
        span_id: attempt.span_id,
        sampled: trace.sampled,
    }
}

/// A new token, and the lease record that stores its hash.
pub(crate) fn new_lease(
    live: &LiveTask,
    confirmed: bool,
    turn: &mut CoreTurn<'_>,
) -> (LeaseToken, LeaseRecord) {
    let token = LeaseToken(turn.id_source.new_secret());
    let ttl_ms = live.spec.lease_ttl_ms;
    let lease = LeaseRecord {
        token_hash: token_hash(&token),
        ttl_ms,
        granted_ms: ttl_ms,
        renewals: 0,
        confirmed,
    };
    (token, lease)
}

/// The agent session to continue, as recorded by the attempts, and whether the conversation was
/// begun anew. A session that could not be resumed is never used again.
fn session_to_resume(record: &TaskRecord) -> (Option<Arc<str>>, bool) {
    let last_fresh = record
        .attempts
        .iter()
        .rposition(|attempt| attempt.fresh_conversation);
    let last_fresh = last_fresh.filter(|_| !mutant!(StaleResumed));
    let since = &record.attempts[last_fresh.unwrap_or(0)..];
    let session_id = since
        .iter()
        .rev()
        .find_map(|attempt| attempt.agent_session_id.clone());
    let fresh = session_id.is_none() && last_fresh.is_some();
    (session_id, fresh)
}
