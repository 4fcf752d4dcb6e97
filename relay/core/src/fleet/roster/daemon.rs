//! One daemon: what it offers, whether it is heard, what it holds.

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
    /// Those that can run.
    pub agents: BTreeSet<String>,
    pub workspaces: BTreeSet<String>,
    pub slots: u32,
    /// None until it says Hello after a restart of the relay.
    pub instance: Option<InstanceId>,
    pub boot_id: Arc<str>,
    pub presence: DaemonPresence,
    /// The stream that said Hello last; those opened before it are not heard any more.
    pub(super) newest_session: Option<SessionId>,
    /// Its own wish.
    pub draining: bool,
    /// An operator's.
    pub drained: bool,
    /// Attempts that take a slot, from offer to end; also while it is away.
    pub held_attempts: BTreeSet<AttemptId>,
    /// Attempts that were over on its side when its stream began: it replays them, and runs none of them.
    pub(super) awaited_final_frames: BTreeSet<AttemptId>,
    pub consecutive_failures: u32,
    pub sick_until: Option<MonotonicTime>,
    /// Its machine cannot take work, by its own word in heartbeats: until it says otherwise.
    pub(super) reports_unfit: bool,
    /// It refused an offer because of its machine: until then it is not asked again.
    pub(super) unfit_until: Option<MonotonicTime>,
    /// Such refusals since it last ran something: one that accepts and then cannot is no fitter.
    pub(super) refusals: u32,
    /// The load under which it stands in the roster's order; none if it is not open.
    pub(super) listed_load: Option<u32>,
    /// Whether it took work when the roster last looked.
    pub(super) took_work: bool,
    /// How its machine stood when it last said so, for display.
    pub load: Option<MachineLoad>,
}

/// Whether it can be talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonPresence {
    /// On record only.
    NeverConnected,
    Disconnected {
        since: MonotonicTime,
    },
    Connected {
        session: SessionId,
        since: MonotonicTime,
        last_received_at: MonotonicTime,
        /// What it was told to keep to.
        heartbeat_ms: u64,
        /// It has sent a heartbeat, which it does once it has read Welcome: so it hears. One that cannot hear dials again and
        /// says Hello like any other, and an offer to it would wait for its deadline.
        heartbeat_seen: bool,
        /// Two heartbeats are missing: it is not offered work.
        is_silent: bool,
        /// The oldest answer that it has not been shown to hear, and when that was given.
        unheard: Option<(u64, MonotonicTime)>,
    },
}

/// A heartbeat may be this late: it was sent in time, and the machine or the network was busy.
pub(super) const HEARTBEAT_TOLERANCE_MS: u64 = 500;

impl DaemonPresence {
    pub fn session(&self) -> Option<SessionId> {
        match self {
            DaemonPresence::NeverConnected | DaemonPresence::Disconnected { .. } => None,
            DaemonPresence::Connected { session, .. } => Some(*session),
        }
    }

    /// Whether its stream has shown that it hears.
    pub fn has_sent_heartbeat(&self) -> bool {
        matches!(
            self,
            DaemonPresence::Connected {
                heartbeat_seen: true,
                ..
            }
        )
    }

    /// When its stream last said something; none without a stream.
    pub fn last_heard(&self) -> Option<MonotonicTime> {
        match self {
            DaemonPresence::NeverConnected | DaemonPresence::Disconnected { .. } => None,
            DaemonPresence::Connected {
                last_received_at: heard,
                ..
            } => Some(*heard),
        }
    }

    pub(super) fn note_heartbeat(&mut self, every_ms: u64, now: MonotonicTime) {
        if let DaemonPresence::Connected {
            last_received_at: heard,
            heartbeat_ms,
            heartbeat_seen: greeted,
            is_silent: deaf,
            ..
        } = self
        {
            (*heard, *heartbeat_ms, *deaf) = (now, every_ms, false);
            *greeted = true;
        }
    }

    /// Whether it hears the relay, by its own word: false once an answer has been out for two heartbeats and it still
    /// speaks without having heard it. One that does not say what it heard counts as hearing.
    pub(super) fn is_receiving(&mut self, heard_seq: Option<u64>, now: MonotonicTime) -> bool {
        let DaemonPresence::Connected {
            heartbeat_ms,
            unheard,
            ..
        } = self
        else {
            return true;
        };
        unheard.take_if(|(seq, _)| heard_seq.is_none_or(|heard| *seq <= heard));
        // The second heartbeat after the answer comes a little earlier or later than two intervals.
        let two_ms = heartbeat_ms.saturating_mul(3) / 2;
        unheard.is_none_or(|(_, since)| now.since(since) < two_ms)
    }

