//! What an agent says about a lease that it holds itself. Everything that can be said about the shape of a call is said
//! before anything is looked up; the core judges the rest in one order for all of them.

use std::sync::Arc;

use baton_core::contract;
use baton_core::effects::Reply;
use baton_core::goal::{Clean, GoalWord, ProgressUpdate};
use baton_core::id::{AttemptId, TaskId};
use baton_core::input::{Completed, Errored, HeldCall, HeldVerb, Input, LeaseToken, Termination};
use baton_core::record::{CallMark, CheckpointRecord, FailureCode, TaskRecord};
use baton_core::reject::Rejection;
use baton_proto::{codes, v1};
use prost::Message;
use sha2::{Digest, Sha256};

use super::agents::agent;
use super::fault::Fault;
use super::goals::{check_evidence, check_update};
use super::tasks::unexpected;
use super::validate::{self, Checked, Why, invalid};
use super::{Api, limits, optional_reason};
use crate::auth::Principal;
use crate::session::{artifact, usage, words_of};
use crate::wire::{goal, timestamp};

/// The code of a failure that the agent did not name.
const AGENT_REPORTED: &str = "agent_reported";

/// A lease as a call names it, checked for shape.
#[derive(Debug)]
pub(super) struct Named {
    task: TaskId,
    attempt: AttemptId,
    proof: LeaseToken,
    mark: Option<CallMark>,
}

impl Api {
    pub(super) async fn renew_held(
        &self,
        who: Principal,
        request: v1::RenewRequest,
    ) -> Result<v1::RenewResponse, Fault> {
        let lease = named(request.lease, None)?;
        match self.held(&who, lease, HeldVerb::Renew).await? {
            Reply::Renewed {
                granted_ms,
                expires_at,
                cancel_requested,
            } => Ok(v1::RenewResponse {
                granted_ms,
                expires_at: Some(timestamp(expires_at)),
                cancel_requested,
            }),
            other => Err(unexpected(Ok(other))),
        }
    }

    pub(super) async fn release_held(
        &self,
        who: Principal,
        request: v1::AgentReleaseRequest,
    ) -> Result<v1::AgentReleaseResponse, Fault> {
        let call = mark(&request.request_id, &request);
        let reason = optional_reason(request.reason)?;
        let lease = named(request.lease, call?)?;
        let verb = HeldVerb::Release { reason };
        let task = Some(self.held_task(&who, lease, verb).await?);
        Ok(v1::AgentReleaseResponse { task })
    }

    pub(super) async fn complete_held(
        &self,
        who: Principal,
        request: v1::AgentCompleteRequest,
    ) -> Result<v1::AgentCompleteResponse, Fault> {
        let completed = completed(&request)?;
        validate::text("summary", &request.summary, limits::SUMMARY)?;
        let call = mark(&request.request_id, &request)?;
        let lease = named(request.lease, call)?;
        let last_words = Some(request.summary).filter(|summary| !summary.trim().is_empty());
        let last_words = last_words.map(|summary| {
            Clean::new(ProgressUpdate {
                summary: Some(summary.into()),
                ..ProgressUpdate::default()
            })
        });
        let (task, found) = (lease.task, completed.artifacts.clone());
        let verb = HeldVerb::Complete(completed, last_words);
        match self.held_task(&who, lease, verb).await {
            Err(Fault::Refused(Rejection::ContractUnmet)) => {
                let (spec, _) = self.stored_task(&who, task).await?;
                Err(Fault::Unmet(contract::judge_found(&spec, &found)))
            }
            task => Ok(v1::AgentCompleteResponse { task: Some(task?) }),
        }
    }

    pub(super) async fn checkpoint_held(
        &self,
        who: Principal,
        request: v1::AgentCheckpointRequest,
    ) -> Result<v1::AgentCheckpointResponse, Fault> {
        let call = mark(&request.request_id, &request);
        let draft = validate::present("checkpoint", request.checkpoint)?;
        validate::not_blank("checkpoint.summary", &draft.summary, limits::SUMMARY)?;
        check_draft(&draft)?;
        let lease = named(request.lease, call?)?;
        let word = GoalWord::Checkpoint(Clean::new(goal::asked_checkpoint(draft)));
        match self.held(&who, lease, HeldVerb::Goal(word)).await? {
            Reply::Checkpointed { checkpoint, .. } => Ok(v1::AgentCheckpointResponse {
                checkpoint: Some(goal::checkpoint(&checkpoint)),
            }),
            Reply::Repeated { record, checkpoint } => {
                let written = self.written_then(&record, checkpoint).await?;
                let checkpoint = Some(goal::checkpoint(&written));
                Ok(v1::AgentCheckpointResponse { checkpoint })
            }
            other => Err(unexpected(Ok(other))),
        }
    }

