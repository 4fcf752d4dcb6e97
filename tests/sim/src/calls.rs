//! Judges what the relay makes of the calls of agents, and of whoever sends a parked task on: only the holder's own token changes
//! anything, an expired lease is over, a parked task goes on once, and who comes too late learns that.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::effects::{Effects, Reply, Send};
use baton_core::id::{AttemptId, Incarnation, RequestId, TaskId, TenantId};
use baton_core::input::{HeldCall, HeldVerb, Input, LeaseToken};
use baton_core::parked::Place;
use baton_core::record::{AttemptRecord, State, TaskRecord};
use baton_core::reject::Rejection;

use crate::judges::unchanged;
use crate::world::World;

/// What the relay granted to agents, by its own clock.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    tokens: BTreeMap<AttemptId, (LeaseToken, Incarnation)>,
    counted: BTreeMap<AttemptId, Counted>,
}

/// A grant as the relay must count it, as long as it neither starts again nor stalls.
#[derive(Clone, Copy, Debug)]
struct Counted {
    boot: u64,
    stall: u64,
    at: u64,
    granted_ms: u64,
}

/// A call and what was true before it.
#[derive(Debug)]
pub(crate) struct Called {
    request: RequestId,
    attempt: AttemptId,
    right: Right,
    renews: bool,
    task: Arc<TaskRecord>,
}

#[derive(Debug)]
enum Right {
    /// Its own lease; whether that is over, where this is sure.
    Own {
        over: Option<bool>,
    },
    /// It was its own.
    Past,
    Nobody(&'static str),
}

/// Somebody wants a parked task to go on.
#[derive(Debug)]
pub(crate) struct SendOn {
    request: RequestId,
    seen: Option<AttemptId>,
    picks_up: bool,
    task: Arc<TaskRecord>,
}

/// Somebody looks at what waits for a person.
#[derive(Debug)]
pub(crate) struct Listing {
    request: RequestId,
    tenant: TenantId,
    scope: Option<Arc<str>>,
    after: Option<Place>,
    limit: usize,
}

#[derive(Debug)]
pub(crate) enum Asking {
    Call(Called),
    SendOn(SendOn),
    Listing(Listing),
}

impl World {
    pub(crate) fn asking(&self, input: &Input) -> Option<Asking> {
        let record = |task: &TaskId| self.relay.store.view.record(*task).cloned();
        Some(match input {
            Input::Held(call) => Asking::Call(self.called(call, record(&call.task)?)),
            Input::PickUp {
                request,
                task,
                attempt,
                ..
            } => Asking::SendOn(SendOn {
                request: *request,
                seen: *attempt,
                picks_up: true,
                task: record(task)?,
            }),
            Input::Resume {
                request,
                task,
                attempt,
                ..
            } => Asking::SendOn(SendOn {
                request: *request,
                seen: *attempt,
                picks_up: false,
                task: record(task)?,
            }),
            Input::ListParked {
                request,
                tenant,
                agent_scope,
                after,
                limit,
                ..
            } => Asking::Listing(Listing {
                request: *request,
                tenant: tenant.clone(),
                scope: agent_scope.clone(),
                after: *after,
                limit: *limit,
            }),
            _ => return None,
        })
    }

    fn called(&self, call: &HeldCall, task: Arc<TaskRecord>) -> Called {
        let right = match task.attempt(call.attempt) {
            Some(attempt) => self.right_of(call, &task, attempt),
            None => Right::Nobody("of no attempt"),
        };
        Called {
            request: call.request,
            attempt: call.attempt,
            right,
            renews: matches!(call.verb, HeldVerb::Renew),
            task,
        }
    }

    fn right_of(&self, call: &HeldCall, task: &TaskRecord, attempt: &AttemptRecord) -> Right {
        let token = self.relay.grants.tokens.get(&attempt.id);
        let holder = attempt.agent().map(|agent| agent.token);
        if holder != Some(call.agent.token) || task.tenant != call.agent.tenant {
            Right::Nobody("of another's attempt")
        } else if token.is_none_or(|(token, _)| *token != call.proof) {
            Right::Nobody("with a wrong token")
        } else if token.is_some_and(|(_, life)| *life != self.relay.incarnation()) {
            Right::Nobody("of another life of the data")
        } else if attempt.state.is_leased() {
            let over = self.is_lease_over(attempt);
            Right::Own { over }
        } else {
            Right::Past
        }
    }

    fn is_lease_over(&self, attempt: &AttemptRecord) -> Option<bool> {
        let counted = self.relay.grants.counted.get(&attempt.id)?;
        if (counted.boot, counted.stall) != (self.relay.boot, self.relay.stall) {
            return None;
        }
        let ttl = attempt.lease.as_ref().map_or(0, |lease| lease.ttl_ms);
        let grace = self.options.grace_ms.max(ttl / 1_000);
        let (age, granted) = (self.now - counted.at, counted.granted_ms);
        if age < granted {
            Some(false)
        } else {
            (age > granted + grace).then_some(true)
        }
    }

