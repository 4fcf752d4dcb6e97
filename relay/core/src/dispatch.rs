//! Leasing: the one place where a queued attempt gets a holder, a token and a lease, in one write, before Dispatch.

use std::sync::Arc;

use crate::attempt::Event;
use crate::conversation::ConversationKey;
use crate::core::{Core, Turn};
use crate::effects::{After, AttemptRef, Dispatch, Downstream};
use crate::fences::{Fence, Guard};
use crate::frame::token_hash;
use crate::id::DaemonId;
use crate::input::LeaseToken;
use crate::live::{Live, wall_of};
use crate::placement::{self, Placement};
use crate::queue::{Takers, Waiting};
use crate::record::{DaemonHolder, Holder, Lease, Runner, TaskRecord};
use crate::requirements::Requirements;
use crate::spec::TaskSpec;
use crate::timers::TimerKey;

impl Core {
    /// Leases whatever can be leased now. Placement asks the successor rule for each.
    pub(crate) fn place_waiting(&mut self, turn: &mut Turn<'_>) {
        let paused = self.scheduler.paused.is_some() && !mutant!(SchedulerPauseIgnored);
        if paused || self.dispatch_held {
            return;
        }
        let now = turn.now.at;
        while let Some(Placement { task, daemon }) = placement::place_next(
            &mut self.queue,
            &mut self.roster,
            &self.fences,
            &self.affinity,
            now,
        ) {
            if let Some(mut live) = self.tasks.remove(&task) {
                self.lease(&mut live, daemon, turn);
                self.keep(live, turn);
            }
        }
    }

    pub(crate) fn could_place(&self, spec: &TaskSpec) -> bool {
        self.pause_of(&spec.tenant).is_none()
            && !self.dispatch_held
            && placement::could_any_take(&Requirements::of(spec), &self.roster)
    }

    /// Puts the newest, queued attempt in line, unless its task or tenant is paused.
    pub(crate) fn line_up(&mut self, live: &Live) {
        if live.record().paused.is_some() && !mutant!(PauseIgnored) {
            return;
        }
        if self.pauses.of(&live.spec.tenant).is_some() && !mutant!(TenantPauseIgnored) {
            return;
        }
        let earlier = live.record().attempts.iter().rev().skip(1);
        let prefer = earlier
            .filter_map(|attempt| attempt.daemon())
            .map(|holder| holder.daemon)
            .next();
        self.queue.push(Waiting {
            task: live.id(),
            requirements: Requirements::of(&live.spec),
            priority: live.spec.priority,
            conversation: ConversationKey::of(&live.spec),
            prefer,
            takers: Takers::of(&live.spec),
        });
    }

    fn lease(&mut self, live: &mut Live, daemon: DaemonId, turn: &mut Turn<'_>) {
        let Some(holder) = self.holder(daemon) else {
            return;
        };
        let Some(session) = self.roster.session_of(daemon) else {
            return;
        };
        let (token, lease) = fresh_lease(live, false, turn);
        live.record_mut().counters.dispatches += 1;
        live.queue_left_ms = live.timers.left_ms(&TimerKey::Queue, turn.now.at);
        self.guard(live, &holder);
        self.apply(live, Event::Offer { holder, lease }, None, turn);
        let attempt = live.newest().id;
        self.attempts.insert(attempt, live.id());
        self.roster.hold(daemon, attempt, turn.now.at);
        let dispatch = self.dispatch(live, token, turn);
        turn.tell(
            After::Task(live.id()),
            session,
            Downstream::Dispatch(Box::new(dispatch)),
        );
    }

    /// From the offer on nothing else of this task or conversation is leased.
    pub(crate) fn guard(&mut self, live: &Live, holder: &Holder) {
        let conversation =
            ConversationKey::of(&live.spec).filter(|_| !mutant!(ConversationUnfenced));
        if let Some(key) = &conversation {
            self.queue.conversation_busy(key);
            if let Holder::Daemon(holder) = holder {
                self.affinity.remember(key, holder.daemon);
            }
        }
        self.fences.raise(Fence {
            attempt: live.newest().id,
            task: live.id(),
            conversation,
            runner: Some(Runner::of(holder)),
            guard: Guard::Leased,
        });
    }

    fn holder(&self, daemon: DaemonId) -> Option<Holder> {
        let daemon = self.roster.get(daemon)?;
        Some(Holder::Daemon(DaemonHolder {
            daemon: daemon.id,
            name: daemon.name.clone(),
            instance: daemon.instance?,
            boot_id: daemon.boot_id.clone(),
        }))
    }

    fn dispatch(&self, live: &Live, token: LeaseToken, turn: &Turn<'_>) -> Dispatch {
        let limits = Live::limits(&live.spec, &self.config);
        let (agent_session_id, fresh) = resumed(live.record());
        Dispatch {
            to: self.attempt_ref(live),
            token,
            spec: Arc::clone(&live.spec),
            granted_ms: live.spec.lease_ttl_ms,
            expires_at: wall_of(turn.now.at + live.spec.lease_ttl_ms, turn.now),
            accept_ms: limits.accept_ms,
            total_ms: limits.total_ms,
            previous: live.newest().previous,
            checkpoint: Some(live.record().checkpoints).filter(|newest| *newest > 0),
            resume: live.newest().resume.clone(),
            agent_session_id,
            fresh,
            conversation_key: ConversationKey::of(&live.spec).map(|key| key.digest()),
        }
    }

    pub(crate) fn attempt_ref(&self, live: &Live) -> AttemptRef {
        let (attempt, spec, trace) = (live.newest(), &live.spec, live.record().trace);
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

/// A token that nobody has seen, and what is stored of it.
pub(crate) fn fresh_lease(
    live: &Live,
    confirmed: bool,
    turn: &mut Turn<'_>,
) -> (LeaseToken, Lease) {
    let token = LeaseToken(turn.mint.secret());
    let ttl_ms = live.spec.lease_ttl_ms;
    let lease = Lease {
        token_hash: token_hash(&token),
        ttl_ms,
        granted_ms: ttl_ms,
        renewals: 0,
        confirmed,
    };
    (token, lease)
}

/// The agent's own id to go on with, as the task's attempts know it, and whether the conversation was begun anew. One
/// that could not be resumed is never gone back to.
fn resumed(record: &TaskRecord) -> (Option<Arc<str>>, bool) {
    let anew = record.attempts.iter().rposition(|attempt| attempt.fresh);
    let anew = anew.filter(|_| !mutant!(StaleResumed));
    let since = &record.attempts[anew.unwrap_or(0)..];
    let told = since
        .iter()
        .rev()
        .find_map(|attempt| attempt.agent_session_id.clone());
    let fresh = told.is_none() && anew.is_some();
    (told, fresh)
}
