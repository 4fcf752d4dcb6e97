//! Clients of two tenants that work without pause: submit, repeat a submit, watch, report
//! progress, block, resume, cancel early and late, and ask for tasks of the other tenant. Each
//! records its calls and their answers. A call without an answer is repeated with its key.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_history::{CallOutcome, ClientOperation, Observation, ParticipantLog};
use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    BlockTaskRequest, ProgressUpdate, ResumeTaskRequest, RetryPolicy, SubmitRequest, Task,
    TaskSpec, TaskState, UpdateProgressRequest, WatchTaskRequest, WhenUnsafe,
};
use baton_tests::{TestClient, command_task, error_code, wait_within};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::chaos_run::now_ms;
use crate::final_state::{history_event, task_state_name};
use crate::{STANDIN, random_millis, sleep_unless_stopped};

/// Shorter than most faults, so that leases expire.
const LEASE_MS: u64 = 5_000;
/// Delay before a call is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// State that all clients share.
#[derive(Debug)]
pub(crate) struct ClientLoad {
    acknowledged: AtomicU64,
    stop: CancellationToken,
    /// Some tasks with their tenants, for requests by the other tenant.
    tasks: Mutex<Vec<(&'static str, String)>>,
    socket: PathBuf,
    mark: &'static str,
}

impl ClientLoad {
    pub(crate) fn new(socket: &Path, mark: &'static str) -> Arc<Self> {
        Arc::new(Self {
            acknowledged: AtomicU64::new(0),
            stop: CancellationToken::new(),
            tasks: Mutex::default(),
            socket: socket.to_owned(),
            mark,
        })
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Stops new work; open tasks are followed to their end.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub(crate) fn stop_token(&self) -> &CancellationToken {
        &self.stop
    }

    fn remember_task(&self, tenant: &'static str, task: &str) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() >= 100 {
            let any = rand::random_range(0..tasks.len());
            tasks.swap_remove(any);
        }
        tasks.push((tenant, task.to_owned()));
    }

    fn random_foreign_task(&self, tenant: &str) -> Option<String> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let foreign: Vec<_> = tasks.iter().filter(|(other, _)| *other != tenant).collect();
        let any = rand::random_range(0..foreign.len().max(1));
        foreign.get(any).map(|(_, task)| task.clone())
    }
}

pub(crate) struct LoadClient {
    pub(crate) client: TestClient,
    pub(crate) tenant: &'static str,
    pub(crate) name: String,
    pub(crate) view: ParticipantLog,
    pub(crate) load: Arc<ClientLoad>,
    pub(crate) calls: AtomicU64,
}

/// A call of a client.
pub(crate) struct ClientRequest {
    pub(crate) op: ClientOperation,
    pub(crate) task: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) body: Option<String>,
}

impl LoadClient {
    pub(crate) async fn run(self) {
        let mut turn = 0;
        while !self.load.stop.is_cancelled() {
            turn += 1;
            // Boxed, because the future of one turn is too large for a worker's stack.
            Box::pin(self.run_one_task(turn)).await;
        }
    }

    async fn run_one_task(&self, turn: u64) {
        let (spec, body) = self.random_command_task();
        let key = format!("{}-{turn}", self.name);
        let twice = rand::random_range(0..5) == 0;
        let task = if twice {
            let (one, other) = tokio::join!(
                self.submit(&spec, &key, &body),
                self.submit(&spec, &key, &body)
            );
            one.or(other)
        } else {
            self.submit(&spec, &key, &body).await
        };
        let Some(task) = task else {
            sleep_unless_stopped(RETRY_DELAY, &self.load.stop).await;
            return;
        };
        self.load.remember_task(self.tenant, &task);
        match rand::random_range(0..6) {
            0 => {
                sleep_unless_stopped(random_millis(0, 3_000), &self.load.stop).await;
                self.cancel(&task).await;
            }
            1 => Box::pin(self.report_progress(&task, &key)).await,
            2 => {
                sleep_unless_stopped(random_millis(0, 1_000), &self.load.stop).await;
                Box::pin(self.block_and_resume(&task, &key)).await;
            }
            _ => {}
        }
        self.follow_to_end(&task).await;
        match rand::random_range(0..6) {
            0 => self.cancel(&task).await,
            1 => drop(self.submit(&spec, &key, &body).await),
            2 => self.probe_foreign_task().await,
            _ => self.get(&task).await,
        }
    }

    /// A command that reports itself, prints for a while, and exits with 0 or an error.
    fn random_command_task(&self) -> (TaskSpec, String) {
        let (lines, ms) = (rand::random_range(1..8), rand::random_range(20..400));
        let (lines, ms) = (format!("{lines}"), format!("{ms}"));
        let socket = self.load.socket.display().to_string();
        let code = if rand::random_range(0..10) == 0 {
            "3"
        } else {
            "0"
        };
        let arguments = ["live", &socket, &lines, &ms, "exit", code];
        let spec = TaskSpec {
            lease_ttl_ms: Some(LEASE_MS),
            retry: Some(RetryPolicy {
                max_losses: Some(10),
                when_unsafe: WhenUnsafe::Retry.into(),
                backoff_initial_ms: Some(10),
                ..RetryPolicy::default()
            }),
            ..command_task(STANDIN, &arguments, self.load.mark)
        };
        (spec, arguments.join(" "))
    }

