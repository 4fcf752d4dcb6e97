//! The roster entry of one daemon: what it offers, whether it is connected, and which attempts
//! it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{AttemptId, DaemonId, InstanceId, SessionId, TenantScope};
use crate::io::session_input::{DaemonHello, MachineLoad};
use crate::record::{AgentRecord, DaemonRecord};
use crate::time::MonotonicTime;

#[derive(Clone, Debug)]
pub struct RosterDaemon {
    pub id: DaemonId,
    pub scope: TenantScope,
    pub name: Arc<str>,
    pub labels: BTreeMap<String, String>,
    pub capabilities: BTreeSet<String>,
    /// Agents without a reported problem.
    pub agents: BTreeSet<String>,
    pub workspaces: BTreeSet<String>,
    pub slots: u32,
    /// `None` after a relay restart until the daemon's Hello.
    pub instance: Option<InstanceId>,
    pub boot_id: Arc<str>,
    pub presence: DaemonPresence,
    /// The stream of the newest Hello. Older streams are ignored.
    pub(super) newest_session: Option<SessionId>,
    /// The daemon asked for no new work.
    pub draining: bool,
    /// An operator drained it.
    pub drained: bool,
    /// Attempts that take a slot, from offer to end, also while the daemon is disconnected.
    pub held_attempts: BTreeSet<AttemptId>,
    /// Attempts that had ended on the daemon when its stream began. It replays their frames and
    /// runs none of them.
    pub(super) awaited_final_frames: BTreeSet<AttemptId>,
    pub consecutive_failures: u32,
    pub sick_until: Option<MonotonicTime>,
    /// The last heartbeat reported that the machine cannot take work.
    pub(super) reports_unfit: bool,
    /// The daemon refused an offer because of its machine. It gets no offer until this time.
    pub(super) unfit_until: Option<MonotonicTime>,
    /// Such refusals since an attempt last ran to its end. Accepting an offer is not enough to
    /// reset the count, because the daemon may accept and then fail to start.
    pub(super) refusals: u32,
    /// The load under which the roster lists it; `None` if it is not available.
    pub(super) listed_load: Option<u32>,
    /// Whether it took work at the last index refresh.
    pub(super) took_work: bool,
    /// The last reported load of the machine, for display.
    pub load: Option<MachineLoad>,
}

/// Whether the daemon can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonPresence {
    /// Known from its stored record only.
    NeverConnected,
    Disconnected {
        since: MonotonicTime,
    },
    Connected {
        session: SessionId,
        since: MonotonicTime,
        last_received_at: MonotonicTime,
        /// The heartbeat interval that the relay sent.
        heartbeat_ms: u64,
        /// The daemon has sent a heartbeat, which proves that it received Welcome. A daemon
        /// that cannot receive would reconnect and send Hello again, and an offer to it would
        /// only expire.
        heartbeat_seen: bool,
        /// Two heartbeats are missing: it gets no offers.
        is_silent: bool,
        /// The oldest answer that the daemon has not confirmed, and when it was sent.
        unconfirmed: Option<(u64, MonotonicTime)>,
    },
}

/// Allowed delay of a heartbeat: it was sent in time, but the machine or the network was busy.
pub(super) const HEARTBEAT_TOLERANCE_MS: u64 = 500;

impl DaemonPresence {
    pub fn session(&self) -> Option<SessionId> {
        match self {
            DaemonPresence::NeverConnected | DaemonPresence::Disconnected { .. } => None,
            DaemonPresence::Connected { session, .. } => Some(*session),
        }
    }

    /// Whether the stream has proved that the daemon receives.
    pub fn has_sent_heartbeat(&self) -> bool {
        matches!(
            self,
            DaemonPresence::Connected {
                heartbeat_seen: true,
                ..
            }
        )
    }

    /// When data last arrived on the stream; `None` without a stream.
    pub fn last_received_at(&self) -> Option<MonotonicTime> {
        match self {
            DaemonPresence::NeverConnected | DaemonPresence::Disconnected { .. } => None,
            DaemonPresence::Connected {
                last_received_at, ..
            } => Some(*last_received_at),
        }
    }

    pub(super) fn note_heartbeat(&mut self, every_ms: u64, now: MonotonicTime) {
        if let DaemonPresence::Connected {
            last_received_at,
            heartbeat_ms,
            heartbeat_seen,
            is_silent,
            ..
        } = self
        {
            (*last_received_at, *heartbeat_ms, *is_silent) = (now, every_ms, false);
            *heartbeat_seen = true;
        }
    }

