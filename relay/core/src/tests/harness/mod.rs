//! Test harness of the core: a clock that tests move, a fake store, and helpers that send
//! commands of clients and daemons. It checks the invariants after each command.

mod agent_calls;
mod client_requests;
mod daemon_operation;
mod fake_store;
mod frames;
mod messages;
mod parked_task;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;

use uuid::Uuid;

use crate::config::Config;
use crate::ids::{AttemptId, DaemonId, Incarnation, InstanceId, SessionId};
use crate::io::command::{Command, CoreInput};
use crate::io::effects::{CoreMetric, DaemonMessage, Delivery, Effects};
use crate::io::rejection::Rejection;
use crate::io::session_input::{FrameRef, LeaseToken};
use crate::record::CallFingerprint;
use crate::samples;
use crate::time::{ClockReading, IdSource, MonotonicTime, WallTime};
use crate::{Core, RecoveredState};

pub(super) use agent_calls::{
    AgentAnswer, AgentLeaseHandle, AgentLeaseVerb, agent, agent_task_spec, complete_verb, fail,
};
pub(super) use daemon_operation::daemon_operation;
use fake_store::FakeStore;
pub(super) use frames::{actor, canceled, completed, errored, spec, termination_receipt};

/// Ids and secrets that increase by one, so that every run of a test is the same.
#[derive(Default)]
pub(super) struct SequentialIds(u128);

impl IdSource for SequentialIds {
    fn new_id(&mut self) -> Uuid {
        self.0 += 1;
        Uuid::from_u128(self.0 << 64 | self.0)
    }

    fn new_secret(&mut self) -> [u8; 32] {
        self.0 += 1;
        let mut secret = [7; 32];
        secret[..16].copy_from_slice(&self.0.to_be_bytes());
        secret
    }

    fn jitter_millionths(&mut self) -> u32 {
        500_000
    }
}

pub(super) struct CoreHarness {
    pub(super) core: Core,
    pub(super) now: ClockReading,
    pub(super) ids: SequentialIds,
    pub(super) store: FakeStore,
    /// Deliveries that the test has not taken yet.
    pub(super) deliveries: Vec<Delivery>,
    pub(super) writes: usize,
    pub(super) counts: Vec<CoreMetric>,
    /// Fingerprint of the next calls of agents, for tests of repeated calls.
    pub(super) mark: Option<CallFingerprint>,
    config: Config,
    requests: u64,
    tokens: BTreeMap<AttemptId, LeaseToken>,
    dispatched: Vec<DispatchedAttempt>,
}

/// An attempt from the view of its daemon.
#[derive(Clone, Debug)]
pub(super) struct DispatchedAttempt {
    pub(super) frame_ref: FrameRef,
    pub(super) session: SessionId,
    pub(super) token: LeaseToken,
    pub(super) seq: u64,
}

#[derive(Clone, Debug)]
pub(super) struct TestDaemon {
    pub(super) daemon: DaemonId,
    pub(super) session: SessionId,
    pub(super) instance: InstanceId,
    pub(super) boot: &'static str,
    pub(super) slots: u32,
}

pub(super) const TTL: u64 = 30_000;
pub(super) const GRACE: u64 = 5_000;
pub(super) const SLACK: u64 = 2_000;

impl CoreHarness {
    pub(super) fn new() -> Self {
        Self::with(samples::config())
    }

    pub(super) fn with(config: Config) -> Self {
        let now = ClockReading {
            monotonic: MonotonicTime(1_000_000),
            wall: WallTime(1_700_000_000_000),
        };
        let mut ids = SequentialIds::default();
        let (core, _) = Core::recover(RecoveredState::default(), config.clone(), now, &mut ids);
        Self {
            core,
            now,
            ids,
            store: FakeStore::default(),
            deliveries: Vec::new(),
            writes: 0,
            counts: Vec::new(),
            mark: None,
            config,
            requests: 0,
            tokens: BTreeMap::new(),
            dispatched: Vec::new(),
        }
    }

    /// A crash and a new start from the stored records. Monotonic time starts again.
    pub(super) fn restart(&mut self) {
        self.now.monotonic = MonotonicTime(50);
        self.now.wall.0 += 3_600_000;
        self.restart_here();
    }

    /// A new start from data whose newest writes may be lost.
    pub(super) fn restart_inherited(&mut self, hold_ms: u64) {
        self.config.inherited_suspension_ms = hold_ms;
        self.restart();
    }

