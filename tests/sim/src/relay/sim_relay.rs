//! The relay around the real core: its loop, its gate and its store, like the shell's, and its
//! crashes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use baton_core::Core;
use baton_core::config::Config;
use baton_core::ids::{AttemptId, DaemonId, Incarnation, SessionId, TaskId};
use baton_core::io::command::CoreInput;
use baton_core::io::durability_gate::DurabilityGate;
use baton_core::io::effects::{AttemptSettlement, DaemonMessage, GatedDelivery, RecordChange};
use baton_core::io::session_input::SessionInput;
use baton_core::time::{ClockReading, MonotonicTime};
use uuid::Uuid;

use crate::relay::output_log::SimOutputLog;
use crate::relay::relay_input::RelayInput;
use crate::relay::sim_reply::{ReplyPorts, SimDelivery, SimEffects};
use crate::relay::sim_store::SimStore;
use crate::report::trace_text::{describe_change, describe_input};
use crate::simulation::{ScheduledEvent, Simulation};

/// A failing disk fails after some hundred commits.
const DISK_ERROR_ONE_IN: u64 = 150;

pub(crate) struct SimRelay {
    config: Config,
    pub(crate) core: Option<Core>,
    pub(crate) boot: u64,
    /// The incarnation of the data.
    pub(crate) incarnation: u128,
    /// The data was replaced, so the latest grants are unknown to the relay. Passed at each
    /// start until the resulting suspension of dispatch is durable, as the shell does.
    pub(crate) has_unknown_grants: bool,
    /// The newest inherited task of that suspension.
    newest_inherited_task: Option<TaskId>,
    /// Its stored uptime before this run.
    earlier_uptime_ms: u64,
    /// The offset of virtual time in this run: the monotonic clock starts at any value.
    clock_offset: u64,
    started_at: u64,
    gate: DurabilityGate<u64, SimDelivery>,
    pub(crate) store: SimStore,
    pub(crate) inbox: VecDeque<RelayInput>,
    pub(crate) requests: VecDeque<RelayInput>,
    pub(crate) reply_ports: ReplyPorts,
    writes: Vec<RecordChange>,
    sends: Vec<GatedDelivery<SimDelivery>>,
    /// Numbers of the frames received in this run.
    pub(crate) heard_control_seqs: BTreeMap<AttemptId, u64>,
    /// Frames received in this run, in order.
    pub(crate) heard_frames: BTreeSet<(AttemptId, u64)>,
    pub(crate) output_log: SimOutputLog,
    /// Accepted force commands of the last minute.
    pub(crate) accepted_operations: Vec<crate::clients::operators::AcceptedOperation>,
    /// Leases of agents.
    pub(crate) agent_grants: crate::checks::agent_calls::AgentGrants,
    pub(crate) stalled_until: u64,
    /// Counts the stalls of the loop, and whether this turn is the first after one.
    pub(crate) stall_count: u64,
    pub(crate) is_first_turn_after_stall: bool,
    stall_ended_at: u64,
    last_turn: u64,
    /// Daemons whose streams it considered open after the stall.
    pub(crate) connected_after_stall: BTreeSet<DaemonId>,
    turn_at: Option<u64>,
    /// The disk handles one write after the other.
    disk_free_at: u64,
    durable_seq: u64,
}

impl SimRelay {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            core: None,
            boot: 0,
            incarnation: 1,
            has_unknown_grants: false,
            newest_inherited_task: None,
            earlier_uptime_ms: 0,
            clock_offset: 0,
            started_at: 0,
            gate: DurabilityGate::default(),
            store: SimStore::default(),
            inbox: VecDeque::new(),
            requests: VecDeque::new(),
            reply_ports: ReplyPorts::default(),
            writes: Vec::new(),
            sends: Vec::new(),
            heard_control_seqs: BTreeMap::new(),
            heard_frames: BTreeSet::new(),
            output_log: SimOutputLog::default(),
            accepted_operations: Vec::new(),
            agent_grants: crate::checks::agent_calls::AgentGrants::default(),
            stalled_until: 0,
            stall_count: 0,
            is_first_turn_after_stall: false,
            stall_ended_at: 0,
            last_turn: 0,
            connected_after_stall: BTreeSet::new(),
            turn_at: None,
            disk_free_at: 0,
            durable_seq: 0,
        }
    }

    fn monotonic_time(&self, now: u64) -> MonotonicTime {
        MonotonicTime(self.clock_offset + (now - self.started_at))
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(Uuid::from_u128(self.incarnation))
    }

    pub(crate) fn clear_inherited_task(&mut self) {
        self.newest_inherited_task = None;
    }

    /// Since when its loop has run without a stall.
    pub(crate) fn awake_since(&self) -> u64 {
        self.started_at.max(self.stall_ended_at)
    }

    /// Its own uptime: a crash loses the part that was not written.
    pub(crate) fn uptime_ms(&self, now: u64) -> u64 {
        self.earlier_uptime_ms + (now - self.started_at)
    }

    fn virtual_time(&self, at: MonotonicTime) -> u64 {
        self.started_at + at.0.saturating_sub(self.clock_offset)
    }
}

