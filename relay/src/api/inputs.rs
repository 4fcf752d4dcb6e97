//! What agents ask and people answer: open inputs of the caller's tenant, page by page or as a stream.

use std::collections::HashMap;

use baton_core::id::{InputId, TaskId, TenantId};
use baton_core::time::Wall;
use baton_proto::v1;
use baton_proto::v1::inputs_server::Inputs;
use tokio::sync::broadcast;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::fault::Fault;
use super::streams::{Answers, Feed};
use super::validate::{self, Why, invalid};
use super::{Api, answering, asked, limits, paging, unary};
use crate::auth::Principal;
use crate::inbox::{Heard, Place};
use crate::reader::{Reader, StoredTask};

#[tonic::async_trait]
impl Inputs for Api {
    async fn list_inputs(
        &self,
        request: Request<v1::ListInputsRequest>,
    ) -> Result<Response<v1::ListInputsResponse>, Status> {
        unary(request, |who, request| self.list_inputs_of(who, request)).await
    }

    async fn watch_inputs(
        &self,
        request: Request<v1::WatchInputsRequest>,
    ) -> Result<Response<Answers<v1::WatchInputsResponse>>, Status> {
        unary(request, |who, request| self.watch_inputs_of(who, request)).await
    }

    async fn answer(
        &self,
        request: Request<v1::AnswerRequest>,
    ) -> Result<Response<v1::AnswerResponse>, Status> {
        unary(request, |who, request| self.answer_input(who, request)).await
    }
}

impl Api {
    async fn list_inputs_of(
        &self,
        who: Principal,
        request: v1::ListInputsRequest,
    ) -> Result<v1::ListInputsResponse, Fault> {
        let size = paging::page_size(request.page_size)?;
        let conditions = [
            request.task_id.as_bytes(),
            &[u8::from(request.include_closed)],
        ]
        .concat();
        let paging = self.paging(&who, "inputs", &conditions);
        let after = paging.position(&request.page_token)?;
        let after = after.map(|at| place_of(&at).ok_or_else(paging::bad_token));
        let after = after.transpose()?;
        let rows = match request.task_id.as_str() {
            "" if request.include_closed => {
                let with = "an empty task_id; closed inputs are listed by task";
                return Err(invalid("include_closed", Why::Conflict { with }).into());
            }
            "" => self.open_inputs(&who.tenant, after, size).await?,
            id => {
                let task = validate::id("task_id", id)?;
                let stored = self.stored_task(&who, task).await?;
                of_task(&stored, after, request.include_closed)
            }
        };
        let rows = rows.into_iter().map(|row| (row.place, row.input));
        let (inputs, last) = paging::one_page(rows, size);
        Ok(v1::ListInputsResponse {
            inputs,
            next_page_token: last
                .map(|at| paging.token(&position(at)))
                .unwrap_or_default(),
        })
    }

    /// One more than a page, if there are so many. What was closed meanwhile leaves its place empty.
    async fn open_inputs(
        &self,
        tenant: &TenantId,
        after: Option<Place>,
        size: usize,
    ) -> Result<Vec<Row>, Fault> {
        let places = self.inbox.page(tenant, after, size + 1);
        let tenant = tenant.clone();
        self.read(move |reader| {
            let mut tasks = HashMap::new();
            let rows = places.into_iter().map(|(place, task)| {
                let stored = tasks
                    .entry(task)
                    .or_insert_with(|| reader.newest_task(&tenant, task));
                let input = stored.as_ref().and_then(|stored| open(stored, place.input));
                Row { place, input }
            });
            rows.collect()
        })
        .await
    }

    async fn watch_inputs_of(
        &self,
        who: Principal,
        request: v1::WatchInputsRequest,
    ) -> Result<Answers<v1::WatchInputsResponse>, Fault> {
        let only: Option<TaskId> = match request.task_id.as_str() {
            "" => None,
            id => Some(validate::id("task_id", id)?),
        };
        // The ear first, the list second: what happens in between is seen twice and shown once.
        let changes = self.inbox.listen();
        if let Some(task) = only {
            self.stored_task(&who, task).await?;
        }
        let watching = Watching {
            api: self.clone(),
            tenant: who.tenant.clone(),
            only,
            live: false,
            shown: HashMap::new(),
        };
        self.stream(&who, |feed| watching.run(changes, feed))
    }
}

/// A place in the list, and what stands there if it is still open.
struct Row {
    place: Place,
    input: Option<v1::Input>,
}

