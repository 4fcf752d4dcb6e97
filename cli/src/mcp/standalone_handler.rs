//! Handles tool calls of a standalone server: calls the relay with a token and holds the lease of
//! at most one task. One loop answers the calls one after the other, while the lease is renewed
//! concurrently. `task_at_exit` hands back the task at the end.

use std::path::PathBuf;

use baton_daemon::Clock;
use baton_daemon::receipts::{INSPECTION_TIMEOUT, RequiredFiles};
use baton_proto::to_json;
use baton_proto::v1::{
    AgentBlockRequest, AgentCancelRequest, AgentCheckpointRequest, AgentCompleteRequest,
    AgentFailRequest, AgentGrant, AgentProgressRequest, AgentReleaseRequest, ArtifactReceipt,
    BlockDraft, ClaimRequest, GetBlockedRequest, GetTaskRequest, PickUpRequest, StartRequest,
};
use baton_proto::verbs::ToolOperation;
use baton_proto::worker::FinishOutcome;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::agent_lease;
use super::agent_lease::AgentLeaseState;
use super::argument_schema::McpArguments;
use super::relay_connection::RelayConnection;
use super::requests;
use super::server::PendingToolCall;
use super::server_shutdown::ServerShutdown;
use super::tool_result::{FAILED_PRECONDITION, ToolRejection, ToolResult, server_stopping};
use crate::client::discovery::ConnectionArgs;

pub(super) struct StandaloneHandler {
    pub(super) relay: RelayConnection,
    pub(super) clock: Clock,
    /// Directory that required files are checked in.
    root: Option<PathBuf>,
    pub(super) current_lease: watch::Sender<Option<AgentLeaseState>>,
    pub(super) session: ServerShutdown,
    /// Id of the current call.
    pub(super) call_id: String,
    /// The last call, if it is unknown whether the relay received it. The same call again gets
    /// the same id.
    unanswered_call: Option<(ToolOperation, McpArguments, String)>,
    /// The current call repeats the unanswered one.
    is_repeat: bool,
}

impl StandaloneHandler {
    pub(super) fn new(
        args: ConnectionArgs,
        root: Option<PathBuf>,
        clock: Clock,
        session: ServerShutdown,
    ) -> Self {
        Self {
            relay: RelayConnection::new(args),
            clock,
            root,
            current_lease: watch::Sender::new(None),
            session,
            call_id: new_call_id(),
            unanswered_call: None,
            is_repeat: false,
        }
    }

    /// Runs until the session has ended and the task is handed back, or until the time for that
    /// is over.
    pub(super) async fn serve(mut self, calls: mpsc::Receiver<PendingToolCall>) {
        let renewing = self.current_lease.clone();
        let (connection, clock) = (self.relay.clone(), self.clock.clone());
        let session = self.session.clone();
        let answering = async {
            self.answer_calls(calls).await;
            self.hand_back_task().await;
        };
        tokio::select! {
            () = answering => {}
            () = agent_lease::renew_forever(&renewing, connection, &clock) => {}
            () = session.wait_for_deadline() => {}
        }
    }

    /// Calls that arrived before the end of the session are still answered, so that the agent's
    /// last report is not lost.
    async fn answer_calls(&mut self, mut calls: mpsc::Receiver<PendingToolCall>) {
        let session = self.session.clone();
        loop {
            let pending = tokio::select! {
                pending = calls.recv() => pending,
                () = session.wait_until_stopping(), if !calls.is_closed() => {
                    calls.close();
                    continue;
                }
            };
            let Some(pending) = pending else { return };
            let answer = self.answer_call(pending.call, &pending.args).await;
            // The caller may have gone.
            let _ = pending.reply.send(answer);
        }
    }

    pub(super) async fn answer_call(
        &mut self,
        call: ToolOperation,
        args: &McpArguments,
    ) -> ToolResult {
        let before = self.unanswered_call.take();
        let before = before.filter(|(same, with, _)| *same == call && with == args);
        self.is_repeat = before.is_some();
        self.call_id = before.map_or_else(new_call_id, |(.., id)| id);
        let answer = self.dispatch_call(call, args).await;
        if answer.as_ref().is_err_and(ToolRejection::is_transient) {
            self.unanswered_call = Some((call, args.clone(), self.call_id.clone()));
        }
        answer
    }

