//! A server that stands alone: asks the relay with a token, and holds at most one task. One loop owns what it holds and
//! answers one call after the other; the lease is renewed beside it. What becomes of it at the end is in `leaving`.

use std::path::PathBuf;

use baton_daemon::Clock;
use baton_daemon::receipts::{LOOK, WantedFiles};
use baton_proto::to_json;
use baton_proto::v1::{
    AgentBlockRequest, AgentCancelRequest, AgentCheckpointRequest, AgentCompleteRequest,
    AgentFailRequest, AgentGrant, AgentProgressRequest, AgentReleaseRequest, ArtifactReceipt,
    BlockDraft, ClaimRequest, GetBlockedRequest, GetTaskRequest, PickUpRequest, StartRequest,
};
use baton_proto::verbs::Call;
use baton_proto::worker::FinishOutcome;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::answer::{Answer, PRECONDITION, Refusal, stopping};
use super::fields::Args;
use super::lease::{self, Lease};
use super::line::Line;
use super::requests;
use super::server::Asked;
use super::session::Session;
use crate::discovery::RelayArgs;

pub(super) struct Alone {
    pub(super) line: Line,
    pub(super) clock: Clock,
    /// Beneath it required files are looked for.
    root: Option<PathBuf>,
    pub(super) held: watch::Sender<Option<Lease>>,
    pub(super) session: Session,
    /// Of the call that is answered now.
    pub(super) call_id: String,
    /// The last call, where nobody knows whether the relay heard it: the same call again is that one.
    unanswered: Option<(Call, Args, String)>,
    /// The call that is answered now is one of before.
    repeats: bool,
}

impl Alone {
    pub(super) fn new(
        args: RelayArgs,
        root: Option<PathBuf>,
        clock: Clock,
        session: Session,
    ) -> Self {
        Self {
            line: Line::new(args),
            clock,
            root,
            held: watch::Sender::new(None),
            session,
            call_id: fresh_id(),
            unanswered: None,
            repeats: false,
        }
    }

    /// Until the session is over and what was held is seen to, or until there is no more time for that.
    pub(super) async fn serve(mut self, calls: mpsc::Receiver<Asked>) {
        let renewing = self.held.clone();
        let (line, clock) = (self.line.clone(), self.clock.clone());
        let session = self.session.clone();
        let answering = async {
            self.answer_all(calls).await;
            self.leave().await;
        };
        tokio::select! {
            () = answering => {}
            () = lease::keep(&renewing, line, &clock) => {}
            () = session.time_to_leave() => {}
        }
    }

    /// What was asked before the session's end is still answered: what an agent wrote down last must not be lost.
    async fn answer_all(&mut self, mut calls: mpsc::Receiver<Asked>) {
        let session = self.session.clone();
        loop {
            let asked = tokio::select! {
                asked = calls.recv() => asked,
                () = session.over(), if !calls.is_closed() => {
                    calls.close();
                    continue;
                }
            };
            let Some(asked) = asked else { return };
            let answer = self.answer(asked.call, &asked.args).await;
            // Whoever asked may have gone.
            let _ = asked.reply.send(answer);
        }
    }

    pub(super) async fn answer(&mut self, call: Call, args: &Args) -> Answer {
        let before = self.unanswered.take();
        let before = before.filter(|(same, with, _)| *same == call && with == args);
        self.repeats = before.is_some();
        self.call_id = before.map_or_else(fresh_id, |(.., id)| id);
        let answer = self.answer_under_id(call, args).await;
        if answer.as_ref().is_err_and(Refusal::is_transient) {
            self.unanswered = Some((call, args.clone(), self.call_id.clone()));
        }
        answer
    }

    async fn answer_under_id(&mut self, call: Call, args: &Args) -> Answer {
        let answer = match call {
            Call::ListBlocked => self.list_blocked(args).await,
            Call::GetBlocked => self.get_blocked(args).await,
            Call::PickUp => self.pick_up(args).await,
            Call::Start => self.start(args).await,
            Call::Claim => self.claim(args).await,
            Call::Progress => self.progress(args).await,
            Call::Checkpoint => self.checkpoint(args).await,
            Call::Block => self.block(args).await,
            Call::Complete => self.complete(args).await,
            Call::Release => self.release(args).await,
            Call::Get => self.get(args).await,
            Call::List => self.list(args).await,
        };
        answer.map(|answer| self.with_wishes(answer))
    }

