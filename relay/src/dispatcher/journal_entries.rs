//! From the core's writes to the journal's appends. A task that moved twice since the last append is stored once, as it is now.

use std::collections::HashMap;

use baton_core::ids::TaskId;
use baton_core::io::effects::RecordChange;

use crate::records;
use crate::store::StoreChange;

/// Changes of one append; the journal bounds an entry at 1 MiB.
const APPEND_BYTES: usize = 512 * 1024;

/// The changes of a turn, cut into appends. A record that is written again in the same turn is stored once, as long as all is one
/// append: only then can no crash come between the two.
pub(super) fn journal_entries(writes: &[RecordChange]) -> Vec<Vec<StoreChange>> {
    let newest = newest_records(writes);
    let is_newest = |(index, write): &(usize, &RecordChange)| !matches!(write, RecordChange::PutLive(record) if newest.get(&record.task) != Some(index));
    let kept = writes.iter().enumerate().filter(is_newest);
    let mut all = Vec::with_capacity(writes.len() + 8);
    kept.for_each(|(_, write)| records::append_changes(write, &mut all));
    if all.iter().map(StoreChange::size).sum::<usize>() <= APPEND_BYTES {
        return if all.is_empty() {
            Vec::new()
        } else {
            vec![all]
        };
    }
    entries_in_order(writes)
}

fn is_record(write: &RecordChange) -> bool {
    matches!(
        write,
        RecordChange::PutLive(_) | RecordChange::PutDone(_) | RecordChange::Reopen(_)
    )
}

/// Where each task's record was last written.
fn newest_records(writes: &[RecordChange]) -> HashMap<TaskId, usize> {
    let record = |(index, write): (usize, &RecordChange)| match write {
        RecordChange::PutLive(record)
        | RecordChange::PutDone(record)
        | RecordChange::Reopen(record) => Some((record.task, index)),
        RecordChange::PutSpec { .. }
        | RecordChange::PutIdempotency { .. }
        | RecordChange::PutDaemon(_)
        | RecordChange::PutScheduler(_)
        | RecordChange::PutFence(_)
        | RecordChange::DropFence(_)
        | RecordChange::RemoveTask { .. }
        | RecordChange::PutForgotten(_)
        | RecordChange::PutDaemonChanges(_)
        | RecordChange::PutProgress(_)
        | RecordChange::PutCheckpoint(_)
        | RecordChange::DropCheckpoint { .. }
        | RecordChange::PutPauses(_)
        | RecordChange::DropDaemon(_) => None,
    };
    writes.iter().enumerate().filter_map(record).collect()
}

/// Every write, in appends of about the usual size. Writes of one task that stand together stay together up to its record, unless
/// they may go ahead of it; tasks do not depend on each other, and neither do two changes of one.
fn entries_in_order(writes: &[RecordChange]) -> Vec<Vec<StoreChange>> {
    let (mut entries, mut entry, mut bytes) = (Vec::new(), Vec::new(), 0);
    let together = |one: &RecordChange, next: &RecordChange| {
        one.task() == next.task() && !one.may_commit_early() && !is_record(one)
    };
    for together in writes.chunk_by(together) {
        let mut changes = Vec::with_capacity(together.len() + 1);
        together
            .iter()
            .for_each(|write| records::append_changes(write, &mut changes));
        let more = changes.iter().map(StoreChange::size).sum::<usize>();
        if bytes + more > APPEND_BYTES && !entry.is_empty() {
            entries.push(std::mem::take(&mut entry));
            bytes = 0;
        }
        bytes += more;
        entry.append(&mut changes);
    }
    entries.extend((!entry.is_empty()).then_some(entry));
    entries
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use baton_core::ids::TenantId;
    use baton_core::record::{RetryCounters, TaskRecord, TaskState, TaskTimeline, TraceIds};
    use baton_core::time::WallTime;
    use uuid::Uuid;

    use super::*;

    fn record(task: u128, revision: u64, padding: usize) -> Arc<TaskRecord> {
        let trace = TraceIds {
            trace_id: [0; 16],
            root_span: [0; 8],
            parent_span: None,
            sampled: false,
        };
        Arc::new(TaskRecord {
            tenant: TenantId::new("default").unwrap(),
            task: TaskId(Uuid::from_u128(task)),
            revision,
            state: TaskState::Running,
            created: WallTime(0),
            updated: WallTime(0),
            ended: None,
            attempts: Vec::new(),
            cancel: None,
            attention: None,
            retry: None,
            counters: RetryCounters::default(),
            paused: None,
            retry_stop_reason: (padding > 0).then(|| "x".repeat(padding).into()),
            checkpoint_count: 0,
            checkpointed_revision: 0,
            timeline: TaskTimeline::default(),
            trace,
        })
    }

    fn keys(entries: &[Vec<StoreChange>]) -> Vec<usize> {
        entries.iter().map(Vec::len).collect()
    }

    #[test]
    fn what_is_written_again_before_it_is_handed_over_is_stored_once() {
        let live = |task, revision| RecordChange::PutLive(record(task, revision, 0));
        let done = |task, revision| RecordChange::PutDone(record(task, revision, 0));
        // The first task runs on, the second ends: a put, and a put with a delete.
        let writes = [live(1, 1), live(2, 1), live(1, 2), live(2, 2), done(2, 3)];
        let entries = journal_entries(&writes);
        assert_eq!(keys(&entries), [3]);
        assert_eq!(entries[0], {
            let mut expected = Vec::new();
            for write in [&writes[2], &writes[4]] {
                records::append_changes(write, &mut expected);
            }
            expected
        });
        assert!(journal_entries(&[]).is_empty());
    }

    #[test]
    fn a_task_that_was_reopened_keeps_the_removal_of_its_end() {
        let reopened = RecordChange::Reopen(record(1, 2, 0));
        let writes = [reopened, RecordChange::PutLive(record(1, 3, 0))];
        assert_eq!(keys(&journal_entries(&writes)), [3]);
    }

    #[test]
    fn no_two_changes_of_one_task_are_forced_into_one_append() {
        let large = 500 * 1024;
        let writes = [1, 2, 3].map(|revision| RecordChange::PutDone(record(1, revision, large)));
        assert_eq!(journal_entries(&writes).len(), 3);
    }

    #[test]
    fn what_does_not_fit_into_one_append_is_written_whole_and_in_order() {
        let large = 200 * 1024;
        let writes: Vec<RecordChange> = (1..=4)
            .map(|revision| {
                RecordChange::PutLive(record(u128::from(revision % 2), revision, large))
            })
            .chain((10..14).map(|task| RecordChange::PutLive(record(task, 1, large))))
            .collect();
        let entries = journal_entries(&writes);
        assert_eq!(keys(&entries), [2, 2, 2, 2]);
    }
}
