//! What waits for people: the open inputs of each tenant, oldest first, and who wants to hear of changes.
//!
//! An index of what is durable: filled at the start, then by every record that is published. It holds ids only; what
//! was asked is read from the task. Lists page through it, so that they never read the tasks that ask nothing.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_core::id::{InputId, TaskId, TenantId};
use baton_core::record::{InputState, TaskRecord};
use baton_core::spec::TaskSpec;
use baton_core::time::Wall;
use tokio::sync::broadcast;

/// Changed tasks that wait for a watcher. Full: it is told that it missed some, and looks at everything again.
const HEARD: usize = 256;

/// Where an input stands in a tenant's inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) asked: Wall,
    pub(crate) input: InputId,
}

/// A task whose inputs may have changed.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) record: Arc<TaskRecord>,
}

/// Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    open: Arc<Mutex<HashMap<TenantId, Open>>>,
    changes: broadcast::Sender<Heard>,
}

#[derive(Debug, Default)]
struct Open {
    places: BTreeMap<Place, TaskId>,
    by_task: HashMap<TaskId, Vec<Place>>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            open: Arc::default(),
            changes: broadcast::channel(HEARD).0,
        }
    }
}

impl Inbox {
    /// A record that is durable.
    pub(crate) fn published(&self, spec: &Arc<TaskSpec>, record: &Arc<TaskRecord>) {
        if record
            .attempts
            .iter()
            .all(|attempt| attempt.inputs.is_empty())
        {
            return;
        }
        self.note(record);
        // Nobody may be listening.
        let _ = self.changes.send(Heard {
            spec: Arc::clone(spec),
            record: Arc::clone(record),
        });
    }

    /// The same, for what was there before anybody could listen.
    pub(crate) fn note(&self, record: &TaskRecord) {
        self.set(&record.tenant, record.task, open_places(record));
    }

    fn set(&self, tenant: &TenantId, task: TaskId, now: Vec<Place>) {
        let mut all = self.lock();
        if now.is_empty() && !all.contains_key(tenant) {
            return;
        }
        let open = all.entry(tenant.clone()).or_default();
        for gone in open.by_task.remove(&task).unwrap_or_default() {
            open.places.remove(&gone);
        }
        for place in &now {
            open.places.insert(*place, task);
        }
        if !now.is_empty() {
            open.by_task.insert(task, now);
        } else if open.places.is_empty() {
            all.remove(tenant);
        }
    }

    /// The next open inputs behind a place, oldest first, each with its task.
    pub(crate) fn page(
        &self,
        tenant: &TenantId,
        after: Option<Place>,
        size: usize,
    ) -> Vec<(Place, TaskId)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.lock();
        let Some(open) = all.get(tenant) else {
            return Vec::new();
        };
        let rest = open.places.range((from, Bound::Unbounded));
        rest.take(size)
            .map(|(place, task)| (*place, *task))
            .collect()
    }

    /// Changes from here on. Look at what is open only after this, or one may fall between.
    pub(crate) fn listen(&self) -> broadcast::Receiver<Heard> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, Open>> {
        // A panic in between leaves at worst a place too many, and lists look at the task itself.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_places(record: &TaskRecord) -> Vec<Place> {
    let newest = record.newest().map(|attempt| &attempt.inputs[..]);
    let open = newest.unwrap_or_default().iter();
    let open = open.filter(|input| input.state == InputState::Open);
    let place = open.map(|input| Place {
        asked: input.asked,
        input: input.id,
    });
    place.collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn task(n: u128) -> TaskId {
        TaskId(Uuid::from_u128(n))
    }

    fn place(n: u128, asked: u64) -> Place {
        Place {
            asked: Wall(asked),
            input: InputId(Uuid::from_u128(n)),
        }
    }

    fn page(inbox: &Inbox, after: Option<Place>, size: usize) -> Vec<u128> {
        let page = inbox.page(&tenant("a"), after, size);
        let ids = page.iter().map(|(place, _)| place.input.0.as_u128());
        ids.collect()
    }

    #[test]
    fn open_inputs_are_listed_by_age_however_many_tasks_there_are() {
        let inbox = Inbox::default();
        for n in 0..5_000 {
            let asked = 10_000 - n;
            inbox.set(&tenant("a"), task(n.into()), vec![place(n.into(), asked)]);
        }
        inbox.set(&tenant("b"), task(9_000), vec![place(9_000, 1)]);
        assert_eq!(page(&inbox, None, 2), [4_999, 4_998]);
        assert_eq!(page(&inbox, Some(place(2, 9_998)), 9), [1, 0]);
    }

    #[test]
    fn what_is_no_longer_open_leaves_the_inbox_and_nothing_is_left_behind() {
        let inbox = Inbox::default();
        inbox.set(&tenant("a"), task(7), vec![place(1, 1), place(2, 2)]);
        inbox.set(&tenant("a"), task(7), vec![place(2, 2)]);
        assert_eq!(page(&inbox, None, 9), [2]);
        inbox.set(&tenant("a"), task(7), Vec::new());
        inbox.set(&tenant("b"), task(8), Vec::new());
        assert!(inbox.lock().is_empty());
    }
}
