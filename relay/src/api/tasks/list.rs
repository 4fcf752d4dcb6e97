//! The filter of the task list, and one page of it: newest first, within the tenant. A page reads a
//! bounded number of records.

use std::collections::BTreeMap;

use baton_core::ids::{TaskId, TenantId};
use baton_core::record::TaskRecord;
use baton_proto::v1;
use prost::Message;

use crate::api::request::limits;
use crate::api::request::validate;
use crate::api::request::validate::{InvalidReason, ValidationResult, invalid_field};
use crate::api::wire::enums;
use crate::auth::Principal;
use crate::reader::{RecordReader, StoredTask};

/// The parts of a list request that select rows, for the page token.
pub(crate) fn filter_bytes(request: &v1::ListTasksRequest) -> Vec<u8> {
    let selecting = v1::ListTasksRequest {
        page_size: 0,
        page_token: String::new(),
        ..request.clone()
    };
    selecting.encode_to_vec()
}

/// Selects the tasks of a list.
#[derive(Debug)]
pub(crate) struct TaskFilter {
    states: Vec<v1::TaskState>,
    agent: String,
    conversation_id: String,
    labels: BTreeMap<String, String>,
    since_ms: u64,
    daemon: String,
    who: Principal,
}

/// One page of the tasks that match the filter.
#[derive(Debug, Default)]
pub(crate) struct TaskListPage {
    pub(crate) tasks: Vec<StoredTask>,
    pub(crate) unreadable: u64,
    pub(crate) next: Option<TaskId>,
}

impl TaskFilter {
    pub(crate) fn new(request: v1::ListTasksRequest, who: &Principal) -> ValidationResult<Self> {
        validate::count("states", request.states.len(), limits::MAX_FILTER_STATES)?;
        let state = |number: &i32| validate::enumeration("states", *number);
        validate::text("agent", &request.agent, limits::NAME)?;
        validate::text(
            "conversation_id",
            &request.conversation_id,
            limits::EXTERNAL_ID,
        )?;
        validate::text("daemon", &request.daemon, limits::NAME)?;
        let since = request.since.as_ref();
        if since.is_some_and(|at| at.seconds < 0 || !(0..1_000_000_000).contains(&at.nanos)) {
            return Err(invalid_field("since", InvalidReason::BadTime));
        }
        Ok(Self {
            states: request
                .states
                .iter()
                .map(state)
                .collect::<ValidationResult<_>>()?,
            agent: request.agent,
            conversation_id: request.conversation_id,
            labels: validate::labels("labels", request.labels)?,
            since_ms: since.map_or(0, baton_proto::timestamp_to_ms),
            daemon: request.daemon,
            who: who.clone(),
        })
    }

    /// Reads a bounded number of records. A short page may still have a next page.
    pub(crate) fn page(
        &self,
        reader: &RecordReader,
        tenant: &TenantId,
        mut before: Option<TaskId>,
        size: usize,
    ) -> TaskListPage {
        let mut result = TaskListPage::default();
        let mut scanned = 0;
        while scanned < limits::LIST_SCAN_RECORDS {
            let wanted = size - result.tasks.len();
            let page = reader.tasks(tenant, before, wanted);
            scanned += wanted;
            result.unreadable += page.unreadable;
            let past = page
                .tasks
                .last()
                .is_some_and(|(_, oldest)| oldest.created.0 < self.since_ms);
            result
                .tasks
                .extend(page.tasks.into_iter().filter(|task| self.matches(task)));
            // All following tasks are older than `since`.
            result.next = if past { None } else { page.next };
            before = result.next;
            if result.next.is_none() || result.tasks.len() == size {
                break;
            }
        }
        result
    }

    fn matches(&self, (spec, record): &StoredTask) -> bool {
        let state = enums::task_state(record.state);
        let has = |(key, value): (&String, &String)| spec.labels.get(key) == Some(value);
        let matches_text =
            |wanted: &str, given: Option<&str>| wanted.is_empty() || given == Some(wanted);
        self.who.can_see(spec)
            && (self.states.is_empty() || self.states.contains(&state))
            && matches_text(&self.agent, Some(&spec.agent))
            && matches_text(&self.conversation_id, spec.conversation_id.as_deref())
            && self.labels.iter().all(has)
            && record.created.0 >= self.since_ms
            && (self.daemon.is_empty() || self.is_held_by_daemon(record))
    }

    fn is_held_by_daemon(&self, record: &TaskRecord) -> bool {
        let held = record
            .newest_attempt()
            .filter(|attempt| attempt.state.is_leased());
        let holder = held.and_then(|attempt| attempt.daemon_holder());
        holder.is_some_and(|holder| {
            *holder.name == *self.daemon || holder.daemon.to_string() == self.daemon
        })
    }
}
