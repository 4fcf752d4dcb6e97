//! Tasks that agents may claim, by tenant and scope: highest priority first, then oldest first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::tenant_lanes::{QueuePlace, QueueSeq};
use crate::ids::{TaskId, TenantId};

/// The claimable tasks of one scope, in order.
type ClaimOrder = BTreeMap<(Reverse<u8>, QueueSeq), TaskId>;

#[derive(Debug, Default)]
pub(super) struct ClaimableTasks {
    scopes: BTreeMap<(TenantId, Arc<str>), ClaimOrder>,
}

impl ClaimableTasks {
    pub(super) fn insert(&mut self, place: &QueuePlace, scope: &Arc<str>, task: TaskId) {
        let order = self.scopes.entry(key(place, scope)).or_default();
        order.insert((place.priority, place.seq), task);
    }

    pub(super) fn remove(&mut self, place: &QueuePlace, scope: &Arc<str>) {
        let key = key(place, scope);
        if let Some(order) = self.scopes.get_mut(&key) {
            order.remove(&(place.priority, place.seq));
            if order.is_empty() {
                self.scopes.remove(&key);
            }
        }
    }

    pub(super) fn in_scope<'a>(
        &'a self,
        tenant: &TenantId,
        scope: &str,
    ) -> impl Iterator<Item = TaskId> + 'a {
        let order = self.scopes.get(&(tenant.clone(), Arc::from(scope)));
        order.into_iter().flat_map(|tasks| tasks.values().copied())
    }
}

fn key(place: &QueuePlace, scope: &Arc<str>) -> (TenantId, Arc<str>) {
    (place.tenant.clone(), Arc::clone(scope))
}
