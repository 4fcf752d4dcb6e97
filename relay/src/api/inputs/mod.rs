//! The `Inputs` service: lists, watches and answers the permission requests and questions of the
//! caller's tenant.

pub(crate) mod answer;
pub(crate) mod view;

use std::collections::HashMap;

use baton_core::ids::{InputId, TaskId, TenantId};
use baton_core::time::WallTime;
use baton_proto::v1;
use baton_proto::v1::inputs_server::Inputs;
use tokio::sync::broadcast;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::error::fault::ApiFault;
use super::request::streams::{ResponseStream, StreamSender};
use super::request::validate;
use super::request::validate::{InvalidReason, invalid_field};
use super::request::{limits, paging};
use super::{Api, run_unary};
use crate::auth::Principal;
use crate::open_inputs::{ChangedTask, InputPosition};
use crate::reader::{RecordReader, StoredTask};

#[tonic::async_trait]
impl Inputs for Api {
    async fn list_inputs(
        &self,
        request: Request<v1::ListInputsRequest>,
    ) -> Result<Response<v1::ListInputsResponse>, Status> {
        run_unary(request, |who, request| {
            self.handle_list_inputs(who, request)
        })
        .await
    }

    async fn watch_inputs(
        &self,
        request: Request<v1::WatchInputsRequest>,
    ) -> Result<Response<ResponseStream<v1::WatchInputsResponse>>, Status> {
        run_unary(request, |who, request| {
            self.handle_watch_inputs(who, request)
        })
        .await
    }

    async fn answer(
        &self,
        request: Request<v1::AnswerRequest>,
    ) -> Result<Response<v1::AnswerResponse>, Status> {
        run_unary(request, |who, request| self.answer_input(who, request)).await
    }
}

impl Api {
    async fn handle_list_inputs(
        &self,
        who: Principal,
        request: v1::ListInputsRequest,
    ) -> Result<v1::ListInputsResponse, ApiFault> {
        let size = paging::page_size(request.page_size)?;
        let conditions = [
            request.task_id.as_bytes(),
            &[u8::from(request.include_closed)],
        ]
        .concat();
        let paging = self.page_tokens(&who, "inputs", &conditions);
        let after = paging.position(&request.page_token)?;
        let after = after.map(|at| decode_position(&at).ok_or_else(paging::bad_token));
        let after = after.transpose()?;
        let rows = match request.task_id.as_str() {
            "" if request.include_closed => {
                let with = "an empty task_id; closed inputs are listed by task";
                return Err(
                    invalid_field("include_closed", InvalidReason::Conflict { with }).into(),
                );
            }
            "" => self.open_input_rows(&who.tenant, after, size).await?,
            id => {
                let task = validate::id("task_id", id)?;
                let stored = self.stored_task(&who, task).await?;
                rows_of_task(&stored, after, request.include_closed)
            }
        };
        let rows = rows.into_iter().map(|row| (row.position, row.input));
        let (inputs, last) = paging::cut_page(rows, size);
        Ok(v1::ListInputsResponse {
            inputs,
            next_page_token: last
                .map(|at| paging.token(&encode_position(at)))
                .unwrap_or_default(),
        })
    }

    /// One row more than a page, if there are that many. An input that was closed meanwhile
    /// keeps its position, without a message.
    async fn open_input_rows(
        &self,
        tenant: &TenantId,
        after: Option<InputPosition>,
        size: usize,
    ) -> Result<Vec<InputRow>, ApiFault> {
        let positions = self.open_inputs.page(tenant, after, size + 1);
        let tenant = tenant.clone();
        self.read_store(move |reader| {
            let mut tasks = HashMap::new();
            let rows = positions.into_iter().map(|(position, task)| {
                let stored = tasks
                    .entry(task)
                    .or_insert_with(|| reader.newest_task(&tenant, task));
                let input = stored
                    .as_ref()
                    .and_then(|stored| open_input(stored, position.input));
                InputRow { position, input }
            });
            rows.collect()
        })
        .await
    }

    async fn handle_watch_inputs(
        &self,
        who: Principal,
        request: v1::WatchInputsRequest,
    ) -> Result<ResponseStream<v1::WatchInputsResponse>, ApiFault> {
        let only: Option<TaskId> = match request.task_id.as_str() {
            "" => None,
            id => Some(validate::id("task_id", id)?),
        };
        // Subscribe before listing: a change in between is received twice and sent once, but never
        // missed.
        let changes = self.open_inputs.subscribe();
        if let Some(task) = only {
            self.stored_task(&who, task).await?;
        }
        let watching = InputWatcher {
            api: self.clone(),
            tenant: who.tenant.clone(),
            only_task: only,
            live: false,
            sent_states: HashMap::new(),
        };
        self.open_stream(&who, |feed| watching.run(changes, feed))
    }
}

/// A position in the list, and the input there if it is still open.
struct InputRow {
    position: InputPosition,
    input: Option<v1::Input>,
}

