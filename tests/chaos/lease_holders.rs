//! Agents of two tenants that have their leases themselves: they start tasks, report progress
//! and checkpoints, block, pick up blocked tasks, and complete. Each records its calls and
//! their answers. A call without an answer is repeated with its request id, as `baton mcp`
//! does.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_history::{CallOutcome, ClientOperation, Observation, ParticipantLog};
use baton_proto::v1::{
    AgentBlockRequest, AgentCheckpointRequest, AgentCompleteRequest, AgentGrant,
    AgentProgressRequest, BlockDraft, CheckpointDraft, ClaimRequest, PickUpRequest, ProgressUpdate,
    RetryPolicy, StartRequest, TaskSpec, TaskState, WhenUnsafe,
};
use baton_tests::{GrantedLease, TestClient, agent_scope_spec};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};
use uuid::Uuid;

use crate::chaos_run::now_ms;
use crate::client_load::{ClientLoad, classify_status};
use crate::final_state::{list_all_tasks, task_state_name};
use crate::{random_millis, sleep_unless_stopped};

pub(crate) const SCOPE: &str = "chaos";
/// Shorter than most faults, so that leases expire.
const LEASE_MS: u64 = 5_000;
/// Delay before a call is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(100);

pub(crate) struct LoadAgent {
    pub(crate) client: TestClient,
    pub(crate) tenant: &'static str,
    pub(crate) name: String,
    pub(crate) view: ParticipantLog,
    pub(crate) load: Arc<ClientLoad>,
    pub(crate) calls: AtomicU64,
}

/// A pending call; created again for each try.
type PendingCall<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// The part of an answer that is recorded.
#[derive(Default)]
struct RecordedAnswer {
    revision: Option<u64>,
    state: Option<String>,
    /// An attempt, or the number of a checkpoint.
    created_id: Option<String>,
}

impl LoadAgent {
    pub(crate) async fn run(self) {
        let mut turn = 0;
        while !self.load.is_stopped() {
            turn += 1;
            // Boxed, because the future of one turn is too large for a worker's stack.
            Box::pin(self.run_one_task(turn)).await;
        }
        Box::pin(self.claim_remaining_tasks()).await;
    }

    /// Works on one task while the lease lasts.
    async fn run_one_task(&self, turn: u64) {
        let key = format!("{}-{turn}", self.name);
        let Some(lease) = self.start(&key).await else {
            sleep_unless_stopped(RETRY_DELAY, self.load.stop_token()).await;
            return;
        };
        Box::pin(self.work_under_lease(lease, turn)).await;
    }

    async fn work_under_lease(&self, lease: GrantedLease, turn: u64) {
        for step in 0..rand::random_range(1..4) {
            sleep_unless_stopped(random_millis(0, 400), self.load.stop_token()).await;
            let item = format!("{}-{turn}-{step}", self.name);
            let still_leased = match rand::random_range(0..2) {
                0 => Box::pin(self.progress(&lease, &item)).await,
                _ => Box::pin(self.checkpoint(&lease, &item)).await,
            };
            if !still_leased {
                return;
            }
        }
        if rand::random_range(0..2) == 0 {
            Box::pin(self.complete(&lease)).await;
        } else if Box::pin(self.block(&lease)).await {
            sleep_unless_stopped(random_millis(0, 400), self.load.stop_token()).await;
            if let Some(lease) = Box::pin(self.pick_up(&lease.task_id)).await {
                Box::pin(self.complete(&lease)).await;
            }
        }
    }

    /// A lost lease leaves a task that only an agent may claim. Claims until none is left.
    async fn claim_remaining_tasks(&self) {
        while self.has_open_tasks().await {
            match self.claim().await {
                Some(lease) => Box::pin(self.complete(&lease)).await,
                None => {
                    sleep_unless_stopped(RETRY_DELAY, &CancellationToken::new()).await;
                }
            }
        }
    }

