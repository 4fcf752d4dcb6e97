//! Pauses of tenants, and the audit of every pause that is no task's. A record of its own: it changes when people speak, and
//! the scheduler's own is written every half a minute.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::audit::PauseChange;
use super::fleet::PauseMark;
use crate::ids::{TenantId, TenantScope};
use crate::task::size_limits;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausesRecord {
    /// Tenants that are or were paused, and have open tasks.
    pub tenants: BTreeMap<TenantId, TenantPause>,
    /// The newest pauses and their ends, oldest first.
    pub changes: Vec<PauseChange>,
}

/// A tenant's pauses: the one that stands, and how far the queue clock went in all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantPause {
    pub active_pause: Option<PauseMark>,
    /// Time on the scheduler's queue clock that passed in pauses that are over; queue budgets of its tasks do not count it.
    pub paused_ms: u64,
    /// The queue clock when the pause that stands began.
    pub since_clock_ms: Option<u64>,
}

impl TenantPause {
    fn active_pause(&self) -> Option<&PauseMark> {
        self.active_pause.as_ref()
    }

    fn paused_ms(&self, clock_ms: u64) -> u64 {
        let standing = self.since_clock_ms;
        let standing = standing.map_or(0, |since| clock_ms.saturating_sub(since));
        self.paused_ms.saturating_add(standing)
    }
}

impl PausesRecord {
    /// Changes that are kept; the record is written whole.
    const MAX_CHANGES: usize = 16;
    /// With names and reasons as long as they may be, all of them fit into one entry of the journal.
    const MAX_TENANTS: usize = 1_500;

    pub fn pause_of_tenant(&self, tenant: &TenantId) -> Option<&PauseMark> {
        self.tenants.get(tenant).and_then(TenantPause::active_pause)
    }

    /// Tenants whose pause stands.
    pub fn active_pauses(&self) -> impl Iterator<Item = (&TenantId, &PauseMark)> {
        let tenants = self.tenants.iter();
        tenants.filter_map(|(tenant, pause)| Some((tenant, pause.active_pause()?)))
    }

    /// How far the queue clock went while this tenant was paused.
    pub(crate) fn paused_ms(&self, tenant: &TenantId, clock_ms: u64) -> u64 {
        let tenant = self.tenants.get(tenant);
        tenant.map_or(0, |tenant| tenant.paused_ms(clock_ms))
    }

    /// One record holds all of them and is written whole, so there is an end to it.
    pub(crate) fn can_pause_tenant(&self, tenant: &TenantId) -> bool {
        self.tenants.len() < Self::MAX_TENANTS || self.tenants.contains_key(tenant)
    }

    pub(crate) fn pause(&mut self, tenant: &TenantId, mut pause: PauseMark, clock_ms: u64) {
        size_limits::clip(&mut pause.by, size_limits::MAX_NAME_BYTES);
        size_limits::clip(&mut pause.reason, size_limits::MAX_NOTE_BYTES);
        let of_tenant = self.tenants.entry(tenant.clone()).or_default();
        of_tenant.active_pause = Some(pause);
        of_tenant.since_clock_ms = Some(clock_ms);
    }

    /// False if none stands.
    pub(crate) fn unpause(&mut self, tenant: &TenantId, clock_ms: u64) -> bool {
        let Some(of_tenant) = self.tenants.get_mut(tenant) else {
            return false;
        };
        of_tenant.paused_ms = of_tenant.paused_ms(clock_ms);
        of_tenant.since_clock_ms = None;
        of_tenant.active_pause.take().is_some()
    }

    pub(crate) fn record_change(&mut self, scope: TenantScope, paused: bool, said: PauseMark) {
        let over = (self.changes.len() + 1).saturating_sub(Self::MAX_CHANGES);
        self.changes.drain(..over);
        let (mut by, mut reason) = (said.by, said.reason);
        size_limits::clip(&mut by, size_limits::MAX_NAME_BYTES);
        size_limits::clip(&mut reason, size_limits::MAX_NOTE_BYTES);
        self.changes.push(PauseChange {
            scope,
            paused,
            by,
            reason,
            at: said.since,
        });
    }

    /// Pauses that are over concern only tasks that were open then.
    pub(crate) fn prune_tenants(&mut self, has_open: impl Fn(&TenantId) -> bool) {
        self.tenants
            .retain(|tenant, pause| pause.active_pause.is_some() || has_open(tenant));
    }
}
