//! How the calls of agents travel: each way takes its time, a request or an answer may get lost, a relay that is down hears
//! nothing, and whoever hears nothing says the same again.

use std::sync::Arc;

use baton_core::effects::{Grant, Reply};
use baton_core::goal::GoalWord;
use baton_core::id::{AttemptId, RequestId, TaskId};
use baton_core::input::{FrameRef, HeldCall, HeldVerb, Input, LeaseToken, Submit};
use baton_core::reject::Rejection;
use baton_core::spec::TaskSpec;
use baton_core::time::Mint;

use crate::alone::Grip;
use crate::clients::Asked;
use crate::submissions::digest;
use crate::world::{Event, World};

/// Nobody waits longer for an answer.
const PATIENCE_MS: u64 = 5_000;
const MOST_TRIES: u32 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) sent_at: u64,
    pub(crate) wish: Wish,
    tries: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum Wish {
    Claim(Option<TaskId>),
    Start(Arc<TaskSpec>),
    PickUp {
        task: TaskId,
        /// The parked attempt that it saw.
        seen: Option<AttemptId>,
    },
    Held {
        re: FrameRef,
        token: LeaseToken,
        verb: Box<HeldVerb>,
    },
}

impl Call {
    /// Renewals go on beside whatever it does.
    pub(crate) fn is_waited_for(&self) -> bool {
        !is_renewal(&self.wish)
    }
}

fn is_renewal(wish: &Wish) -> bool {
    matches!(wish, Wish::Held { verb, .. } if matches!(**verb, HeldVerb::Renew))
}

impl World {
    pub(crate) fn call(&mut self, agent: usize, wish: Wish) {
        let travel = self.travel_ms();
        self.call_again(agent, wish, 1, travel);
    }

    /// The call takes this long to get there.
    pub(crate) fn call_again(&mut self, agent: usize, wish: Wish, tries: u32, travel: u64) {
        self.counts.calls += 1;
        let call = self.clients.next_request();
        let sent_at = self.now;
        let made = Call {
            sent_at,
            wish,
            tries,
        };
        self.saw_wish(agent, call, &made.wish);
        self.alone[agent].calls.insert(call, made);
        self.at(sent_at + PATIENCE_MS, Event::Unheard { agent, call });
        if !self.is_lost_on_the_way() {
            self.at(sent_at + travel, Event::Call { agent, call });
        }
    }

    fn travel_ms(&mut self) -> u64 {
        let slow = !self.healing && self.rng.chance(5);
        let most = if slow { 4_000 } else { self.options.delay_ms };
        self.rng.between(1, most)
    }

    fn is_lost_on_the_way(&mut self) -> bool {
        self.options.careless_agents && !self.healing && self.rng.chance(6)
    }

    /// The request is at the relay. Calls of agents pass with the frames of daemons.
    pub(crate) fn call_arrives(&mut self, agent: usize, call: u64) {
        let made = self.alone[agent].calls.get(&call).cloned();
        let Some(made) = made.filter(|_| self.relay.core.is_some()) else {
            return;
        };
        let input = self.input_of(agent, RequestId(call), made.wish);
        self.expect(call, Asked::Agent(agent));
        self.relay_is_called(input);
    }

    fn input_of(&mut self, agent: usize, request: RequestId, wish: Wish) -> Input {
        let agent = self.alone[agent].agent.clone();
        match wish {
            Wish::Claim(task) => Input::Claim {
                request,
                agent,
                task,
                mark: None,
                finished: None,
            },
            Wish::Start(spec) => Input::Start {
                submit: Submit {
                    request,
                    task: TaskId(self.mint.id()),
                    digest: digest(&spec),
                    spec,
                    prior: Ok(None),
                },
                agent,
                mark: None,
            },
            Wish::PickUp { task, seen } => Input::PickUp {
                request,
                agent,
                task,
                attempt: seen,
                reason: None,
                mark: None,
                finished: None,
            },
            Wish::Held { re, token, verb } => Input::Held(Box::new(HeldCall {
                request,
                agent,
                task: re.task,
                attempt: re.attempt,
                proof: token,
                mark: None,
                verb: *verb,
                known: Ok(None),
                finished: None,
            })),
        }
    }

    /// What the relay has acknowledged counts, whether or not anybody hears of it.
    pub(crate) fn agent_answered(
        &mut self,
        agent: usize,
        call: u64,
        outcome: Result<Reply, Rejection>,
    ) {
        let wish = self.alone[agent].calls.get(&call).map(|call| &call.wish);
        let picks_up = matches!(wish, Some(Wish::PickUp { .. }));
        let promised = &mut self.clients.promised;
        match &outcome {
            Ok(Reply::Granted(Some(grant))) if picks_up => promised.sent_on(&grant.record),
            Ok(Reply::Progressed { progress, .. }) => promised.progressed(progress),
            Ok(Reply::Task(_)) => self.counts.agent_ends += 1,
            Ok(Reply::Checkpointed { checkpoint, .. }) => promised.checkpointed(checkpoint),
            _ => {}
        }
        if let Ok(Reply::Granted(Some(grant))) = &outcome {
            let attempt = grant.to.attempt;
            let first = self.dispatched.insert(attempt);
            assert!(first, "S2: {attempt} was granted twice");
            let (spec, record) = (Arc::clone(&grant.spec), Arc::clone(&grant.record));
            self.known_by_agents(&spec, &record);
        }
        self.call_answered(agent, call, outcome);
    }