    async fn has_open_tasks(&self) -> bool {
        let tasks = list_all_tasks(&self.client).await;
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
            ..agent_scope_spec(SCOPE)
        }
    }

    /// Start and claim are not checked calls. Only their grant is recorded.
    async fn start(&self, key: &str) -> Option<GrantedLease> {
        let request = StartRequest {
            spec: Some(Self::spec()),
            idempotency_key: key.to_owned(),
            request_id: new_request_id(),
            ..StartRequest::default()
        };
        let ask = || -> PendingCall<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.start(request).await })
        };
        let grant = self.retry_until_answered(ask).await?.into_inner().grant;
        grant.map(|grant| self.record_grant(grant))
    }

    async fn claim(&self) -> Option<GrantedLease> {
        let request = ClaimRequest {
            request_id: new_request_id(),
            ..ClaimRequest::default()
        };
        let ask = || -> PendingCall<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.claim(request).await })
        };
        let grant = self.retry_until_answered(ask).await?.into_inner().grant;
        grant.map(|grant| self.record_grant(grant))
    }

    fn record_grant(&self, grant: AgentGrant) -> GrantedLease {
        let lease = GrantedLease::of_grant(grant);
        self.record_observation(Observation::Granted {
            tenant: self.tenant.to_owned(),
            task: lease.task_id.clone(),
            attempt: lease.attempt_id.clone(),
        });
        lease
    }

    async fn progress(&self, lease: &GrantedLease, item: &str) -> bool {
        let request = AgentProgressRequest {
            lease: Some(lease.lease_ref.clone()),
            update: Some(ProgressUpdate {
                completed_items: vec![item.to_owned()],
                ..ProgressUpdate::default()
            }),
            request_id: new_request_id(),
        };
        let ask = || -> PendingCall<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.progress(request).await })
        };
        let body = Some(item.to_owned());
        let shown = |_: &_| RecordedAnswer::default();
        let answered =
            self.retry_and_record(ClientOperation::Progress, &lease.task_id, body, ask, shown);
        answered.await.is_some()
    }

    async fn checkpoint(&self, lease: &GrantedLease, summary: &str) -> bool {
        let request = AgentCheckpointRequest {
            lease: Some(lease.lease_ref.clone()),
            checkpoint: Some(CheckpointDraft {
                summary: summary.to_owned(),
                ..CheckpointDraft::default()
            }),
            request_id: new_request_id(),
        };
        let ask = || -> PendingCall<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.checkpoint(request).await })
        };
        let shown = |answer: &baton_proto::v1::AgentCheckpointResponse| RecordedAnswer {
            created_id: answer.checkpoint.as_ref().map(|one| one.number.to_string()),
            ..RecordedAnswer::default()
        };
        let answered = self.retry_and_record(
            ClientOperation::Checkpoint,
            &lease.task_id,
            None,
            ask,
            shown,
        );
        answered.await.is_some()
    }

    async fn block(&self, lease: &GrantedLease) -> bool {
        let request = AgentBlockRequest {
            lease: Some(lease.lease_ref.clone()),
            block: Some(BlockDraft {
                reason: "needs a person".to_owned(),
                ..BlockDraft::default()
            }),
            request_id: new_request_id(),
        };
        let ask = || -> PendingCall<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.block(request).await })
        };
        let shown = |answer: &baton_proto::v1::AgentBlockResponse| RecordedAnswer {
            revision: answer.task.as_ref().map(|task| task.revision),
            state: answer
                .task
                .as_ref()
                .map(|task| task_state_name(task.state())),
            created_id: None,
        };
        let answered =
            self.retry_and_record(ClientOperation::Block, &lease.task_id, None, ask, shown);
        answered.await.is_some()
    }

    async fn pick_up(&self, task_id: &str) -> Option<GrantedLease> {
        let request = PickUpRequest {
            task_id: task_id.to_owned(),
            request_id: new_request_id(),
            ..PickUpRequest::default()
        };
        let ask = || -> PendingCall<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.pick_up(request).await })
        };
        let shown = |answer: &baton_proto::v1::PickUpResponse| {
            let grant = answer.grant.as_ref();
            let attempt = grant.and_then(|grant| grant.r#ref.as_ref());
            RecordedAnswer {
                created_id: attempt.map(|attempt| attempt.attempt_id.clone()),
                ..RecordedAnswer::default()
            }
        };
        let answered = self
            .retry_and_record(ClientOperation::PickUp, task_id, None, ask, shown)
            .await?;
        answered.grant.map(|grant| self.record_grant(grant))
    }

    async fn complete(&self, lease: &GrantedLease) {
        let request = AgentCompleteRequest {
            lease: Some(lease.lease_ref.clone()),
            result: "done".into(),
            request_id: new_request_id(),
            ..AgentCompleteRequest::default()
        };
        self.record_observation(Observation::Sent {
            task: lease.task_id.clone(),
            attempt: lease.attempt_id.clone(),
            // Calls have no sequence number, unlike frames.
            seq: 0,
            word: "complete".to_owned(),
        });
        let ask = || -> PendingCall<_> {
            let (mut agents, request) = (self.client.agents(), request.clone());
            Box::pin(async move { agents.complete(request).await })
        };
        if self.retry_until_answered(ask).await.is_some() {
            let attempt = lease.attempt_id.clone();
            self.record_observation(Observation::Acked { attempt, seq: 0 });
        }
    }

    /// Repeats the call until it is granted or rejected; none if it is rejected.
    async fn retry_until_answered<T>(
        &self,
        ask: impl Fn() -> PendingCall<T>,
    ) -> Option<Response<T>> {
        loop {
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(status) if classify_status(&status).0 == CallOutcome::Fail => return None,
                Err(_) => {
                    sleep_unless_stopped(RETRY_DELAY, &CancellationToken::new()).await;
                }
            }
        }
    }

    /// The same, with every call and every answer recorded.
    async fn retry_and_record<T>(
        &self,
        op: ClientOperation,
        task: &str,
        body: Option<String>,
        ask: impl Fn() -> PendingCall<T>,
        shown: impl Fn(&T) -> RecordedAnswer,
    ) -> Option<T> {
        loop {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            self.record_observation(Observation::Call {
                call,
                op,
                tenant: self.tenant.to_owned(),
                task: Some(task.to_owned()),
                key: None,
                body: body.clone(),
            });
            let answer = ask().await;
            let (outcome, code) = match &answer {
                Ok(_) => (CallOutcome::Ok, None),
                Err(status) => classify_status(status),
            };
            let answer = answer.ok().map(Response::into_inner);
            let RecordedAnswer {
                revision,
                state,
                created_id: made,
            } = answer.as_ref().map(&shown).unwrap_or_default();
            self.record_observation(Observation::Answer {
                call,
                outcome,
                task: Some(task.to_owned()),
                revision,
                state,
                code,
                already: false,
            });
            if let Some(made) = made {
                self.record_observation(Observation::Made { call, made });
            }
            match outcome {
                CallOutcome::Ok | CallOutcome::Fail => return answer,
                CallOutcome::Info => {
                    sleep_unless_stopped(RETRY_DELAY, &CancellationToken::new()).await;
                }
            }
        }
    }

    fn record_observation(&self, observation: Observation) {
        self.view
            .record(now_ms(), observation)
            .expect("the history can be written");
    }
}

/// One id for all tries of a call.
fn new_request_id() -> String {
    Uuid::now_v7().to_string()
}
