//! The daemons on record, by id and by name: whoever names one must not cost a walk over all of them.

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
    /// In place of what was known of it, whose name may have been another one.
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

    /// The record with this mark, where it was marked otherwise.
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

    /// All that are meant by it: a name may stand for several.
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
