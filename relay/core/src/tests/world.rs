//! A small world around the core: a clock that is moved by hand, a store that keeps what was written, and shorthand
//! for what clients and daemons say. It checks after each turn what must always hold.

mod agents;
mod bodies;
mod fleet;
mod goals;
mod says;
mod store;

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::config::Config;
use crate::effects::{Count, Downstream, Effects, Send};
use crate::id::{AttemptId, DaemonId, Incarnation, InstanceId, SessionId};
use crate::input::{FrameRef, Input, LeaseToken};
use crate::record::CallMark;
use crate::samples;
use crate::time::{Mint, Moment, Now, Wall};
use crate::{Core, Recovered};

pub(super) use agents::{Hand, agent, complete, fail, for_agents};
pub(super) use bodies::{actor, canceled, completed, errored, gone, spec};
pub(super) use fleet::on_daemon;
use store::Store;

/// Ids and secrets that rise by one: every run of a test is the same.
#[derive(Default)]
pub(super) struct Counter(u128);

impl Mint for Counter {
    fn id(&mut self) -> Uuid {
        self.0 += 1;
        Uuid::from_u128(self.0 << 64 | self.0)
    }

    fn secret(&mut self) -> [u8; 32] {
        self.0 += 1;
        let mut secret = [7; 32];
        secret[..16].copy_from_slice(&self.0.to_be_bytes());
        secret
    }

    fn millionth(&mut self) -> u32 {
        500_000
    }
}

pub(super) struct World {
    pub(super) core: Core,
    pub(super) now: Now,
    pub(super) mint: Counter,
    pub(super) store: Store,
    /// Everything sent since the last look.
    pub(super) sent: Vec<Send>,
    pub(super) writes: usize,
    pub(super) counts: Vec<Count>,
    /// What agents' calls are told by, where they may come again.
    pub(super) mark: Option<CallMark>,
    config: Config,
    requests: u64,
    tokens: BTreeMap<AttemptId, LeaseToken>,
    dispatched: Vec<Work>,
}

/// An attempt as its daemon knows it.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) re: FrameRef,
    pub(super) session: SessionId,
    pub(super) token: LeaseToken,
    pub(super) seq: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) daemon: DaemonId,
    pub(super) session: SessionId,
    pub(super) instance: InstanceId,
    pub(super) boot: &'static str,
    pub(super) slots: u32,
}

pub(super) const TTL: u64 = 30_000;
pub(super) const GRACE: u64 = 5_000;
pub(super) const SLACK: u64 = 2_000;

impl World {
    pub(super) fn new() -> Self {
        Self::with(samples::config())
    }

    pub(super) fn with(config: Config) -> Self {
        let now = Now {
            at: Moment(1_000_000),
            wall: Wall(1_700_000_000_000),
        };
        let mut mint = Counter::default();
        let (core, _) = Core::recover(Recovered::default(), config.clone(), now, &mut mint);
        Self {
            core,
            now,
            mint,
            store: Store::default(),
            sent: Vec::new(),
            writes: 0,
            counts: Vec::new(),
            mark: None,
            config,
            requests: 0,
            tokens: BTreeMap::new(),
            dispatched: Vec::new(),
        }
    }

    /// kill -9 and a new start from what was written; monotonic time starts anew.
    pub(super) fn restart(&mut self) {
        self.now.at = Moment(50);
        self.now.wall.0 += 3_600_000;
        self.restart_here();
    }

    /// A new start from a store that lost its newest writes.
    pub(super) fn inherit(&mut self, hold_ms: u64) {
        self.config.inherited_hold_ms = hold_ms;
        self.restart();
    }

    /// The same, and its data has another life: what was leased before speaks for nothing.
    pub(super) fn inherit_as(&mut self, hold_ms: u64, incarnation: u128) {
        self.config.incarnation = Incarnation(Uuid::from_u128(incarnation));
        self.inherit(hold_ms);
    }

    /// The same without a break in anybody's clock.
    pub(super) fn restart_here(&mut self) {
        let recovered = self.store.recovered();
        let (core, effects) =
            Core::recover(recovered, self.config.clone(), self.now, &mut self.mint);
        self.core = core;
        self.absorb(effects);
    }

    pub(super) fn say(&mut self, input: Input) {
        let effects = self.core.handle(input, self.now, &mut self.mint);
        self.absorb(effects);
        self.check();
    }

    fn absorb(&mut self, effects: Effects) {
        self.writes += effects.writes.len();
        self.counts.extend(effects.counts);
        for write in effects.writes {
            self.store.apply(write);
        }
        for outgoing in effects.sends {
            if let Send::ToSession {
                session,
                message: Downstream::Dispatch(dispatch),
            } = &outgoing.send
            {
                let re = FrameRef {
                    task: dispatch.to.task,
                    attempt: dispatch.to.attempt,
                    number: dispatch.to.number,
                    incarnation: self.config.incarnation,
                };
                self.tokens.insert(re.attempt, dispatch.token.clone());
                self.dispatched.push(Work {
                    re,
                    session: *session,
                    token: dispatch.token.clone(),
                    seq: 0,
                });
            }
            self.sent.push(outgoing.send);
        }
    }

    /// What must hold after each turn: at most one leased attempt per task and conversation, and numbers that rise.
    fn check(&self) {
        assert!(self.core.counts_are_true(), "the counts are not a recount");
        let mut talks = BTreeSet::new();
        for (id, record) in &self.store.live {
            let leased = record
                .attempts
                .iter()
                .filter(|a| a.state.is_leased())
                .count();
            assert!(leased <= 1, "{leased} leased attempts in {id}");
            let open = record
                .attempts
                .iter()
                .rev()
                .skip(1)
                .all(|a| a.state.end().is_some());
            assert!(open, "an old attempt of {id} is open");
            assert!(!record.state.is_terminal(), "{id} is live and over");
            let talk = self.store.specs[id].conversation_id.clone();
            if let Some(talk) = talk.filter(|_| leased == 1) {
                assert!(
                    talks.insert(talk.clone()),
                    "two leased attempts in conversation {talk}"
                );
            }
        }
        for record in self.store.live.values().chain(self.store.done.values()) {
            let first = record.timeline.dropped + 1;
            let events = record.timeline.events.iter();
            let (old, whole): (Vec<_>, Vec<_>) = events.partition(|event| event.revision < first);
            assert!(old.iter().all(|event| event.is_audit()), "only audits stay");
            let numbers: Vec<u64> = whole.iter().map(|event| event.revision).collect();
            assert!(
                numbers.iter().copied().eq(first..=record.revision),
                "a gap in {numbers:?}"
            );
        }
    }

    /// Moves the clock, ticking whenever the core asks for it: a healthy loop.
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now.at + ms;
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end) {
            self.jump(due.since(self.now.at).max(1));
            self.say(Input::Tick);
            if self.now.at >= end {
                return;
            }
        }
        self.jump(end.since(self.now.at));
        self.say(Input::Tick);
    }

    /// Moves the clock while daemons keep renewing what they hold.
    pub(super) fn pass_renewing(&mut self, ms: u64, machine: &Machine, works: &[&Work]) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(4_000);
            self.pass(step);
            self.beat(machine, works);
            left -= step;
        }
    }

    /// Moves the clock behind the core's back.
    pub(super) fn jump(&mut self, ms: u64) {
        self.now.at = self.now.at + ms;
        self.now.wall.0 += ms;
    }
}