    /// The relay has answered.
    fn call_answered(&mut self, agent: usize, call: u64, outcome: Result<Reply, Rejection>) {
        if self.is_lost_on_the_way() {
            self.counts.lost_answers += 1;
            return;
        }
        self.alone[agent].answers.insert(call, outcome);
        let at = self.now + self.travel_ms();
        self.at(at, Event::Heard { agent, call });
    }

    /// No answer came: it may have happened or not, so it is said again.
    pub(crate) fn unheard(&mut self, agent: usize, call: u64) {
        let Some(made) = self.alone[agent].calls.remove(&call) else {
            return;
        };
        self.alone[agent].answers.remove(&call);
        if !is_renewal(&made.wish) && (made.tries < MOST_TRIES || self.healing) {
            self.counts.repeated_calls += 1;
            let travel = self.travel_ms();
            self.call_again(agent, made.wish, made.tries + 1, travel);
        } else if let Wish::Held { re, .. } = made.wish {
            self.give_grip_up(agent, re.attempt, !is_renewal(&made.wish));
        }
    }

    fn give_grip_up(&mut self, agent: usize, attempt: AttemptId, over: bool) {
        if over {
            self.let_grips_go(agent, |grip| grip.re.attempt == attempt);
        }
    }

    pub(crate) fn heard(&mut self, agent: usize, call: u64) {
        let answer = self.alone[agent].answers.remove(&call);
        let made = self.alone[agent].calls.remove(&call);
        let (Some(answer), Some(made)) = (answer, made) else {
            return;
        };
        self.saw_wish_answered(agent, call, &made.wish, &answer);
        match made.wish {
            Wish::Claim(_) | Wish::Start(_) | Wish::PickUp { .. } => {
                if let Ok(Reply::Granted(Some(grant))) = answer {
                    self.granted_to_agent(agent, made.sent_at, *grant);
                }
            }
            Wish::Held { re, token, verb } => {
                let grips = &self.alone[agent].grips;
                let own = |grip: &&Grip| grip.re.attempt == re.attempt && grip.token == token;
                if grips.iter().any(|grip| own(&grip)) {
                    self.obeyed(agent, made.sent_at, re.attempt, &verb, answer);
                }
            }
        }
    }

    fn granted_to_agent(&mut self, agent: usize, sent_at: u64, grant: Grant) {
        self.counts.grants += 1;
        let grip = Grip {
            re: FrameRef {
                task: grant.to.task,
                attempt: grant.to.attempt,
                number: grant.to.number,
                incarnation: self.granted_in(grant.to.attempt),
            },
            token: grant.token,
            spec: grant.spec,
            until: sent_at + grant.granted_ms,
            renew_ms: grant.renew_ms,
            renew_at: sent_at + grant.renew_ms,
            stopped: false,
            told: false,
        };
        self.gripped(agent, sent_at, grip);
    }

    /// What it was told about a lease that it has.
    fn obeyed(
        &mut self,
        agent: usize,
        sent_at: u64,
        attempt: AttemptId,
        verb: &HeldVerb,
        answer: Result<Reply, Rejection>,
    ) {
        let over = ends(verb);
        match answer {
            Ok(Reply::Renewed {
                granted_ms,
                cancel_requested,
                ..
            }) => self.renewed_grip(agent, attempt, sent_at + granted_ms, cancel_requested),
            Ok(_) if over => self.let_grips_go(agent, |grip| grip.re.attempt == attempt),
            Ok(_) => {}
            Err(Rejection::BeingCanceled | Rejection::BeingEnded) => {
                self.tell_grip(agent, attempt);
            }
            Err(Rejection::ContractUnmet) => self.counts.refused_results += 1,
            Err(_) => self.let_grips_go(agent, |grip| grip.re.attempt == attempt),
        }
    }

    fn tell_grip(&mut self, agent: usize, attempt: AttemptId) {
        let mut grips = self.alone[agent].grips.iter_mut();
        if let Some(grip) = grips.find(|grip| grip.re.attempt == attempt) {
            grip.told = true;
        }
    }

    fn renewed_grip(&mut self, agent: usize, attempt: AttemptId, until: u64, told: bool) {
        self.counts.agent_renewals += 1;
        let mut grips = self.alone[agent].grips.iter_mut();
        let Some(grip) = grips.find(|grip| grip.re.attempt == attempt) else {
            return;
        };
        grip.told |= told;
        grip.until = grip.until.max(until);
        let until = grip.until;
        self.at(until, Event::GripOver { agent });
    }
}

/// Whoever says this has stopped.
pub(crate) fn ends(verb: &HeldVerb) -> bool {
    match verb {
        HeldVerb::Complete(..)
        | HeldVerb::Fail(_)
        | HeldVerb::Release { .. }
        | HeldVerb::Cancel { .. }
        | HeldVerb::Goal(GoalWord::Block(_)) => true,
        HeldVerb::Renew | HeldVerb::Goal(GoalWord::Progress(_) | GoalWord::Checkpoint(_)) => false,
    }
}