    async fn dispatch_call(&mut self, call: ToolOperation, args: &McpArguments) -> ToolResult {
        let answer = match call {
            ToolOperation::ListBlocked => self.list_blocked(args).await,
            ToolOperation::GetBlocked => self.get_blocked(args).await,
            ToolOperation::PickUp => self.pick_up(args).await,
            ToolOperation::Start => self.start(args).await,
            ToolOperation::Claim => self.claim(args).await,
            ToolOperation::Progress => self.progress(args).await,
            ToolOperation::Checkpoint => self.checkpoint(args).await,
            ToolOperation::Block => self.block(args).await,
            ToolOperation::Complete => self.complete(args).await,
            ToolOperation::Release => self.release(args).await,
            ToolOperation::Get => self.get(args).await,
            ToolOperation::List => self.list(args).await,
        };
        answer.map(|answer| self.with_cancel_request(answer))
    }

    /// Adds a requested cancellation to every answer.
    fn with_cancel_request(&self, mut answer: Value) -> Value {
        let cancel_requested = self
            .current_lease
            .borrow()
            .as_ref()
            .is_some_and(|lease| lease.cancel_requested);
        if cancel_requested && let Value::Object(answer) = &mut answer {
            answer.insert("cancel_requested".to_owned(), true.into());
            let next = "stop, then call task_complete with outcome canceled";
            answer.insert("next".to_owned(), next.into());
        }
        answer
    }

    async fn list_blocked(&mut self, args: &McpArguments) -> ToolResult {
        let request = requests::list_blocked(args);
        let list = self
            .relay
            .call(async |relay| relay.tasks().list_blocked(request.clone()).await);
        Ok(to_json(&list.await?))
    }

    async fn get_blocked(&mut self, args: &McpArguments) -> ToolResult {
        let request = GetBlockedRequest {
            task_id: args.text("task_id"),
        };
        let found = self
            .relay
            .call(async |relay| relay.tasks().get_blocked(request.clone()).await);
        Ok(to_json(&found.await?))
    }

    async fn get(&mut self, args: &McpArguments) -> ToolResult {
        let held = self
            .current_lease
            .borrow()
            .as_ref()
            .map(|lease| lease.task_id.clone());
        let Some(task_id) = args.given_text("task_id").or(held) else {
            return Err(no_task_held());
        };
        let request = GetTaskRequest {
            task_id,
            include_spec: true,
        };
        let found = self
            .relay
            .call(async |relay| relay.tasks().get(request.clone()).await);
        Ok(to_json(&found.await?))
    }

    async fn list(&mut self, args: &McpArguments) -> ToolResult {
        let request = requests::list(args);
        let list = self
            .relay
            .call(async |relay| relay.tasks().list(request.clone()).await);
        Ok(to_json(&list.await?))
    }

    async fn start(&mut self, args: &McpArguments) -> ToolResult {
        self.check_no_lease()?;
        let made = || format!("mcp-{}", self.call_id);
        let key = args
            .given_text("idempotency_key")
            .filter(|key| !key.is_empty());
        let request = StartRequest {
            spec: Some(requests::spec(args)),
            idempotency_key: key.unwrap_or_else(made),
            traceparent: std::env::var("TRACEPARENT").unwrap_or_default(),
            request_id: self.call_id.clone(),
        };
        let asked_at = self.clock.now();
        let started = self
            .relay
            .call(async |relay| relay.agents().start(request.clone()).await);
        let grant = started.await?.grant;
        self.store_grant(grant, asked_at)
    }

    async fn claim(&mut self, args: &McpArguments) -> ToolResult {
        self.check_no_lease()?;
        let request = ClaimRequest {
            task_id: args.text("task_id"),
            request_id: self.call_id.clone(),
        };
        let asked_at = self.clock.now();
        let claimed = self
            .relay
            .call(async |relay| relay.agents().claim(request.clone()).await);
        let grant = claimed.await?.grant;
        self.store_grant(grant, asked_at)
    }