/// The stream that this input closed.
fn closed_session(input: &CoreInput) -> Option<SessionId> {
    match input {
        CoreInput::Session(SessionInput::Closed { session }) => Some(*session),
        _ => None,
    }
}

fn welcome_settlements(effects: &SimEffects) -> Option<Vec<AttemptSettlement>> {
    effects
        .deliveries
        .iter()
        .find_map(|outgoing| match &outgoing.delivery {
            SimDelivery::ToSession {
                message: DaemonMessage::Welcome { settlements, .. },
                ..
            } => Some(settlements.clone()),
            _ => None,
        })
}

impl Simulation {
    pub(crate) fn start_relay(&mut self) {
        if self.relay.core.is_some() {
            return;
        }
        self.relay.boot += 1;
        self.relay.started_at = self.now;
        self.relay.clock_offset = self.rng.below(1 << 40);
        self.relay.stalled_until = 0;
        self.relay.config = self
            .options
            .core_config(self.relay.incarnation, self.relay.boot);
        let holds = &self.relay.store.durable.scheduler.suspensions;
        let stored = holds
            .iter()
            .any(|hold| Some(hold.last_task) == self.relay.newest_inherited_task);
        self.relay.has_unknown_grants &= !stored;
        if self.relay.has_unknown_grants {
            self.relay.config.inherited_suspension_ms = self.relay.config.longest_grant_ms();
        }
        let now = self.relay_now();
        let recovered = self.relay.store.durable.recovered_state();
        self.relay.earlier_uptime_ms = recovered.scheduler.uptime_ms;
        let boot = self.relay.boot;
        self.add_trace(|| format!("relay starts, boot {boot}, {} tasks", recovered.tasks.len()));
        let (core, effects) = Core::recover(
            recovered,
            self.relay.config.clone(),
            now,
            &mut self.id_source,
        );
        self.relay.core = Some(core);
        self.reset_watchers();
        let effects = self.relay.reply_ports.open_replies(effects);
        self.apply_effects(effects);
        if self.relay.has_unknown_grants {
            let begun = self.relay.store.view.scheduler.suspensions.last();
            self.relay.newest_inherited_task = begun.map(|hold| hold.last_task);
        }
        self.finish_turn();
    }

    fn relay_now(&self) -> ClockReading {
        ClockReading {
            monotonic: self.relay.monotonic_time(self.now),
            wall: self.wall_time(),
        }
    }

    /// kill -9, or a power loss: data that was not durable is lost, except for a random part
    /// that had just reached the disk.
    pub(crate) fn crash_relay(&mut self) {
        if self.relay.core.take().is_none() {
            return;
        }
        self.counts.restarts += 1;
        let uncommitted = self.relay.store.uncommitted();
        let kept = self.rng.random_index(uncommitted + 1);
        self.add_trace(|| {
            format!("relay crashes; {kept} of {uncommitted} appends had reached the disk")
        });
        self.relay.store.crash(kept);
        self.relay.gate = DurabilityGate::default();
        self.relay.durable_seq = 0;
        self.relay.disk_free_at = 0;
        self.relay.turn_at = None;
        self.relay.inbox.clear();
        self.relay.requests.clear();
        self.relay.writes.clear();
        self.relay.sends.clear();
        self.relay.heard_control_seqs.clear();
        self.relay.heard_frames.clear();
        self.relay.output_log.lose_unsynced(&mut self.rng);
        self.clients.clear_pending_requests();
        for conn in 0..self.streams.len() {
            self.break_from_relay(conn);
        }
        let longest = if self.options.quick_boots {
            1_500
        } else {
            40_000
        };
        let down = self.rng.between(10, longest);
        self.schedule(self.now + down, ScheduledEvent::RelayBoot);
    }

    pub(crate) fn wake_relay(&mut self) {
        // A busy loop handles several at once.
        let busy = if self.rng.chance(20) {
            self.rng.below(30)
        } else {
            0
        };
        self.schedule_turn(self.now + busy);
    }

    fn schedule_turn(&mut self, at: u64) {
        let at = at.max(self.now).max(self.relay.stalled_until);
        if self.relay.turn_at.is_none_or(|planned| at < planned) {
            self.relay.turn_at = Some(at);
            self.schedule(at, ScheduledEvent::RelayTurn);
        }
    }

    pub(crate) fn run_turn(&mut self) {
        if self.relay.turn_at != Some(self.now) || self.relay.core.is_none() {
            return;
        }
        self.relay.turn_at = None;
        if self.now < self.relay.stalled_until {
            return self.schedule_turn(self.relay.stalled_until);
        }
        self.detect_stall();
        while let Some(input) = self.relay.inbox.pop_front() {
            self.handle_input(input);
        }
        let due = self.relay.core.as_ref().and_then(Core::next_deadline);
        if due.is_some_and(|due| due <= self.relay.monotonic_time(self.now)) {
            self.handle_input(CoreInput::Tick.into());
        }
        while let Some(request) = self.relay.requests.pop_front() {
            self.handle_input(request);
        }
        self.relay.is_first_turn_after_stall = false;
        self.finish_turn();
    }

