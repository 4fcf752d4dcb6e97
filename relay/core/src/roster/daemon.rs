//! One daemon: what it offers, whether it is heard, what it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::id::{AttemptId, DaemonId, InstanceId, SessionId, TenantScope};
use crate::input::{Hello, MachineLoad};
use crate::record::{AgentRecord, DaemonRecord};
use crate::time::Moment;

#[derive(Clone, Debug)]
pub struct Daemon {
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
    pub presence: Presence,
    /// The stream that said Hello last; those opened before it are not heard any more.
    pub(super) newest: Option<SessionId>,
    /// Its own wish.
    pub draining: bool,
    /// An operator's.
    pub drained: bool,
    /// Attempts that take a slot, from offer to end; also while it is away.
    pub held: BTreeSet<AttemptId>,
    /// Attempts that were over on its side when its stream began: it replays them, and runs none of them.
    pub(super) adopted: BTreeSet<AttemptId>,
    pub failures: u32,
    pub sick_until: Option<Moment>,
    /// Its machine cannot take work, by its own word in heartbeats: until it says otherwise.
    pub(super) says_unfit: bool,
    /// It refused an offer because of its machine: until then it is not asked again.
    pub(super) unfit_until: Option<Moment>,
    /// Such refusals since it last ran something: one that accepts and then cannot is no fitter.
    pub(super) refusals: u32,
    /// The load under which it stands in the roster's order; none if it is not open.
    pub(super) listed: Option<u32>,
    /// Whether it took work when the roster last looked.
    pub(super) worked: bool,
    /// How its machine stood when it last said so, for display.
    pub load: Option<MachineLoad>,
}

/// Whether it can be talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// On record only.
    Unheard,
    Away {
        since: Moment,
    },
    Connected {
        session: SessionId,
        since: Moment,
        heard: Moment,
        /// What it was told to keep to.
        heartbeat_ms: u64,
        /// It has sent a heartbeat, which it does once it has read Welcome: so it hears. One that cannot hear dials again and
        /// says Hello like any other, and an offer to it would wait for its deadline.
        greeted: bool,
        /// Two heartbeats are missing: it is not offered work.
        deaf: bool,
        /// The oldest answer that it has not been shown to hear, and when that was given.
        unheard: Option<(u64, Moment)>,
    },
}

/// A heartbeat may be this late: it was sent in time, and the machine or the network was busy.
pub(super) const LATE_MS: u64 = 500;

