//! The world of one seed: a virtual clock, what will happen when, and everyone in it.
//!
//! First a storm with its faults, then healing: every task must then end or be parked for a person in bounded time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use baton_core::id::{AttemptId, TaskId, TenantId};
use baton_core::input::FrameRef;
use baton_core::record::TaskState;
use baton_core::spec::TaskSpec;
use baton_core::time::Wall;

use crate::alone::Alone;
use crate::clients::Clients;
use crate::counts::Counts;
use crate::daemon::Daemon;
use crate::links::Conn;
use crate::options::Options;
use crate::relay::Relay;
use crate::rng::{Minter, Rng};
use crate::witness::Witness;

/// Longest that healing may take, in virtual time.
const HEAL_MS: u64 = 3 * 3_600_000;
/// Fences may outlive the last task by the longest lease and hold there is.
const FENCES_MS: u64 = 400_000;
const LOOK_MS: u64 = 5_000;
/// A hundred times what a long seed needs.
const MOST_STEPS: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The relay's loop runs.
    Turn,
    Commit {
        boot: u64,
        seq: u64,
    },
    Boot,
    Arrive {
        conn: usize,
        up: bool,
    },
    Connect {
        daemon: usize,
        life: u64,
    },
    Beat {
        daemon: usize,
        conn: usize,
    },
    /// Nobody waits for a Welcome for ever.
    Patience {
        daemon: usize,
        conn: usize,
    },
    /// The agent goes on.
    Step {
        daemon: usize,
        attempt: AttemptId,
    },
    /// Its shim is looked after.
    Tend {
        daemon: usize,
        attempt: AttemptId,
    },
    /// The disk has done what it was given of an attempt.
    Store {
        daemon: usize,
        attempt: AttemptId,
    },
    /// By now it is dead, unless a renewal was acknowledged.
    Limit {
        daemon: usize,
        attempt: AttemptId,
    },
    /// The kill is done.
    Dead {
        daemon: usize,
        attempt: AttemptId,
    },
    /// A stopped daemon goes on.
    Wake {
        daemon: usize,
    },
    /// No LeaseConfirmed came.
    Unconfirmed {
        daemon: usize,
        attempt: AttemptId,
    },
    /// An agent without a daemon looks at what it has.
    Alone {
        agent: usize,
    },
    /// By its own clock an agent's lease is over, unless it was renewed.
    GripOver {
        agent: usize,
    },
    /// An agent's request is at the relay.
    Call {
        agent: usize,
        call: u64,
    },
    /// The answer is at the agent.
    Heard {
        agent: usize,
        call: u64,
    },
    /// Nobody waits for an answer for ever.
    Unheard {
        agent: usize,
        call: u64,
    },
    Client,
    Fault,
    Heal,
    Look,
}

pub(crate) type Conversation = (TenantId, String);

/// Processes that run at this instant.
#[derive(Debug, Default)]
pub(crate) struct Alive {
    pub(crate) tasks: BTreeMap<TaskId, AttemptId>,
    pub(crate) conversations: BTreeMap<Conversation, AttemptId>,
}

pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    heap: BinaryHeap<Reverse<(u64, u64, u64, Event)>>,
    count: u64,
    pub(crate) mint: Minter,
    pub(crate) relay: Relay,
    pub(crate) conns: Vec<Conn>,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) clients: Clients,
    /// Agents that hold leases themselves.
    pub(crate) alone: Vec<Alone>,
    pub(crate) alive: Alive,
    /// Uptime of the relay when it ended an attempt by itself.
    pub(crate) ended_at: BTreeMap<AttemptId, u64>,
    /// The same when it was confirmed.
    pub(crate) confirmed_at: BTreeMap<AttemptId, u64>,
    /// Every attempt that ever reached a daemon, in any life of the data.
    pub(crate) dispatched: BTreeSet<AttemptId>,
    /// The newest event that watchers of a task have seen.
    pub(crate) watched: BTreeMap<TaskId, u64>,
    /// Attempts whose machine's boot proves nothing about them.
    pub(crate) doubted: BTreeSet<AttemptId>,
    /// When the relay last heard of an attempt, but for heartbeats.
    pub(crate) heard_at: BTreeMap<AttemptId, u64>,
    /// After which of its stalls the relay last heard a renewal.
    pub(crate) renewed_in: BTreeMap<AttemptId, u64>,
    pub(crate) wall_shift: i64,
    pub(crate) healing: bool,
    healed_at: Option<u64>,
    looked: bool,
    over: bool,
    pub(crate) counts: Counts,
    tracing: bool,
    pub(crate) trace: Vec<String>,
    pub(crate) witness: Option<Witness>,
}

