//! The simulation of one seed: a virtual clock, the queue of scheduled events, and all
//! participants.
//!
//! First a storm of faults, then a healing phase, in which every task must end or be parked for
//! a person in bounded time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use baton_core::ids::{AttemptId, TaskId, TenantId};
use baton_core::io::session_input::FrameRef;
use baton_core::record::TaskState;
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;

use crate::agents::lease_holding_agent::LeaseHoldingAgent;
use crate::clients::sim_clients::SimClients;
use crate::daemon::sim_daemon::SimDaemon;
use crate::options::SimulationOptions;
use crate::random::{SeededIdSource, SeededRng};
use crate::relay::sim_relay::SimRelay;
use crate::report::history_writer::HistoryWriter;
use crate::report::run_counts::Counts;
use crate::stream::SimStream;

/// Longest healing phase, in virtual time.
const MAX_HEALING_MS: u64 = 3 * 3_600_000;
/// Fences may outlive the last task by the longest lease and lease extension.
const MAX_FENCE_MS: u64 = 400_000;
const HEALING_CHECK_INTERVAL_MS: u64 = 5_000;
/// A hundred times the steps of a long seed.
const MAX_STEPS: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScheduledEvent {
    /// The relay's loop runs.
    RelayTurn,
    RelayCommit {
        boot: u64,
        seq: u64,
    },
    RelayBoot,
    StreamArrival {
        conn: usize,
        up: bool,
    },
    DaemonConnect {
        daemon: usize,
        life: u64,
    },
    DaemonHeartbeat {
        daemon: usize,
        conn: usize,
    },
    /// The wait for a Welcome is over.
    WelcomeTimeout {
        daemon: usize,
        conn: usize,
    },
    /// The agent continues.
    AgentStep {
        daemon: usize,
        attempt: AttemptId,
    },
    /// Its shim is polled.
    ShimPoll {
        daemon: usize,
        attempt: AttemptId,
    },
    /// The disk has finished a write of an attempt.
    OutboxWrite {
        daemon: usize,
        attempt: AttemptId,
    },
    /// The lease limit: its processes must be dead, unless a renewal was acknowledged.
    LeaseLimit {
        daemon: usize,
        attempt: AttemptId,
    },
    /// The kill has taken effect.
    ProcessExit {
        daemon: usize,
        attempt: AttemptId,
    },
    /// A stopped daemon continues.
    DaemonWake {
        daemon: usize,
    },
    /// LeaseConfirmed did not arrive.
    ConfirmationTimeout {
        daemon: usize,
        attempt: AttemptId,
    },
    /// An agent without a daemon takes its next action.
    AgentTurn {
        agent: usize,
    },
    /// By its own clock an agent's lease has expired, unless it was renewed.
    AgentLeaseExpiry {
        agent: usize,
    },
    /// An agent's request arrives at the relay.
    CallArrival {
        agent: usize,
        call: u64,
    },
    /// The answer arrives at the agent.
    AnswerArrival {
        agent: usize,
        call: u64,
    },
    /// The wait for an answer is over.
    AnswerTimeout {
        agent: usize,
        call: u64,
    },
    ClientAction,
    FaultInjection,
    HealingStart,
    HealingCheck,
}

pub(crate) type ConversationId = (TenantId, String);

/// Processes that run now.
#[derive(Debug, Default)]
pub(crate) struct RunningProcesses {
    pub(crate) tasks: BTreeMap<TaskId, AttemptId>,
    pub(crate) conversations: BTreeMap<ConversationId, AttemptId>,
}

pub(crate) struct Simulation {
    pub(crate) options: SimulationOptions,
    pub(crate) rng: SeededRng,
    pub(crate) now: u64,
    event_queue: BinaryHeap<Reverse<(u64, u64, u64, ScheduledEvent)>>,
    events_scheduled: u64,
    pub(crate) id_source: SeededIdSource,
    pub(crate) relay: SimRelay,
    pub(crate) streams: Vec<SimStream>,
    pub(crate) daemons: Vec<SimDaemon>,
    pub(crate) clients: SimClients,
    /// Agents that have leases themselves.
    pub(crate) agents: Vec<LeaseHoldingAgent>,
    pub(crate) running: RunningProcesses,
    /// Uptime of the relay when it ended an attempt by itself.
    pub(crate) ended_at: BTreeMap<AttemptId, u64>,
    /// Uptime of the relay when the attempt was confirmed.
    pub(crate) confirmed_at: BTreeMap<AttemptId, u64>,
    /// Every attempt that ever reached a daemon, in any incarnation of the data.
    pub(crate) dispatched: BTreeSet<AttemptId>,
    /// The newest event that watchers of a task have seen.
    pub(crate) watched_revisions: BTreeMap<TaskId, u64>,
    /// Attempts for which a changed boot id proves nothing.
    pub(crate) boot_proves_nothing: BTreeSet<AttemptId>,
    /// When the relay last received anything of an attempt, except heartbeats.
    pub(crate) last_activity_at: BTreeMap<AttemptId, u64>,
    /// The stall of the relay after which it last received a renewal.
    pub(crate) renewed_in_stall: BTreeMap<AttemptId, u64>,
    pub(crate) wall_clock_shift_ms: i64,
    pub(crate) healing: bool,
    healed_at: Option<u64>,
    checked_once: bool,
    is_finished: bool,
    pub(crate) counts: Counts,
    tracing: bool,
    pub(crate) trace: Vec<String>,
    pub(crate) history_writer: Option<HistoryWriter>,
}