impl Presence {
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Presence::Unheard | Presence::Away { .. } => None,
            Presence::Connected { session, .. } => Some(*session),
        }
    }

    /// Whether its stream has shown that it hears.
    pub fn is_greeted(&self) -> bool {
        matches!(self, Presence::Connected { greeted: true, .. })
    }

    /// When its stream last said something; none without a stream.
    pub fn last_heard(&self) -> Option<Moment> {
        match self {
            Presence::Unheard | Presence::Away { .. } => None,
            Presence::Connected { heard, .. } => Some(*heard),
        }
    }

    pub(super) fn heard(&mut self, every_ms: u64, now: Moment) {
        if let Presence::Connected {
            heard,
            heartbeat_ms,
            greeted,
            deaf,
            ..
        } = self
        {
            (*heard, *heartbeat_ms, *deaf) = (now, every_ms, false);
            *greeted = true;
        }
    }

    /// Whether it hears the relay, by its own word: false once an answer has been out for two heartbeats and it still
    /// speaks without having heard it. One that does not say what it heard counts as hearing.
    pub(super) fn hears(&mut self, heard_seq: Option<u64>, now: Moment) -> bool {
        let Presence::Connected {
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
    pub(super) fn answered(&mut self, seq: Option<u64>, every_ms: u64, now: Moment) {
        if let Presence::Connected {
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
    pub(super) fn quicken(&mut self, every_ms: u64, now: Moment) {
        if let Presence::Connected {
            heard,
            heartbeat_ms,
            ..
        } = self
            && every_ms < *heartbeat_ms
        {
            (*heard, *heartbeat_ms) = (now, every_ms);
        }
    }

    /// The relay was not there to hear it, or to be heard.
    pub(super) fn excuse(&mut self, now: Moment) {
        if let Presence::Connected {
            heard,
            deaf,
            unheard,
            ..
        } = self
        {
            (*heard, *deaf, *unheard) = (now, false, None);
        }
    }

    /// Two heartbeats may be missed; the moment when the second is.
    fn silent_at(&self) -> Option<Moment> {
        match self {
            Presence::Connected {
                heard,
                heartbeat_ms,
                deaf: false,
                ..
            } => Some(*heard + heartbeat_ms.saturating_mul(2).saturating_add(LATE_MS)),
            Presence::Unheard | Presence::Away { .. } | Presence::Connected { .. } => None,
        }
    }

    /// Marks it deaf if it is time; the stream, if that is news.
    pub(super) fn fall_silent(&mut self, now: Moment) -> Option<SessionId> {
        let due = self.silent_at().is_some_and(|at| at <= now);
        match self {
            Presence::Connected { session, deaf, .. } if due => {
                *deaf = true;
                Some(*session)
            }
            Presence::Unheard | Presence::Away { .. } | Presence::Connected { .. } => None,
        }
    }
}

impl Daemon {
    pub(super) fn from_record(record: &DaemonRecord) -> Self {
        Self {
            id: record.daemon,
            scope: record.scope.clone(),
            name: record.name.clone(),
            labels: record.labels.clone(),
            capabilities: record.capabilities.iter().cloned().collect(),
            agents: able(&record.agents),
            workspaces: record.workspaces.iter().cloned().collect(),
            slots: record.slots,
            instance: None,
            boot_id: record.boot_id.clone(),
            presence: Presence::Unheard,
            newest: None,
            draining: false,
            drained: record.drained.is_some(),
            held: BTreeSet::new(),
            adopted: BTreeSet::new(),
            failures: 0,
            sick_until: None,
            says_unfit: false,
            unfit_until: None,
            refusals: 0,
            listed: None,
            worked: false,
            load: None,
        }
    }

    pub(super) fn from_hello(hello: &Hello) -> Self {
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
            presence: Presence::Unheard,
            newest: None,
            draining: false,
            drained: false,
            held: BTreeSet::new(),
            adopted: BTreeSet::new(),
            failures: 0,
            sick_until: None,
            says_unfit: false,
            unfit_until: None,
            refusals: 0,
            listed: None,
            worked: false,
            load: None,
        }
    }

    pub(super) fn take_hello(&mut self, hello: &Hello) {
        self.scope = hello.scope.clone();
        self.name = hello.name.clone();
        self.labels = hello.labels.clone();
        self.capabilities = hello.capabilities.iter().cloned().collect();
        self.agents = able(&hello.agents);
        self.workspaces = hello.workspaces.iter().cloned().collect();
        self.slots = hello.slots;
        self.instance = Some(hello.instance);
        self.boot_id = hello.boot_id.clone();
        self.draining = hello.draining;
        // Its first heartbeat says it again if it is so.
        self.says_unfit = false;
        self.adopted.clear();
    }

    pub fn free_slots(&self) -> u32 {
        let used = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        self.slots.saturating_sub(used)
    }

    pub fn is_sick(&self, now: Moment) -> bool {
        self.sick_until.is_some_and(|until| until > now)
    }

    /// Connected, heard and hearing, fit, and neither it nor an operator wants it to end.
    pub fn takes_work(&self) -> bool {
        let heard = self.presence.is_greeted()
            && matches!(self.presence, Presence::Connected { deaf: false, .. });
        let ending = (self.draining || self.drained) && !mutant!(DrainIgnored);
        heard && !ending && !self.is_unfit()
    }

    /// Its machine can take no work, as far as it has said.
    pub fn is_unfit(&self) -> bool {
        self.says_unfit || self.unfit_until.is_some()
    }

    /// It would not take an offer because of its machine. Offers that were on their way tell nothing new.
    pub(super) fn refused(&mut self, (first_ms, most_ms): (u64, u64), now: Moment) {
        if self.unfit_until.is_none() {
            let factor = 1_u64.checked_shl(self.refusals).unwrap_or(u64::MAX);
            let ms = first_ms.saturating_mul(factor).min(most_ms);
            self.unfit_until = Some(now + ms);
            self.refusals = self.refusals.saturating_add(1);
        }
    }

    /// Who has said that it cannot and no longer says so has recovered; from others only time tells.
    pub(super) fn hear_fitness(&mut self, unfit: bool) {
        if self.says_unfit && !unfit {
            self.unfit_until = None;
            self.refusals = 0;
        }
        self.says_unfit = unfit;
    }

    /// May be offered work at this moment.
    pub fn is_open(&self) -> bool {
        self.takes_work() && (self.free_slots() > 0 || mutant!(SlotsIgnored))
    }

    /// Share of its slots in use, in millionths.
    pub(super) fn load(&self) -> u32 {
        let used = self.slots - self.free_slots();
        let millionths = u64::from(used) * 1_000_000 / u64::from(self.slots.max(1));
        u32::try_from(millionths).unwrap_or(u32::MAX)
    }

    /// When it falls silent, gets well again or may be asked again.
    pub(super) fn next_change(&self, now: Moment) -> Option<Moment> {
        let well = self.sick_until.filter(|until| *until > now);
        let silent = self.presence.silent_at().into_iter();
        silent.chain(well).chain(self.unfit_until).min()
    }
}

/// The agents that tasks may be placed by.
fn able(agents: &[AgentRecord]) -> BTreeSet<String> {
    let able = agents.iter().filter(|agent| agent.problem.is_none());
    able.map(|agent| agent.name.clone()).collect()
}
