//! The index of parked tasks in list order: newest park first, then by id.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::core_state::CoreOwners;
use crate::ids::{TaskId, TenantId};
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::stored_lookup::StoredRecords;
use crate::record::{AttentionCause, TaskRecord};
use crate::task::live_task::LiveTask;
use crate::task::spec::TaskSpec;
use crate::time::WallTime;
use crate::turn::CoreTurn;

/// The position of a task in the list; also the end of a page.
pub type ParkedListCursor = (Reverse<WallTime>, TaskId);

/// Derived from the task records: every change of a record passes `update_task`.
#[derive(Debug, Default)]
pub(crate) struct ParkedTasks {
    since: HashMap<TaskId, WallTime>,
    cursors: BTreeMap<TenantId, BTreeSet<ParkedListCursor>>,
}

impl ParkedTasks {
    /// Updates the index from the task's current record.
    pub(crate) fn update_task(&mut self, record: &TaskRecord) {
        let since = record.attention.as_ref().map(|attention| attention.since);
        let known = self.since.get(&record.task).copied();
        if known == since || (since.is_none() && mutant!(ListedAfterHandOff)) {
            return;
        }
        self.remove_task(&record.tenant, record.task);
        if let Some(since) = since {
            self.since.insert(record.task, since);
            let cursors = self.cursors.entry(record.tenant.clone()).or_default();
            cursors.insert((Reverse(since), record.task));
        }
    }

    pub(crate) fn remove_task(&mut self, tenant: &TenantId, task: TaskId) {
        let Some(since) = self.since.remove(&task) else {
            return;
        };
        if let Some(cursors) = self.cursors.get_mut(tenant) {
            cursors.remove(&(Reverse(since), task));
            if cursors.is_empty() {
                self.cursors.remove(tenant);
            }
        }
    }

    /// The tenant's parked tasks after this position.
    pub(crate) fn after_cursor(
        &self,
        tenant: &TenantId,
        after: Option<ParkedListCursor>,
    ) -> impl Iterator<Item = TaskId> {
        let cursors = self.cursors.get(tenant).into_iter();
        let remaining = cursors.flat_map(move |cursors| match after {
            Some(after) => {
                cursors.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded))
            }
            None => cursors.range(..),
        });
        remaining.map(|(_, task)| *task)
    }
}

/// Lists one page of parked tasks, newest first.
#[derive(Debug)]
pub struct ListParkedTasks {
    pub tenant: TenantId,
    /// Empty means all causes.
    pub causes: Vec<AttentionCause>,
    /// Only tasks that agents of this scope may pick up.
    pub agent_scope: Option<Arc<str>>,
    pub after: Option<ParkedListCursor>,
    pub limit: usize,
}

impl ListParkedTasks {
    fn matches(&self, live: &LiveTask) -> bool {
        let cause = live.record().attention.as_ref().map(|a| a.cause);
        let caused = cause.is_some_and(|cause| self.causes.contains(&cause));
        let scoped = live.spec.agent_scope.as_deref() == self.agent_scope.as_deref();
        (self.causes.is_empty() || caused) && (self.agent_scope.is_none() || scoped)
    }
}

impl Command for ListParkedTasks {
    type Reply = Vec<(Arc<TaskRecord>, Arc<TaskSpec>)>;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        _turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Self::Reply> {
        let parked = core.tasks.parked_after(&self.tenant, self.after);
        let rows = parked
            .filter(|live| self.matches(live))
            .map(|live| (live.shared_record(), Arc::clone(&live.spec)));
        Ok(CommandReply::after_everything(
            rows.take(self.limit).collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::samples::tenant;

    #[test]
    fn parked_tasks_are_listed_newest_first_and_pages_continue() {
        let mut parked = ParkedTasks::default();
        let task = |n: u128| TaskId(Uuid::from_u128(n));
        for (n, since) in [(1, 10), (2, 30), (3, 30), (4, 20)] {
            parked.since.insert(task(n), WallTime(since));
            let cursors = parked.cursors.entry(tenant("acme")).or_default();
            cursors.insert((Reverse(WallTime(since)), task(n)));
        }
        let all: Vec<TaskId> = parked.after_cursor(&tenant("acme"), None).collect();
        assert_eq!(all, [task(2), task(3), task(4), task(1)]);
        let cursor = (Reverse(WallTime(30)), task(3));
        let rest: Vec<TaskId> = parked.after_cursor(&tenant("acme"), Some(cursor)).collect();
        assert_eq!(rest, [task(4), task(1)]);
        assert_eq!(parked.after_cursor(&tenant("other"), None).count(), 0);
        parked.remove_task(&tenant("acme"), task(3));
        assert_eq!(parked.after_cursor(&tenant("acme"), None).count(), 3);
    }
}