fn of_task(stored: &StoredTask, after: Option<Place>, closed: bool) -> Vec<Row> {
    let (spec, record) = stored;
    let mut rows = Vec::new();
    for attempt in &record.attempts {
        for input in &attempt.inputs {
            let place = Place {
                asked: input.asked,
                input: input.id,
            };
            let shown = asked::shown(spec, record, attempt, input);
            let wanted = closed || shown.state() == v1::InputState::Open;
            if wanted && after.is_none_or(|after| place > after) {
                rows.push(Row {
                    place,
                    input: Some(shown),
                });
            }
        }
    }
    rows.sort_by_key(|row| row.place);
    rows
}

fn open((spec, record): &StoredTask, input: InputId) -> Option<v1::Input> {
    let (attempt, found) = answering::find(record, input)?;
    let shown = asked::shown(spec, record, attempt, found);
    (shown.state() == v1::InputState::Open).then_some(shown)
}

fn position(place: Place) -> Vec<u8> {
    let mut bytes = place.asked.0.to_be_bytes().to_vec();
    bytes.extend_from_slice(place.input.0.as_bytes());
    bytes
}

fn place_of(bytes: &[u8]) -> Option<Place> {
    let (asked, input) = bytes.split_first_chunk::<8>()?;
    Some(Place {
        asked: Wall(u64::from_be_bytes(*asked)),
        input: InputId(Uuid::from_slice(input).ok()?),
    })
}

/// One watcher of inputs. It remembers what it has shown and what is still open of that; there is no queue of changes
/// to overflow, and one that was too slow compares again.
struct Watching {
    api: Api,
    tenant: TenantId,
    only: Option<TaskId>,
    /// What was open at first is shown. From here on also what is asked and answered in one go, by a rule.
    live: bool,
    shown: HashMap<InputId, (TaskId, v1::InputState)>,
}

impl Watching {
    async fn run(
        mut self,
        mut changes: broadcast::Receiver<Heard>,
        feed: Feed<v1::WatchInputsResponse>,
    ) -> Result<(), Fault> {
        self.look_at_all(&feed).await?;
        self.live = true;
        loop {
            match changes.recv().await {
                Ok(heard) => {
                    if self.is_mine(&heard) {
                        self.compare(&(heard.spec, heard.record), &feed).await?;
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => self.look_at_all(&feed).await?,
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            }
        }
    }

    fn is_mine(&self, heard: &Heard) -> bool {
        let wanted = self.only.is_none_or(|only| only == heard.record.task);
        heard.record.tenant == self.tenant && wanted
    }

    /// Everything that is open, and what became of what was.
    async fn look_at_all(&mut self, feed: &Feed<v1::WatchInputsResponse>) -> Result<(), Fault> {
        let mut after = None;
        loop {
            let page = self
                .api
                .inbox
                .page(&self.tenant, after, limits::PAGE_MAX as usize);
            let Some((last, _)) = page.last().copied() else {
                break;
            };
            after = Some(last);
            let tasks = page.into_iter().map(|(_, task)| task);
            let tasks = tasks.filter(|task| self.only.is_none_or(|only| only == *task));
            self.look_at(tasks.collect(), feed).await?;
        }
        let still = self.shown.values().map(|(task, _)| *task).collect();
        self.look_at(still, feed).await
    }

    async fn look_at(
        &mut self,
        mut tasks: Vec<TaskId>,
        feed: &Feed<v1::WatchInputsResponse>,
    ) -> Result<(), Fault> {
        tasks.sort_unstable();
        tasks.dedup();
        for task in tasks {
            let tenant = self.tenant.clone();
            let newest = move |reader: &Reader| reader.newest_task(&tenant, task);
            if let Some(stored) = self.api.read(newest).await? {
                self.compare(&stored, feed).await?;
            }
        }
        Ok(())
    }

    /// Sends what is open and was not shown, and what was shown and is no longer as it was.
    async fn compare(
        &mut self,
        (spec, record): &StoredTask,
        feed: &Feed<v1::WatchInputsResponse>,
    ) -> Result<(), Fault> {
        for attempt in &record.attempts {
            for input in &attempt.inputs {
                let pending = input.state.is_pending();
                let known = self.shown.get(&input.id).map(|(_, state)| *state);
                let form = asked::shown(spec, record, attempt, input);
                let news = match known {
                    None => form.state() == v1::InputState::Open || (self.live && pending),
                    Some(state) => state != form.state(),
                };
                if pending && (news || known.is_some()) {
                    self.shown.insert(input.id, (record.task, form.state()));
                } else if !pending {
                    self.shown.remove(&input.id);
                }
                if news {
                    let message = v1::WatchInputsResponse { input: Some(form) };
                    let sent = feed.send(Ok(message)).await;
                    sent.map_err(|_| Fault::Stopping)?;
                }
            }
        }
        Ok(())
    }
}