    /// In which life of the data an agent got its lease.
    pub(crate) fn granted_in(&self, attempt: AttemptId) -> Incarnation {
        let known = self.relay.grants.tokens.get(&attempt);
        known.map_or_else(|| self.relay.incarnation(), |(_, life)| *life)
    }

    pub(crate) fn note_grants(&mut self, effects: &Effects) {
        for outgoing in &effects.sends {
            if let Send::Reply {
                outcome: Ok(Reply::Granted(Some(grant))),
                ..
            } = &outgoing.send
            {
                let (attempt, life) = (grant.to.attempt, self.relay.incarnation());
                let token = (grant.token.clone(), life);
                // One that was not durable before a crash was told to nobody.
                self.relay.grants.tokens.insert(attempt, token);
                self.count_grant(attempt, grant.granted_ms);
            }
        }
    }

    fn count_grant(&mut self, attempt: AttemptId, granted_ms: u64) {
        let counted = Counted {
            boot: self.relay.boot,
            stall: self.relay.stall,
            at: self.now,
            granted_ms,
        };
        self.relay.grants.counted.insert(attempt, counted);
        self.renewed_in.insert(attempt, self.relay.stall);
    }

    pub(crate) fn judge_asking(&mut self, asking: Option<&Asking>, effects: &Effects) {
        match asking {
            Some(Asking::Call(called)) => {
                let outcome = outcome(effects, called.request);
                self.judge_call(called, outcome);
            }
            Some(Asking::SendOn(asked)) => {
                if let Some(outcome) = outcome(effects, asked.request) {
                    self.judge_send_on(asked, outcome);
                }
            }
            Some(Asking::Listing(listing)) => {
                if let Some(Ok(Reply::Parked(rows))) = outcome(effects, listing.request) {
                    let rows: Vec<TaskId> = rows.iter().map(|(task, _)| task.task).collect();
                    self.judge_listing(listing, &rows);
                }
            }
            None => {}
        }
    }

    fn judge_call(&mut self, called: &Called, outcome: Option<&Result<Reply, Rejection>>) {
        let Some(outcome) = outcome else { return };
        let attempt = called.attempt;
        let view = &self.relay.store.view;
        let Some(after) = view.record(called.task.task).cloned() else {
            return;
        };
        match called.right {
            Right::Nobody(why) => {
                assert!(outcome.is_err(), "S3: a call {why} was taken: {outcome:?}");
                self.counts.refused_calls += 1;
                same(&called.task, &after, why);
            }
            Right::Past => {
                let again = matches!(outcome, Err(_) | Ok(Reply::Task(_)));
                assert!(again, "S3: {attempt} is over and was heard: {outcome:?}");
                same(&called.task, &after, "of a lease that is over");
            }
            Right::Own { over } => {
                judge_own(called, over, outcome);
                let other = |was: &AttemptRecord| was.id != attempt;
                unchanged(&called.task, &after, &other, "of another attempt");
            }
        }
        if let Ok(Reply::Renewed {
            granted_ms,
            cancel_requested,
            ..
        }) = outcome
        {
            let canceled = called.task.cancel.is_some();
            assert!(
                !canceled || *cancel_requested,
                "cancel: {attempt} was renewed and not told"
            );
            if !cancel_requested {
                self.count_grant(attempt, *granted_ms);
            }
            self.judge_agent_total(&after, attempt);
        }
    }

    fn judge_send_on(&mut self, asked: &SendOn, outcome: &Result<Reply, Rejection>) {
        let (before, task) = (&asked.task, asked.task.task);
        let parked = before.newest().filter(|_| before.attention.is_some());
        let seen = asked.seen.and_then(|seen| before.attempt(seen));
        let late = seen.is_some_and(|seen| seen.handed_to.is_some());
        match outcome {
            Ok(_) => {
                let stood = parked.unwrap_or_else(|| panic!("hand-off: {task} was not parked"));
                let fits = asked.seen.is_none_or(|seen| seen == stood.id);
                assert!(
                    fits,
                    "hand-off: {task} stood elsewhere than {:?}",
                    asked.seen
                );
                self.counts.pick_ups += u64::from(asked.picks_up);
            }
            Err(code) => {
                let foreign =
                    *code == Rejection::UnknownTask || *code == Rejection::AlreadyFinished;
                let canceled = *code == Rejection::BeingCanceled && before.cancel.is_some();
                assert!(
                    !late || *code == Rejection::HandedOff || foreign || canceled,
                    "hand-off: who came too late for {task} was told {code:?}"
                );
                self.judge_loser(before, *code);
                let refused = matches!(code, Rejection::HandedOff | Rejection::NotParked);
                let stands = parked.is_some_and(|stood| asked.seen.is_none_or(|id| id == stood.id));
                assert!(
                    !(refused && stands),
                    "hand-off: {task} is parked, and {code:?}"
                );
            }
        }
    }

