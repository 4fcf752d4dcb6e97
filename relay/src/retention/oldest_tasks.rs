//! Finished tasks of all tenants, oldest first. Ids rise with time, so the records of each
//! tenant are already sorted; the tenants' lists are merged. Reads from disk page by page and
//! keeps only a few records of each tenant in memory.

use std::collections::{BTreeMap, VecDeque};

use baton_core::ids::{AttemptId, TaskId, TenantId};
use baton_core::record::TaskRecord;
use baton_core::time::WallTime;

use crate::reader::RecordReader;

/// Records of one tenant read at a time. Small, because there may be many tenants.
const PAGE: usize = 32;

/// A finished task that retention may remove.
#[derive(Clone, Debug)]
pub(super) struct RemovalCandidate {
    pub(super) tenant: TenantId,
    pub(super) task: TaskId,
    pub(super) created: WallTime,
    pub(super) ended: WallTime,
    pub(super) attempts: Vec<AttemptId>,
    /// Size of the task's record alone.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct OldestFinishedTasks {
    reader: RecordReader,
    lanes: Vec<TenantTaskList>,
    /// The index of the lane whose first task this is.
    heads: BTreeMap<TaskId, usize>,
}

#[derive(Debug)]
struct TenantTaskList {
    tenant: TenantId,
    read: VecDeque<RemovalCandidate>,
    /// Where the next page starts. The outer `None` means that the lane is at its end.
    next: Option<Option<TaskId>>,
}

impl OldestFinishedTasks {
    /// All tasks after `after`, of all tenants.
    pub(super) fn after(reader: &RecordReader, after: Option<TaskId>) -> Self {
        let lane = |tenant| TenantTaskList {
            tenant,
            read: VecDeque::new(),
            next: Some(after),
        };
        let mut oldest = Self {
            reader: reader.clone(),
            lanes: reader.tenants().into_iter().map(lane).collect(),
            heads: BTreeMap::new(),
        };
        for index in 0..oldest.lanes.len() {
            oldest.refill_lane(index);
        }
        oldest
    }

    pub(super) fn reader(&self) -> &RecordReader {
        &self.reader
    }

    fn refill_lane(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        lane.fill(&self.reader);
        if let Some(head) = lane.read.front() {
            self.heads.insert(head.task, index);
        }
    }
}

impl Iterator for OldestFinishedTasks {
    type Item = RemovalCandidate;

    fn next(&mut self) -> Option<RemovalCandidate> {
        let (_, index) = self.heads.pop_first()?;
        let head = self.lanes[index].read.pop_front();
        self.refill_lane(index);
        head
    }
}

impl TenantTaskList {
    fn fill(&mut self, reader: &RecordReader) {
        while self.read.is_empty()
            && let Some(after) = self.next
        {
            let page = reader.finished_after(&self.tenant, after, PAGE);
            self.next = page.next.map(Some);
            let candidates = page
                .tasks
                .iter()
                .map(|(record, bytes)| RemovalCandidate::of(record, *bytes));
            self.read.extend(candidates);
        }
    }
}

impl RemovalCandidate {
    fn of(record: &TaskRecord, bytes: u64) -> Self {
        Self {
            tenant: record.tenant.clone(),
            task: record.task,
            created: record.created,
            // A finished task always has an end time. Fall back to the last change if it is
            // missing.
            ended: record.ended.unwrap_or(record.updated),
            attempts: record.attempts.iter().map(|attempt| attempt.id).collect(),
            bytes,
        }
    }
}
