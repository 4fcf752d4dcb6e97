//! Agents that stand alone: principals without a daemon or a stream, who hold leases themselves. They claim, start and pick up,
//! renew (late, twice, never), tell what they come to and end it; they sleep, die and use tokens that are no longer theirs.
//!
//! An honest one counts its lease from the send of the call that got it, stops at its limit, and stops before it says that it
//! has. How its calls travel is in `calling.rs`, what the relay makes of them is judged in `calls.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::effects::Reply;
use baton_core::id::{AttemptId, Incarnation, TaskId, TenantId, TokenId};
use baton_core::input::{Agent, Completed, FrameRef, HeldVerb, LeaseToken};
use baton_core::record::FailureCode;
use baton_core::reject::Rejection;
use baton_core::spec::TaskSpec;
use uuid::Uuid;

use crate::agent::{errored, gone};
use crate::calling::{Call, Wish};
use crate::contracts::found;
use crate::world::{Event, World};

/// What it has at most at a time.
const MOST_GRIPS: usize = 2;
/// Leases of before whose tokens it may still use.
const REMEMBERED: usize = 12;

#[derive(Debug)]
pub(crate) struct Alone {
    pub(crate) agent: Agent,
    pub(crate) grips: Vec<Grip>,
    /// What it had, newest last.
    pub(crate) past: Vec<Grip>,
    pub(crate) calls: BTreeMap<u64, Call>,
    /// Answers on their way to it.
    pub(crate) answers: BTreeMap<u64, Result<Reply, Rejection>>,
    pub(crate) asleep_until: u64,
}

/// A lease as its holder knows it.
#[derive(Clone, Debug)]
pub(crate) struct Grip {
    pub(crate) re: FrameRef,
    pub(crate) token: LeaseToken,
    pub(crate) spec: Arc<TaskSpec>,
    /// By its own count it has no right from here on.
    pub(crate) until: u64,
    pub(crate) renew_ms: u64,
    pub(crate) renew_at: u64,
    /// It has stopped, and only its last word is left to say.
    pub(crate) stopped: bool,
    /// Somebody wants it canceled.
    pub(crate) told: bool,
}

impl World {
    pub(crate) fn add_agents(&mut self) {
        if !self.options.agents {
            return;
        }
        let crews = [
            ("acme", "north"),
            ("acme", "north"),
            ("acme", "south"),
            ("globex", "north"),
        ];
        for (index, (tenant, scope)) in crews.into_iter().enumerate() {
            self.alone.push(Alone {
                agent: Agent {
                    token: TokenId(Uuid::from_u128(0xa6e27 << 8 | index as u128)),
                    name: format!("agent-{index}").into(),
                    tenant: TenantId::new(tenant).expect("a good name"),
                    scope: scope.into(),
                },
                grips: Vec::new(),
                past: Vec::new(),
                calls: BTreeMap::new(),
                answers: BTreeMap::new(),
                asleep_until: 0,
            });
            let at = self.rng.below(3_000);
            self.at(at, Event::Alone { agent: index });
        }
    }

    /// It looks at what it has, and does one thing.
    pub(crate) fn alone_acts(&mut self, index: usize) {
        let next = self.now + self.rng.between(100, 4_000);
        self.at(next, Event::Alone { agent: index });
        self.renew_due(index);
        let careless = self.options.careless_agents && !self.healing;
        if careless {
            match self.rng.below(100) {
                0 => return self.agent_sleeps(index),
                1 => return self.agent_dies(index),
                2..=6 => return self.misuse(index),
                _ => {}
            }
        }
        if self.alone[index].calls.values().any(Call::is_waited_for) {
            return;
        }
        let grips = self.alone[index].grips.len();
        let place = self.rng.index(grips);
        match self.rng.below(100) {
            0..=54 if grips > 0 => self.go_on(index, place),
            55..=99 if grips < MOST_GRIPS => self.look_for_work(index),
            _ if self.healing && grips > 0 => self.go_on(index, place),
            _ => {}
        }
    }