    fn detect_stall(&mut self) {
        let away = self.now - self.relay.last_turn.max(self.relay.started_at);
        self.relay.last_turn = self.now;
        self.relay.is_first_turn_after_stall = away > self.relay.config.stall_ms;
        if self.relay.is_first_turn_after_stall {
            self.relay.stall_count += 1;
            self.relay.stall_ended_at = self.now;
            let known = self.streams.iter().filter(|conn| conn.is_current);
            let daemons = known.map(|conn| self.daemons[conn.daemon].id);
            self.relay.connected_after_stall = daemons.collect();
        }
    }

    fn finish_turn(&mut self) {
        self.append_writes();
        for outgoing in std::mem::take(&mut self.relay.sends) {
            if let Some(send) = self.relay.gate.admit(outgoing) {
                self.deliver(send);
            }
        }
        let Some(core) = &self.relay.core else {
            return;
        };
        match core.next_deadline() {
            Some(due) => {
                // A deadline that stays in the past would loop forever without time passing.
                let at = self.relay.virtual_time(due).max(self.now + 1);
                // A busy loop is late, so items that arrive meanwhile are handled first.
                let busy = !self.options.calm && self.rng.chance(20);
                let late = if busy { self.rng.below(40) } else { 0 };
                self.schedule_turn(at + late);
            }
            None => {
                let waits = self
                    .relay
                    .store
                    .view
                    .live
                    .values()
                    .find(|r| r.attention.is_none());
                assert!(waits.is_none(), "L1: no timer is armed and {waits:?} waits");
            }
        }
    }

    fn append_writes(&mut self) {
        let writes = std::mem::take(&mut self.relay.writes);
        if writes.is_empty() {
            return;
        }
        let tasks: Vec<TaskId> = writes.iter().filter_map(RecordChange::task).collect();
        let seq = self.relay.store.append(writes);
        self.relay.gate.note_appended(seq);
        tasks
            .into_iter()
            .for_each(|task| self.relay.gate.note_task_write(task, seq));
        let slow = self.options.slow_disk && !self.healing && self.rng.chance(15);
        let took = if slow {
            self.rng.between(100, 8_000)
        } else {
            self.rng.below(4)
        };
        self.relay.disk_free_at = self.relay.disk_free_at.max(self.now) + took;
        let boot = self.relay.boot;
        self.schedule(
            self.relay.disk_free_at,
            ScheduledEvent::RelayCommit { boot, seq },
        );
    }

    pub(crate) fn handle_commit(&mut self, boot: u64, seq: u64) {
        if boot != self.relay.boot || self.relay.core.is_none() {
            return;
        }
        if self.options.disk_errors && !self.healing && self.rng.below(DISK_ERROR_ONE_IN) == 0 {
            self.counts.disk_errors += 1;
            self.add_trace(|| "the disk refuses a commit".into());
            return self.crash_relay();
        }
        self.relay.store.commit(seq);
        self.relay.durable_seq = seq;
        if self.now < self.relay.stalled_until {
            // The loop is stalled; it handles the commit afterwards.
            let until = self.relay.stalled_until;
            return self.schedule(until, ScheduledEvent::RelayCommit { boot, seq });
        }
        for send in self.relay.gate.release(seq) {
            self.deliver(send);
        }
    }

    /// One input: completed as the shell does, decided by the core, and checked.
    fn handle_input(&mut self, received: RelayInput) {
        let RelayInput {
            input,
            frame_number,
            probe,
        } = received;
        self.counts.inputs += 1;
        self.add_trace(|| describe_input(&input));
        self.record_activity(&input);
        let before = self.state_before(&input, frame_number, probe);
        let now = self.relay_now();
        let Some(core) = &mut self.relay.core else {
            return;
        };
        let named = closed_session(&input);
        let effects = core.handle(input, &self.relay.store.view, now, &mut self.id_source);
        let effects = self.relay.reply_ports.open_replies(effects);
        self.record_stream_changes(named, &effects);
        self.record_agent_grants(&effects);
        self.check_operation(&before, &effects);
        let welcome = welcome_settlements(&effects);
        self.check_and_apply_writes(&effects);
        self.check_request(before.request.as_ref(), &effects);
        self.queue_effects(effects);
        self.check_after_input(before, welcome);
        self.check_open_task_bounds();
    }

    fn apply_effects(&mut self, effects: SimEffects) {
        self.check_and_apply_writes(&effects);
        self.queue_effects(effects);
    }

    /// Every write is checked against the state before it.
    fn check_and_apply_writes(&mut self, effects: &SimEffects) {
        for count in &effects.metrics {
            self.count_core_event(count);
        }
        self.check_removals(&effects.changes);
        for write in &effects.changes {
            self.add_trace(|| describe_change(write));
            self.record_confirmation(write);
            self.check_lease_given_up(write);
            self.counts.fences += u64::from(matches!(write, RecordChange::PutFence(_)));
            self.relay.store.apply_checked(write);
        }
    }

    fn queue_effects(&mut self, effects: SimEffects) {
        self.relay.writes.extend(effects.changes);
        self.relay.sends.extend(effects.deliveries);
    }
}
