//! Stored daemon records, indexed by id and by name, so that a lookup by name needs no scan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{DaemonId, DaemonRef};
use crate::record::{DaemonRecord, DrainMark};
use crate::time::WallTime;

#[derive(Debug, Default)]
pub(crate) struct DaemonRegistry {
    records: BTreeMap<DaemonId, Arc<DaemonRecord>>,
    names: BTreeMap<Arc<str>, BTreeSet<DaemonId>>,
}

impl DaemonRegistry {
    /// Inserts or replaces a record. The name may have changed.
    pub(crate) fn insert(&mut self, record: Arc<DaemonRecord>) {
        self.remove(record.daemon);
        let of_name = self.names.entry(Arc::clone(&record.name)).or_default();
        of_name.insert(record.daemon);
        self.records.insert(record.daemon, record);
    }

    pub(crate) fn remove(&mut self, daemon: DaemonId) -> Option<Arc<DaemonRecord>> {
        let record = self.records.remove(&daemon)?;
        if let Some(of_name) = self.names.get_mut(&record.name) {
            of_name.remove(&daemon);
            if of_name.is_empty() {
                self.names.remove(&record.name);
            }
        }
        Some(record)
    }

    pub(crate) fn get(&self, daemon: DaemonId) -> Option<&Arc<DaemonRecord>> {
        self.records.get(&daemon)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<DaemonRecord>> {
        self.records.values()
    }

    pub(crate) fn set_last_seen(&mut self, daemon: DaemonId, at: WallTime) {
        if let Some(record) = self.records.get_mut(&daemon) {
            Arc::make_mut(record).last_seen = at;
        }
    }

    /// Sets or removes the drain mark. Returns the record if that changed it.
    pub(crate) fn set_drain_mark(
        &mut self,
        daemon: DaemonId,
        mark: Option<DrainMark>,
    ) -> Option<Arc<DaemonRecord>> {
        let record = self.records.get_mut(&daemon)?;
        if record.drained.is_some() == mark.is_some() {
            return None;
        }
        Arc::make_mut(record).drained = mark;
        Some(Arc::clone(record))
    }

    /// All daemons that match the reference. Several daemons may have the same name.
    pub(crate) fn find_by_ref(
        &self,
        named: &DaemonRef,
    ) -> impl Iterator<Item = &Arc<DaemonRecord>> {
        let (id, of_name) = match named {
            DaemonRef::Id(id) => (Some(*id), None),
            DaemonRef::Name(name) => (None, self.names.get(name)),
        };
        let ids = id.into_iter().chain(of_name.into_iter().flatten().copied());
        ids.filter_map(|id| self.records.get(&id))
    }
}
