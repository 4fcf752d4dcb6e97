//! Pauses of tenants, and the audit of every pause except those of single tasks. It is a
//! separate record because it changes only by operator actions, while the scheduler record is
//! written every 30 s.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::audit::PauseChange;
use super::fleet::PauseMark;
use crate::ids::{TenantId, TenantScope};
use crate::task::size_limits;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausesRecord {
    /// Tenants that are paused, or were paused and have open tasks.
    pub tenants: BTreeMap<TenantId, TenantPause>,
    /// The newest pauses and their ends, oldest first.
    pub changes: Vec<PauseChange>,
}

/// The pauses of a tenant: the active one, and the time on the queue clock spent in all of
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantPause {
    pub active_pause: Option<PauseMark>,
    /// Time on the scheduler's queue clock during ended pauses; queue budgets of its tasks do
    /// not count it.
    pub paused_ms: u64,
    /// The queue clock when the active pause began.
    pub since_clock_ms: Option<u64>,
}

impl TenantPause {
    fn active_pause(&self) -> Option<&PauseMark> {
        self.active_pause.as_ref()
    }

    fn paused_ms(&self, clock_ms: u64) -> u64 {
        let current_ms = self.since_clock_ms;
        let current_ms = current_ms.map_or(0, |since| clock_ms.saturating_sub(since));
        self.paused_ms.saturating_add(current_ms)
    }
}

impl PausesRecord {
    /// Limit on retained changes; the record is written whole.
    const MAX_CHANGES: usize = 16;
    /// Limit on paused tenants. With names and reasons of maximum length, all of them fit into
    /// one journal entry.
    const MAX_TENANTS: usize = 1_500;

    pub fn pause_of_tenant(&self, tenant: &TenantId) -> Option<&PauseMark> {
        self.tenants.get(tenant).and_then(TenantPause::active_pause)
    }

    /// Tenants that are paused now.
    pub fn active_pauses(&self) -> impl Iterator<Item = (&TenantId, &PauseMark)> {
        let tenants = self.tenants.iter();
        tenants.filter_map(|(tenant, pause)| Some((tenant, pause.active_pause()?)))
    }

    /// Time on the queue clock while this tenant was paused.
    pub(crate) fn paused_ms(&self, tenant: &TenantId, clock_ms: u64) -> u64 {
        let tenant = self.tenants.get(tenant);
        tenant.map_or(0, |tenant| tenant.paused_ms(clock_ms))
    }

    /// Whether one more tenant may be paused: one record contains all of them and is written
    /// whole.
    pub(crate) fn can_pause_tenant(&self, tenant: &TenantId) -> bool {
        self.tenants.len() < Self::MAX_TENANTS || self.tenants.contains_key(tenant)
    }

    pub(crate) fn pause(&mut self, tenant: &TenantId, mut pause: PauseMark, clock_ms: u64) {
        size_limits::clip(&mut pause.by, size_limits::MAX_NAME_BYTES);
        size_limits::clip(&mut pause.reason, size_limits::MAX_NOTE_BYTES);
        let entry = self.tenants.entry(tenant.clone()).or_default();
        entry.active_pause = Some(pause);
        entry.since_clock_ms = Some(clock_ms);
    }

    /// Returns false if the tenant is not paused.
    pub(crate) fn unpause(&mut self, tenant: &TenantId, clock_ms: u64) -> bool {
        let Some(entry) = self.tenants.get_mut(tenant) else {
            return false;
        };
        entry.paused_ms = entry.paused_ms(clock_ms);
        entry.since_clock_ms = None;
        entry.active_pause.take().is_some()
    }

    pub(crate) fn record_change(&mut self, scope: TenantScope, paused: bool, mark: PauseMark) {
        let excess = (self.changes.len() + 1).saturating_sub(Self::MAX_CHANGES);
        self.changes.drain(..excess);
        let (mut by, mut reason) = (mark.by, mark.reason);
        size_limits::clip(&mut by, size_limits::MAX_NAME_BYTES);
        size_limits::clip(&mut reason, size_limits::MAX_NOTE_BYTES);
        self.changes.push(PauseChange {
            scope,
            paused,
            by,
            reason,
            at: mark.since,
        });
    }

    /// Drops tenants without a pause and without open tasks: an ended pause matters only to
    /// tasks that were open then.
    pub(crate) fn prune_tenants(&mut self, has_open: impl Fn(&TenantId) -> bool) {
        self.tenants
            .retain(|tenant, pause| pause.active_pause.is_some() || has_open(tenant));
    }
}