    /// A wish for the task's end is told with whatever is answered.
    fn with_wishes(&self, mut answer: Value) -> Value {
        let wanted = self
            .held
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

    async fn list_blocked(&mut self, args: &Args) -> Answer {
        let request = requests::list_blocked(args);
        let list = self
            .line
            .ask(async |relay| relay.tasks().list_blocked(request.clone()).await);
        Ok(to_json(&list.await?))
    }

    async fn get_blocked(&mut self, args: &Args) -> Answer {
        let request = GetBlockedRequest {
            task_id: args.text("task_id"),
        };
        let found = self
            .line
            .ask(async |relay| relay.tasks().get_blocked(request.clone()).await);
        Ok(to_json(&found.await?))
    }

    async fn get(&mut self, args: &Args) -> Answer {
        let held = self
            .held
            .borrow()
            .as_ref()
            .map(|lease| lease.task_id.clone());
        let Some(task_id) = args.given_text("task_id").or(held) else {
            return Err(nothing_held());
        };
        let request = GetTaskRequest {
            task_id,
            include_spec: true,
        };
        let found = self
            .line
            .ask(async |relay| relay.tasks().get(request.clone()).await);
        Ok(to_json(&found.await?))
    }

    async fn list(&mut self, args: &Args) -> Answer {
        let request = requests::list(args);
        let list = self
            .line
            .ask(async |relay| relay.tasks().list(request.clone()).await);
        Ok(to_json(&list.await?))
    }

    async fn start(&mut self, args: &Args) -> Answer {
        self.check_free()?;
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
            .line
            .ask(async |relay| relay.agents().start(request.clone()).await);
        let grant = started.await?.grant;
        self.hold(grant, asked_at)
    }

    async fn claim(&mut self, args: &Args) -> Answer {
        self.check_free()?;
        let request = ClaimRequest {
            task_id: args.text("task_id"),
            request_id: self.call_id.clone(),
        };
        let asked_at = self.clock.now();
        let claimed = self
            .line
            .ask(async |relay| relay.agents().claim(request.clone()).await);
        let grant = claimed.await?.grant;
        self.hold(grant, asked_at)
    }

    async fn pick_up(&mut self, args: &Args) -> Answer {
        self.check_free()?;
        let request = PickUpRequest {
            task_id: args.text("task_id"),
            attempt_id: args.text("attempt_id"),
            reason: args.text("reason"),
            request_id: self.call_id.clone(),
        };
        let asked_at = self.clock.now();
        let picked = self
            .line
            .ask(async |relay| relay.agents().pick_up(request.clone()).await);
        let grant = picked.await?.grant;
        self.hold(grant, asked_at)
    }

    /// The token stays here: the agent has no use for it. A grant that comes when the session is over is told to nobody.
    fn hold(&mut self, grant: Option<AgentGrant>, asked_at: baton_daemon::Moment) -> Answer {
        let Some(mut grant) = grant else {
            let next = "nothing can be claimed now; look again later";
            return Ok(json!({"held": false, "next": next}));
        };
        let told = !self.session.is_over();
        self.held
            .send_replace(Some(Lease::granted(&grant, asked_at, told)));
        if !told {
            return Err(stopping());
        }
        grant.token = None;
        let mut held = to_json(&grant);
        held["held"] = true.into();
        Ok(held)
    }

    fn check_free(&self) -> Result<(), Refusal> {
        if self.session.is_over() {
            return Err(stopping());
        }
        let held = self.held.borrow();
        let Some(lease) = held
            .as_ref()
            .filter(|lease| lease.check(self.clock.now()).is_ok())
        else {
            return Ok(());
        };
        let what = format!("this session already holds task {}", lease.task_id);
        let next = "complete, block or release that one first";
        Err(Refusal::new(PRECONDITION, "lease_held", &what, next))
    }

    /// The lease that a call means.
    fn lease(&self, args: &Args) -> Result<Lease, Refusal> {
        let held = self.held.borrow().clone();
        let lease = held.ok_or_else(nothing_held)?;
        let named = args.given_text("task_id");
        if named.is_some_and(|task_id| task_id != lease.task_id) {
            let what = format!(
                "this session does not hold that task; it holds {}",
                lease.task_id
            );
            let next = "leave task_id out, or claim the other task when this one is done";
            return Err(Refusal::new("not_found", "not_held", &what, next));
        }
        // What was said while it stood may have ended it: then the relay knows the call, and answers as it would have.
        if !self.repeats {
            lease.check(self.clock.now())?;
        }
        Ok(lease)
    }

    async fn progress(&mut self, args: &Args) -> Answer {
        let request = AgentProgressRequest {
            lease: Some(self.lease(args)?.proof()),
            update: Some(requests::progress(args)),
            request_id: self.call_id.clone(),
        };
        let told = self
            .line
            .ask(async |relay| relay.agents().progress(request.clone()).await);
        Ok(to_json(&told.await?))
    }

    async fn checkpoint(&mut self, args: &Args) -> Answer {
        let request = AgentCheckpointRequest {
            lease: Some(self.lease(args)?.proof()),
            checkpoint: Some(requests::checkpoint(args)),
            request_id: self.call_id.clone(),
        };
        let told = self
            .line
            .ask(async |relay| relay.agents().checkpoint(request.clone()).await);
        Ok(to_json(&told.await?))
    }

    async fn block(&mut self, args: &Args) -> Answer {
        let lease = self.lease(args)?;
        let blocked = self.block_for(&lease, requests::block(args)).await?;
        self.held.send_replace(None);
        Ok(blocked)
    }

    pub(super) async fn block_for(&mut self, lease: &Lease, block: BlockDraft) -> Answer {
        let request = AgentBlockRequest {
            lease: Some(lease.proof()),
            block: Some(block),
            request_id: self.call_id.clone(),
        };
        let told = self
            .line
            .ask(async |relay| relay.agents().block(request.clone()).await);
        Ok(to_json(&told.await?))
    }

    async fn release(&mut self, args: &Args) -> Answer {
        let lease = self.lease(args)?;
        let released = self.release_for(&lease, args.text("reason")).await?;
        self.held.send_replace(None);
        Ok(released)
    }

    pub(super) async fn release_for(&mut self, lease: &Lease, reason: String) -> Answer {
        let request = AgentReleaseRequest {
            lease: Some(lease.proof()),
            reason,
            request_id: self.call_id.clone(),
        };
        let told = self
            .line
            .ask(async |relay| relay.agents().release(request.clone()).await);
        Ok(to_json(&told.await?))
    }

    /// What is there of the files that the task asks for.
    async fn receipts(&self, lease: &Lease) -> Result<Vec<ArtifactReceipt>, Refusal> {
        let wanted = lease.contract.as_ref();
        if wanted.is_none_or(|contract| contract.required_artifacts.is_empty()) {
            return Ok(Vec::new());
        }
        let Some(root) = &self.root else {
            let next = "start `baton mcp` with --root DIR, the directory that the files are in";
            let what = "the task asks for files, and nobody said where they are";
            return Err(Refusal::new(PRECONDITION, "root_missing", what, next));
        };
        let wanted = WantedFiles::new(root, wanted).map_err(|error| {
            let next = "block the task and say so";
            Refusal::new(PRECONDITION, "bad_contract", &error.to_string(), next)
        })?;
        match wanted {
            Some(wanted) => Ok(wanted.look(LOOK).await),
            None => Ok(Vec::new()),
        }
    }

    async fn complete(&mut self, args: &Args) -> Answer {
        let lease = self.lease(args)?;
        let finish = requests::finish(args);
        let ended = match finish.outcome() {
            FinishOutcome::Unspecified | FinishOutcome::Completed => {
                let request = AgentCompleteRequest {
                    artifacts: self.receipts(&lease).await?,
                    lease: Some(lease.proof()),
                    result: finish.result.into(),
                    usage: None,
                    summary: finish.summary,
                    request_id: self.call_id.clone(),
                };
                let told = self
                    .line
                    .ask(async |relay| relay.agents().complete(request.clone()).await);
                to_json(&told.await?)
            }
            FinishOutcome::Failed => {
                let request = AgentFailRequest {
                    lease: Some(lease.proof()),
                    failure_code: finish.failure_code,
                    message: finish.summary,
                    user_message: finish.result,
                    retryable_hint: finish.retryable,
                    usage: None,
                    request_id: self.call_id.clone(),
                };
                let told = self
                    .line
                    .ask(async |relay| relay.agents().fail(request.clone()).await);
                to_json(&told.await?)
            }
            FinishOutcome::Canceled => self.cancel_for(&lease, finish.summary).await?,
        };
        self.held.send_replace(None);
        Ok(ended)
    }

    pub(super) async fn cancel_for(&mut self, lease: &Lease, reason: String) -> Answer {
        let request = AgentCancelRequest {
            lease: Some(lease.proof()),
            reason,
            request_id: self.call_id.clone(),
        };
        let told = self
            .line
            .ask(async |relay| relay.agents().cancel(request.clone()).await);
        Ok(to_json(&told.await?))
    }
}

/// For one call of a tool, however often the line, or the agent, has to ask: the relay does it once.
pub(super) fn fresh_id() -> String {
    Uuid::now_v7().to_string()
}

fn nothing_held() -> Refusal {
    let next = "call list_blocked_tasks and pick_up_task, claim_task or task_start first";
    Refusal::new(
        PRECONDITION,
        "nothing_held",
        "this session holds no task",
        next,
    )
}