    /// Like `restart_inherited`, with a new incarnation: earlier leases are no longer valid.
    pub(super) fn restart_as_incarnation(&mut self, hold_ms: u64, incarnation: u128) {
        self.config.incarnation = Incarnation(Uuid::from_u128(incarnation));
        self.restart_inherited(hold_ms);
    }

    /// Like `restart`, without a change of the clock.
    pub(super) fn restart_here(&mut self) {
        let recovered = self.store.recovered();
        let (core, effects) =
            Core::recover(recovered, self.config.clone(), self.now, &mut self.ids);
        self.core = core;
        self.apply_effects(effects);
    }

    pub(super) fn send_input(&mut self, input: impl Into<CoreInput>) {
        let effects = self
            .core
            .handle(input.into(), &self.store, self.now, &mut self.ids);
        self.apply_effects(effects);
        self.check();
    }

    /// Sends a command and returns its reply, which the harness sends at once.
    pub(super) fn send<C: Command>(&mut self, command: C) -> Result<C::Reply, Rejection> {
        self.requests += 1;
        let (port, reply) = mpsc::channel();
        self.send_input(CoreInput::command(command, move |outcome| {
            port.send(outcome).expect("the harness waits for it");
        }));
        reply.try_recv().expect("each command has a reply")
    }

    fn apply_effects(&mut self, effects: Effects) {
        self.writes += effects.changes.len();
        self.counts.extend(effects.metrics);
        for write in effects.changes {
            self.store.apply(write);
        }
        for outgoing in effects.deliveries {
            if let Delivery::Reply(reply) = outgoing.delivery {
                reply.send();
                continue;
            }
            if let Delivery::ToSession {
                session,
                message: DaemonMessage::Dispatch(dispatch),
            } = &outgoing.delivery
            {
                let re = FrameRef {
                    task: dispatch.to.task,
                    attempt: dispatch.to.attempt,
                    number: dispatch.to.number,
                    incarnation: self.config.incarnation,
                };
                self.tokens.insert(re.attempt, dispatch.token.clone());
                self.dispatched.push(DispatchedAttempt {
                    frame_ref: re,
                    session: *session,
                    token: dispatch.token.clone(),
                    seq: 0,
                });
            }
            self.deliveries.push(outgoing.delivery);
        }
    }

    /// The invariants after each command: at most one leased attempt per task and conversation,
    /// and revisions without a gap.
    fn check(&self) {
        assert!(
            self.core.counts_are_true(),
            "the cached counts differ from a recount"
        );
        let mut conversations = BTreeSet::new();
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
            assert!(!record.state.is_terminal(), "{id} is live but terminal");
            let conversation = self.store.specs[id].conversation_id.clone();
            if let Some(conversation) = conversation.filter(|_| leased == 1) {
                assert!(
                    conversations.insert(conversation.clone()),
                    "two leased attempts in conversation {conversation}"
                );
            }
        }
        for record in self.store.live.values().chain(self.store.done.values()) {
            let first = record.timeline.dropped_through + 1;
            let events = record.timeline.events.iter();
            let (old, whole): (Vec<_>, Vec<_>) = events.partition(|event| event.revision < first);
            assert!(
                old.iter().all(|event| event.is_audit()),
                "only audit events outlive the limit"
            );
            let numbers: Vec<u64> = whole.iter().map(|event| event.revision).collect();
            assert!(
                numbers.iter().copied().eq(first..=record.revision),
                "a gap in {numbers:?}"
            );
        }
    }

    /// Moves the clock and ticks at every deadline of the core, like a healthy dispatch loop.
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now.monotonic + ms;
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end) {
            self.skip_time(due.since(self.now.monotonic).max(1));
            self.send_input(CoreInput::Tick);
            if self.now.monotonic >= end {
                return;
            }
        }
        self.skip_time(end.since(self.now.monotonic));
        self.send_input(CoreInput::Tick);
    }

    /// Moves the clock while a daemon renews these attempts.
    pub(super) fn advance_renewing(
        &mut self,
        ms: u64,
        machine: &TestDaemon,
        works: &[&DispatchedAttempt],
    ) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(4_000);
            self.pass(step);
            self.beat(machine, works);
            left -= step;
        }
    }

    /// Moves the clock without a tick, like a stalled dispatch loop.
    pub(super) fn skip_time(&mut self, ms: u64) {
        self.now.monotonic = self.now.monotonic + ms;
        self.now.wall.0 += ms;
    }
}
