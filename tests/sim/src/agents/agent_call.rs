//! Transport of agents' calls: each direction takes time, a request or an answer may be lost, a
//! relay that is down receives nothing, and an agent without an answer repeats its call.

use std::sync::Arc;

use baton_core::commands::{
    AgentCaller, AgentLeaseCall, AgentLeaseProof, BlockAttempt, ClaimTask, EndAttempt, PickUpTask,
    RenewAgentLease, ReportAttemptProgress, StartTask, SubmitTask, WriteAttemptCheckpoint,
};
use baton_core::goal::progress::GoalReport;
use baton_core::ids::{AttemptId, TaskId};
use baton_core::io::command::CoreInput;
use baton_core::io::effects::AgentLeaseGrant;
use baton_core::io::rejection::Rejection;
use baton_core::io::session_input::{FrameRef, LeaseToken};
use baton_core::task::spec::TaskSpec;
use baton_core::time::IdSource;

use crate::agents::lease_holding_agent::SimAgentLease;
use crate::checks::agent_calls::{HandOffProbe, LeaseCallProbe, RequestProbe};
use crate::clients::sim_clients::SimClientRequest;
use crate::clients::task_specs::spec_digest;
use crate::relay::relay_input::RelayInput;
use crate::relay::sim_reply::{RequestId, SimOutcome, SimReply};
use crate::simulation::{ScheduledEvent, Simulation};

/// The longest wait for an answer.
const ANSWER_TIMEOUT_MS: u64 = 5_000;
const MAX_CALL_TRIES: u32 = 4;

#[derive(Clone, Debug)]
pub(crate) struct PendingAgentCall {
    pub(crate) sent_at: u64,
    pub(crate) request: AgentRequest,
    tries: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum AgentRequest {
    Claim(Option<TaskId>),
    Start(Arc<TaskSpec>),
    PickUp {
        task: TaskId,
        /// The parked attempt that it saw.
        seen: Option<AttemptId>,
    },
    LeaseCall {
        re: FrameRef,
        token: LeaseToken,
        verb: Box<SimLeaseVerb>,
    },
}

/// What an agent does with a lease that it holds.
#[derive(Clone, Debug)]
pub(crate) enum SimLeaseVerb {
    Renew,
    Goal(GoalReport),
    End(EndAttempt),
}

impl PendingAgentCall {
    /// Renewals run concurrently with other calls.
    pub(crate) fn blocks_agent(&self) -> bool {
        !is_renewal(&self.request)
    }
}

fn is_renewal(wish: &AgentRequest) -> bool {
    matches!(wish, AgentRequest::LeaseCall { verb, .. } if matches!(**verb, SimLeaseVerb::Renew))
}

impl Simulation {
    pub(crate) fn send_agent_call(&mut self, agent: usize, wish: AgentRequest) {
        let travel = self.pick_travel_ms();
        self.send_agent_call_try(agent, wish, 1, travel);
    }

    /// The call takes this long to arrive.
    pub(crate) fn send_agent_call_try(
        &mut self,
        agent: usize,
        wish: AgentRequest,
        tries: u32,
        travel: u64,
    ) {
        self.counts.calls += 1;
        let call = self.clients.next_request();
        let sent_at = self.now;
        let made = PendingAgentCall {
            sent_at,
            request: wish,
            tries,
        };
        self.record_agent_request(agent, call, &made.request);
        self.agents[agent].pending_calls.insert(call, made);
        self.schedule(
            sent_at + ANSWER_TIMEOUT_MS,
            ScheduledEvent::AnswerTimeout { agent, call },
        );
        if !self.is_message_lost() {
            self.schedule(
                sent_at + travel,
                ScheduledEvent::CallArrival { agent, call },
            );
        }
    }

    fn pick_travel_ms(&mut self) -> u64 {
        let slow = !self.healing && self.rng.chance(5);
        let most = if slow { 4_000 } else { self.options.delay_ms };
        self.rng.between(1, most)
    }

    fn is_message_lost(&mut self) -> bool {
        self.options.careless_agents && !self.healing && self.rng.chance(6)
    }

    /// The request arrives at the relay. Agents' calls and daemons' frames share one queue.
    pub(crate) fn deliver_agent_call(&mut self, agent: usize, call: u64) {
        let made = self.agents[agent].pending_calls.get(&call).cloned();
        let Some(made) = made.filter(|_| self.relay.core.is_some()) else {
            return;
        };
        let input = self.relay_input_of(agent, RequestId(call), made.request);
        self.track_agent_request(call, SimClientRequest::AgentCall(agent));
        self.send_agent_input(input);
    }

