//! Agents without a daemon or a stream that have leases themselves. They claim, start and pick
//! up, renew (late, twice, never), report progress and ends; they are suspended, die and use
//! tokens that are no longer theirs.
//!
//! A correct agent counts its lease from the send of the call that granted it, stops at its
//! limit, and stops before it reports its end. The transport of its calls is in
//! `agent_call.rs`, the checks of their results in `checks/agent_calls.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::commands::EndAttempt;
use baton_core::ids::{AttemptId, Incarnation, TaskId, TenantId, TokenId};
use baton_core::io::command::AgentPrincipal;
use baton_core::io::session_input::{CompletedBody, FrameRef, LeaseToken};
use baton_core::record::FailureCode;
use baton_core::task::spec::TaskSpec;
use uuid::Uuid;

use crate::agents::agent_call::SimLeaseVerb;
use crate::agents::agent_call::{AgentRequest, PendingAgentCall};
use crate::checks::required_files::random_found_files;
use crate::daemon::agent_process::{confirmed_termination, errored_body};
use crate::relay::sim_reply::SimOutcome;
use crate::simulation::{ScheduledEvent, Simulation};

/// Most leases at a time.
const MAX_AGENT_LEASES: usize = 2;
/// Past leases whose tokens it may still use.
const MAX_PAST_LEASES: usize = 12;

#[derive(Debug)]
pub(crate) struct LeaseHoldingAgent {
    pub(crate) agent: AgentPrincipal,
    pub(crate) leases: Vec<SimAgentLease>,
    /// Leases that it had, newest last.
    pub(crate) past_leases: Vec<SimAgentLease>,
    pub(crate) pending_calls: BTreeMap<u64, PendingAgentCall>,
    /// Answers in flight to it.
    pub(crate) answers_in_flight: BTreeMap<u64, SimOutcome>,
    pub(crate) asleep_until: u64,
}

/// A lease as its holder has it.
#[derive(Clone, Debug)]
pub(crate) struct SimAgentLease {
    pub(crate) re: FrameRef,
    pub(crate) token: LeaseToken,
    pub(crate) spec: Arc<TaskSpec>,
    /// When the lease expires by its own count.
    pub(crate) expires_at: u64,
    pub(crate) renew_ms: u64,
    pub(crate) renew_at: u64,
    /// It has stopped, and only its final report is left.
    pub(crate) stopped: bool,
    /// A cancel was requested.
    pub(crate) cancel_requested: bool,
}

impl Simulation {
    pub(crate) fn add_agents(&mut self) {
        if !self.options.lease_holding_agents {
            return;
        }
        let crews = [
            ("acme", "north"),
            ("acme", "north"),
            ("acme", "south"),
            ("globex", "north"),
        ];
        for (index, (tenant, scope)) in crews.into_iter().enumerate() {
            self.agents.push(LeaseHoldingAgent {
                agent: AgentPrincipal {
                    token: TokenId(Uuid::from_u128(0xa6e27 << 8 | index as u128)),
                    name: format!("agent-{index}").into(),
                    tenant: TenantId::new(tenant).expect("a good name"),
                    scope: scope.into(),
                },
                leases: Vec::new(),
                past_leases: Vec::new(),
                pending_calls: BTreeMap::new(),
                answers_in_flight: BTreeMap::new(),
                asleep_until: 0,
            });
            let at = self.rng.below(3_000);
            self.schedule(at, ScheduledEvent::AgentTurn { agent: index });
        }
    }

    /// It takes one action with its leases.
    pub(crate) fn run_agent_turn(&mut self, index: usize) {
        let next = self.now + self.rng.between(100, 4_000);
        self.schedule(next, ScheduledEvent::AgentTurn { agent: index });
        self.renew_due_leases(index);
        let careless = self.options.careless_agents && !self.healing;
        if careless {
            match self.rng.below(100) {
                0 => return self.suspend_agent(index),
                1 => return self.kill_agent(index),
                2..=6 => return self.misuse_lease_token(index),
                _ => {}
            }
        }
        if self.agents[index]
            .pending_calls
            .values()
            .any(PendingAgentCall::blocks_agent)
        {
            return;
        }
        let grips = self.agents[index].leases.len();
        let place = self.rng.random_index(grips);
        match self.rng.below(100) {
            0..=54 if grips > 0 => self.continue_lease(index, place),
            55..=99 if grips < MAX_AGENT_LEASES => self.request_work(index),
            _ if self.healing && grips > 0 => self.continue_lease(index, place),
            _ => {}
        }
    }

    fn renew_due_leases(&mut self, index: usize) {
        let careless = self.options.careless_agents && !self.healing;
        let now = self.now;
        let due = self.agents[index].leases.iter_mut();
        let due = due.filter(|grip| grip.renew_at <= now);
        let due: Vec<_> = due
            .map(|grip| {
                grip.renew_at = now + grip.renew_ms;
                (grip.re, grip.token.clone())
            })
            .collect();
        for (re, token) in due {
            let (late, twice) = (self.rng.chance(20), self.rng.chance(10));
            if careless && late {
                continue;
            }
            for _ in 0..=u32::from(careless && twice) {
                let verb = Box::new(SimLeaseVerb::Renew);
                self.send_agent_call(
                    index,
                    AgentRequest::LeaseCall {
                        re,
                        token: token.clone(),
                        verb,
                    },
                );
            }
        }
    }

