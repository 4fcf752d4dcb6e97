//! Checks the relay's answers to agents' calls and to hand-offs: only the holder's own token
//! changes anything, an expired lease has ended, a parked task is resumed once, and a late
//! caller gets the right error.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::commands::AgentLeaseProof;
use baton_core::goal::parked_tasks::ParkedListCursor;
use baton_core::ids::{AttemptId, Incarnation, TaskId, TenantId};
use baton_core::io::rejection::Rejection;
use baton_core::io::session_input::LeaseToken;
use baton_core::record::{AttemptRecord, AttemptState, TaskRecord};

use crate::checks::input_effects::assert_attempts_unchanged;
use crate::clients::operators::OperationCheck;
use crate::relay::sim_reply::{RequestId, SimDelivery, SimEffects, SimOutcome, SimReply};
use crate::simulation::Simulation;

/// Leases that the relay granted to agents, by its own clock.
#[derive(Debug, Default)]
pub(crate) struct AgentGrants {
    tokens: BTreeMap<AttemptId, (LeaseToken, Incarnation)>,
    counted: BTreeMap<AttemptId, CountedGrant>,
}

/// A grant as the relay must count it, as long as it neither restarts nor stalls.
#[derive(Clone, Copy, Debug)]
struct CountedGrant {
    boot: u64,
    stall: u64,
    at: u64,
    granted_ms: u64,
}

/// A call and the state before it.
#[derive(Debug)]
pub(crate) struct LeaseCallCheck {
    request: RequestId,
    attempt: AttemptId,
    right: CallerRight,
    is_renewal: bool,
    task: Arc<TaskRecord>,
}

#[derive(Debug)]
enum CallerRight {
    /// Its own lease, and whether it has expired, if that is certain.
    OwnLease {
        expired: Option<bool>,
    },
    /// It was its own lease.
    EndedLease,
    NoRight(&'static str),
}

/// A caller wants to resume a parked task.
#[derive(Debug)]
pub(crate) struct HandOffCheck {
    request: RequestId,
    seen: Option<AttemptId>,
    is_pick_up: bool,
    task: Arc<TaskRecord>,
}

/// A caller lists parked tasks.
#[derive(Debug)]
pub(crate) struct ParkedListCheck {
    pub(crate) request: RequestId,
    pub(crate) tenant: TenantId,
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) after: Option<ParkedListCursor>,
    pub(crate) limit: usize,
}

/// What a request is about, noted when it is sent: what is true before it is read when the relay
/// takes it.
#[derive(Debug)]
pub(crate) enum RequestProbe {
    LeaseCall(LeaseCallProbe),
    HandOff(HandOffProbe),
    ParkedList(ParkedListCheck),
    Operation(OperationCheck),
}

#[derive(Debug)]
pub(crate) struct LeaseCallProbe {
    pub(crate) request: RequestId,
    pub(crate) lease: AgentLeaseProof,
    pub(crate) is_renewal: bool,
}

#[derive(Debug)]
pub(crate) struct HandOffProbe {
    pub(crate) request: RequestId,
    pub(crate) task: TaskId,
    pub(crate) seen: Option<AttemptId>,
    pub(crate) is_pick_up: bool,
}

#[derive(Debug)]
pub(crate) enum RequestCheck {
    LeaseCall(LeaseCallCheck),
    HandOff(HandOffCheck),
    ParkedList(ParkedListCheck),
}

impl Simulation {
    /// None where the task is not stored yet.
    pub(crate) fn request_check(&self, probe: RequestProbe) -> Option<RequestCheck> {
        let record = |task: TaskId| self.relay.store.view.record(task).cloned();
        match probe {
            RequestProbe::LeaseCall(probe) => {
                let task = record(probe.lease.task)?;
                Some(RequestCheck::LeaseCall(self.lease_call_check(&probe, task)))
            }
            RequestProbe::HandOff(HandOffProbe {
                request,
                task,
                seen,
                is_pick_up,
            }) => Some(RequestCheck::HandOff(HandOffCheck {
                request,
                seen,
                is_pick_up,
                task: record(task)?,
            })),
            RequestProbe::ParkedList(listing) => Some(RequestCheck::ParkedList(listing)),
            RequestProbe::Operation(_) => None,
        }
    }

    fn lease_call_check(&self, probe: &LeaseCallProbe, task: Arc<TaskRecord>) -> LeaseCallCheck {
        let lease = &probe.lease;
        let right = match task.attempt(lease.attempt) {
            Some(attempt) => self.caller_right(lease, &task, attempt),
            None => CallerRight::NoRight("of no attempt"),
        };
        LeaseCallCheck {
            request: probe.request,
            attempt: lease.attempt,
            right,
            is_renewal: probe.is_renewal,
            task,
        }
    }