    /// None if it was rejected.
    async fn submit(&self, spec: &TaskSpec, key: &str, body: &str) -> Option<String> {
        let call = || ClientRequest {
            op: ClientOperation::Submit,
            task: None,
            key: Some(key.to_owned()),
            body: Some(body.to_owned()),
        };
        loop {
            let request = SubmitRequest {
                spec: Some(spec.clone()),
                idempotency_key: key.to_owned(),
                ..SubmitRequest::default()
            };
            let answer = async {
                let answer = self.client.try_submit(request).await?;
                Ok::<_, Status>((answer.task, answer.existed))
            };
            match self.call_and_record(call(), answer).await {
                (CallOutcome::Ok, task) => return task,
                (CallOutcome::Fail, _) => return None,
                (CallOutcome::Info, _) => self.wait_before_retry().await,
            }
        }
    }

    async fn cancel(&self, task: &str) {
        loop {
            let answer = async {
                let answer = self.client.try_cancel(task).await?;
                Ok::<_, Status>((answer.task, answer.already_finished))
            };
            match self
                .call_and_record(request_about_task(ClientOperation::Cancel, task), answer)
                .await
            {
                (CallOutcome::Info, _) => self.wait_before_retry().await,
                _ => return,
            }
        }
    }

    /// Reports progress from outside the attempt.
    async fn report_progress(&self, task: &str, item: &str) {
        let request = UpdateProgressRequest {
            task_id: task.to_owned(),
            update: Some(ProgressUpdate {
                completed_items: vec![item.to_owned()],
                ..ProgressUpdate::default()
            }),
        };
        let call = || ClientRequest {
            body: Some(item.to_owned()),
            ..request_about_task(ClientOperation::Progress, task)
        };
        loop {
            let answer = async {
                let mut tasks = self.client.tasks();
                let answer = tasks.update_progress(request.clone());
                let answer = wait_within("an answer to UpdateProgress", answer).await?;
                Ok::<_, Status>((answer.into_inner().task, false))
            };
            match self.call_and_record(call(), answer).await {
                (CallOutcome::Info, _) => self.wait_before_retry().await,
                _ => return,
            }
        }
    }

    /// Blocks the task in any state, then resumes it.
    async fn block_and_resume(&self, task: &str, item: &str) {
        Box::pin(self.report_progress(task, item)).await;
        let request = BlockTaskRequest {
            task_id: task.to_owned(),
            reason: "needs a person".to_owned(),
            ..BlockTaskRequest::default()
        };
        loop {
            let answer = async {
                let mut tasks = self.client.tasks();
                let answer =
                    wait_within("an answer to Block", tasks.block(request.clone())).await?;
                Ok::<_, Status>((answer.into_inner().task, false))
            };
            match self
                .call_and_record(request_about_task(ClientOperation::Block, task), answer)
                .await
            {
                (CallOutcome::Info, _) => self.wait_before_retry().await,
                _ => break,
            }
        }
        sleep_unless_stopped(random_millis(0, 500), &self.load.stop).await;
        Box::pin(self.resume_task(task)).await;
    }

    /// Also if another client resumes it: the answer of one of them has the attempt that
    /// continues.
    async fn resume_task(&self, task: &str) {
        let request = ResumeTaskRequest {
            task_id: task.to_owned(),
            reason: "reviewed".to_owned(),
            ..ResumeTaskRequest::default()
        };
        loop {
            let answer = async {
                let mut tasks = self.client.tasks();
                let answer =
                    wait_within("an answer to Resume", tasks.resume(request.clone())).await?;
                let answer = answer.into_inner();
                let made = Some(answer.attempt_id);
                Ok::<_, Status>((answer.task, false, made))
            };
            match self
                .call_and_record_attempt(request_about_task(ClientOperation::Resume, task), answer)
                .await
            {
                (CallOutcome::Info, _) => self.wait_before_retry().await,
                _ => return,
            }
        }
    }

    async fn get(&self, task: &str) {
        let answer = async { Ok::<_, Status>((Some(self.client.try_get(task).await?), false)) };
        self.call_and_record(request_about_task(ClientOperation::Get, task), answer)
            .await;
    }

    async fn probe_foreign_task(&self) {
        let Some(task) = self.load.random_foreign_task(self.tenant) else {
            return;
        };
        let answer = async {
            match rand::random_range(0..2) {
                0 => Ok::<_, Status>((Some(self.client.try_get(&task).await?), false)),
                _ => Ok((self.client.try_cancel(&task).await?.task, false)),
            }
        };
        self.call_and_record(request_about_task(ClientOperation::Probe, &task), answer)
            .await;
    }