impl Simulation {
    pub(crate) fn new(seed: u64, options: SimulationOptions, tracing: bool) -> Self {
        let id_source = SeededIdSource::new(seed);
        let relay = SimRelay::new(options.core_config(1, 1));
        Self {
            rng: SeededRng::new(seed),
            now: 0,
            event_queue: BinaryHeap::new(),
            events_scheduled: 0,
            id_source,
            relay,
            streams: Vec::new(),
            daemons: Vec::new(),
            clients: SimClients::default(),
            agents: Vec::new(),
            running: RunningProcesses::default(),
            ended_at: BTreeMap::new(),
            confirmed_at: BTreeMap::new(),
            dispatched: BTreeSet::new(),
            watched_revisions: BTreeMap::new(),
            boot_proves_nothing: BTreeSet::new(),
            last_activity_at: BTreeMap::new(),
            renewed_in_stall: BTreeMap::new(),
            wall_clock_shift_ms: 0,
            healing: false,
            healed_at: None,
            checked_once: false,
            is_finished: false,
            counts: Counts::default(),
            tracing,
            trace: Vec::new(),
            history_writer: None,
            options,
        }
    }

    pub(crate) fn schedule(&mut self, at: u64, event: ScheduledEvent) {
        self.events_scheduled += 1;
        // Events in the same millisecond happen in random order.
        let shuffle = self.rng.next_u64() >> 32;
        self.event_queue.push(Reverse((
            at.max(self.now),
            shuffle,
            self.events_scheduled,
            event,
        )));
    }

