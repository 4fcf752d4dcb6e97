//! Clients of two tenants who work without pause: submit, submit again, watch, tell progress, block, send on, cancel early and late, and ask for
//! what is not theirs. Each writes down what it asked and what it was told. A call without an answer is made again, with its key, as a careful client does.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_history::{Op, Outcome, Saw, Viewpoint};
use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    BlockTaskRequest, ProgressUpdate, ResumeTaskRequest, RetryPolicy, SubmitRequest, Task,
    TaskSpec, TaskState, UpdateProgressRequest, WatchTaskRequest, WhenUnsafe,
};
use baton_tests::{Client, code_of, command, within};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::ends::{event, task_word};
use crate::run::now;
use crate::{STANDIN, pass, some_ms};

/// Shorter than most troubles last, so that leases end.
const LEASE_MS: u64 = 5_000;
/// Before a call is made again.
const AGAIN: Duration = Duration::from_millis(100);

/// What all clients share.
#[derive(Debug)]
pub(crate) struct Load {
    acknowledged: AtomicU64,
    stop: CancellationToken,
    /// Some tasks with their tenants, for strangers to ask for.
    tasks: Mutex<Vec<(&'static str, String)>>,
    socket: PathBuf,
    mark: &'static str,
}

impl Load {
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

    /// What is open is followed to its end.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub(crate) fn stopped(&self) -> &CancellationToken {
        &self.stop
    }

    fn know(&self, tenant: &'static str, task: &str) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() >= 100 {
            let any = rand::random_range(0..tasks.len());
            tasks.swap_remove(any);
        }
        tasks.push((tenant, task.to_owned()));
    }

    fn foreign(&self, tenant: &str) -> Option<String> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let foreign: Vec<_> = tasks.iter().filter(|(other, _)| *other != tenant).collect();
        let any = rand::random_range(0..foreign.len().max(1));
        foreign.get(any).map(|(_, task)| task.clone())
    }
}

pub(crate) struct Customer {
    pub(crate) client: Client,
    pub(crate) tenant: &'static str,
    pub(crate) name: String,
    pub(crate) view: Viewpoint,
    pub(crate) load: Arc<Load>,
    pub(crate) calls: AtomicU64,
}

/// Something that was asked.
pub(crate) struct Question {
    pub(crate) op: Op,
    pub(crate) task: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) body: Option<String>,
}

impl Customer {
    pub(crate) async fn work(self) {
        let mut turn = 0;
        while !self.load.stop.is_cancelled() {
            turn += 1;
            // In a box: what one turn may come to is too much for a worker's stack.
            Box::pin(self.job(turn)).await;
        }
    }