    /// One step with this lease.
    fn continue_lease(&mut self, index: usize, place: usize) {
        let grip = self.agents[index].leases[place].clone();
        if grip.cancel_requested {
            return self.stop_and_report(
                index,
                grip.re.attempt,
                SimLeaseVerb::End(EndAttempt::Cancel { reason: None }),
            );
        }
        if grip.stopped || self.healing {
            let body = self.agent_result(&grip, true);
            return self.stop_and_report(
                index,
                grip.re.attempt,
                SimLeaseVerb::End(EndAttempt::Complete(body, None)),
            );
        }
        let goals = self.options.goals;
        let verb = match self.rng.below(100) {
            0..=24 if goals => return self.send_goal_update(index, &grip),
            25..=32 if goals => SimLeaseVerb::Goal(self.random_block("stuck")),
            33..=40 => SimLeaseVerb::End(EndAttempt::Release { reason: None }),
            41..=48 => {
                let code = if self.rng.chance(50) {
                    FailureCode::AgentExit
                } else {
                    FailureCode::ProviderAuth
                };
                SimLeaseVerb::End(EndAttempt::Fail(errored_body(
                    code,
                    confirmed_termination(),
                )))
            }
            49..=50 => SimLeaseVerb::End(EndAttempt::Cancel { reason: None }),
            51..=75 => {
                let all = self.rng.chance(60);
                let last = goals.then(|| self.random_progress());
                SimLeaseVerb::End(EndAttempt::Complete(self.agent_result(&grip, all), last))
            }
            _ => return,
        };
        self.stop_and_report(index, grip.re.attempt, verb);
    }

    fn send_goal_update(&mut self, index: usize, grip: &SimAgentLease) {
        let word = self.random_goal_update();
        let (re, token) = (grip.re, grip.token.clone());
        let verb = Box::new(SimLeaseVerb::Goal(word));
        self.send_agent_call(index, AgentRequest::LeaseCall { re, token, verb });
    }

    fn agent_result(&mut self, grip: &SimAgentLease, all: bool) -> CompletedBody {
        let all = all || self.healing;
        CompletedBody {
            result: Some(Arc::from(*b"done")),
            artifacts: random_found_files(&grip.spec, all, &mut self.rng),
            ended_in_lease: true,
            ..CompletedBody::default()
        }
    }

    /// It stops first, then reports.
    fn stop_and_report(&mut self, index: usize, attempt: AttemptId, verb: SimLeaseVerb) {
        let grips = &mut self.agents[index].leases;
        let Some(grip) = grips.iter_mut().find(|grip| grip.re.attempt == attempt) else {
            return;
        };
        grip.stopped = true;
        let (re, token, spec) = (grip.re, grip.token.clone(), Arc::clone(&grip.spec));
        self.record_process_end(re.task, attempt, &spec);
        let verb = Box::new(verb);
        self.send_agent_call(index, AgentRequest::LeaseCall { re, token, verb });
    }

    fn request_work(&mut self, index: usize) {
        let agent = self.agents[index].agent.clone();
        match self.rng.below(100) {
            0..=44 => self.send_agent_call(index, AgentRequest::Claim(None)),
            45..=54 => {
                let task = self.pick_task().map(|(_, task)| task);
                self.send_agent_call(index, AgentRequest::Claim(task));
            }
            55..=64 if !self.healing && self.clients.submitted.len() < self.options.tasks => {
                let mut spec = self.random_spec();
                spec.tenant = agent.tenant.clone();
                spec.agent_scope = Some((*agent.scope).to_owned());
                let key = format!("start-{}", self.clients.submitted.len());
                spec.idempotency_key = Some(key);
                let spec = Arc::new(spec);
                self.clients.submitted.push(Arc::clone(&spec));
                self.send_agent_call(index, AgentRequest::Start(spec));
            }
            _ if !self.healing => self.pick_up_parked_task(index),
            _ => {}
        }
    }

    /// Often several agents try the same task, and a person resumes it as well.
    fn pick_up_parked_task(&mut self, index: usize) {
        let agent = &self.agents[index].agent;
        let Some((task, seen)) = self.pick_parked_task(&agent.tenant.clone()) else {
            return;
        };
        let rival = self
            .rng
            .chance(50)
            .then(|| self.rng.random_index(self.agents.len()));
        for agent in [Some(index), rival].into_iter().flatten() {
            let seen = self.rng.chance(70).then_some(seen);
            self.send_agent_call(agent, AgentRequest::PickUp { task, seen });
        }
        if self.options.goals && self.rng.chance(25) {
            self.resume_task(task, Some(seen));
        }
    }

