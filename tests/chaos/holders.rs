//! Agents of two tenants who hold their leases themselves: they start tasks, write down progress and checkpoints, block, pick up what was
//! blocked, and complete. Each writes down what it asked and what it was told. A call without an answer is made again under its id, as
//! `baton mcp` does.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_history::{Op, Outcome, Saw, Viewpoint};
use baton_proto::v1::{
    AgentBlockRequest, AgentCheckpointRequest, AgentCompleteRequest, AgentGrant,
    AgentProgressRequest, BlockDraft, CheckpointDraft, ClaimRequest, PickUpRequest, ProgressUpdate,
    RetryPolicy, StartRequest, TaskSpec, TaskState, WhenUnsafe,
};
use baton_tests::{Client, Lease, for_scope};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};
use uuid::Uuid;

use crate::clients::{Load, told};
use crate::ends::{all_tasks, task_word};
use crate::run::now;
use crate::{pass, some_ms};

pub(crate) const SCOPE: &str = "chaos";
/// Shorter than most troubles last, so that leases end.
const LEASE_MS: u64 = 5_000;
/// Before a call is made again.
const AGAIN: Duration = Duration::from_millis(100);

pub(crate) struct Holder {
    pub(crate) client: Client,
    pub(crate) tenant: &'static str,
    pub(crate) name: String,
    pub(crate) view: Viewpoint,
    pub(crate) load: Arc<Load>,
    pub(crate) calls: AtomicU64,
}

/// A call on its way; made anew for each try.
type Asking<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// What is told of a task with an answer.
#[derive(Default)]
struct Shown {
    revision: Option<u64>,
    state: Option<String>,
    /// An attempt or the number of a checkpoint.
    made: Option<String>,
}

impl Holder {
    pub(crate) async fn work(self) {
        let mut turn = 0;
        while !self.load.is_stopped() {
            turn += 1;
            // In a box: what one turn may come to is too much for a worker's stack.
            Box::pin(self.job(turn)).await;
        }
        Box::pin(self.clear_up()).await;
    }

    /// One task, as far as the lease holds.
    async fn job(&self, turn: u64) {
        let key = format!("{}-{turn}", self.name);
        let Some(lease) = self.start(&key).await else {
            pass(AGAIN, self.load.stopped()).await;
            return;
        };
        Box::pin(self.carry_on(lease, turn)).await;
    }

    async fn carry_on(&self, lease: Lease, turn: u64) {
        for step in 0..rand::random_range(1..4) {
            pass(some_ms(0, 400), self.load.stopped()).await;
            let item = format!("{}-{turn}-{step}", self.name);
            let held = match rand::random_range(0..2) {
                0 => Box::pin(self.progress(&lease, &item)).await,
                _ => Box::pin(self.checkpoint(&lease, &item)).await,
            };
            if !held {
                return;
            }
        }
        if rand::random_range(0..2) == 0 {
            Box::pin(self.complete(&lease)).await;
        } else if Box::pin(self.block(&lease)).await {
            pass(some_ms(0, 400), self.load.stopped()).await;
            if let Some(lease) = Box::pin(self.pick_up(&lease.task_id)).await {
                Box::pin(self.complete(&lease)).await;
            }
        }
    }

    /// A lease that was lost leaves a task that only an agent may have: it is claimed until there is none.
    async fn clear_up(&self) {
        while self.has_open_tasks().await {
            match self.claim().await {
                Some(lease) => Box::pin(self.complete(&lease)).await,
                None => {
                    pass(AGAIN, &CancellationToken::new()).await;
                }
            }
        }
    }

    async fn has_open_tasks(&self) -> bool {
        let tasks = all_tasks(&self.client).await;
        tasks.iter().any(|task| {
            matches!(
                task.state(),
                TaskState::Pending | TaskState::Queued | TaskState::Running
            )
        })
    }

    fn spec() -> TaskSpec {
        TaskSpec {
            lease_ttl_ms: Some(LEASE_MS),
            retry: Some(RetryPolicy {
                max_losses: Some(10),
                when_unsafe: WhenUnsafe::Retry.into(),
                backoff_initial_ms: Some(10),
                ..RetryPolicy::default()
            }),
            ..for_scope(SCOPE)
        }
    }

