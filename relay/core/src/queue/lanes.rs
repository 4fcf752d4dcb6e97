//! The order itself: levels of priority, in each the tenants in turn, in each lane the classes by their oldest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::id::{TaskId, TenantId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seq(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassId(pub(super) u64);

/// Where a task belongs in the order.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) priority: Reverse<u8>,
    pub(super) tenant: TenantId,
    pub(super) class: ClassId,
    pub(super) seq: Seq,
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    levels: BTreeMap<Reverse<u8>, Level>,
    /// Levels in which a class stands, with its tenant; what `skip` and `unskip` walk over.
    stands_in: BTreeMap<ClassId, (TenantId, BTreeSet<Reverse<u8>>)>,
    skipped: BTreeSet<ClassId>,
    /// Levels with somebody to place.
    ready: BTreeSet<Reverse<u8>>,
}

#[derive(Debug, Default)]
struct Level {
    lanes: BTreeMap<TenantId, Lane>,
    /// Tenants with somebody to place.
    ready: BTreeSet<TenantId>,
    /// Whose turn was last; the next one after it is next.
    last: Option<TenantId>,
}

#[derive(Debug, Default)]
struct Lane {
    classes: BTreeMap<ClassId, BTreeMap<Seq, TaskId>>,
    /// The oldest of each class that is not skipped.
    heads: BTreeSet<(Seq, ClassId)>,
}

impl Lanes {
    pub(super) fn insert(&mut self, place: &Place, task: TaskId) {
        let stands = self.stands_in.entry(place.class);
        let stands = stands.or_insert_with(|| (place.tenant.clone(), BTreeSet::new()));
        stands.1.insert(place.priority);
        let level = self.levels.entry(place.priority).or_default();
        let lane = level.lanes.entry(place.tenant.clone()).or_default();
        lane.classes
            .entry(place.class)
            .or_default()
            .insert(place.seq, task);
        self.refresh(place.priority, &place.tenant, place.class, Some(place.seq));
    }

    pub(super) fn remove(&mut self, place: &Place) {
        let Some(level) = self.levels.get_mut(&place.priority) else {
            return;
        };
        let Some(lane) = level.lanes.get_mut(&place.tenant) else {
            return;
        };
        let Some(line) = lane.classes.get_mut(&place.class) else {
            return;
        };
        line.remove(&place.seq);
        if line.is_empty() {
            lane.classes.remove(&place.class);
            self.stands_no_more(place);
        }
        self.refresh(place.priority, &place.tenant, place.class, Some(place.seq));
    }

    /// The next in order among those not skipped.
    pub(super) fn first(&self) -> Option<(Place, TaskId)> {
        let priority = *self.ready.first()?;
        let level = self.levels.get(&priority)?;
        let tenant = level.next_tenant()?;
        let lane = level.lanes.get(tenant)?;
        let (seq, class) = *lane.heads.first()?;
        let task = *lane.classes.get(&class)?.get(&seq)?;
        let tenant = tenant.clone();
        let place = Place {
            priority,
            tenant,
            class,
            seq,
        };
        Some((place, task))
    }

    pub(super) fn turn_over(&mut self, place: &Place) {
        if let Some(level) = self.levels.get_mut(&place.priority) {
            level.last = Some(place.tenant.clone());
        }
    }

    pub(super) fn skip(&mut self, class: ClassId) {
        if self.skipped.insert(class) {
            self.refresh_class(class);
        }
    }

    pub(super) fn unskip(&mut self, class: ClassId) {
        if self.skipped.remove(&class) {
            self.refresh_class(class);
        }
    }

    fn stands_no_more(&mut self, place: &Place) {
        if let Some((_, levels)) = self.stands_in.get_mut(&place.class) {
            levels.remove(&place.priority);
            if levels.is_empty() {
                self.stands_in.remove(&place.class);
            }
        }
    }

    fn refresh_class(&mut self, class: ClassId) {
        let Some((tenant, levels)) = self.stands_in.get(&class).cloned() else {
            return;
        };
        for priority in levels {
            self.refresh(priority, &tenant, class, None);
        }
    }

    /// Brings the heads and the ready sets in line after one class of one lane changed. `touched` is the
    /// place that came or went, which is the only one that can be an outdated head beside the oldest left.
    fn refresh(
        &mut self,
        priority: Reverse<u8>,
        tenant: &TenantId,
        class: ClassId,
        touched: Option<Seq>,
    ) {
        let Some(level) = self.levels.get_mut(&priority) else {
            return;
        };
        if let Some(lane) = level.lanes.get_mut(tenant) {
            lane.refresh(class, touched, self.skipped.contains(&class));
            if !lane.heads.is_empty() {
                level.ready.insert(tenant.clone());
            } else {
                level.ready.remove(tenant);
            }
            if lane.classes.is_empty() {
                level.lanes.remove(tenant);
            }
        }
        if level.ready.is_empty() {
            self.ready.remove(&priority);
        } else {
            self.ready.insert(priority);
        }
        if level.lanes.is_empty() {
            self.levels.remove(&priority);
        }
    }
}

impl Level {
    /// The ready tenant after the last one, going round.
    fn next_tenant(&self) -> Option<&TenantId> {
        let after = self.last.as_ref().and_then(|last| {
            let range = (Bound::Excluded(last), Bound::Unbounded);
            self.ready.range::<TenantId, _>(range).next()
        });
        after.or_else(|| self.ready.first())
    }
}

impl Lane {
    fn refresh(&mut self, class: ClassId, touched: Option<Seq>, skipped: bool) {
        let mut line = self.classes.get(&class).into_iter().flat_map(|l| l.keys());
        let (oldest, second) = (line.next().copied(), line.next().copied());
        for seq in touched.into_iter().chain(oldest).chain(second) {
            self.heads.remove(&(seq, class));
        }
        if let Some(seq) = oldest.filter(|_| !skipped) {
            self.heads.insert((seq, class));
        }
    }
}
