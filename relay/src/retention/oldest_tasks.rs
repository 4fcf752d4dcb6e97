//! Finished tasks of all tenants, oldest first: ids are made in time order, so each tenant's records are a sorted lane,
//! and the lanes are merged. Reads the disk, page by page; holds a few lines of each tenant.

use std::collections::{BTreeMap, VecDeque};

use baton_core::ids::{AttemptId, TaskId, TenantId};
use baton_core::record::TaskRecord;
use baton_core::time::WallTime;

use crate::reader::RecordReader;

/// Records of one tenant read at one time: few, because there may be many tenants.
const PAGE: usize = 32;

/// A finished task as retention sees it.
#[derive(Clone, Debug)]
pub(super) struct RemovalCandidate {
    pub(super) tenant: TenantId,
    pub(super) task: TaskId,
    pub(super) created: WallTime,
    pub(super) ended: WallTime,
    pub(super) attempts: Vec<AttemptId>,
    /// Of its record alone.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct OldestFinishedTasks {
    reader: RecordReader,
    lanes: Vec<TenantTaskList>,
    /// The lane that has this task at its head.
    heads: BTreeMap<TaskId, usize>,
}

#[derive(Debug)]
struct TenantTaskList {
    tenant: TenantId,
    read: VecDeque<RemovalCandidate>,
    /// Where its next page starts, unless it is at its end.
    next: Option<Option<TaskId>>,
}

impl OldestFinishedTasks {
    /// Everything behind `after`, of all tenants.
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
        for place in 0..oldest.lanes.len() {
            oldest.refill_lane(place);
        }
        oldest
    }

    pub(super) fn reader(&self) -> &RecordReader {
        &self.reader
    }

    fn refill_lane(&mut self, place: usize) {
        let lane = &mut self.lanes[place];
        lane.fill(&self.reader);
        if let Some(head) = lane.read.front() {
            self.heads.insert(head.task, place);
        }
    }
}

impl Iterator for OldestFinishedTasks {
    type Item = RemovalCandidate;

    fn next(&mut self) -> Option<RemovalCandidate> {
        let (_, place) = self.heads.pop_first()?;
        let head = self.lanes[place].read.pop_front();
        self.refill_lane(place);
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
            // A finished task has an end; should one not, its last change stands in for it.
            ended: record.ended.unwrap_or(record.updated),
            attempts: record.attempts.iter().map(|attempt| attempt.id).collect(),
            bytes,
        }
    }
}