    /// A start or a claim is no call of which the judge knows; that it was granted is told.
    async fn start(&self, key: &str) -> Option<Lease> {
        let request = StartRequest {
            spec: Some(Self::spec()),
            idempotency_key: key.to_owned(),
            request_id: fresh_id(),
            ..StartRequest::default()
        };
        let ask = || -> Asking<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.start(request).await })
        };
        let grant = self.until_told(ask).await?.into_inner().grant;
        grant.map(|grant| self.granted(grant))
    }

    async fn claim(&self) -> Option<Lease> {
        let request = ClaimRequest {
            request_id: fresh_id(),
            ..ClaimRequest::default()
        };
        let ask = || -> Asking<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.claim(request).await })
        };
        let grant = self.until_told(ask).await?.into_inner().grant;
        grant.map(|grant| self.granted(grant))
    }

    fn granted(&self, grant: AgentGrant) -> Lease {
        let lease = Lease::of(grant);
        self.saw(Saw::Granted {
            tenant: self.tenant.to_owned(),
            task: lease.task_id.clone(),
            attempt: lease.attempt_id.clone(),
        });
        lease
    }

    async fn progress(&self, lease: &Lease, item: &str) -> bool {
        let request = AgentProgressRequest {
            lease: Some(lease.named.clone()),
            update: Some(ProgressUpdate {
                completed_items: vec![item.to_owned()],
                ..ProgressUpdate::default()
            }),
            request_id: fresh_id(),
        };
        let ask = || -> Asking<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.progress(request).await })
        };
        let body = Some(item.to_owned());
        let shown = |_: &_| Shown::default();
        let told = self.ask(Op::Progress, &lease.task_id, body, ask, shown);
        told.await.is_some()
    }

    async fn checkpoint(&self, lease: &Lease, summary: &str) -> bool {
        let request = AgentCheckpointRequest {
            lease: Some(lease.named.clone()),
            checkpoint: Some(CheckpointDraft {
                summary: summary.to_owned(),
                ..CheckpointDraft::default()
            }),
            request_id: fresh_id(),
        };
        let ask = || -> Asking<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.checkpoint(request).await })
        };
        let shown = |answer: &baton_proto::v1::AgentCheckpointResponse| Shown {
            made: answer.checkpoint.as_ref().map(|one| one.number.to_string()),
            ..Shown::default()
        };
        let told = self.ask(Op::Checkpoint, &lease.task_id, None, ask, shown);
        told.await.is_some()
    }

    async fn block(&self, lease: &Lease) -> bool {
        let request = AgentBlockRequest {
            lease: Some(lease.named.clone()),
            block: Some(BlockDraft {
                reason: "somebody has to look".to_owned(),
                ..BlockDraft::default()
            }),
            request_id: fresh_id(),
        };
        let ask = || -> Asking<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.block(request).await })
        };
        let shown = |answer: &baton_proto::v1::AgentBlockResponse| Shown {
            revision: answer.task.as_ref().map(|task| task.revision),
            state: answer.task.as_ref().map(|task| task_word(task.state())),
            made: None,
        };
        let told = self.ask(Op::Block, &lease.task_id, None, ask, shown);
        told.await.is_some()
    }

    async fn pick_up(&self, task_id: &str) -> Option<Lease> {
        let request = PickUpRequest {
            task_id: task_id.to_owned(),
            request_id: fresh_id(),
            ..PickUpRequest::default()
        };
        let ask = || -> Asking<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.pick_up(request).await })
        };
        let shown = |answer: &baton_proto::v1::PickUpResponse| {
            let grant = answer.grant.as_ref();
            let attempt = grant.and_then(|grant| grant.r#ref.as_ref());
            Shown {
                made: attempt.map(|attempt| attempt.attempt_id.clone()),
                ..Shown::default()
            }
        };
        let told = self.ask(Op::PickUp, task_id, None, ask, shown).await?;
        told.grant.map(|grant| self.granted(grant))
    }

    async fn complete(&self, lease: &Lease) {
        let request = AgentCompleteRequest {
            lease: Some(lease.named.clone()),
            result: "done".into(),
            request_id: fresh_id(),
            ..AgentCompleteRequest::default()
        };
        self.saw(Saw::Sent {
            task: lease.task_id.clone(),
            attempt: lease.attempt_id.clone(),
            // Calls are not numbered as frames are.
            seq: 0,
            word: "complete".to_owned(),
        });
        let ask = || -> Asking<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.complete(request).await })
        };
        if self.until_told(ask).await.is_some() {
            let attempt = lease.attempt_id.clone();
            self.saw(Saw::Acked { attempt, seq: 0 });
        }
    }

    /// Asks again until it is granted or refused; none where it is refused.
    async fn until_told<T>(&self, ask: impl Fn() -> Asking<T>) -> Option<Response<T>> {
        loop {
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(status) if told(&status).0 == Outcome::Fail => return None,
                Err(_) => {
                    pass(AGAIN, &CancellationToken::new()).await;
                }
            }
        }
    }

    /// The same, with every question and every answer written down.
    async fn ask<T>(
        &self,
        op: Op,
        task: &str,
        body: Option<String>,
        ask: impl Fn() -> Asking<T>,
        shown: impl Fn(&T) -> Shown,
    ) -> Option<T> {
        loop {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            self.saw(Saw::Call {
                call,
                op,
                tenant: self.tenant.to_owned(),
                task: Some(task.to_owned()),
                key: None,
                body: body.clone(),
            });
            let answer = ask().await;
            let (outcome, code) = match &answer {
                Ok(_) => (Outcome::Ok, None),
                Err(status) => told(status),
            };
            let answer = answer.ok().map(Response::into_inner);
            let Shown {
                revision,
                state,
                made,
            } = answer.as_ref().map(&shown).unwrap_or_default();
            self.saw(Saw::Answer {
                call,
                outcome,
                task: Some(task.to_owned()),
                revision,
                state,
                code,
                already: false,
            });
            if let Some(made) = made {
                self.saw(Saw::Made { call, made });
            }
            match outcome {
                Outcome::Ok | Outcome::Fail => return answer,
                Outcome::Info => {
                    pass(AGAIN, &CancellationToken::new()).await;
                }
            }
        }
    }

    fn saw(&self, saw: Saw) {
        self.view
            .saw(now(), saw)
            .expect("the history can be written");
    }
}

/// For one call, however often it is made.
fn fresh_id() -> String {
    Uuid::now_v7().to_string()
}