    /// Whether the daemon receives the relay's messages: false if it keeps sending and has not
    /// confirmed an answer for two heartbeats. A daemon that never reports a confirmed answer
    /// counts as receiving.
    pub(super) fn is_receiving(&mut self, received_seq: Option<u64>, now: MonotonicTime) -> bool {
        let DaemonPresence::Connected {
            heartbeat_ms,
            unconfirmed,
            ..
        } = self
        else {
            return true;
        };
        unconfirmed.take_if(|(seq, _)| received_seq.is_none_or(|received| *seq <= received));
        // The second heartbeat after the answer may arrive a little before or after two
        // intervals, so the limit is one and a half.
        let limit_ms = heartbeat_ms.saturating_mul(3) / 2;
        unconfirmed.is_none_or(|(_, since)| now.since(since) < limit_ms)
    }

    /// Records that an answer with this heartbeat interval was sent.
    pub(super) fn note_answer_sent(&mut self, seq: Option<u64>, every_ms: u64, now: MonotonicTime) {
        if let DaemonPresence::Connected {
            heartbeat_ms,
            unconfirmed,
            ..
        } = self
        {
            *heartbeat_ms = every_ms;
            *unconfirmed = unconfirmed.or(seq.map(|seq| (seq, now)));
        }
    }

    /// Shortens the expected heartbeat interval of a daemon that sent data just now.
    pub(super) fn shorten_heartbeat(&mut self, every_ms: u64, now: MonotonicTime) {
        if let DaemonPresence::Connected {
            last_received_at,
            heartbeat_ms,
            ..
        } = self
            && every_ms < *heartbeat_ms
        {
            (*last_received_at, *heartbeat_ms) = (now, every_ms);
        }
    }

    /// Restarts the silence measurement after a stall of the relay, which could neither receive
    /// nor send.
    pub(super) fn reset_silence(&mut self, now: MonotonicTime) {
        if let DaemonPresence::Connected {
            last_received_at,
            is_silent,
            unconfirmed,
            ..
        } = self
        {
            (*last_received_at, *is_silent, *unconfirmed) = (now, false, None);
        }
    }

    /// The time at which the second missed heartbeat makes the daemon silent.
    fn silent_at(&self) -> Option<MonotonicTime> {
        match self {
            DaemonPresence::Connected {
                last_received_at,
                heartbeat_ms,
                is_silent: false,
                ..
            } => Some(
                *last_received_at
                    + heartbeat_ms
                        .saturating_mul(2)
                        .saturating_add(HEARTBEAT_TOLERANCE_MS),
            ),
            DaemonPresence::NeverConnected
            | DaemonPresence::Disconnected { .. }
            | DaemonPresence::Connected { .. } => None,
        }
    }

    /// Marks the daemon silent if it is time; returns the stream the first time.
    pub(super) fn mark_silent_if_due(&mut self, now: MonotonicTime) -> Option<SessionId> {
        let due = self.silent_at().is_some_and(|at| at <= now);
        match self {
            DaemonPresence::Connected {
                session, is_silent, ..
            } if due => {
                *is_silent = true;
                Some(*session)
            }
            DaemonPresence::NeverConnected
            | DaemonPresence::Disconnected { .. }
            | DaemonPresence::Connected { .. } => None,
        }
    }
}

impl RosterDaemon {
    pub(super) fn from_record(record: &DaemonRecord) -> Self {
        Self {
            id: record.daemon,
            scope: record.scope.clone(),
            name: record.name.clone(),
            labels: record.labels.clone(),
            capabilities: record.capabilities.iter().cloned().collect(),
            agents: runnable_agents(&record.agents),
            workspaces: record.workspaces.iter().cloned().collect(),
            slots: record.slots,
            instance: None,
            boot_id: record.boot_id.clone(),
            presence: DaemonPresence::NeverConnected,
            newest_session: None,
            draining: false,
            drained: record.drained.is_some(),
            held_attempts: BTreeSet::new(),
            awaited_final_frames: BTreeSet::new(),
            consecutive_failures: 0,
            sick_until: None,
            reports_unfit: false,
            unfit_until: None,
            refusals: 0,
            listed_load: None,
            took_work: false,
            load: None,
        }
    }