    fn relay_input_of(
        &mut self,
        agent: usize,
        request: RequestId,
        wish: AgentRequest,
    ) -> RelayInput {
        let caller = AgentCaller {
            agent: self.agents[agent].agent.clone(),
            fingerprint: None,
        };
        match wish {
            AgentRequest::Claim(task) => {
                let ports = &self.relay.reply_ports;
                let claim = ClaimTask { caller, task };
                ports.input(request, claim, SimReply::Granted).into()
            }
            AgentRequest::Start(spec) => {
                let submit = SubmitTask {
                    task: TaskId(self.id_source.new_id()),
                    digest: spec_digest(&spec),
                    spec,
                };
                let ports = &self.relay.reply_ports;
                let start = StartTask { submit, caller };
                ports.input(request, start, SimReply::granted).into()
            }
            AgentRequest::PickUp { task, seen } => {
                let pick_up = PickUpTask {
                    caller,
                    task,
                    attempt: seen,
                    reason: None,
                };
                let ports = &self.relay.reply_ports;
                RelayInput {
                    probe: Some(RequestProbe::HandOff(HandOffProbe {
                        request,
                        task,
                        seen,
                        is_pick_up: true,
                    })),
                    ..ports.input(request, pick_up, SimReply::granted).into()
                }
            }
            AgentRequest::LeaseCall { re, token, verb } => {
                let lease = AgentLeaseProof {
                    agent: caller.agent,
                    task: re.task,
                    attempt: re.attempt,
                    token,
                };
                let probe = LeaseCallProbe {
                    request,
                    lease: lease.clone(),
                    is_renewal: matches!(*verb, SimLeaseVerb::Renew),
                };
                RelayInput {
                    probe: Some(RequestProbe::LeaseCall(probe)),
                    ..self.lease_call_input(request, lease, *verb).into()
                }
            }
        }
    }

    fn lease_call_input(
        &self,
        request: RequestId,
        lease: AgentLeaseProof,
        verb: SimLeaseVerb,
    ) -> CoreInput {
        let ports = &self.relay.reply_ports;
        match verb {
            SimLeaseVerb::Renew => ports.input(request, RenewAgentLease { lease }, SimReply::from),
            SimLeaseVerb::Goal(GoalReport::Progress(update)) => {
                let call = lease_call(lease, ReportAttemptProgress(update));
                ports.input(request, call, SimReply::agent_progress)
            }
            SimLeaseVerb::Goal(GoalReport::Checkpoint(draft)) => {
                let call = lease_call(lease, WriteAttemptCheckpoint(draft));
                ports.input(request, call, SimReply::agent_checkpoint)
            }
            SimLeaseVerb::Goal(GoalReport::Block(block)) => {
                let call = lease_call(lease, BlockAttempt(block));
                ports.input(request, call, SimReply::agent_block)
            }
            SimLeaseVerb::End(end) => {
                ports.input(request, lease_call(lease, end), SimReply::agent_end)
            }
        }
    }

    /// The relay's acknowledgement counts, even if the answer is lost.
    pub(crate) fn record_agent_reply(&mut self, agent: usize, call: u64, outcome: SimOutcome) {
        let wish = self.agents[agent]
            .pending_calls
            .get(&call)
            .map(|call| &call.request);
        let picks_up = matches!(wish, Some(AgentRequest::PickUp { .. }));
        let promised = &mut self.clients.acknowledged_goals;
        match &outcome {
            Ok(SimReply::Granted(Some(grant))) if picks_up => {
                promised.record_hand_off(&grant.record)
            }
            Ok(SimReply::Progressed { progress, .. }) => promised.record_progress(progress),
            Ok(SimReply::Task(_)) => self.counts.agent_ends += 1,
            Ok(SimReply::Checkpointed { checkpoint, .. }) => promised.record_checkpoint(checkpoint),
            _ => {}
        }
        if let Ok(SimReply::Granted(Some(grant))) = &outcome {
            let attempt = grant.to.attempt;
            let first = self.dispatched.insert(attempt);
            assert!(first, "S2: {attempt} was granted twice");
            let (spec, record) = (Arc::clone(&grant.spec), Arc::clone(&grant.record));
            self.record_agent_task(&spec, &record);
        }
        self.send_agent_answer(agent, call, outcome);
    }

    /// The relay has answered.
    fn send_agent_answer(&mut self, agent: usize, call: u64, outcome: SimOutcome) {
        if self.is_message_lost() {
            self.counts.lost_answers += 1;
            return;
        }
        self.agents[agent].answers_in_flight.insert(call, outcome);
        let at = self.now + self.pick_travel_ms();
        self.schedule(at, ScheduledEvent::AnswerArrival { agent, call });
    }

