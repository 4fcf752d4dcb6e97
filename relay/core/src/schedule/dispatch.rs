//! Leases queued attempts to daemons. This is the only place where a queued attempt gets a
//! holder, a token and a lease; all three are in one write that is durable before the Dispatch
//! is sent.

use std::sync::Arc;

use crate::attempt::fences::{Fence, FenceGuard};
use crate::attempt::machine::MachineEvent;
use crate::attempt::timers::TimerKey;
use crate::core_state::{Core, CoreTurn};
use crate::fleet::frame_check::token_hash;
use crate::ids::DaemonId;
use crate::io::effects::{AttemptDispatch, AttemptRef, CommitDependency, DaemonMessage};
use crate::io::session_input::LeaseToken;
use crate::record::{DaemonHolder, LeaseHolder, LeaseRecord, PossibleRunner, TaskRecord};
use crate::schedule::conversation::ConversationKey;
use crate::schedule::placement;
use crate::schedule::placement::TaskPlacement;
use crate::schedule::queue::{EligibleHolders, QueuedTask};
use crate::schedule::requirements::TaskRequirements;
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::spec::TaskSpec;

impl Core {
    /// Leases every task that can be leased now. Placement checks the fences for each one.
    pub(crate) fn place_queued_tasks(&mut self, turn: &mut CoreTurn<'_>) {
        let paused = self.scheduler.paused.is_some() && !mutant!(SchedulerPauseIgnored);
        if paused || self.dispatch_suspended {
            return;
        }
        let now = turn.now.monotonic;
        while let Some(TaskPlacement { task, daemon }) = placement::place_next(
            &mut self.queue,
            &mut self.roster,
            &self.fences,
            &self.affinity,
            now,
        ) {
            if let Some(mut live) = self.tasks.remove(&task) {
                self.lease_to_daemon(&mut live, daemon, turn);
                self.put_back_task(live, turn);
            }
        }
    }

    pub(crate) fn could_place(&self, spec: &TaskSpec) -> bool {
        self.effective_pause(&spec.tenant).is_none()
            && !self.dispatch_suspended
            && placement::could_any_take(&TaskRequirements::from_spec(spec), &self.roster)
    }

    /// Puts the newest attempt, which is queued, into the queue unless its task or tenant is
    /// paused.
    pub(crate) fn enqueue_task(&mut self, live: &LiveTask) {
        if live.record().paused.is_some() && !mutant!(PauseIgnored) {
            return;
        }
        if self.pauses.pause_of_tenant(&live.spec.tenant).is_some() && !mutant!(TenantPauseIgnored)
        {
            return;
        }
        let earlier = live.record().attempts.iter().rev().skip(1);
        let preferred_daemon = earlier
            .filter_map(|attempt| attempt.daemon_holder())
            .map(|holder| holder.daemon)
            .next();
        self.queue.push(QueuedTask {
            task: live.id(),
            requirements: TaskRequirements::from_spec(&live.spec),
            priority: live.spec.priority,
            conversation: ConversationKey::from_spec(&live.spec),
            preferred_daemon,
            eligible_holders: EligibleHolders::from_spec(&live.spec),
        });
    }

    fn lease_to_daemon(&mut self, live: &mut LiveTask, daemon: DaemonId, turn: &mut CoreTurn<'_>) {
        let Some(holder) = self.daemon_holder(daemon) else {
            return;
        };
        let Some(session) = self.roster.session_of(daemon) else {
            return;
        };
        let (token, lease) = new_lease(live, false, turn);
        live.record_mut().counters.dispatches += 1;
        live.queue_remaining_ms = live.timers.left_ms(&TimerKey::Queue, turn.now.monotonic);
        self.raise_lease_fence(live, &holder);
        self.apply_event(live, MachineEvent::Offer { holder, lease }, None, turn);
        let attempt = live.newest_attempt().id;
        self.leased_attempts.insert(attempt, live.id());
        self.roster
            .assign_attempt(daemon, attempt, turn.now.monotonic);
        let dispatch = self.build_dispatch(live, token, turn);
        turn.send_to_session(
            CommitDependency::Task(live.id()),
            session,
            DaemonMessage::Dispatch(Box::new(dispatch)),
        );
    }

    /// Inserts the fence of a lease: from the offer on, nothing else of this task or
    /// conversation is leased.
    pub(crate) fn raise_lease_fence(&mut self, live: &LiveTask, holder: &LeaseHolder) {
        let conversation =
            ConversationKey::from_spec(&live.spec).filter(|_| !mutant!(ConversationUnfenced));
        if let Some(key) = &conversation {
            self.queue.mark_conversation_busy(key);
            if let LeaseHolder::Daemon(holder) = holder {
                self.affinity.remember(key, holder.daemon);
            }
        }
        self.fences.insert_fence(Fence {
            attempt: live.newest_attempt().id,
            task: live.id(),
            conversation,
            runner: Some(PossibleRunner::from_holder(holder)),
            guard: FenceGuard::Leased,
        });
    }

    fn daemon_holder(&self, daemon: DaemonId) -> Option<LeaseHolder> {
        let daemon = self.roster.get(daemon)?;
        Some(LeaseHolder::Daemon(DaemonHolder {
            daemon: daemon.id,
            name: daemon.name.clone(),
            instance: daemon.instance?,
            boot_id: daemon.boot_id.clone(),
        }))
    }

    fn build_dispatch(
        &self,
        live: &LiveTask,
        token: LeaseToken,
        turn: &CoreTurn<'_>,
    ) -> AttemptDispatch {
        let limits = LiveTask::timer_limits(&live.spec, &self.config);
        let (agent_session_id, fresh) = session_to_resume(live.record());
        AttemptDispatch {
            to: self.attempt_ref(live),
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

    pub(crate) fn attempt_ref(&self, live: &LiveTask) -> AttemptRef {
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