    pub(crate) fn add_trace(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            self.trace.push(format!("{:>9} {}", self.now, line()));
        }
    }

    /// The wall clock, which may jump.
    pub(crate) fn wall_time(&self) -> WallTime {
        WallTime((1_700_000_000_000 + self.now).saturating_add_signed(self.wall_clock_shift_ms))
    }

    pub(crate) fn run(&mut self) {
        for daemon in 0..self.options.daemons {
            self.add_daemon(daemon);
        }
        self.add_agents();
        self.start_relay();
        let storm = self.options.storm_ms;
        self.schedule(1, ScheduledEvent::ClientAction);
        self.schedule(500, ScheduledEvent::FaultInjection);
        self.schedule(storm, ScheduledEvent::HealingStart);
        while !self.is_finished {
            let Some(Reverse((at, _, _, event))) = self.event_queue.pop() else {
                panic!("L1: nothing will ever happen again");
            };
            self.now = at;
            self.counts.steps += 1;
            assert!(self.counts.steps < MAX_STEPS, "L5: it never ends");
            self.handle_event(event);
        }
        self.counts.virtual_s += self.now / 1_000;
    }

    fn handle_event(&mut self, event: ScheduledEvent) {
        if let Some(until) = self.delayed_until(&event) {
            return self.schedule(until, event);
        }
        match event {
            ScheduledEvent::RelayTurn => self.run_turn(),
            ScheduledEvent::RelayCommit { boot, seq } => self.handle_commit(boot, seq),
            ScheduledEvent::RelayBoot => self.start_relay(),
            ScheduledEvent::StreamArrival { conn, up } => self.deliver_arrivals(conn, up),
            ScheduledEvent::DaemonConnect { daemon, life } => self.connect_daemon(daemon, life),
            ScheduledEvent::DaemonHeartbeat { daemon, conn } => self.heartbeat_due(daemon, conn),
            ScheduledEvent::WelcomeTimeout { daemon, conn } => {
                self.give_up_on_welcome(daemon, conn)
            }
            ScheduledEvent::AgentStep { daemon, attempt } => self.step_agent(daemon, attempt),
            ScheduledEvent::ShimPoll { daemon, attempt } => self.poll_shim(daemon, attempt),
            ScheduledEvent::OutboxWrite { daemon, attempt } => {
                self.finish_outbox_write(daemon, attempt)
            }
            ScheduledEvent::LeaseLimit { daemon, attempt } => {
                self.check_lease_limit(daemon, attempt)
            }
            ScheduledEvent::ProcessExit { daemon, attempt } => {
                self.handle_process_exit(daemon, attempt)
            }
            ScheduledEvent::DaemonWake { daemon } => self.resume_daemon(daemon),
            ScheduledEvent::ConfirmationTimeout { daemon, attempt } => {
                self.handle_confirmation_timeout(daemon, attempt)
            }
            ScheduledEvent::AgentTurn { agent } => self.run_agent_turn(agent),
            ScheduledEvent::AgentLeaseExpiry { agent } => self.expire_agent_leases(agent),
            ScheduledEvent::CallArrival { agent, call } => self.deliver_agent_call(agent, call),
            ScheduledEvent::AnswerArrival { agent, call } => self.handle_agent_answer(agent, call),
            ScheduledEvent::AnswerTimeout { agent, call } => {
                self.retry_unanswered_call(agent, call)
            }
            ScheduledEvent::ClientAction => self.act_as_client(),
            ScheduledEvent::FaultInjection => self.inject_fault(),
            ScheduledEvent::HealingStart => self.start_healing(),
            ScheduledEvent::HealingCheck => self.check_healing(),
        }
    }

    /// Promise 3: a process starts, and no other process of its task or conversation may be
    /// alive now.
    pub(crate) fn record_process_start(&mut self, re: FrameRef, spec: &TaskSpec) {
        let (task, attempt) = (re.task, re.attempt);
        self.counts.processes += 1;
        self.add_trace(|| format!("process of {attempt} starts"));
        self.record_process_change(attempt, true);
        if let Some(other) = self.running.tasks.insert(task, attempt) {
            panic!("promise 3: {attempt} starts while {other} of the same task runs");
        }
        // After an import, the relay has no record of a conversation whose open turns were all
        // lost with its data.
        let told = re.incarnation == self.relay.incarnation()
            || self.relay.store.view.live.contains_key(&task);
        if let Some(talk) = conversation_of(spec).filter(|_| told)
            && let Some(other) = self.running.conversations.insert(talk, attempt)
        {
            panic!("promise 3: {attempt} starts while {other} of the same conversation runs");
        }
    }

    /// Recorded once: a process that is suspended beyond its lease counts as dead before it is
    /// ended.
    pub(crate) fn record_process_end(&mut self, task: TaskId, attempt: AttemptId, spec: &TaskSpec) {
        if self.running.tasks.get(&task) != Some(&attempt) {
            return;
        }
        self.add_trace(|| format!("process of {attempt} is dead"));
        self.record_process_change(attempt, false);
        self.running.tasks.remove(&task);
        if let Some(talk) = conversation_of(spec)
            && self.running.conversations.get(&talk) == Some(&attempt)
        {
            self.running.conversations.remove(&talk);
        }
    }

    fn start_healing(&mut self) {
        self.add_trace(|| "healing begins".into());
        self.healing = true;
        self.reconnect_all_daemons();
        self.lift_pauses_and_drains();
        self.schedule(
            self.now + HEALING_CHECK_INTERVAL_MS,
            ScheduledEvent::HealingCheck,
        );
    }

    /// L2: in the healing phase every task ends or is parked for a person, and nothing is left
    /// behind.
    fn check_healing(&mut self) {
        self.schedule(
            self.now + HEALING_CHECK_INTERVAL_MS,
            ScheduledEvent::HealingCheck,
        );
        self.lift_pauses_and_drains();
        let waited = self.now - self.options.storm_ms;
        let view = &self.relay.store.view;
        let stuck = view
            .live
            .values()
            .find(|r| r.state != TaskState::NeedsAttention);
        if let Some(stuck) = stuck {
            assert!(
                waited < MAX_HEALING_MS,
                "L2: still {:?} after healing: {stuck:#?}",
                stuck.state
            );
            self.healed_at = None;
            return;
        }
        let since = *self.healed_at.get_or_insert(self.now);
        if self.relay.core.is_some()
            && self.relay.store.uncommitted() == 0
            && (view.fences.is_empty() || self.now - since > MAX_FENCE_MS)
        {
            self.check_final_state();
        }
    }

    /// Checks twice, with the relay's own answer about lease holders in between.
    fn check_final_state(&mut self) {
        let last = std::mem::replace(&mut self.checked_once, true);
        self.check_acknowledged_tasks();
        self.check_acknowledged_goals();
        if !last {
            return;
        }
        self.is_finished = true;
        self.record_final_state();
        self.check_watchers_complete();
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

fn conversation_of(spec: &TaskSpec) -> Option<ConversationId> {
    Some((spec.tenant.clone(), spec.conversation_id.clone()?))
}
