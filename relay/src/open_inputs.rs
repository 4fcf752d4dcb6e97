//! What waits for people: the open inputs of each tenant, oldest first, and who wants to hear of changes.
//!
//! An index of what is durable: filled at the start, then by every record that is published. It holds ids only; what
//! was asked is read from the task. Lists page through it, so that they never read the tasks that ask nothing.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_core::ids::{InputId, TaskId, TenantId};
use baton_core::record::{InputState, TaskRecord};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use tokio::sync::broadcast;

/// Changed tasks that wait for a watcher. Full: it is told that it missed some, and looks at everything again.
const CHANGE_QUEUE: usize = 256;

/// Where an input stands in a tenant's inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputPosition {
    pub(crate) asked_at: WallTime,
    pub(crate) input: InputId,
}

/// A task whose inputs may have changed.
#[derive(Clone, Debug)]
pub(crate) struct ChangedTask {
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) record: Arc<TaskRecord>,
}

/// Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct OpenInputIndex {
    by_tenant: Arc<Mutex<HashMap<TenantId, TenantOpenInputs>>>,
    changes: broadcast::Sender<ChangedTask>,
}

#[derive(Debug, Default)]
struct TenantOpenInputs {
    positions: BTreeMap<InputPosition, TaskId>,
    by_task: HashMap<TaskId, Vec<InputPosition>>,
}

impl Default for OpenInputIndex {
    fn default() -> Self {
        Self {
            by_tenant: Arc::default(),
            changes: broadcast::channel(CHANGE_QUEUE).0,
        }
    }
}

impl OpenInputIndex {
    /// A record that is durable.
    pub(crate) fn record_published(&self, spec: &Arc<TaskSpec>, record: &Arc<TaskRecord>) {
        if record
            .attempts
            .iter()
            .all(|attempt| attempt.inputs.is_empty())
        {
            return;
        }
        self.index_record(record);
        // Nobody may be listening.
        let _ = self.changes.send(ChangedTask {
            spec: Arc::clone(spec),
            record: Arc::clone(record),
        });
    }

    /// The same, for what was there before anybody could listen.
    pub(crate) fn index_record(&self, record: &TaskRecord) {
        self.set(&record.tenant, record.task, open_positions(record));
    }

    fn set(&self, tenant: &TenantId, task: TaskId, now: Vec<InputPosition>) {
        let mut all = self.lock();
        if now.is_empty() && !all.contains_key(tenant) {
            return;
        }
        let open = all.entry(tenant.clone()).or_default();
        for gone in open.by_task.remove(&task).unwrap_or_default() {
            open.positions.remove(&gone);
        }
        for place in &now {
            open.positions.insert(*place, task);
        }
        if !now.is_empty() {
            open.by_task.insert(task, now);
        } else if open.positions.is_empty() {
            all.remove(tenant);
        }
    }

    /// The next open inputs behind a place, oldest first, each with its task.
    pub(crate) fn page(
        &self,
        tenant: &TenantId,
        after: Option<InputPosition>,
        size: usize,
    ) -> Vec<(InputPosition, TaskId)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.lock();
        let Some(open) = all.get(tenant) else {
            return Vec::new();
        };
        let rest = open.positions.range((from, Bound::Unbounded));
        rest.take(size)
            .map(|(place, task)| (*place, *task))
            .collect()
    }

    /// Changes from here on. Look at what is open only after this, or one may fall between.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<ChangedTask> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, TenantOpenInputs>> {
        // A panic in between leaves at worst a place too many, and lists look at the task itself.
        self.by_tenant
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_positions(record: &TaskRecord) -> Vec<InputPosition> {
    let newest = record.newest_attempt().map(|attempt| &attempt.inputs[..]);
    let open = newest.unwrap_or_default().iter();
    let open = open.filter(|input| input.state == InputState::Open);
    let place = open.map(|input| InputPosition {
        asked_at: input.asked,
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

    fn place(n: u128, asked: u64) -> InputPosition {
        InputPosition {
            asked_at: WallTime(asked),
            input: InputId(Uuid::from_u128(n)),
        }
    }

    fn page(inbox: &OpenInputIndex, after: Option<InputPosition>, size: usize) -> Vec<u128> {
        let page = inbox.page(&tenant("a"), after, size);
        let ids = page.iter().map(|(place, _)| place.input.0.as_u128());
        ids.collect()
    }

    #[test]
    fn open_inputs_are_listed_by_age_however_many_tasks_there_are() {
        let inbox = OpenInputIndex::default();
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
        let inbox = OpenInputIndex::default();
        inbox.set(&tenant("a"), task(7), vec![place(1, 1), place(2, 2)]);
        inbox.set(&tenant("a"), task(7), vec![place(2, 2)]);
        assert_eq!(page(&inbox, None, 9), [2]);
        inbox.set(&tenant("a"), task(7), Vec::new());
        inbox.set(&tenant("b"), task(8), Vec::new());
        assert!(inbox.lock().is_empty());
    }
}
