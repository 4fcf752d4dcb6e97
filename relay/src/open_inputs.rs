//! The open inputs of each tenant, oldest first, and the subscriptions to their changes.
//!
//! An index of durable records: filled at the start, then updated with every published record.
//! It contains ids only; the question itself is read from the task. Lists page through the
//! index, so they never read tasks without open inputs.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_core::ids::{InputId, TaskId, TenantId};
use baton_core::record::{InputState, TaskRecord};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use tokio::sync::broadcast;

/// Changed tasks that may wait for a watcher. A watcher that falls behind gets an error and
/// must read everything again.
const CHANGE_QUEUE: usize = 256;

/// The position of an input in a tenant's list.
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

/// The index. Clones share it.
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
    /// Indexes a durable record and notifies the watchers.
    pub(crate) fn record_published(&self, spec: &Arc<TaskSpec>, record: &Arc<TaskRecord>) {
        if record
            .attempts
            .iter()
            .all(|attempt| attempt.inputs.is_empty())
        {
            return;
        }
        self.index_record(record);
        // An error only means that there is no watcher.
        let _ = self.changes.send(ChangedTask {
            spec: Arc::clone(spec),
            record: Arc::clone(record),
        });
    }

    /// Indexes a record that was stored before watchers could subscribe.
    pub(crate) fn index_record(&self, record: &TaskRecord) {
        self.set(&record.tenant, record.task, open_positions(record));
    }

    fn set(&self, tenant: &TenantId, task: TaskId, positions: Vec<InputPosition>) {
        let mut all = self.lock();
        if positions.is_empty() && !all.contains_key(tenant) {
            return;
        }
        let open = all.entry(tenant.clone()).or_default();
        for closed in open.by_task.remove(&task).unwrap_or_default() {
            open.positions.remove(&closed);
        }
        for position in &positions {
            open.positions.insert(*position, task);
        }
        if !positions.is_empty() {
            open.by_task.insert(task, positions);
        } else if open.positions.is_empty() {
            all.remove(tenant);
        }
    }

    /// The next open inputs after a position, oldest first, each with its task.
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
            .map(|(position, task)| (*position, *task))
            .collect()
    }

    /// Subscribes to changes. Read the open inputs only after this call, or a change in between
    /// is lost.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<ChangedTask> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, TenantOpenInputs>> {
        // A panic leaves at most one stale position, and lists check the task itself.
        self.by_tenant
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_positions(record: &TaskRecord) -> Vec<InputPosition> {
    let newest = record.newest_attempt().map(|attempt| &attempt.inputs[..]);
    let open = newest.unwrap_or_default().iter();
    let open = open.filter(|input| input.state == InputState::Open);
    let position = open.map(|input| InputPosition {
        asked_at: input.asked,
        input: input.id,
    });
    position.collect()
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

    fn position(n: u128, asked: u64) -> InputPosition {
        InputPosition {
            asked_at: WallTime(asked),
            input: InputId(Uuid::from_u128(n)),
        }
    }

    fn page(inbox: &OpenInputIndex, after: Option<InputPosition>, size: usize) -> Vec<u128> {
        let page = inbox.page(&tenant("a"), after, size);
        let ids = page.iter().map(|(position, _)| position.input.0.as_u128());
        ids.collect()
    }

    #[test]
    fn open_inputs_are_listed_oldest_first() {
        let inbox = OpenInputIndex::default();
        for n in 0..5_000 {
            let asked = 10_000 - n;
            inbox.set(
                &tenant("a"),
                task(n.into()),
                vec![position(n.into(), asked)],
            );
        }
        inbox.set(&tenant("b"), task(9_000), vec![position(9_000, 1)]);
        assert_eq!(page(&inbox, None, 2), [4_999, 4_998]);
        assert_eq!(page(&inbox, Some(position(2, 9_998)), 9), [1, 0]);
    }

    #[test]
    fn closed_inputs_leave_the_index_completely() {
        let inbox = OpenInputIndex::default();
        inbox.set(&tenant("a"), task(7), vec![position(1, 1), position(2, 2)]);
        inbox.set(&tenant("a"), task(7), vec![position(2, 2)]);
        assert_eq!(page(&inbox, None, 9), [2]);
        inbox.set(&tenant("a"), task(7), Vec::new());
        inbox.set(&tenant("b"), task(8), Vec::new());
        assert!(inbox.lock().is_empty());
    }
}