    async fn pick_up(&mut self, args: &McpArguments) -> ToolResult {
        self.check_no_lease()?;
        let request = PickUpRequest {
            task_id: args.text("task_id"),
            attempt_id: args.text("attempt_id"),
            reason: args.text("reason"),
            request_id: self.call_id.clone(),
        };
        let asked_at = self.clock.now();
        let picked = self
            .relay
            .call(async |relay| relay.agents().pick_up(request.clone()).await);
        let grant = picked.await?.grant;
        self.store_grant(grant, asked_at)
    }

    /// Stores the grant; the agent does not get its token. If the session has ended, the agent
    /// does not get the grant either.
    fn store_grant(
        &mut self,
        grant: Option<AgentGrant>,
        asked_at: baton_daemon::BootTime,
    ) -> ToolResult {
        let Some(mut grant) = grant else {
            let next = "no task can be claimed now; try again later";
            return Ok(json!({"held": false, "next": next}));
        };
        let known_to_agent = !self.session.is_stopping();
        let lease = AgentLeaseState::from_grant(&grant, asked_at, known_to_agent);
        self.current_lease.send_replace(Some(lease));
        if !known_to_agent {
            return Err(server_stopping());
        }
        grant.token = None;
        let mut held = to_json(&grant);
        held["held"] = true.into();
        Ok(held)
    }

    fn check_no_lease(&self) -> Result<(), ToolRejection> {
        if self.session.is_stopping() {
            return Err(server_stopping());
        }
        let held = self.current_lease.borrow();
        let Some(lease) = held
            .as_ref()
            .filter(|lease| lease.check_valid(self.clock.now()).is_ok())
        else {
            return Ok(());
        };
        let what = format!("this session already holds task {}", lease.task_id);
        let next = "complete, block or release that task first";
        Err(ToolRejection::new(
            FAILED_PRECONDITION,
            "lease_held",
            &what,
            next,
        ))
    }

    /// The lease for a call.
    fn lease_for(&self, args: &McpArguments) -> Result<AgentLeaseState, ToolRejection> {
        let held = self.current_lease.borrow().clone();
        let lease = held.ok_or_else(no_task_held)?;
        let named = args.given_text("task_id");
        if named.is_some_and(|task_id| task_id != lease.task_id) {
            let what = format!(
                "this session does not hold that task; it holds {}",
                lease.task_id
            );
            let next = "omit task_id, or claim the other task when this one is done";
            return Err(ToolRejection::new("not_found", "not_held", &what, next));
        }
        // A repeated call may itself have ended the lease. The relay knows its id and repeats its
        // answer.
        if !self.is_repeat {
            lease.check_valid(self.clock.now())?;
        }
        Ok(lease)
    }

    async fn progress(&mut self, args: &McpArguments) -> ToolResult {
        let request = AgentProgressRequest {
            lease: Some(self.lease_for(args)?.to_wire()),
            update: Some(requests::progress(args)),
            request_id: self.call_id.clone(),
        };
        let response = self
            .relay
            .call(async |relay| relay.agents().progress(request.clone()).await);
        Ok(to_json(&response.await?))
    }

    async fn checkpoint(&mut self, args: &McpArguments) -> ToolResult {
        let request = AgentCheckpointRequest {
            lease: Some(self.lease_for(args)?.to_wire()),
            checkpoint: Some(requests::checkpoint(args)),
            request_id: self.call_id.clone(),
        };
        let response = self
            .relay
            .call(async |relay| relay.agents().checkpoint(request.clone()).await);
        Ok(to_json(&response.await?))
    }

    async fn block(&mut self, args: &McpArguments) -> ToolResult {
        let lease = self.lease_for(args)?;
        let blocked = self.block_task(&lease, requests::block(args)).await?;
        self.current_lease.send_replace(None);
        Ok(blocked)
    }

    pub(super) async fn block_task(
        &mut self,
        lease: &AgentLeaseState,
        block: BlockDraft,
    ) -> ToolResult {
        let request = AgentBlockRequest {
            lease: Some(lease.to_wire()),
            block: Some(block),
            request_id: self.call_id.clone(),
        };
        let response = self
            .relay
            .call(async |relay| relay.agents().block(request.clone()).await);
        Ok(to_json(&response.await?))
    }