    pub(super) fn from_hello(hello: &DaemonHello) -> Self {
        Self {
            id: hello.daemon,
            scope: hello.scope.clone(),
            name: hello.name.clone(),
            labels: BTreeMap::new(),
            capabilities: BTreeSet::new(),
            agents: BTreeSet::new(),
            workspaces: BTreeSet::new(),
            slots: 0,
            instance: None,
            boot_id: hello.boot_id.clone(),
            presence: DaemonPresence::NeverConnected,
            newest_session: None,
            draining: false,
            drained: false,
            held_attempts: BTreeSet::new(),
            awaited_final_frames: BTreeSet::new(),
            consecutive_failures: 0,
            sick_until: None,
            reports_unfit: false,
            unfit_until: None,
            refusals: 0,
            listed_load: None,
            took_work: false,
            load: None,
        }
    }

    pub(super) fn apply_hello(&mut self, hello: &DaemonHello) {
        self.scope = hello.scope.clone();
        self.name = hello.name.clone();
        self.labels = hello.labels.clone();
        self.capabilities = hello.capabilities.iter().cloned().collect();
        self.agents = runnable_agents(&hello.agents);
        self.workspaces = hello.workspaces.iter().cloned().collect();
        self.slots = hello.slots;
        self.instance = Some(hello.instance);
        self.boot_id = hello.boot_id.clone();
        self.draining = hello.draining;
        // The first heartbeat reports it again if it still holds.
        self.reports_unfit = false;
        self.awaited_final_frames.clear();
    }

    pub fn free_slots(&self) -> u32 {
        let used = u32::try_from(self.held_attempts.len()).unwrap_or(u32::MAX);
        self.slots.saturating_sub(used)
    }

    pub fn is_sick(&self, now: MonotonicTime) -> bool {
        self.sick_until.is_some_and(|until| until > now)
    }

    /// Connected, sending and receiving, fit, and neither draining nor drained.
    pub fn takes_work(&self) -> bool {
        let connected = self.presence.has_sent_heartbeat()
            && matches!(
                self.presence,
                DaemonPresence::Connected {
                    is_silent: false,
                    ..
                }
            );
        let ending = (self.draining || self.drained) && !mutant!(DrainIgnored);
        connected && !ending && !self.is_unfit()
    }

    /// Whether the machine cannot take work, by heartbeat or by a refused offer.
    pub fn is_unfit(&self) -> bool {
        self.reports_unfit || self.unfit_until.is_some()
    }

    /// Records an offer that was refused because of the machine. Further refusals of offers
    /// that were already under way change nothing.
    pub(super) fn note_refusal(&mut self, (first_ms, most_ms): (u64, u64), now: MonotonicTime) {
        if self.unfit_until.is_none() {
            let factor = 1_u64.checked_shl(self.refusals).unwrap_or(u64::MAX);
            let ms = first_ms.saturating_mul(factor).min(most_ms);
            self.unfit_until = Some(now + ms);
            self.refusals = self.refusals.saturating_add(1);
        }
    }

    /// Records the reported fitness. A daemon that reported unfit and stops doing so has
    /// recovered; otherwise only time ends the exclusion.
    pub(super) fn note_fitness(&mut self, unfit: bool) {
        if self.reports_unfit && !unfit {
            self.unfit_until = None;
            self.refusals = 0;
        }
        self.reports_unfit = unfit;
    }

    /// Whether it may be offered work now.
    pub fn is_available(&self) -> bool {
        self.takes_work() && (self.free_slots() > 0 || mutant!(SlotsIgnored))
    }

    /// The share of its slots in use, in millionths.
    pub(super) fn load_millionths(&self) -> u32 {
        let used = self.slots - self.free_slots();
        let millionths = u64::from(used) * 1_000_000 / u64::from(self.slots.max(1));
        u32::try_from(millionths).unwrap_or(u32::MAX)
    }

    /// The next time at which it becomes silent, recovers from sickness, or may get offers
    /// again.
    pub(super) fn next_change_at(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        let well = self.sick_until.filter(|until| *until > now);
        let silent = self.presence.silent_at().into_iter();
        silent.chain(well).chain(self.unfit_until).min()
    }
}

/// The agents that tasks may be placed on.
fn runnable_agents(agents: &[AgentRecord]) -> BTreeSet<String> {
    let able = agents.iter().filter(|agent| agent.problem.is_none());
    able.map(|agent| agent.name.clone()).collect()
}