    pub(super) async fn progress_held(
        &self,
        who: Principal,
        request: v1::AgentProgressRequest,
    ) -> Result<v1::AgentProgressResponse, Fault> {
        let call = mark(&request.request_id, &request);
        let update = validate::present("update", request.update)?;
        check_update(&update)?;
        let lease = named(request.lease, call?)?;
        let word = GoalWord::Progress(Clean::new(goal::asked_progress(update)));
        match self.held(&who, lease, HeldVerb::Goal(word)).await? {
            Reply::Progressed { record, progress } => Ok(v1::AgentProgressResponse {
                progress: Some(goal::progress(&progress, record.checkpoints)),
            }),
            Reply::Repeated { record, .. } => Ok(v1::AgentProgressResponse {
                progress: self.progress_of(&record).await?,
            }),
            other => Err(unexpected(Ok(other))),
        }
    }

    /// The reason first of all: a blank one is wrong whatever it speaks of.
    pub(super) async fn block_held(
        &self,
        who: Principal,
        request: v1::AgentBlockRequest,
    ) -> Result<v1::AgentBlockResponse, Fault> {
        let call = mark(&request.request_id, &request);
        let block = validate::present("block", request.block)?;
        validate::not_blank("block.reason", &block.reason, limits::REASON)?;
        validate::text("block.resume_hint", &block.resume_hint, limits::REASON)?;
        if let Some(draft) = &block.checkpoint {
            check_draft(draft)?;
        }
        let lease = named(request.lease, call?)?;
        let word = GoalWord::Block(Clean::new(goal::asked_block(block)));
        match self.held(&who, lease, HeldVerb::Goal(word)).await? {
            Reply::Checkpointed { record, checkpoint } => Ok(v1::AgentBlockResponse {
                task: Some(self.shown(&record).await?),
                checkpoint_id: checkpoint.id.to_string(),
            }),
            Reply::Repeated { record, checkpoint } => {
                let written = self.written_then(&record, checkpoint).await?;
                Ok(v1::AgentBlockResponse {
                    task: Some(self.shown(&record).await?),
                    checkpoint_id: written.id.to_string(),
                })
            }
            other => Err(unexpected(Ok(other))),
        }
    }

    pub(super) async fn fail_held(
        &self,
        who: Principal,
        request: v1::AgentFailRequest,
    ) -> Result<v1::AgentFailResponse, Fault> {
        let errored = errored(&request)?;
        let call = mark(&request.request_id, &request)?;
        let lease = named(request.lease, call)?;
        let verb = HeldVerb::Fail(errored);
        let task = Some(self.held_task(&who, lease, verb).await?);
        Ok(v1::AgentFailResponse { task })
    }

    pub(super) async fn cancel_held(
        &self,
        who: Principal,
        request: v1::AgentCancelRequest,
    ) -> Result<v1::AgentCancelResponse, Fault> {
        let call = mark(&request.request_id, &request);
        let reason = optional_reason(request.reason)?;
        let lease = named(request.lease, call?)?;
        let verb = HeldVerb::Cancel { reason };
        let task = Some(self.held_task(&who, lease, verb).await?);
        Ok(v1::AgentCancelResponse { task })
    }

    /// The checkpoint that a repeated call wrote when it was first heard.
    async fn written_then(
        &self,
        record: &TaskRecord,
        number: Option<u64>,
    ) -> Result<Arc<CheckpointRecord>, Fault> {
        let (tenant, task) = (record.tenant.clone(), record.task);
        let number = number.unwrap_or_default();
        let written = self.read(move |reader| reader.checkpoint(&tenant, task, number));
        written.await?.ok_or(Fault::Unreadable)
    }

    async fn held_task(
        &self,
        who: &Principal,
        lease: Named,
        verb: HeldVerb,
    ) -> Result<v1::Task, Fault> {
        let record = self.task_held(who, lease, verb).await?;
        self.shown(&record).await
    }

    pub(super) async fn task_held(
        &self,
        who: &Principal,
        lease: Named,
        verb: HeldVerb,
    ) -> Result<Arc<TaskRecord>, Fault> {
        match self.held(who, lease, verb).await? {
            Reply::Task(record) | Reply::Repeated { record, .. } => Ok(record),
            other => Err(unexpected(Ok(other))),
        }
    }

