//! The list of attempts: tasks newest first, and within a task the newest attempt first. Each page
//! reads a bounded number of records.

use baton_core::ids::{TaskId, TenantId};
use baton_core::record::AttemptRecord;
use baton_proto::v1;
use prost::Message;
use uuid::Uuid;

use crate::api::Api;
use crate::api::error::fault::{ApiFault, EntityKind};
use crate::api::request::limits;
use crate::api::request::paging;
use crate::api::request::paging::bad_token;
use crate::api::request::validate;
use crate::api::request::validate::ValidationResult;
use crate::api::wire::enums;
use crate::api::wire::task;
use crate::auth::Principal;
use crate::reader::{RecordReader, StoredTask};

struct AttemptFilter {
    task: Option<TaskId>,
    states: Vec<v1::AttemptState>,
    daemon: String,
}

/// The last attempt of a page.
#[derive(Clone, Copy)]
struct AttemptCursor {
    task: TaskId,
    number: u32,
}

impl AttemptCursor {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.task.0.as_bytes().to_vec();
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> ValidationResult<Self> {
        let (task, number) = bytes.split_at_checked(16).ok_or_else(bad_token)?;
        let task = Uuid::from_slice(task).map_err(|_| bad_token())?;
        let number = number.try_into().map_err(|_| bad_token())?;
        Ok(Self {
            task: TaskId(task),
            number: u32::from_be_bytes(number),
        })
    }
}

#[derive(Default)]
struct AttemptListPage {
    rows: Vec<v1::ListedAttempt>,
    next: Option<AttemptCursor>,
}

impl Api {
    pub(crate) async fn handle_list_attempts(
        &self,
        who: Principal,
        request: v1::ListAttemptsRequest,
    ) -> Result<v1::ListAttemptsResponse, ApiFault> {
        let size = paging::page_size(request.page_size)?;
        let paging = self.page_tokens(&who, "attempts", &filter_bytes(&request));
        let after = paging.position(&request.page_token)?;
        let after = after
            .map(|bytes| AttemptCursor::parse(&bytes))
            .transpose()?;
        let filter = AttemptFilter::new(request)?;
        let tenant = who.tenant.clone();
        let page = move |reader: &RecordReader| filter.page(reader, &tenant, after, size);
        let mut page = self
            .read_store(page)
            .await?
            .ok_or(ApiFault::NotFound(EntityKind::Task))?;
        for row in &mut page.rows {
            if let Some(attempt) = &mut row.attempt {
                self.fill_attempt(attempt);
            }
        }
        Ok(v1::ListAttemptsResponse {
            attempts: page.rows,
            next_page_token: page
                .next
                .map(|cursor| paging.token(&cursor.to_bytes()))
                .unwrap_or_default(),
        })
    }
}

fn filter_bytes(request: &v1::ListAttemptsRequest) -> Vec<u8> {
    let selecting = v1::ListAttemptsRequest {
        page_size: 0,
        page_token: String::new(),
        ..request.clone()
    };
    selecting.encode_to_vec()
}

impl AttemptFilter {
    fn new(request: v1::ListAttemptsRequest) -> ValidationResult<Self> {
        validate::count("states", request.states.len(), limits::MAX_FILTER_STATES)?;
        validate::text("daemon", &request.daemon, limits::NAME)?;
        let state = |number: &i32| validate::enumeration("states", *number);
        let task = (!request.task_id.is_empty())
            .then(|| validate::id("task_id", &request.task_id))
            .transpose()?;
        Ok(Self {
            task,
            states: request
                .states
                .iter()
                .map(state)
                .collect::<ValidationResult<_>>()?,
            daemon: request.daemon,
        })
    }

    /// None if the request names a task that does not exist.
    fn page(
        &self,
        reader: &RecordReader,
        tenant: &TenantId,
        after: Option<AttemptCursor>,
        size: usize,
    ) -> Option<AttemptListPage> {
        let mut page = AttemptListPage::default();
        if let Some(task) = self.task {
            let stored = reader.newest_task(tenant, task)?;
            let below = after.map(|cursor| cursor.number);
            self.add_attempts(&stored, below, size, &mut page);
            return Some(page);
        }
        let mut before = after.map(|cursor| cursor.task);
        if let Some(cursor) = after
            && let Some(stored) = reader.newest_task(tenant, cursor.task)
        {
            self.add_attempts(&stored, Some(cursor.number), size, &mut page);
        }
        let mut scanned = 0;
        while page.next.is_none() && scanned < limits::LIST_SCAN_RECORDS {
            let tasks = reader.tasks(tenant, before, size);
            scanned += size;
            before = tasks.next;
            self.add_tasks(&tasks.tasks, size, &mut page);
            if before.is_none() {
                return Some(page);
            }
        }
        // The scan limit was reached before the page was full: the next page continues after the
        // last scanned task.
        let last_scanned = before.map(|task| AttemptCursor { task, number: 0 });
        page.next = page.next.or(last_scanned);
        Some(page)
    }

    fn add_tasks(&self, tasks: &[StoredTask], size: usize, page: &mut AttemptListPage) {
        for stored in tasks {
            if page.next.is_some() {
                return;
            }
            self.add_attempts(stored, None, size, page);
        }
    }

    /// Adds the attempts with numbers below `below`. If the page gets full, sets `next` to its last
    /// attempt.
    fn add_attempts(
        &self,
        (spec, record): &StoredTask,
        below: Option<u32>,
        size: usize,
        page: &mut AttemptListPage,
    ) {
        let attempts = record.attempts.iter().rev();
        let later = attempts.filter(|a| below.is_none_or(|below| a.number < below));
        for attempt in later.filter(|attempt| self.matches(attempt)) {
            if page.rows.len() == size {
                page.next = page.rows.last().and_then(cursor_of);
                return;
            }
            page.rows.push(v1::ListedAttempt {
                task_id: record.task.to_string(),
                attempt: Some(task::attempt_message(spec, record, attempt)),
            });
        }
    }

    fn matches(&self, attempt: &AttemptRecord) -> bool {
        let state = enums::attempt_state(attempt.state.kind());
        let on_daemon = attempt.daemon_holder().is_some_and(|holder| {
            *holder.name == *self.daemon || holder.daemon.to_string() == self.daemon
        });
        (self.states.is_empty() || self.states.contains(&state))
            && (self.daemon.is_empty() || on_daemon)
    }
}

fn cursor_of(row: &v1::ListedAttempt) -> Option<AttemptCursor> {
    let task = row.task_id.parse().ok()?;
    let number = row.attempt.as_ref()?.attempt_number;
    Some(AttemptCursor { task, number })
}