    fn renew_due(&mut self, index: usize) {
        let careless = self.options.careless_agents && !self.healing;
        let now = self.now;
        let due = self.alone[index].grips.iter_mut();
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
                let verb = Box::new(HeldVerb::Renew);
                self.call(
                    index,
                    Wish::Held {
                        re,
                        token: token.clone(),
                        verb,
                    },
                );
            }
        }
    }

    /// One step with what it holds.
    fn go_on(&mut self, index: usize, place: usize) {
        let grip = self.alone[index].grips[place].clone();
        if grip.told {
            return self.stop_and_say(index, grip.re.attempt, HeldVerb::Cancel { reason: None });
        }
        if grip.stopped || self.healing {
            let body = self.result_of_agent(&grip, true);
            return self.stop_and_say(index, grip.re.attempt, HeldVerb::Complete(body, None));
        }
        let goals = self.options.goals;
        let verb = match self.rng.below(100) {
            0..=24 if goals => return self.tell_goal(index, &grip),
            25..=32 if goals => HeldVerb::Goal(self.some_block("stuck")),
            33..=40 => HeldVerb::Release { reason: None },
            41..=48 => {
                let code = if self.rng.chance(50) {
                    FailureCode::AgentExit
                } else {
                    FailureCode::ProviderAuth
                };
                HeldVerb::Fail(errored(code, gone()))
            }
            49..=50 => HeldVerb::Cancel { reason: None },
            51..=75 => {
                let all = self.rng.chance(60);
                let last = goals.then(|| self.some_update());
                HeldVerb::Complete(self.result_of_agent(&grip, all), last)
            }
            _ => return,
        };
        self.stop_and_say(index, grip.re.attempt, verb);
    }

    fn tell_goal(&mut self, index: usize, grip: &Grip) {
        let word = self.some_word();
        let (re, token) = (grip.re, grip.token.clone());
        let verb = Box::new(HeldVerb::Goal(word));
        self.call(index, Wish::Held { re, token, verb });
    }

    fn result_of_agent(&mut self, grip: &Grip, all: bool) -> Completed {
        let all = all || self.healing;
        Completed {
            result: Some(Arc::from(*b"done")),
            artifacts: found(&grip.spec, all, &mut self.rng),
            in_lease: true,
            ..Completed::default()
        }
    }

    /// First it stops, then it says so.
    fn stop_and_say(&mut self, index: usize, attempt: AttemptId, verb: HeldVerb) {
        let grips = &mut self.alone[index].grips;
        let Some(grip) = grips.iter_mut().find(|grip| grip.re.attempt == attempt) else {
            return;
        };
        grip.stopped = true;
        let (re, token, spec) = (grip.re, grip.token.clone(), Arc::clone(&grip.spec));
        self.died(re.task, attempt, &spec);
        let verb = Box::new(verb);
        self.call(index, Wish::Held { re, token, verb });
    }

    fn look_for_work(&mut self, index: usize) {
        let agent = self.alone[index].agent.clone();
        match self.rng.below(100) {
            0..=44 => self.call(index, Wish::Claim(None)),
            45..=54 => {
                let task = self.some_task().map(|(_, task)| task);
                self.call(index, Wish::Claim(task));
            }
            55..=64 if !self.healing && self.clients.submitted.len() < self.options.tasks => {
                let mut spec = self.new_spec();
                spec.tenant = agent.tenant.clone();
                spec.agent_scope = Some((*agent.scope).to_owned());
                let key = format!("start-{}", self.clients.submitted.len());
                spec.idempotency_key = Some(key);
                let spec = Arc::new(spec);
                self.clients.submitted.push(Arc::clone(&spec));
                self.call(index, Wish::Start(spec));
            }
            _ if !self.healing => self.pick_up_some(index),
            _ => {}
        }
    }

    /// Often several want the same one, and a person sends it on as well.
    fn pick_up_some(&mut self, index: usize) {
        let agent = &self.alone[index].agent;
        let Some((task, seen)) = self.some_parked(&agent.tenant.clone()) else {
            return;
        };
        let rival = self
            .rng
            .chance(50)
            .then(|| self.rng.index(self.alone.len()));
        for agent in [Some(index), rival].into_iter().flatten() {
            let seen = self.rng.chance(70).then_some(seen);
            self.call(agent, Wish::PickUp { task, seen });
        }
        if self.options.goals && self.rng.chance(25) {
            self.resume(task, Some(seen));
        }
    }

    /// A token of before, one that fits nothing, or somebody else's.
    fn misuse(&mut self, index: usize) {
        let other = self.rng.index(self.alone.len());
        let from = if self.rng.chance(60) { index } else { other };
        let agent = &self.alone[from];
        let known = agent.past.iter().chain(&agent.grips);
        let known: Vec<Grip> = known.cloned().collect();
        let Some(grip) = known.get(self.rng.index(known.len())).cloned() else {
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
                .and_then(|t| t.newest())
        {
            re.attempt = newest.id;
        }
        // Nobody who works says that he has stopped.
        let works = from == index && !forged && self.works_on(re.task, re.attempt).is_some();
        let verb = match self.rng.below(6) {
            0 if !works => HeldVerb::Complete(self.result_of_agent(&grip, true), None),
            1 if !works => HeldVerb::Release { reason: None },
            2 => HeldVerb::Goal(self.some_word()),
            _ => HeldVerb::Renew,
        };
        self.counts.misuses += 1;
        let verb = Box::new(verb);
        self.call(index, Wish::Held { re, token, verb });
    }

    /// Asleep it cannot stop in time, and awake it sees first what is over.
    fn agent_sleeps(&mut self, index: usize) {
        self.counts.agents_asleep += 1;
        let until = self.now + self.rng.between(1_000, 60_000);
        self.note(|| format!("agent {index} sleeps until {until}"));
        self.alone[index].asleep_until = until;
        let over = |grip: &Grip| grip.until <= until;
        self.let_grips_go(index, over);
    }

    /// Its process ends by force: it knows nothing of what it had.
    fn agent_dies(&mut self, index: usize) {
        self.counts.agents_dead += 1;
        self.note(|| format!("agent {index} dies"));
        self.let_grips_go(index, |_| true);
        let agent = &mut self.alone[index];
        agent.calls.clear();
        agent.answers.clear();
    }

    pub(crate) fn let_grips_go(&mut self, index: usize, which: impl Fn(&Grip) -> bool) {
        let agent = &mut self.alone[index];
        let (gone, kept) = std::mem::take(&mut agent.grips)
            .into_iter()
            .partition(which);
        agent.grips = kept;
        let gone: Vec<Grip> = gone;
        for grip in gone {
            self.died(grip.re.task, grip.re.attempt, &grip.spec);
            let past = &mut self.alone[index].past;
            past.push(grip);
            let many = past.len().saturating_sub(REMEMBERED);
            past.drain(..many);
        }
    }

    /// By its own clock it may go no further.
    pub(crate) fn grip_over(&mut self, index: usize) {
        let now = self.now;
        let over = |grip: &Grip| grip.until <= now;
        let late = self.options.careless_agents && !self.healing && self.rng.chance(50);
        let last = self.alone[index].grips.iter().find(|grip| over(grip));
        let last = last.map(|grip| (grip.re, grip.token.clone()));
        self.let_grips_go(index, over);
        if let Some((re, token)) = last.filter(|_| late) {
            // Too late, and yet before the relay has looked: that is not in time either.
            let (grace, delay) = (self.options.grace_ms, 2 * self.options.delay_ms);
            let travel = grace + self.rng.between(1, delay + 20);
            let verb = Box::new(HeldVerb::Renew);
            self.call_again(index, Wish::Held { re, token, verb }, 1, travel);
        }
    }

    /// What it got counts from the send of the call.
    pub(crate) fn gripped(&mut self, index: usize, sent_at: u64, grip: Grip) {
        let until = grip.until;
        assert!(
            until >= sent_at,
            "a grant that is over before it was asked for"
        );
        if until <= self.now {
            return;
        }
        self.born(grip.re, &grip.spec);
        self.alone[index].grips.push(grip);
        self.at(until, Event::GripOver { agent: index });
    }

    /// Works on this task at this instant under what an earlier life of the data granted.
    pub(crate) fn agents_of_before(&self, incarnation: Incarnation) -> bool {
        let mut grips = self.alone.iter().flat_map(|agent| &agent.grips);
        grips.any(|grip| grip.re.incarnation != incarnation && !grip.stopped)
    }

    pub(crate) fn works_on(&self, task: TaskId, attempt: AttemptId) -> Option<u64> {
        let mut grips = self.alone.iter().flat_map(|agent| &agent.grips);
        let grip = grips.find(|grip| (grip.re.task, grip.re.attempt) == (task, attempt))?;
        (!grip.stopped).then_some(grip.until)
    }
}