    /// Whoever is too late can be told who was not.
    fn judge_loser(&mut self, before: &TaskRecord, code: Rejection) {
        if code != Rejection::HandedOff {
            return;
        }
        self.counts.losers += 1;
        let mut attempts = before.attempts.iter();
        assert!(
            attempts.any(|attempt| attempt.handed_to.is_some()),
            "hand-off: nobody knows who has {}",
            before.task
        );
    }

    /// Each task that waits for a person once, newest first, and no other.
    fn judge_listing(&mut self, listing: &Listing, rows: &[TaskId]) {
        let view = &self.relay.store.view;
        let own = view
            .live
            .values()
            .filter(|task| task.tenant == listing.tenant);
        let waiting = own.filter_map(|task| {
            let since = task.attention.as_ref()?.since;
            let spec = view.specs.get(&task.task)?;
            let wanted =
                listing.scope.is_none() || spec.agent_scope.as_deref() == listing.scope.as_deref();
            wanted.then_some((std::cmp::Reverse(since), task.task))
        });
        let mut waiting: Vec<Place> = waiting.collect();
        waiting.sort_unstable();
        let behind = waiting
            .iter()
            .filter(|place| listing.after.is_none_or(|after| **place > after));
        let expected: Vec<TaskId> = behind.map(|(_, task)| *task).take(listing.limit).collect();
        self.counts.listings += u64::from(!expected.is_empty());
        assert_eq!(rows, expected, "hand-off: the list is not what waits");
    }

    /// L4: an agent's lease is given up only when the agent has counted it down, and not by a relay that was away.
    pub(crate) fn judge_agent_given_up(&self, task: TaskId, attempt: &AttemptRecord) {
        if attempt.agent().is_none() {
            return;
        }
        if let Some(until) = self.works_on(task, attempt.id) {
            assert!(
                until <= self.now || self.granted_in(attempt.id) != self.relay.incarnation(),
                "L4: {} was given up at {}, and its agent may go on until {until}",
                attempt.id,
                self.now
            );
        }
        let first = self.renewed_in.get(&attempt.id) == Some(&self.relay.stall.wrapping_sub(1));
        assert!(
            !(self.relay.is_back && first),
            "L4: the relay was away and gave up {}",
            attempt.id
        );
    }
}

fn judge_own(called: &Called, over: Option<bool>, outcome: &Result<Reply, Rejection>) {
    use Rejection::{
        BadProof, LeaseExpired, NotLeased, StaleIncarnation, TaskTerminal, UnknownAttempt,
        UnknownTask,
    };
    let attempt = called.attempt;
    let unheard = matches!(
        outcome,
        Err(BadProof
            | LeaseExpired
            | NotLeased
            | StaleIncarnation
            | TaskTerminal
            | UnknownAttempt
            | UnknownTask)
    );
    match over {
        Some(true) => assert!(
            matches!(outcome, Err(LeaseExpired)),
            "S3: the lease of {attempt} was over, and it was told {outcome:?}"
        ),
        Some(false) => assert!(!unheard, "L4: {attempt} was not heard: {outcome:?}"),
        None => {}
    }
    let ends_total = called.renews && outcome.is_ok();
    let cleaning = called.task.attempt(attempt).map(|a| &a.state);
    let cleaning = matches!(cleaning, Some(State::CleaningUp { .. }));
    if let (
        true,
        true,
        Ok(Reply::Renewed {
            cancel_requested, ..
        }),
    ) = (ends_total, cleaning, outcome)
    {
        assert!(
            *cancel_requested,
            "cancel: {attempt} is to stop and was not told"
        );
    }
}

fn outcome(effects: &Effects, asked: RequestId) -> Option<&Result<Reply, Rejection>> {
    effects
        .sends
        .iter()
        .find_map(|outgoing| match &outgoing.send {
            Send::Reply { request, outcome } if *request == asked => Some(outcome),
            Send::Reply { .. }
            | Send::ToSession { .. }
            | Send::CloseSession { .. }
            | Send::Published { .. } => None,
        })
}

/// Nothing is different; but what waits may have been placed in the same turn.
fn same(old: &TaskRecord, new: &TaskRecord, why: &str) {
    unchanged(old, new, &|_| true, why);
    let waits = old
        .newest()
        .is_some_and(|newest| newest.state == State::Queued);
    assert!(
        waits || *old == *new,
        "S3: a call {why} changed {}",
        old.task
    );
}