    /// No answer arrived. The call may have taken effect or not, so it is repeated.
    pub(crate) fn retry_unanswered_call(&mut self, agent: usize, call: u64) {
        let Some(made) = self.agents[agent].pending_calls.remove(&call) else {
            return;
        };
        self.agents[agent].answers_in_flight.remove(&call);
        if !is_renewal(&made.request) && (made.tries < MAX_CALL_TRIES || self.healing) {
            self.counts.repeated_calls += 1;
            let travel = self.pick_travel_ms();
            self.send_agent_call_try(agent, made.request, made.tries + 1, travel);
        } else if let AgentRequest::LeaseCall { re, .. } = made.request {
            self.drop_agent_lease_if(agent, re.attempt, !is_renewal(&made.request));
        }
    }

    fn drop_agent_lease_if(&mut self, agent: usize, attempt: AttemptId, over: bool) {
        if over {
            self.drop_agent_leases(agent, |grip| grip.re.attempt == attempt);
        }
    }

    pub(crate) fn handle_agent_answer(&mut self, agent: usize, call: u64) {
        let answer = self.agents[agent].answers_in_flight.remove(&call);
        let made = self.agents[agent].pending_calls.remove(&call);
        let (Some(answer), Some(made)) = (answer, made) else {
            return;
        };
        self.record_agent_answer(agent, call, &made.request, &answer);
        match made.request {
            AgentRequest::Claim(_) | AgentRequest::Start(_) | AgentRequest::PickUp { .. } => {
                if let Ok(SimReply::Granted(Some(grant))) = answer {
                    self.accept_agent_grant(agent, made.sent_at, *grant);
                }
            }
            AgentRequest::LeaseCall { re, token, verb } => {
                let grips = &self.agents[agent].leases;
                let own =
                    |grip: &&SimAgentLease| grip.re.attempt == re.attempt && grip.token == token;
                if grips.iter().any(|grip| own(&grip)) {
                    self.apply_lease_answer(agent, made.sent_at, re.attempt, &verb, answer);
                }
            }
        }
    }

    fn accept_agent_grant(&mut self, agent: usize, sent_at: u64, grant: AgentLeaseGrant) {
        self.counts.grants += 1;
        let grip = SimAgentLease {
            re: FrameRef {
                task: grant.to.task,
                attempt: grant.to.attempt,
                number: grant.to.number,
                incarnation: self.granting_incarnation(grant.to.attempt),
            },
            token: grant.token,
            spec: grant.spec,
            expires_at: sent_at + grant.granted_ms,
            renew_ms: grant.renew_ms,
            renew_at: sent_at + grant.renew_ms,
            stopped: false,
            cancel_requested: false,
        };
        self.add_agent_lease(agent, sent_at, grip);
    }

    /// Applies the answer about a lease that it has.
    fn apply_lease_answer(
        &mut self,
        agent: usize,
        sent_at: u64,
        attempt: AttemptId,
        verb: &SimLeaseVerb,
        answer: SimOutcome,
    ) {
        let over = ends_attempt(verb);
        match answer {
            Ok(SimReply::Renewed {
                granted_ms,
                cancel_requested,
                ..
            }) => self.extend_agent_lease(agent, attempt, sent_at + granted_ms, cancel_requested),
            Ok(_) if over => self.drop_agent_leases(agent, |grip| grip.re.attempt == attempt),
            Ok(_) => {}
            Err(Rejection::BeingCanceled | Rejection::BeingEnded) => {
                self.mark_cancel_requested(agent, attempt);
            }
            Err(Rejection::ContractUnmet) => self.counts.refused_results += 1,
            Err(_) => self.drop_agent_leases(agent, |grip| grip.re.attempt == attempt),
        }
    }

    fn mark_cancel_requested(&mut self, agent: usize, attempt: AttemptId) {
        let mut grips = self.agents[agent].leases.iter_mut();
        if let Some(grip) = grips.find(|grip| grip.re.attempt == attempt) {
            grip.cancel_requested = true;
        }
    }

    fn extend_agent_lease(&mut self, agent: usize, attempt: AttemptId, until: u64, told: bool) {
        self.counts.agent_renewals += 1;
        let mut grips = self.agents[agent].leases.iter_mut();
        let Some(grip) = grips.find(|grip| grip.re.attempt == attempt) else {
            return;
        };
        grip.cancel_requested |= told;
        grip.expires_at = grip.expires_at.max(until);
        let until = grip.expires_at;
        self.schedule(until, ScheduledEvent::AgentLeaseExpiry { agent });
    }
}

fn lease_call<V>(lease: AgentLeaseProof, verb: V) -> AgentLeaseCall<V> {
    AgentLeaseCall {
        lease,
        fingerprint: None,
        verb,
    }
}

/// An agent that sends this has stopped.
pub(crate) fn ends_attempt(verb: &SimLeaseVerb) -> bool {
    match verb {
        SimLeaseVerb::End(_) | SimLeaseVerb::Goal(GoalReport::Block(_)) => true,
        SimLeaseVerb::Renew
        | SimLeaseVerb::Goal(GoalReport::Progress(_) | GoalReport::Checkpoint(_)) => false,
    }
}
