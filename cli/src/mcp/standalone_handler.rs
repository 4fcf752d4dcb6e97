//! A server that stands alone: asks the relay with a token, and holds at most one task. One loop owns what it holds and
//! answers one call after the other; the lease is renewed beside it. What becomes of it at the end is in `leaving`.

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
    /// Beneath it required files are looked for.
    root: Option<PathBuf>,
    pub(super) current_lease: watch::Sender<Option<AgentLeaseState>>,
    pub(super) session: ServerShutdown,
    /// Of the call that is answered now.
    pub(super) call_id: String,
    /// The last call, where nobody knows whether the relay heard it: the same call again is that one.
    unanswered_call: Option<(ToolOperation, McpArguments, String)>,
    /// The call that is answered now is one of before.
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

    /// Until the session is over and what was held is seen to, or until there is no more time for that.
    pub(super) async fn serve(mut self, calls: mpsc::Receiver<PendingToolCall>) {
        let renewing = self.current_lease.clone();
        let (line, clock) = (self.relay.clone(), self.clock.clone());
        let session = self.session.clone();
        let answering = async {
            self.answer_calls(calls).await;
            self.hand_back_task().await;
        };
        tokio::select! {
            () = answering => {}
            () = agent_lease::renew_forever(&renewing, line, &clock) => {}
            () = session.wait_for_deadline() => {}
        }
    }

    /// What was asked before the session's end is still answered: what an agent wrote down last must not be lost.
    async fn answer_calls(&mut self, mut calls: mpsc::Receiver<PendingToolCall>) {
        let session = self.session.clone();
        loop {
            let asked = tokio::select! {
                asked = calls.recv() => asked,
                () = session.wait_until_stopping(), if !calls.is_closed() => {
                    calls.close();
                    continue;
                }
            };
            let Some(asked) = asked else { return };
            let answer = self.answer_call(asked.call, &asked.args).await;
            // Whoever asked may have gone.
            let _ = asked.reply.send(answer);
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

    /// A wish for the task's end is told with whatever is answered.
    fn with_cancel_request(&self, mut answer: Value) -> Value {
        let wanted = self
            .current_lease
            .borrow()
            .as_ref()
            .is_some_and(|lease| lease.cancel_requested);
        if wanted && let Value::Object(answer) = &mut answer {
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

    /// The token stays here: the agent has no use for it. A grant that comes when the session is over is told to nobody.
    fn store_grant(
        &mut self,
        grant: Option<AgentGrant>,
        asked_at: baton_daemon::BootTime,
    ) -> ToolResult {
        let Some(mut grant) = grant else {
            let next = "nothing can be claimed now; look again later";
            return Ok(json!({"held": false, "next": next}));
        };
        let told = !self.session.is_stopping();
        self.current_lease
            .send_replace(Some(AgentLeaseState::from_grant(&grant, asked_at, told)));
        if !told {
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
        let next = "complete, block or release that one first";
        Err(ToolRejection::new(
            FAILED_PRECONDITION,
            "lease_held",
            &what,
            next,
        ))
    }

    /// The lease that a call means.
    fn lease_for(&self, args: &McpArguments) -> Result<AgentLeaseState, ToolRejection> {
        let held = self.current_lease.borrow().clone();
        let lease = held.ok_or_else(no_task_held)?;
        let named = args.given_text("task_id");
        if named.is_some_and(|task_id| task_id != lease.task_id) {
            let what = format!(
                "this session does not hold that task; it holds {}",
                lease.task_id
            );
            let next = "leave task_id out, or claim the other task when this one is done";
            return Err(ToolRejection::new("not_found", "not_held", &what, next));
        }
        // What was said while it stood may have ended it: then the relay knows the call, and answers as it would have.
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
        let told = self
            .relay
            .call(async |relay| relay.agents().progress(request.clone()).await);
        Ok(to_json(&told.await?))
    }

    async fn checkpoint(&mut self, args: &McpArguments) -> ToolResult {
        let request = AgentCheckpointRequest {
            lease: Some(self.lease_for(args)?.to_wire()),
            checkpoint: Some(requests::checkpoint(args)),
            request_id: self.call_id.clone(),
        };
        let told = self
            .relay
            .call(async |relay| relay.agents().checkpoint(request.clone()).await);
        Ok(to_json(&told.await?))
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
        let told = self
            .relay
            .call(async |relay| relay.agents().block(request.clone()).await);
        Ok(to_json(&told.await?))
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
        let told = self
            .relay
            .call(async |relay| relay.agents().release(request.clone()).await);
        Ok(to_json(&told.await?))
    }

    /// What is there of the files that the task asks for.
    async fn artifact_receipts(
        &self,
        lease: &AgentLeaseState,
    ) -> Result<Vec<ArtifactReceipt>, ToolRejection> {
        let wanted = lease.contract.as_ref();
        if wanted.is_none_or(|contract| contract.required_artifacts.is_empty()) {
            return Ok(Vec::new());
        }
        let Some(root) = &self.root else {
            let next = "start `baton mcp` with --root DIR, the directory that the files are in";
            let what = "the task asks for files, and nobody said where they are";
            return Err(ToolRejection::new(
                FAILED_PRECONDITION,
                "root_missing",
                what,
                next,
            ));
        };
        let wanted = RequiredFiles::new(root, wanted).map_err(|error| {
            let next = "block the task and say so";
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
                let told = self
                    .relay
                    .call(async |relay| relay.agents().complete(request.clone()).await);
                to_json(&told.await?)
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
                let told = self
                    .relay
                    .call(async |relay| relay.agents().fail(request.clone()).await);
                to_json(&told.await?)
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
        let told = self
            .relay
            .call(async |relay| relay.agents().cancel(request.clone()).await);
        Ok(to_json(&told.await?))
    }
}

/// For one call of a tool, however often the line, or the agent, has to ask: the relay does it once.
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