    pub(super) async fn held(
        &self,
        who: &Principal,
        lease: Named,
        verb: HeldVerb,
    ) -> Result<Reply, Fault> {
        let agent = agent(who)?;
        // What ends the attempt or renews it waits for nothing.
        let word = match &verb {
            HeldVerb::Goal(GoalWord::Progress(_) | GoalWord::Checkpoint(_)) => Some(who.token),
            HeldVerb::Goal(GoalWord::Block(_))
            | HeldVerb::Renew
            | HeldVerb::Release { .. }
            | HeldVerb::Complete(..)
            | HeldVerb::Fail(_)
            | HeldVerb::Cancel { .. } => None,
        };
        let call = move |request| {
            Input::Held(Box::new(HeldCall {
                request,
                agent,
                task: lease.task,
                attempt: lease.attempt,
                proof: lease.proof,
                mark: lease.mark,
                verb,
                known: Ok(None),
                finished: None,
            }))
        };
        Ok(self.dispatcher.request_held(call, word).await?)
    }
}

/// What tells this call from every other one, where its caller gave it an id: it may come again. The digest is of all that was
/// sent, the proof too, so that whoever says a block again proves the lease that the block gave up.
pub(super) fn mark(request_id: &str, request: &impl Message) -> Checked<Option<CallMark>> {
    if request_id.is_empty() {
        return Ok(None);
    }
    Ok(Some(CallMark {
        id: validate::id("request_id", request_id)?,
        digest: Sha256::digest(request.encode_to_vec()).into(),
    }))
}

fn named(lease: Option<v1::AgentLease>, mark: Option<CallMark>) -> Checked<Named> {
    let lease = validate::present("lease", lease)?;
    let token = validate::present("lease.token", lease.token)?;
    Ok(Named {
        task: validate::id("lease.task_id", &lease.task_id)?,
        attempt: validate::id("lease.attempt_id", &lease.attempt_id)?,
        // One of the wrong size is a wrong one; the zeroes prove nothing.
        proof: LeaseToken(token.value.as_ref().try_into().unwrap_or([0; 32])),
        mark,
    })
}

/// All but the summary, which a block may leave out.
fn check_draft(draft: &v1::CheckpointDraft) -> Checked<()> {
    validate::text("checkpoint.summary", &draft.summary, limits::SUMMARY)?;
    validate::text("checkpoint.cursor", &draft.cursor, limits::CURSOR)?;
    check_evidence("checkpoint.evidence", &draft.evidence)?;
    let field = "checkpoint.agent_session_id";
    validate::text(field, &draft.agent_session_id, limits::HANDLE)?;
    let field = "checkpoint.state_refs";
    validate::count(field, draft.state_refs.len(), limits::STATE_REFS)?;
    for path in &draft.state_refs {
        validate::not_blank(field, path, limits::STATE_REF)?;
    }
    Ok(())
}

fn completed(request: &v1::AgentCompleteRequest) -> Checked<Completed> {
    if request.result.len() > codes::RESULT_BYTES {
        let limit = limits::Size::Bytes(codes::RESULT_BYTES);
        return Err(invalid("result", Why::TooLong { limit }));
    }
    validate::count("artifacts", request.artifacts.len(), limits::ARTIFACTS)?;
    let result = Some(&request.result[..]).filter(|result| !result.is_empty());
    Ok(Completed {
        result: result.map(Arc::from),
        usage: usage(request.usage.as_ref()),
        artifacts: request.artifacts.iter().map(artifact).collect(),
        in_lease: true,
        ..Completed::default()
    })
}

fn errored(request: &v1::AgentFailRequest) -> Checked<Errored> {
    validate::not_blank("message", &request.message, limits::MESSAGE)?;
    validate::text("user_message", &request.user_message, limits::MESSAGE)?;
    let code = match request.failure_code.as_str() {
        "" => AGENT_REPORTED,
        code => {
            validate::name("failure_code", code, limits::FAILURE_CODE)?;
            if !codes::may_an_agent_say(code) {
                let rule = "it is the relay's or a daemon's to say; use a word of your own";
                return Err(invalid("failure_code", Why::MalformedName { rule }));
            }
            code
        }
    };
    Ok(Errored {
        code: FailureCode::parse(code),
        retryable_hint: request.retryable_hint,
        message: words_of(&request.message),
        user_message: words_of(&request.user_message),
        usage: usage(request.usage.as_ref()),
        agent_session_id: None,
        final_offset: 0,
        termination: Termination::default(),
        in_lease: true,
    })
}