    /// Also after the stop, because open tasks are followed to their end.
    async fn wait_before_retry(&self) {
        sleep_unless_stopped(RETRY_DELAY, &CancellationToken::new()).await;
    }

    /// Makes the call once and records it with its answer.
    pub(crate) async fn call_and_record(
        &self,
        request: ClientRequest,
        answer: impl Future<Output = Result<(Option<Task>, bool), Status>>,
    ) -> (CallOutcome, Option<String>) {
        let answer = Box::pin(async { answer.await.map(|(task, already)| (task, already, None)) });
        self.call_and_record_attempt(request, answer).await
    }

    /// The same for calls that create something: the attempt that continues a task.
    async fn call_and_record_attempt(
        &self,
        request: ClientRequest,
        answer: impl Future<Output = Result<(Option<Task>, bool, Option<String>), Status>>,
    ) -> (CallOutcome, Option<String>) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.record_observation(Observation::Call {
            call,
            op: request.op,
            tenant: self.tenant.to_owned(),
            task: request.task,
            key: request.key,
            body: request.body,
        });
        let answer = answer.await;
        let (outcome, code) = match &answer {
            Ok(_) => (CallOutcome::Ok, None),
            Err(status) => classify_status(status),
        };
        let (task, already, made) = answer.unwrap_or_default();
        let id = task.as_ref().map(|task| task.task_id.clone());
        self.record_observation(Observation::Answer {
            call,
            outcome,
            task: id.clone(),
            revision: task.as_ref().map(|task| task.revision),
            state: task.as_ref().map(|task| task_state_name(task.state())),
            code,
            already,
        });
        if let Some(made) = made {
            self.record_observation(Observation::Made { call, made });
        }
        let counts = outcome == CallOutcome::Ok
            && matches!(
                request.op,
                ClientOperation::Submit | ClientOperation::Cancel
            );
        self.load
            .acknowledged
            .fetch_add(u64::from(counts), Ordering::Relaxed);
        (outcome, id)
    }

    fn record_observation(&self, observation: Observation) {
        self.view
            .record(now_ms(), observation)
            .expect("the history can be written");
    }

    /// Watches until the task has ended or is parked, across broken streams.
    async fn follow_to_end(&self, task: &str) {
        let mut after = 0;
        while !self.watch_once(task, &mut after).await {
            self.wait_before_retry().await;
        }
    }

    /// True if no further event is expected.
    async fn watch_once(&self, task: &str, after: &mut u64) -> bool {
        let request = WatchTaskRequest {
            task_id: task.to_owned(),
            from_revision: *after,
            ..WatchTaskRequest::default()
        };
        let mut tasks = self.client.tasks();
        let Ok(opened) = wait_within("a watch to open", tasks.watch(request)).await else {
            return false;
        };
        let watch = self.calls.fetch_add(1, Ordering::Relaxed);
        self.record_observation(Observation::WatchOpened {
            watch,
            tenant: self.tenant.to_owned(),
            task: task.to_owned(),
            after: *after,
        });
        let mut items = opened.into_inner();
        loop {
            // An idle stream sends an empty message every 15 s.
            match wait_within("the next message of a watch", items.message()).await {
                Ok(Some(message)) => match message.item {
                    Some(Item::Event(event)) => {
                        *after = event.revision;
                        let is_settled = is_settled_state(event.task_state());
                        let event = history_event(&event);
                        self.record_observation(Observation::Watched { watch, event });
                        if is_settled {
                            return true;
                        }
                    }
                    Some(Item::Lagged(lagged)) => {
                        *after = lagged.from_revision;
                        return false;
                    }
                    Some(Item::CaughtUp(_) | Item::HistoryCut(_)) | None => {}
                },
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

pub(crate) fn request_about_task(op: ClientOperation, task: &str) -> ClientRequest {
    ClientRequest {
        op,
        task: Some(task.to_owned()),
        key: None,
        body: None,
    }
}

/// Whether the task changes no more by itself.
fn is_settled_state(state: TaskState) -> bool {
    matches!(
        state,
        TaskState::NeedsAttention
            | TaskState::Completed
            | TaskState::Failed
            | TaskState::Canceled
            | TaskState::TimedOut
            | TaskState::Lost
    )
}

/// Only these codes prove that the call was rejected. After any other error it may have taken
/// effect.
pub(crate) fn classify_status(status: &Status) -> (CallOutcome, Option<String>) {
    let code = error_code(status);
    let refused = matches!(
        status.code(),
        Code::NotFound
            | Code::InvalidArgument
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
    );
    if refused && !code.is_empty() {
        (CallOutcome::Fail, Some(code))
    } else {
        (CallOutcome::Info, Some(code))
    }
}