    fn caller_right(
        &self,
        call: &AgentLeaseProof,
        task: &TaskRecord,
        attempt: &AttemptRecord,
    ) -> CallerRight {
        let token = self.relay.agent_grants.tokens.get(&attempt.id);
        let holder = attempt.agent_holder().map(|agent| agent.token);
        if holder != Some(call.agent.token) || task.tenant != call.agent.tenant {
            CallerRight::NoRight("of another's attempt")
        } else if token.is_none_or(|(token, _)| *token != call.token) {
            CallerRight::NoRight("with a wrong token")
        } else if token.is_some_and(|(_, life)| *life != self.relay.incarnation()) {
            CallerRight::NoRight("of another life of the data")
        } else if attempt.state.is_leased() {
            let over = self.has_lease_expired(attempt);
            CallerRight::OwnLease { expired: over }
        } else {
            CallerRight::EndedLease
        }
    }

    fn has_lease_expired(&self, attempt: &AttemptRecord) -> Option<bool> {
        let counted = self.relay.agent_grants.counted.get(&attempt.id)?;
        if (counted.boot, counted.stall) != (self.relay.boot, self.relay.stall_count) {
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

    /// The incarnation of the data that granted the agent's lease.
    pub(crate) fn granting_incarnation(&self, attempt: AttemptId) -> Incarnation {
        let known = self.relay.agent_grants.tokens.get(&attempt);
        known.map_or_else(|| self.relay.incarnation(), |(_, life)| *life)
    }

    pub(crate) fn record_agent_grants(&mut self, effects: &SimEffects) {
        for outgoing in &effects.deliveries {
            if let SimDelivery::Reply {
                outcome: Ok(SimReply::Granted(Some(grant))),
                ..
            } = &outgoing.delivery
            {
                let (attempt, life) = (grant.to.attempt, self.relay.incarnation());
                let token = (grant.token.clone(), life);
                // A grant that was not durable before a crash was never sent.
                self.relay.agent_grants.tokens.insert(attempt, token);
                self.count_granted_lease(attempt, grant.granted_ms);
            }
        }
    }

    fn count_granted_lease(&mut self, attempt: AttemptId, granted_ms: u64) {
        let counted = CountedGrant {
            boot: self.relay.boot,
            stall: self.relay.stall_count,
            at: self.now,
            granted_ms,
        };
        self.relay.agent_grants.counted.insert(attempt, counted);
        self.renewed_in_stall
            .insert(attempt, self.relay.stall_count);
    }

    pub(crate) fn check_request(&mut self, asking: Option<&RequestCheck>, effects: &SimEffects) {
        match asking {
            Some(RequestCheck::LeaseCall(called)) => {
                let outcome = reply_outcome(effects, called.request);
                self.check_lease_call(called, outcome);
            }
            Some(RequestCheck::HandOff(asked)) => {
                if let Some(outcome) = reply_outcome(effects, asked.request) {
                    self.check_hand_off(asked, outcome);
                }
            }
            Some(RequestCheck::ParkedList(listing)) => {
                if let Some(Ok(SimReply::Parked(rows))) = reply_outcome(effects, listing.request) {
                    self.check_parked_list(listing, rows);
                }
            }
            None => {}
        }
    }

    fn check_lease_call(&mut self, called: &LeaseCallCheck, outcome: Option<&SimOutcome>) {
        let Some(outcome) = outcome else { return };
        let attempt = called.attempt;
        let view = &self.relay.store.view;
        let Some(after) = view.record(called.task.task).cloned() else {
            return;
        };
        match called.right {
            CallerRight::NoRight(why) => {
                assert!(outcome.is_err(), "S3: a call {why} was taken: {outcome:?}");
                self.counts.refused_calls += 1;
                assert_task_unchanged(&called.task, &after, why);
            }
            CallerRight::EndedLease => {
                let again = matches!(outcome, Err(_) | Ok(SimReply::Task(_)));
                assert!(again, "S3: {attempt} is over and was heard: {outcome:?}");
                assert_task_unchanged(&called.task, &after, "of a lease that is over");
            }
            CallerRight::OwnLease { expired: over } => {
                check_own_lease(called, over, outcome);
                let other = |was: &AttemptRecord| was.id != attempt;
                assert_attempts_unchanged(&called.task, &after, &other, "of another attempt");
            }
        }
        if let Ok(SimReply::Renewed {
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
                self.count_granted_lease(attempt, *granted_ms);
            }
            self.check_agent_total_time(&after, attempt);
        }
    }

    fn check_hand_off(&mut self, asked: &HandOffCheck, outcome: &SimOutcome) {
        let (before, task) = (&asked.task, asked.task.task);
        let parked = before
            .newest_attempt()
            .filter(|_| before.attention.is_some());
        let seen = asked.seen.and_then(|seen| before.attempt(seen));
        let late = seen.is_some_and(|seen| seen.handed_off_to.is_some());
        match outcome {
            Ok(_) => {
                let stood = parked.unwrap_or_else(|| panic!("hand-off: {task} was not parked"));
                let fits = asked.seen.is_none_or(|seen| seen == stood.id);
                assert!(
                    fits,
                    "hand-off: {task} stood elsewhere than {:?}",
                    asked.seen
                );
                self.counts.pick_ups += u64::from(asked.is_pick_up);
            }
            Err(code) => {
                let foreign =
                    *code == Rejection::UnknownTask || *code == Rejection::AlreadyFinished;
                let canceled = *code == Rejection::BeingCanceled && before.cancel.is_some();
                assert!(
                    !late || *code == Rejection::HandedOff || foreign || canceled,
                    "hand-off: who came too late for {task} was told {code:?}"
                );
                self.check_refused_hand_off(before, *code);
                let refused = matches!(code, Rejection::HandedOff | Rejection::NotParked);
                let stands = parked.is_some_and(|stood| asked.seen.is_none_or(|id| id == stood.id));
                assert!(
                    !(refused && stands),
                    "hand-off: {task} is parked, and {code:?}"
                );
            }
        }
    }

    /// A late caller can get the name of the one that won.
    fn check_refused_hand_off(&mut self, before: &TaskRecord, code: Rejection) {
        if code != Rejection::HandedOff {
            return;
        }
        self.counts.losers += 1;
        let mut attempts = before.attempts.iter();
        assert!(
            attempts.any(|attempt| attempt.handed_off_to.is_some()),
            "hand-off: nobody knows who has {}",
            before.task
        );
    }

    /// Each parked task once, newest first, and no other.
    fn check_parked_list(&mut self, listing: &ParkedListCheck, rows: &[TaskId]) {
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
        let mut waiting: Vec<ParkedListCursor> = waiting.collect();
        waiting.sort_unstable();
        let behind = waiting
            .iter()
            .filter(|place| listing.after.is_none_or(|after| **place > after));
        let expected: Vec<TaskId> = behind.map(|(_, task)| *task).take(listing.limit).collect();
        self.counts.listings += u64::from(!expected.is_empty());
        assert_eq!(rows, expected, "hand-off: the list is not what waits");
    }

    /// L4: an agent's lease ends only after the agent has counted it down, and not because the
    /// relay stalled.
    pub(crate) fn check_agent_lease_loss(&self, task: TaskId, attempt: &AttemptRecord) {
        if attempt.agent_holder().is_none() {
            return;
        }
        if let Some(until) = self.active_lease_expiry(task, attempt.id) {
            assert!(
                until <= self.now
                    || self.granting_incarnation(attempt.id) != self.relay.incarnation(),
                "L4: {} was given up at {}, and its agent may go on until {until}",
                attempt.id,
                self.now
            );
        }
        let first =
            self.renewed_in_stall.get(&attempt.id) == Some(&self.relay.stall_count.wrapping_sub(1));
        assert!(
            !(self.relay.is_first_turn_after_stall && first),
            "L4: the relay was away and gave up {}",
            attempt.id
        );
    }
}

fn check_own_lease(called: &LeaseCallCheck, over: Option<bool>, outcome: &SimOutcome) {
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
    let ends_total = called.is_renewal && outcome.is_ok();
    let cleaning = called.task.attempt(attempt).map(|a| &a.state);
    let cleaning = matches!(cleaning, Some(AttemptState::CleaningUp { .. }));
    if let (
        true,
        true,
        Ok(SimReply::Renewed {
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

fn reply_outcome(effects: &SimEffects, asked: RequestId) -> Option<&SimOutcome> {
    effects
        .deliveries
        .iter()
        .find_map(|outgoing| match &outgoing.delivery {
            SimDelivery::Reply { request, outcome } if *request == asked => Some(outcome),
            SimDelivery::Reply { .. }
            | SimDelivery::ToSession { .. }
            | SimDelivery::CloseSession { .. }
            | SimDelivery::Published { .. } => None,
        })
}

/// Nothing has changed, except that a queued attempt may have been placed in the same turn.
fn assert_task_unchanged(old: &TaskRecord, new: &TaskRecord, why: &str) {
    assert_attempts_unchanged(old, new, &|_| true, why);
    let waits = old
        .newest_attempt()
        .is_some_and(|newest| newest.state == AttemptState::Queued);
    assert!(
        waits || *old == *new,
        "S3: a call {why} changed {}",
        old.task
    );
}