    /// It was answered, and told to keep to this pace.
    pub(super) fn note_answer_sent(&mut self, seq: Option<u64>, every_ms: u64, now: MonotonicTime) {
        if let DaemonPresence::Connected {
            heartbeat_ms,
            unheard,
            ..
        } = self
        {
            *heartbeat_ms = every_ms;
            *unheard = unheard.or(seq.map(|seq| (seq, now)));
        }
    }

    /// It was heard, and beats at least so often from here on.
    pub(super) fn shorten_heartbeat(&mut self, every_ms: u64, now: MonotonicTime) {
        if let DaemonPresence::Connected {
            last_received_at: heard,
            heartbeat_ms,
            ..
        } = self
            && every_ms < *heartbeat_ms
        {
            (*heard, *heartbeat_ms) = (now, every_ms);
        }
    }

    /// The relay was not there to hear it, or to be heard.
    pub(super) fn reset_silence(&mut self, now: MonotonicTime) {
        if let DaemonPresence::Connected {
            last_received_at: heard,
            is_silent: deaf,
            unheard,
            ..
        } = self
        {
            (*heard, *deaf, *unheard) = (now, false, None);
        }
    }

    /// Two heartbeats may be missed; the moment when the second is.
    fn silent_at(&self) -> Option<MonotonicTime> {
        match self {
            DaemonPresence::Connected {
                last_received_at: heard,
                heartbeat_ms,
                is_silent: false,
                ..
            } => Some(
                *heard
                    + heartbeat_ms
                        .saturating_mul(2)
                        .saturating_add(HEARTBEAT_TOLERANCE_MS),
            ),
            DaemonPresence::NeverConnected
            | DaemonPresence::Disconnected { .. }
            | DaemonPresence::Connected { .. } => None,
        }
    }

    /// Marks it deaf if it is time; the stream, if that is news.
    pub(super) fn mark_silent_if_due(&mut self, now: MonotonicTime) -> Option<SessionId> {
        let due = self.silent_at().is_some_and(|at| at <= now);
        match self {
            DaemonPresence::Connected {
                session,
                is_silent: deaf,
                ..
            } if due => {
                *deaf = true;
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
        // Its first heartbeat says it again if it is so.
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

    /// Connected, heard and hearing, fit, and neither it nor an operator wants it to end.
    pub fn takes_work(&self) -> bool {
        let heard = self.presence.has_sent_heartbeat()
            && matches!(
                self.presence,
                DaemonPresence::Connected {
                    is_silent: false,
                    ..
                }
            );
        let ending = (self.draining || self.drained) && !mutant!(DrainIgnored);
        heard && !ending && !self.is_unfit()
    }

    /// Its machine can take no work, as far as it has said.
    pub fn is_unfit(&self) -> bool {
        self.reports_unfit || self.unfit_until.is_some()
    }

    /// It would not take an offer because of its machine. Offers that were on their way tell nothing new.
    pub(super) fn note_refusal(&mut self, (first_ms, most_ms): (u64, u64), now: MonotonicTime) {
        if self.unfit_until.is_none() {
            let factor = 1_u64.checked_shl(self.refusals).unwrap_or(u64::MAX);
            let ms = first_ms.saturating_mul(factor).min(most_ms);
            self.unfit_until = Some(now + ms);
            self.refusals = self.refusals.saturating_add(1);
        }
    }

    /// Who has said that it cannot and no longer says so has recovered; from others only time tells.
    pub(super) fn note_fitness(&mut self, unfit: bool) {
        if self.reports_unfit && !unfit {
            self.unfit_until = None;
            self.refusals = 0;
        }
        self.reports_unfit = unfit;
    }

    /// May be offered work at this moment.
    pub fn is_available(&self) -> bool {
        self.takes_work() && (self.free_slots() > 0 || mutant!(SlotsIgnored))
    }

    /// Share of its slots in use, in millionths.
    pub(super) fn load_millionths(&self) -> u32 {
        let used = self.slots - self.free_slots();
        let millionths = u64::from(used) * 1_000_000 / u64::from(self.slots.max(1));
        u32::try_from(millionths).unwrap_or(u32::MAX)
    }

    /// When it falls silent, gets well again or may be asked again.
    pub(super) fn next_change_at(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        let well = self.sick_until.filter(|until| *until > now);
        let silent = self.presence.silent_at().into_iter();
        silent.chain(well).chain(self.unfit_until).min()
    }
}

/// The agents that tasks may be placed by.
fn runnable_agents(agents: &[AgentRecord]) -> BTreeSet<String> {
    let able = agents.iter().filter(|agent| agent.problem.is_none());
    able.map(|agent| agent.name.clone()).collect()
}