    async fn job(&self, turn: u64) {
        let (spec, body) = self.some_work();
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
            pass(AGAIN, &self.load.stop).await;
            return;
        };
        self.load.know(self.tenant, &task);
        match rand::random_range(0..6) {
            0 => {
                pass(some_ms(0, 3_000), &self.load.stop).await;
                self.cancel(&task).await;
            }
            1 => Box::pin(self.progress(&task, &key)).await,
            2 => {
                pass(some_ms(0, 1_000), &self.load.stop).await;
                Box::pin(self.hold_up(&task, &key)).await;
            }
            _ => {}
        }
        self.follow(&task).await;
        match rand::random_range(0..6) {
            0 => self.cancel(&task).await,
            1 => drop(self.submit(&spec, &key, &body).await),
            2 => self.probe().await,
            _ => self.get(&task).await,
        }
    }

    /// A command that says who it is, prints for a while, and ends well or badly.
    fn some_work(&self) -> (TaskSpec, String) {
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
            ..command(STANDIN, &arguments, self.load.mark)
        };
        (spec, arguments.join(" "))
    }

    /// None when it was refused.
    async fn submit(&self, spec: &TaskSpec, key: &str, body: &str) -> Option<String> {
        let question = || Question {
            op: Op::Submit,
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
            match self.ask(question(), answer).await {
                (Outcome::Ok, task) => return task,
                (Outcome::Fail, _) => return None,
                (Outcome::Info, _) => self.again().await,
            }
        }
    }

    async fn cancel(&self, task: &str) {
        loop {
            let answer = async {
                let answer = self.client.try_cancel(task).await?;
                Ok::<_, Status>((answer.task, answer.already_finished))
            };
            match self.ask(about(Op::Cancel, task), answer).await {
                (Outcome::Info, _) => self.again().await,
                _ => return,
            }
        }
    }

    /// What is done of it, in the words of a person who watches.
    async fn progress(&self, task: &str, item: &str) {
        let request = UpdateProgressRequest {
            task_id: task.to_owned(),
            update: Some(ProgressUpdate {
                completed_items: vec![item.to_owned()],
                ..ProgressUpdate::default()
            }),
        };
        let question = || Question {
            body: Some(item.to_owned()),
            ..about(Op::Progress, task)
        };
        loop {
            let answer = async {
                let mut tasks = self.client.tasks();
                let answer = tasks.update_progress(request.clone());
                let answer = within("an answer to UpdateProgress", answer).await?;
                Ok::<_, Status>((answer.into_inner().task, false))
            };
            match self.ask(question(), answer).await {
                (Outcome::Info, _) => self.again().await,
                _ => return,
            }
        }
    }

    /// Blocks it, wherever it is, and sends it on.
    async fn hold_up(&self, task: &str, item: &str) {
        Box::pin(self.progress(task, item)).await;
        let request = BlockTaskRequest {
            task_id: task.to_owned(),
            reason: "a person has to look".to_owned(),
            ..BlockTaskRequest::default()
        };
        loop {
            let answer = async {
                let mut tasks = self.client.tasks();
                let answer = within("an answer to Block", tasks.block(request.clone())).await?;
                Ok::<_, Status>((answer.into_inner().task, false))
            };
            match self.ask(about(Op::Block, task), answer).await {
                (Outcome::Info, _) => self.again().await,
                _ => break,
            }
        }
        pass(some_ms(0, 500), &self.load.stop).await;
        Box::pin(self.send_on(task)).await;
    }

    /// Also where somebody else has: one of them is told by which attempt it goes on.
    async fn send_on(&self, task: &str) {
        let request = ResumeTaskRequest {
            task_id: task.to_owned(),
            reason: "looked at".to_owned(),
            ..ResumeTaskRequest::default()
        };
        loop {
            let answer = async {
                let mut tasks = self.client.tasks();
                let answer = within("an answer to Resume", tasks.resume(request.clone())).await?;
                let answer = answer.into_inner();
                let made = Some(answer.attempt_id);
                Ok::<_, Status>((answer.task, false, made))
            };
            match self.ask_for(about(Op::Resume, task), answer).await {
                (Outcome::Info, _) => self.again().await,
                _ => return,
            }
        }
    }

    async fn get(&self, task: &str) {
        let answer = async { Ok::<_, Status>((Some(self.client.try_get(task).await?), false)) };
        self.ask(about(Op::Get, task), answer).await;
    }

    async fn probe(&self) {
        let Some(task) = self.load.foreign(self.tenant) else {
            return;
        };
        let answer = async {
            match rand::random_range(0..2) {
                0 => Ok::<_, Status>((Some(self.client.try_get(&task).await?), false)),
                _ => Ok((self.client.try_cancel(&task).await?.task, false)),
            }
        };
        self.ask(about(Op::Probe, &task), answer).await;
    }

    /// Also after the stop: what was begun is brought to an end.
    async fn again(&self) {
        pass(AGAIN, &CancellationToken::new()).await;
    }

    /// Asks once and writes both down.
    pub(crate) async fn ask(
        &self,
        question: Question,
        answer: impl Future<Output = Result<(Option<Task>, bool), Status>>,
    ) -> (Outcome, Option<String>) {
        let answer = Box::pin(async { answer.await.map(|(task, already)| (task, already, None)) });
        self.ask_for(question, answer).await
    }

    /// The same for what makes something: the attempt by which a task goes on.
    async fn ask_for(
        &self,
        question: Question,
        answer: impl Future<Output = Result<(Option<Task>, bool, Option<String>), Status>>,
    ) -> (Outcome, Option<String>) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.saw(Saw::Call {
            call,
            op: question.op,
            tenant: self.tenant.to_owned(),
            task: question.task,
            key: question.key,
            body: question.body,
        });
        let answer = answer.await;
        let (outcome, code) = match &answer {
            Ok(_) => (Outcome::Ok, None),
            Err(status) => told(status),
        };
        let (task, already, made) = answer.unwrap_or_default();
        let id = task.as_ref().map(|task| task.task_id.clone());
        self.saw(Saw::Answer {
            call,
            outcome,
            task: id.clone(),
            revision: task.as_ref().map(|task| task.revision),
            state: task.as_ref().map(|task| task_word(task.state())),
            code,
            already,
        });
        if let Some(made) = made {
            self.saw(Saw::Made { call, made });
        }
        let counts = outcome == Outcome::Ok && matches!(question.op, Op::Submit | Op::Cancel);
        self.load
            .acknowledged
            .fetch_add(u64::from(counts), Ordering::Relaxed);
        (outcome, id)
    }

    fn saw(&self, saw: Saw) {
        self.view
            .saw(now(), saw)
            .expect("the history can be written");
    }

    /// Watches until the task has ended or waits for a person, over all breaks.
    async fn follow(&self, task: &str) {
        let mut after = 0;
        while !self.watch(task, &mut after).await {
            self.again().await;
        }
    }

    /// True when there is nothing more to wait for.
    async fn watch(&self, task: &str, after: &mut u64) -> bool {
        let request = WatchTaskRequest {
            task_id: task.to_owned(),
            from_revision: *after,
            ..WatchTaskRequest::default()
        };
        let mut tasks = self.client.tasks();
        let Ok(opened) = within("a watch to open", tasks.watch(request)).await else {
            return false;
        };
        let watch = self.calls.fetch_add(1, Ordering::Relaxed);
        self.saw(Saw::WatchOpened {
            watch,
            tenant: self.tenant.to_owned(),
            task: task.to_owned(),
            after: *after,
        });
        let mut items = opened.into_inner();
        loop {
            // A quiet stream says every 15 s that it lives.
            match within("a word of a watch", items.message()).await {
                Ok(Some(message)) => match message.item {
                    Some(Item::Event(told)) => {
                        *after = told.revision;
                        let over = is_over(told.task_state());
                        let event = event(&told);
                        self.saw(Saw::Watched { watch, event });
                        if over {
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

pub(crate) fn about(op: Op, task: &str) -> Question {
    Question {
        op,
        task: Some(task.to_owned()),
        key: None,
        body: None,
    }
}

/// Whether anything moves by itself from here.
fn is_over(state: TaskState) -> bool {
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

/// Only a refusal in so many words is one. Everything else may have happened.
pub(crate) fn told(status: &Status) -> (Outcome, Option<String>) {
    let code = code_of(status);
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
        (Outcome::Fail, Some(code))
    } else {
        (Outcome::Info, Some(code))
    }
}