    async fn release(&mut self, args: &McpArguments) -> ToolResult {
        let lease = self.lease_for(args)?;
        let released = self.release_task(&lease, args.text("reason")).await?;
        self.current_lease.send_replace(None);
        Ok(released)
    }

    pub(super) async fn release_task(
        &mut self,
        lease: &AgentLeaseState,
        reason: String,
    ) -> ToolResult {
        let request = AgentReleaseRequest {
            lease: Some(lease.to_wire()),
            reason,
            request_id: self.call_id.clone(),
        };
        let response = self
            .relay
            .call(async |relay| relay.agents().release(request.clone()).await);
        Ok(to_json(&response.await?))
    }

    /// Checks the required files of the task.
    async fn artifact_receipts(
        &self,
        lease: &AgentLeaseState,
    ) -> Result<Vec<ArtifactReceipt>, ToolRejection> {
        let wanted = lease.contract.as_ref();
        if wanted.is_none_or(|contract| contract.required_artifacts.is_empty()) {
            return Ok(Vec::new());
        }
        let Some(root) = &self.root else {
            let next = "start `baton mcp` with --root DIR, the directory of the files";
            let what =
                "the task requires files, but the server was started without their directory";
            return Err(ToolRejection::new(
                FAILED_PRECONDITION,
                "root_missing",
                what,
                next,
            ));
        };
        let wanted = RequiredFiles::new(root, wanted).map_err(|error| {
            let next = "block the task with this reason";
            ToolRejection::new(
                FAILED_PRECONDITION,
                "bad_contract",
                &error.to_string(),
                next,
            )
        })?;
        match wanted {
            Some(wanted) => Ok(wanted.inspect(INSPECTION_TIMEOUT).await),
            None => Ok(Vec::new()),
        }
    }

    async fn complete(&mut self, args: &McpArguments) -> ToolResult {
        let lease = self.lease_for(args)?;
        let finish = requests::finish(args);
        let ended = match finish.outcome() {
            FinishOutcome::Unspecified | FinishOutcome::Completed => {
                let request = AgentCompleteRequest {
                    artifacts: self.artifact_receipts(&lease).await?,
                    lease: Some(lease.to_wire()),
                    result: finish.result.into(),
                    usage: None,
                    summary: finish.summary,
                    request_id: self.call_id.clone(),
                };
                let response = self
                    .relay
                    .call(async |relay| relay.agents().complete(request.clone()).await);
                to_json(&response.await?)
            }
            FinishOutcome::Failed => {
                let request = AgentFailRequest {
                    lease: Some(lease.to_wire()),
                    failure_code: finish.failure_code,
                    message: finish.summary,
                    user_message: finish.result,
                    retryable_hint: finish.retryable,
                    usage: None,
                    request_id: self.call_id.clone(),
                };
                let response = self
                    .relay
                    .call(async |relay| relay.agents().fail(request.clone()).await);
                to_json(&response.await?)
            }
            FinishOutcome::Canceled => self.cancel_task(&lease, finish.summary).await?,
        };
        self.current_lease.send_replace(None);
        Ok(ended)
    }

    pub(super) async fn cancel_task(
        &mut self,
        lease: &AgentLeaseState,
        reason: String,
    ) -> ToolResult {
        let request = AgentCancelRequest {
            lease: Some(lease.to_wire()),
            reason,
            request_id: self.call_id.clone(),
        };
        let response = self
            .relay
            .call(async |relay| relay.agents().cancel(request.clone()).await);
        Ok(to_json(&response.await?))
    }
}

/// An id for one tool call. All tries of the call use it, so that the relay carries it out once.
pub(super) fn new_call_id() -> String {
    Uuid::now_v7().to_string()
}

fn no_task_held() -> ToolRejection {
    let next = "call list_blocked_tasks and pick_up_task, claim_task or task_start first";
    ToolRejection::new(
        FAILED_PRECONDITION,
        "nothing_held",
        "this session holds no task",
        next,
    )
}