fn rows_of_task(stored: &StoredTask, after: Option<InputPosition>, closed: bool) -> Vec<InputRow> {
    let (spec, record) = stored;
    let mut rows = Vec::new();
    for attempt in &record.attempts {
        for input in &attempt.inputs {
            let position = InputPosition {
                asked_at: input.asked,
                input: input.id,
            };
            let message = view::input_message(spec, record, attempt, input);
            let wanted = closed || message.state() == v1::InputState::Open;
            if wanted && after.is_none_or(|after| position > after) {
                rows.push(InputRow {
                    position,
                    input: Some(message),
                });
            }
        }
    }
    rows.sort_by_key(|row| row.position);
    rows
}

fn open_input((spec, record): &StoredTask, input: InputId) -> Option<v1::Input> {
    let (attempt, found) = answer::find_input(record, input)?;
    let message = view::input_message(spec, record, attempt, found);
    (message.state() == v1::InputState::Open).then_some(message)
}

fn encode_position(position: InputPosition) -> Vec<u8> {
    let mut bytes = position.asked_at.0.to_be_bytes().to_vec();
    bytes.extend_from_slice(position.input.0.as_bytes());
    bytes
}

fn decode_position(bytes: &[u8]) -> Option<InputPosition> {
    let (asked, input) = bytes.split_first_chunk::<8>()?;
    Some(InputPosition {
        asked_at: WallTime(u64::from_be_bytes(*asked)),
        input: InputId(Uuid::from_slice(input).ok()?),
    })
}

/// One watcher of inputs. It stores the sent state of each pending input. If it falls behind the
/// change channel, it lists all open inputs again and compares, so no change is lost.
struct InputWatcher {
    api: Api,
    tenant: TenantId,
    only_task: Option<TaskId>,
    /// Whether the initial list was sent. After that, an input that a rule answers at once is sent
    /// too.
    live: bool,
    sent_states: HashMap<InputId, (TaskId, v1::InputState)>,
}

impl InputWatcher {
    async fn run(
        mut self,
        mut changes: broadcast::Receiver<ChangedTask>,
        feed: StreamSender<v1::WatchInputsResponse>,
    ) -> Result<(), ApiFault> {
        self.send_all_open(&feed).await?;
        self.live = true;
        loop {
            match changes.recv().await {
                Ok(changed) => {
                    if self.is_watched(&changed) {
                        self.send_task_changes(&(changed.spec, changed.record), &feed)
                            .await?;
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => self.send_all_open(&feed).await?,
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            }
        }
    }

    fn is_watched(&self, changed: &ChangedTask) -> bool {
        let wanted = self
            .only_task
            .is_none_or(|only| only == changed.record.task);
        changed.record.tenant == self.tenant && wanted
    }

    /// Sends all open inputs, and the new state of those sent before.
    async fn send_all_open(
        &mut self,
        feed: &StreamSender<v1::WatchInputsResponse>,
    ) -> Result<(), ApiFault> {
        let mut after = None;
        loop {
            let page = self
                .api
                .open_inputs
                .page(&self.tenant, after, limits::PAGE_MAX as usize);
            let Some((last, _)) = page.last().copied() else {
                break;
            };
            after = Some(last);
            let tasks = page.into_iter().map(|(_, task)| task);
            let tasks = tasks.filter(|task| self.only_task.is_none_or(|only| only == *task));
            self.send_tasks_changes(tasks.collect(), feed).await?;
        }
        let still = self.sent_states.values().map(|(task, _)| *task).collect();
        self.send_tasks_changes(still, feed).await
    }

    async fn send_tasks_changes(
        &mut self,
        mut tasks: Vec<TaskId>,
        feed: &StreamSender<v1::WatchInputsResponse>,
    ) -> Result<(), ApiFault> {
        tasks.sort_unstable();
        tasks.dedup();
        for task in tasks {
            let tenant = self.tenant.clone();
            let newest = move |reader: &RecordReader| reader.newest_task(&tenant, task);
            if let Some(stored) = self.api.read_store(newest).await? {
                self.send_task_changes(&stored, feed).await?;
            }
        }
        Ok(())
    }

    /// Sends each input that is open and was not sent yet, or whose state differs from the one
    /// sent.
    async fn send_task_changes(
        &mut self,
        (spec, record): &StoredTask,
        feed: &StreamSender<v1::WatchInputsResponse>,
    ) -> Result<(), ApiFault> {
        for attempt in &record.attempts {
            for input in &attempt.inputs {
                let pending = input.state.is_pending();
                let sent = self.sent_states.get(&input.id).map(|(_, state)| *state);
                let message = view::input_message(spec, record, attempt, input);
                let is_new = match sent {
                    None => message.state() == v1::InputState::Open || (self.live && pending),
                    Some(state) => state != message.state(),
                };
                if pending && (is_new || sent.is_some()) {
                    self.sent_states
                        .insert(input.id, (record.task, message.state()));
                } else if !pending {
                    self.sent_states.remove(&input.id);
                }
                if is_new {
                    let response = v1::WatchInputsResponse {
                        input: Some(message),
                    };
                    let delivered = feed.send(Ok(response)).await;
                    delivered.map_err(|_| ApiFault::Stopping)?;
                }
            }
        }
        Ok(())
    }
}