    /// Uses a past token, an invalid one, or one of another agent.
    fn misuse_lease_token(&mut self, index: usize) {
        let other = self.rng.random_index(self.agents.len());
        let from = if self.rng.chance(60) { index } else { other };
        let agent = &self.agents[from];
        let known = agent.past_leases.iter().chain(&agent.leases);
        let known: Vec<SimAgentLease> = known.cloned().collect();
        let Some(grip) = known.get(self.rng.random_index(known.len())).cloned() else {
            return;
        };
        let forged = self.rng.chance(30);
        let token = if forged {
            LeaseToken([7; 32])
        } else {
            grip.token.clone()
        };
        let mut re = grip.re;
        if self.rng.chance(15)
            && let Some(newest) = self
                .relay
                .store
                .view
                .live
                .get(&re.task)
                .and_then(|t| t.newest_attempt())
        {
            re.attempt = newest.id;
        }
        // An agent that works does not report that it has stopped.
        let works =
            from == index && !forged && self.active_lease_expiry(re.task, re.attempt).is_some();
        let verb = match self.rng.below(6) {
            0 if !works => {
                SimLeaseVerb::End(EndAttempt::Complete(self.agent_result(&grip, true), None))
            }
            1 if !works => SimLeaseVerb::End(EndAttempt::Release { reason: None }),
            2 => SimLeaseVerb::Goal(self.random_goal_update()),
            _ => SimLeaseVerb::Renew,
        };
        self.counts.misuses += 1;
        let verb = Box::new(verb);
        self.send_agent_call(index, AgentRequest::LeaseCall { re, token, verb });
    }

    /// A suspended agent cannot stop in time. When it resumes, it first checks for expired
    /// leases.
    fn suspend_agent(&mut self, index: usize) {
        self.counts.agents_asleep += 1;
        let until = self.now + self.rng.between(1_000, 60_000);
        self.add_trace(|| format!("agent {index} sleeps until {until}"));
        self.agents[index].asleep_until = until;
        let over = |grip: &SimAgentLease| grip.expires_at <= until;
        self.drop_agent_leases(index, over);
    }

    /// Its process is killed: it loses all its state.
    fn kill_agent(&mut self, index: usize) {
        self.counts.agents_dead += 1;
        self.add_trace(|| format!("agent {index} dies"));
        self.drop_agent_leases(index, |_| true);
        let agent = &mut self.agents[index];
        agent.pending_calls.clear();
        agent.answers_in_flight.clear();
    }

    pub(crate) fn drop_agent_leases(
        &mut self,
        index: usize,
        which: impl Fn(&SimAgentLease) -> bool,
    ) {
        let agent = &mut self.agents[index];
        let (gone, kept) = std::mem::take(&mut agent.leases)
            .into_iter()
            .partition(which);
        agent.leases = kept;
        let gone: Vec<SimAgentLease> = gone;
        for grip in gone {
            self.record_process_end(grip.re.task, grip.re.attempt, &grip.spec);
            let past = &mut self.agents[index].past_leases;
            past.push(grip);
            let many = past.len().saturating_sub(MAX_PAST_LEASES);
            past.drain(..many);
        }
    }

    /// By its own clock its lease has expired.
    pub(crate) fn expire_agent_leases(&mut self, index: usize) {
        let now = self.now;
        let over = |grip: &SimAgentLease| grip.expires_at <= now;
        let late = self.options.careless_agents && !self.healing && self.rng.chance(50);
        let last = self.agents[index].leases.iter().find(|grip| over(grip));
        let last = last.map(|grip| (grip.re, grip.token.clone()));
        self.drop_agent_leases(index, over);
        if let Some((re, token)) = last.filter(|_| late) {
            // A renewal after the limit, but before the relay has noticed the expiry, is also
            // too late.
            let (grace, delay) = (self.options.grace_ms, 2 * self.options.delay_ms);
            let travel = grace + self.rng.between(1, delay + 20);
            let verb = Box::new(SimLeaseVerb::Renew);
            self.send_agent_call_try(
                index,
                AgentRequest::LeaseCall { re, token, verb },
                1,
                travel,
            );
        }
    }

    /// The lease counts from the send of the call.
    pub(crate) fn add_agent_lease(&mut self, index: usize, sent_at: u64, grip: SimAgentLease) {
        let until = grip.expires_at;
        assert!(
            until >= sent_at,
            "a grant that is over before it was asked for"
        );
        if until <= self.now {
            return;
        }
        self.record_process_start(grip.re, &grip.spec);
        self.agents[index].leases.push(grip);
        self.schedule(until, ScheduledEvent::AgentLeaseExpiry { agent: index });
    }

    /// Whether an agent works under a lease of an earlier incarnation of the data.
    pub(crate) fn has_agents_of_earlier_incarnation(&self, incarnation: Incarnation) -> bool {
        let mut grips = self.agents.iter().flat_map(|agent| &agent.leases);
        grips.any(|grip| grip.re.incarnation != incarnation && !grip.stopped)
    }

    pub(crate) fn active_lease_expiry(&self, task: TaskId, attempt: AttemptId) -> Option<u64> {
        let mut grips = self.agents.iter().flat_map(|agent| &agent.leases);
        let grip = grips.find(|grip| (grip.re.task, grip.re.attempt) == (task, attempt))?;
        (!grip.stopped).then_some(grip.expires_at)
    }
}
