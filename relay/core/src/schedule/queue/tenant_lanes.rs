//! The placement order: priority levels, within each level the tenants in turn, within each
//! tenant lane the classes by their oldest task.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::ids::{TaskId, TenantId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueSeq(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequirementClassId(pub(super) u64);

/// The position of a task in the order.
#[derive(Clone, Debug)]
pub(super) struct QueuePlace {
    pub(super) priority: Reverse<u8>,
    pub(super) tenant: TenantId,
    pub(super) class: RequirementClassId,
    pub(super) seq: QueueSeq,
}

#[derive(Debug, Default)]
pub(super) struct TenantLanes {
    levels: BTreeMap<Reverse<u8>, PriorityLevel>,
    /// The priority levels in which a class has tasks, with its tenant; used by `skip` and
    /// `unskip`.
    class_levels: BTreeMap<RequirementClassId, (TenantId, BTreeSet<Reverse<u8>>)>,
    skipped: BTreeSet<RequirementClassId>,
    /// Levels with a task to place.
    ready_levels: BTreeSet<Reverse<u8>>,
}

#[derive(Debug, Default)]
struct PriorityLevel {
    lanes: BTreeMap<TenantId, TenantQueueLane>,
    /// Tenants with a task to place.
    ready_tenants: BTreeSet<TenantId>,
    /// The tenant served last; the next tenant after it is served next.
    last_tenant: Option<TenantId>,
}

#[derive(Debug, Default)]
struct TenantQueueLane {
    classes: BTreeMap<RequirementClassId, BTreeMap<QueueSeq, TaskId>>,
    /// The oldest task of each class that is not skipped.
    heads: BTreeSet<(QueueSeq, RequirementClassId)>,
}

impl TenantLanes {
    pub(super) fn insert(&mut self, place: &QueuePlace, task: TaskId) {
        let levels = self.class_levels.entry(place.class);
        let levels = levels.or_insert_with(|| (place.tenant.clone(), BTreeSet::new()));
        levels.1.insert(place.priority);
        let level = self.levels.entry(place.priority).or_default();
        let lane = level.lanes.entry(place.tenant.clone()).or_default();
        lane.classes
            .entry(place.class)
            .or_default()
            .insert(place.seq, task);
        self.refresh(place.priority, &place.tenant, place.class, Some(place.seq));
    }

    pub(super) fn remove(&mut self, place: &QueuePlace) {
        let Some(level) = self.levels.get_mut(&place.priority) else {
            return;
        };
        let Some(lane) = level.lanes.get_mut(&place.tenant) else {
            return;
        };
        let Some(tasks) = lane.classes.get_mut(&place.class) else {
            return;
        };
        tasks.remove(&place.seq);
        if tasks.is_empty() {
            lane.classes.remove(&place.class);
            self.remove_class_level(place);
        }
        self.refresh(place.priority, &place.tenant, place.class, Some(place.seq));
    }

    /// The next task in order whose class is not skipped.
    pub(super) fn first(&self) -> Option<(QueuePlace, TaskId)> {
        let priority = *self.ready_levels.first()?;
        let level = self.levels.get(&priority)?;
        let tenant = level.next_tenant()?;
        let lane = level.lanes.get(tenant)?;
        let (seq, class) = *lane.heads.first()?;
        let task = *lane.classes.get(&class)?.get(&seq)?;
        let tenant = tenant.clone();
        let place = QueuePlace {
            priority,
            tenant,
            class,
            seq,
        };
        Some((place, task))
    }

    pub(super) fn end_tenant_turn(&mut self, place: &QueuePlace) {
        if let Some(level) = self.levels.get_mut(&place.priority) {
            level.last_tenant = Some(place.tenant.clone());
        }
    }

    pub(super) fn skip(&mut self, class: RequirementClassId) {
        if self.skipped.insert(class) {
            self.refresh_class(class);
        }
    }

    pub(super) fn unskip(&mut self, class: RequirementClassId) {
        if self.skipped.remove(&class) {
            self.refresh_class(class);
        }
    }

    fn remove_class_level(&mut self, place: &QueuePlace) {
        if let Some((_, levels)) = self.class_levels.get_mut(&place.class) {
            levels.remove(&place.priority);
            if levels.is_empty() {
                self.class_levels.remove(&place.class);
            }
        }
    }

    fn refresh_class(&mut self, class: RequirementClassId) {
        let Some((tenant, levels)) = self.class_levels.get(&class).cloned() else {
            return;
        };
        for priority in levels {
            self.refresh(priority, &tenant, class, None);
        }
    }

    /// Updates the heads and the ready sets after a change to one class of one lane. `touched`
    /// is the position that was added or removed. Besides the oldest remaining task, it is the
    /// only one that can be an outdated head.
    fn refresh(
        &mut self,
        priority: Reverse<u8>,
        tenant: &TenantId,
        class: RequirementClassId,
        touched: Option<QueueSeq>,
    ) {
        let Some(level) = self.levels.get_mut(&priority) else {
            return;
        };
        if let Some(lane) = level.lanes.get_mut(tenant) {
            lane.refresh(class, touched, self.skipped.contains(&class));
            if !lane.heads.is_empty() {
                level.ready_tenants.insert(tenant.clone());
            } else {
                level.ready_tenants.remove(tenant);
            }
            if lane.classes.is_empty() {
                level.lanes.remove(tenant);
            }
        }
        if level.ready_tenants.is_empty() {
            self.ready_levels.remove(&priority);
        } else {
            self.ready_levels.insert(priority);
        }
        if level.lanes.is_empty() {
            self.levels.remove(&priority);
        }
    }
}

impl PriorityLevel {
    /// The ready tenant after the one served last, in a circle.
    fn next_tenant(&self) -> Option<&TenantId> {
        let after = self.last_tenant.as_ref().and_then(|last| {
            let range = (Bound::Excluded(last), Bound::Unbounded);
            self.ready_tenants.range::<TenantId, _>(range).next()
        });
        after.or_else(|| self.ready_tenants.first())
    }
}

impl TenantQueueLane {
    fn refresh(&mut self, class: RequirementClassId, touched: Option<QueueSeq>, skipped: bool) {
        let mut seqs = self.classes.get(&class).into_iter().flat_map(|l| l.keys());
        let (oldest, second) = (seqs.next().copied(), seqs.next().copied());
        for seq in touched.into_iter().chain(oldest).chain(second) {
            self.heads.remove(&(seq, class));
        }
        if let Some(seq) = oldest.filter(|_| !skipped) {
            self.heads.insert((seq, class));
        }
    }
}