impl World {
    pub(crate) fn new(seed: u64, options: Options, tracing: bool) -> Self {
        let mint = Minter::new(seed);
        let relay = Relay::new(options.config(1, 1));
        Self {
            rng: Rng::new(seed),
            now: 0,
            heap: BinaryHeap::new(),
            count: 0,
            mint,
            relay,
            conns: Vec::new(),
            daemons: Vec::new(),
            clients: Clients::default(),
            alone: Vec::new(),
            alive: Alive::default(),
            ended_at: BTreeMap::new(),
            confirmed_at: BTreeMap::new(),
            dispatched: BTreeSet::new(),
            watched: BTreeMap::new(),
            doubted: BTreeSet::new(),
            heard_at: BTreeMap::new(),
            renewed_in: BTreeMap::new(),
            wall_shift: 0,
            healing: false,
            healed_at: None,
            looked: false,
            over: false,
            counts: Counts::default(),
            tracing,
            trace: Vec::new(),
            witness: None,
            options,
        }
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.count += 1;
        // What happens in the same millisecond happens in any order.
        let shuffle = self.rng.bits() >> 32;
        self.heap
            .push(Reverse((at.max(self.now), shuffle, self.count, event)));
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            self.trace.push(format!("{:>9} {}", self.now, line()));
        }
    }

    /// The wall clock, which may jump.
    pub(crate) fn wall(&self) -> Wall {
        Wall((1_700_000_000_000 + self.now).saturating_add_signed(self.wall_shift))
    }

    pub(crate) fn run(&mut self) {
        for daemon in 0..self.options.daemons {
            self.add_daemon(daemon);
        }
        self.add_agents();
        self.start_relay();
        let storm = self.options.storm_ms;
        self.at(1, Event::Client);
        self.at(500, Event::Fault);
        self.at(storm, Event::Heal);
        while !self.over {
            let Some(Reverse((at, _, _, event))) = self.heap.pop() else {
                panic!("L1: nothing will ever happen again");
            };
            self.now = at;
            self.counts.steps += 1;
            assert!(self.counts.steps < MOST_STEPS, "L5: it never ends");
            self.happen(event);
        }
        self.counts.virtual_s += self.now / 1_000;
    }

    fn happen(&mut self, event: Event) {
        if let Some(until) = self.stopped_until(&event) {
            return self.at(until, event);
        }
        match event {
            Event::Turn => self.turn_due(),
            Event::Commit { boot, seq } => self.committed(boot, seq),
            Event::Boot => self.start_relay(),
            Event::Arrive { conn, up } => self.arrive(conn, up),
            Event::Connect { daemon, life } => self.connect(daemon, life),
            Event::Beat { daemon, conn } => self.beat(daemon, conn),
            Event::Patience { daemon, conn } => self.patience_ends(daemon, conn),
            Event::Step { daemon, attempt } => self.step(daemon, attempt),
            Event::Tend { daemon, attempt } => self.tend(daemon, attempt),
            Event::Store { daemon, attempt } => self.stored(daemon, attempt),
            Event::Limit { daemon, attempt } => self.limit_reached(daemon, attempt),
            Event::Dead { daemon, attempt } => self.killed(daemon, attempt),
            Event::Wake { daemon } => self.daemon_wakes(daemon),
            Event::Unconfirmed { daemon, attempt } => self.not_confirmed(daemon, attempt),
            Event::Alone { agent } => self.alone_acts(agent),
            Event::GripOver { agent } => self.grip_over(agent),
            Event::Call { agent, call } => self.call_arrives(agent, call),
            Event::Heard { agent, call } => self.heard(agent, call),
            Event::Unheard { agent, call } => self.unheard(agent, call),
            Event::Client => self.client_acts(),
            Event::Fault => self.fault(),
            Event::Heal => self.heal(),
            Event::Look => self.look(),
        }
    }

    /// Promise 3: a process starts, and no other of its task or conversation may be alive at this instant.
    pub(crate) fn born(&mut self, re: FrameRef, spec: &TaskSpec) {
        let (task, attempt) = (re.task, re.attempt);
        self.counts.processes += 1;
        self.note(|| format!("process of {attempt} starts"));
        self.saw_life(attempt, true);
        if let Some(other) = self.alive.tasks.insert(task, attempt) {
            panic!("promise 3: {attempt} starts while {other} of the same task runs");
        }
        // Nothing tells the relay of a conversation whose open turns are all lost with its data.
        let told = re.incarnation == self.relay.incarnation()
            || self.relay.store.view.live.contains_key(&task);
        if let Some(talk) = talk_of(spec).filter(|_| told)
            && let Some(other) = self.alive.conversations.insert(talk, attempt)
        {
            panic!("promise 3: {attempt} starts while {other} of the same conversation runs");
        }
    }

    /// Once: what sleeps beyond its right counts as dead before it is ended.
    pub(crate) fn died(&mut self, task: TaskId, attempt: AttemptId, spec: &TaskSpec) {
        if self.alive.tasks.get(&task) != Some(&attempt) {
            return;
        }
        self.note(|| format!("process of {attempt} is dead"));
        self.saw_life(attempt, false);
        self.alive.tasks.remove(&task);
        if let Some(talk) = talk_of(spec)
            && self.alive.conversations.get(&talk) == Some(&attempt)
        {
            self.alive.conversations.remove(&talk);
        }
    }

    fn heal(&mut self) {
        self.note(|| "healing begins".into());
        self.healing = true;
        self.wake_all_daemons();
        self.settle_clients();
        self.at(self.now + LOOK_MS, Event::Look);
    }

    /// L2: in healing everything ends or waits for a person, and nothing is left behind.
    fn look(&mut self) {
        self.at(self.now + LOOK_MS, Event::Look);
        self.settle_clients();
        let waited = self.now - self.options.storm_ms;
        let view = &self.relay.store.view;
        let stuck = view
            .live
            .values()
            .find(|r| r.state != TaskState::NeedsAttention);
        if let Some(stuck) = stuck {
            assert!(
                waited < HEAL_MS,
                "L2: still {:?} after healing: {stuck:#?}",
                stuck.state
            );
            self.healed_at = None;
            return;
        }
        let since = *self.healed_at.get_or_insert(self.now);
        if self.relay.core.is_some()
            && self.relay.store.uncommitted() == 0
            && (view.fences.is_empty() || self.now - since > FENCES_MS)
        {
            self.end();
        }
    }

    /// Looks twice: the relay's own answer to who holds what is judged in between.
    fn end(&mut self) {
        let last = std::mem::replace(&mut self.looked, true);
        self.check_acknowledged();
        self.check_goals();
        if !last {
            return;
        }
        self.over = true;
        self.saw_records();
        self.watchers_know_all();
        let view = &self.relay.store.view;
        assert!(
            view.fences.is_empty(),
            "L2: fences stay for ever: {:?}",
            view.fences
        );
        self.counts.parked += view.live.len() as u64;
        if self.options.calm {
            assert_eq!(
                (self.counts.losses, self.counts.expiries),
                (0, 0),
                "L4: something was lost in calm weather"
            );
        }
    }
}

fn talk_of(spec: &TaskSpec) -> Option<Conversation> {
    Some((spec.tenant.clone(), spec.conversation_id.clone()?))
}
