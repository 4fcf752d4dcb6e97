//! Converts the core's record changes to journal entries. A task that changed twice since the last
//! append is stored once, in its newest state.

use std::collections::HashMap;

use baton_core::ids::TaskId;
use baton_core::io::effects::RecordChange;

use crate::records;
use crate::store::StoreChange;

/// Target size of one append; the journal limits an entry to 1 MiB.
const APPEND_BYTES: usize = 512 * 1024;

/// Splits the changes of a turn into appends. A record that is written twice is stored once, but
/// only if all changes fit into one append: only then can no crash separate the two.
pub(super) fn journal_entries(writes: &[RecordChange]) -> Vec<Vec<StoreChange>> {
    let newest = newest_records(writes);
    let is_newest = |(index, write): &(usize, &RecordChange)| !matches!(write, RecordChange::PutLive(record) if newest.get(&record.task) != Some(index));
    let newest_writes = writes.iter().enumerate().filter(is_newest);
    let mut all = Vec::with_capacity(writes.len() + 8);
    newest_writes.for_each(|(_, write)| records::append_changes(write, &mut all));
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

/// The index of the last write of each task's record.
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

/// All writes in order, in appends of about the target size. Adjacent writes of one task up to
/// its record stay in one append, unless they may be committed before the record. Different
/// tasks, and two changes of one task, do not depend on each other.
fn entries_in_order(writes: &[RecordChange]) -> Vec<Vec<StoreChange>> {
    let (mut entries, mut entry, mut bytes) = (Vec::new(), Vec::new(), 0);
    let belong_together = |one: &RecordChange, next: &RecordChange| {
        one.task() == next.task() && !one.may_commit_early() && !is_record(one)
    };
    for group in writes.chunk_by(belong_together) {
        let mut changes = Vec::with_capacity(group.len() + 1);
        group
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
    fn a_record_written_twice_before_an_append_is_stored_once() {
        let live = |task, revision| RecordChange::PutLive(record(task, revision, 0));
        let done = |task, revision| RecordChange::PutDone(record(task, revision, 0));
        // The first task keeps running: one put. The second ends: a put and a delete.
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
    fn a_reopened_task_still_deletes_its_finished_record() {
        let reopened = RecordChange::Reopen(record(1, 2, 0));
        let writes = [reopened, RecordChange::PutLive(record(1, 3, 0))];
        assert_eq!(keys(&journal_entries(&writes)), [3]);
    }

    #[test]
    fn large_changes_of_one_task_go_into_separate_appends() {
        let large = 500 * 1024;
        let writes = [1, 2, 3].map(|revision| RecordChange::PutDone(record(1, revision, large)));
        assert_eq!(journal_entries(&writes).len(), 3);
    }

    #[test]
    fn changes_beyond_one_append_are_all_written_in_order() {
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
