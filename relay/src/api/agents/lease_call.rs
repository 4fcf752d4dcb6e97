//! What an agent says about a lease that it holds itself. Everything that can be said about the shape of a call is said
//! before anything is looked up; the core judges the rest in one order for all of them.

use std::sync::Arc;

use baton_core::commands::{
    AgentCallReply, AgentLeaseCall, AgentLeaseProof, AgentVerb, BlockAttempt, EndAttempt,
    RenewAgentLease, ReportAttemptProgress, WriteAttemptCheckpoint,
};
use baton_core::goal::completion_contract;
use baton_core::goal::progress::{ProgressUpdate, SanitizedText};
use baton_core::ids::{AttemptId, TaskId, TokenId};
use baton_core::io::rejection::Rejection;
use baton_core::io::session_input::{CompletedBody, ErroredBody, LeaseToken, ProcessTermination};
use baton_core::record::{CallFingerprint, CheckpointRecord, FailureCode, TaskRecord};
use baton_proto::{codes, v1};
use prost::Message;
use sha2::{Digest, Sha256};

use super::agent_of;
use crate::api::error::fault::ApiFault;
use crate::api::request::limits;
use crate::api::request::validate;
use crate::api::request::validate::{InvalidReason, ValidationResult, invalid_field};
use crate::api::tasks::goal::{check_evidence, check_update};
use crate::api::wire::{goal, timestamp};
use crate::api::{Api, optional_reason};
use crate::auth::Principal;
use crate::session::{artifact, sanitized_text, usage};

/// The code of a failure that the agent did not name.
const AGENT_REPORTED: &str = "agent_reported";

/// A lease as a call names it, checked for shape.
#[derive(Debug)]
pub(crate) struct LeaseReference {
    task: TaskId,
    attempt: AttemptId,
    proof: LeaseToken,
    mark: Option<CallFingerprint>,
}

impl Api {
    pub(crate) async fn renew_lease(
        &self,
        who: Principal,
        request: v1::RenewRequest,
    ) -> Result<v1::RenewResponse, ApiFault> {
        let lease = lease_reference(request.lease, None)?;
        let lease = lease.proof(&who)?;
        let renewal = RenewAgentLease { lease };
        let renewed = self.dispatcher.request_with_lease(renewal, None).await?;
        Ok(v1::RenewResponse {
            granted_ms: renewed.granted_ms,
            expires_at: Some(timestamp(renewed.expires_at)),
            cancel_requested: renewed.cancel_requested,
        })
    }

    pub(crate) async fn release_lease(
        &self,
        who: Principal,
        request: v1::AgentReleaseRequest,
    ) -> Result<v1::AgentReleaseResponse, ApiFault> {
        let call = call_mark(&request.request_id, &request);
        let reason = optional_reason(request.reason)?;
        let lease = lease_reference(request.lease, call?)?;
        let verb = EndAttempt::Release { reason };
        let task = Some(self.call_for_message(&who, lease, verb).await?);
        Ok(v1::AgentReleaseResponse { task })
    }

    pub(crate) async fn complete_attempt(
        &self,
        who: Principal,
        request: v1::AgentCompleteRequest,
    ) -> Result<v1::AgentCompleteResponse, ApiFault> {
        let completed = completed_body(&request)?;
        validate::text("summary", &request.summary, limits::SUMMARY)?;
        let call = call_mark(&request.request_id, &request)?;
        let lease = lease_reference(request.lease, call)?;
        let last_words = Some(request.summary).filter(|summary| !summary.trim().is_empty());
        let last_words = last_words.map(|summary| {
            SanitizedText::new(ProgressUpdate {
                summary: Some(summary.into()),
                ..ProgressUpdate::default()
            })
        });
        let (task, found) = (lease.task, completed.artifacts.clone());
        let verb = EndAttempt::Complete(completed, last_words);
        match self.call_for_message(&who, lease, verb).await {
            Err(ApiFault::Refused(Rejection::ContractUnmet)) => {
                let (spec, _) = self.stored_task(&who, task).await?;
                Err(ApiFault::MissingFiles(completion_contract::judge_found(
                    &spec, &found,
                )))
            }
            task => Ok(v1::AgentCompleteResponse { task: Some(task?) }),
        }
    }

    pub(crate) async fn write_checkpoint(
        &self,
        who: Principal,
        request: v1::AgentCheckpointRequest,
    ) -> Result<v1::AgentCheckpointResponse, ApiFault> {
        let call = call_mark(&request.request_id, &request);
        let draft = validate::present("checkpoint", request.checkpoint)?;
        validate::not_blank("checkpoint.summary", &draft.summary, limits::SUMMARY)?;
        check_checkpoint_draft(&draft)?;
        let lease = lease_reference(request.lease, call?)?;
        let draft = SanitizedText::new(goal::checkpoint_from_wire(draft));
        let verb = WriteAttemptCheckpoint(draft);
        let written = match self
            .call_with_lease(&who, lease, verb, Some(who.token))
            .await?
        {
            AgentCallReply::Done { done, .. } => done,
            AgentCallReply::Repeated { record, checkpoint } => {
                self.checkpoint_of_repeat(&record, checkpoint).await?
            }
        };
        Ok(v1::AgentCheckpointResponse {
            checkpoint: Some(goal::checkpoint(&written)),
        })
    }

    pub(crate) async fn update_attempt_progress(
        &self,
        who: Principal,
        request: v1::AgentProgressRequest,
    ) -> Result<v1::AgentProgressResponse, ApiFault> {
        let call = call_mark(&request.request_id, &request);
        let update = validate::present("update", request.update)?;
        check_update(&update)?;
        let lease = lease_reference(request.lease, call?)?;
        let update = SanitizedText::new(goal::progress_from_wire(update));
        let verb = ReportAttemptProgress(update);
        let progress = match self
            .call_with_lease(&who, lease, verb, Some(who.token))
            .await?
        {
            AgentCallReply::Done { record, done } => {
                Some(goal::progress(&done, record.checkpoint_count))
            }
            AgentCallReply::Repeated { record, .. } => self.progress_of(&record).await?,
        };
        Ok(v1::AgentProgressResponse { progress })
    }

    /// The reason first of all: a blank one is wrong whatever it speaks of.
    pub(crate) async fn block_attempt(
        &self,
        who: Principal,
        request: v1::AgentBlockRequest,
    ) -> Result<v1::AgentBlockResponse, ApiFault> {
        let call = call_mark(&request.request_id, &request);
        let block = validate::present("block", request.block)?;
        validate::not_blank("block.reason", &block.reason, limits::REASON)?;
        validate::text("block.resume_hint", &block.resume_hint, limits::REASON)?;
        if let Some(draft) = &block.checkpoint {
            check_checkpoint_draft(draft)?;
        }
        let lease = lease_reference(request.lease, call?)?;
        let verb = BlockAttempt(SanitizedText::new(goal::block_from_wire(block)));
        // What ends the attempt waits for nothing.
        let (record, written) = match self.call_with_lease(&who, lease, verb, None).await? {
            AgentCallReply::Done { record, done } => (record, done.checkpoint),
            AgentCallReply::Repeated { record, checkpoint } => {
                let written = self.checkpoint_of_repeat(&record, checkpoint).await?;
                (record, Some(written))
            }
        };
        Ok(v1::AgentBlockResponse {
            task: Some(self.current_task_message(&record).await?),
            checkpoint_id: written.map(|one| one.id.to_string()).unwrap_or_default(),
        })
    }

    pub(crate) async fn fail_attempt(
        &self,
        who: Principal,
        request: v1::AgentFailRequest,
    ) -> Result<v1::AgentFailResponse, ApiFault> {
        let errored = errored_body(&request)?;
        let call = call_mark(&request.request_id, &request)?;
        let lease = lease_reference(request.lease, call)?;
        let verb = EndAttempt::Fail(errored);
        let task = Some(self.call_for_message(&who, lease, verb).await?);
        Ok(v1::AgentFailResponse { task })
    }

    pub(crate) async fn cancel_attempt(
        &self,
        who: Principal,
        request: v1::AgentCancelRequest,
    ) -> Result<v1::AgentCancelResponse, ApiFault> {
        let call = call_mark(&request.request_id, &request);
        let reason = optional_reason(request.reason)?;
        let lease = lease_reference(request.lease, call?)?;
        let verb = EndAttempt::Cancel { reason };
        let task = Some(self.call_for_message(&who, lease, verb).await?);
        Ok(v1::AgentCancelResponse { task })
    }

    /// The checkpoint that a repeated call wrote when it was first heard.
    async fn checkpoint_of_repeat(
        &self,
        record: &TaskRecord,
        number: Option<u64>,
    ) -> Result<Arc<CheckpointRecord>, ApiFault> {
        let (tenant, task) = (record.tenant.clone(), record.task);
        let number = number.unwrap_or_default();
        let written = self.read_store(move |reader| reader.checkpoint(&tenant, task, number));
        written.await?.ok_or(ApiFault::Unreadable)
    }

    async fn call_for_message(
        &self,
        who: &Principal,
        lease: LeaseReference,
        end: EndAttempt,
    ) -> Result<v1::Task, ApiFault> {
        let record = match self.call_with_lease(who, lease, end, None).await? {
            AgentCallReply::Done { record, .. } | AgentCallReply::Repeated { record, .. } => record,
        };
        self.current_task_message(&record).await
    }

    /// `goal_update_of` is the caller of a goal update, which waits its turn; what ends the attempt
    /// waits for nothing.
    async fn call_with_lease<V: AgentVerb>(
        &self,
        who: &Principal,
        lease: LeaseReference,
        verb: V,
        goal_update_of: Option<TokenId>,
    ) -> Result<AgentCallReply<V::Done>, ApiFault> {
        let fingerprint = lease.mark.clone();
        let call = AgentLeaseCall {
            lease: lease.proof(who)?,
            fingerprint,
            verb,
        };
        let reply = self.dispatcher.request_with_lease(call, goal_update_of);
        Ok(reply.await?)
    }
}

impl LeaseReference {
    fn proof(self, who: &Principal) -> Result<AgentLeaseProof, ApiFault> {
        Ok(AgentLeaseProof {
            agent: agent_of(who)?,
            task: self.task,
            attempt: self.attempt,
            token: self.proof,
        })
    }
}

/// What tells this call from every other one, where its caller gave it an id: it may come again. The digest is of all that was
/// sent, the proof too, so that whoever says a block again proves the lease that the block gave up.
pub(crate) fn call_mark(
    request_id: &str,
    request: &impl Message,
) -> ValidationResult<Option<CallFingerprint>> {
    if request_id.is_empty() {
        return Ok(None);
    }
    Ok(Some(CallFingerprint {
        id: validate::id("request_id", request_id)?,
        digest: Sha256::digest(request.encode_to_vec()).into(),
    }))
}

fn lease_reference(
    lease: Option<v1::AgentLease>,
    mark: Option<CallFingerprint>,
) -> ValidationResult<LeaseReference> {
    let lease = validate::present("lease", lease)?;
    let token = validate::present("lease.token", lease.token)?;
    Ok(LeaseReference {
        task: validate::id("lease.task_id", &lease.task_id)?,
        attempt: validate::id("lease.attempt_id", &lease.attempt_id)?,
        // One of the wrong size is a wrong one; the zeroes prove nothing.
        proof: LeaseToken(token.value.as_ref().try_into().unwrap_or([0; 32])),
        mark,
    })
}

/// All but the summary, which a block may leave out.
fn check_checkpoint_draft(draft: &v1::CheckpointDraft) -> ValidationResult<()> {
    validate::text("checkpoint.summary", &draft.summary, limits::SUMMARY)?;
    validate::text("checkpoint.cursor", &draft.cursor, limits::CURSOR)?;
    check_evidence("checkpoint.evidence", &draft.evidence)?;
    let field = "checkpoint.agent_session_id";
    validate::text(field, &draft.agent_session_id, limits::EXTERNAL_ID)?;
    let field = "checkpoint.state_refs";
    validate::count(field, draft.state_refs.len(), limits::MAX_STATE_REFS)?;
    for path in &draft.state_refs {
        validate::not_blank(field, path, limits::STATE_REF)?;
    }
    Ok(())
}

fn completed_body(request: &v1::AgentCompleteRequest) -> ValidationResult<CompletedBody> {
    if request.result.len() > codes::MAX_RESULT_BYTES {
        let limit = limits::TextLimit::Bytes(codes::MAX_RESULT_BYTES);
        return Err(invalid_field("result", InvalidReason::TooLong { limit }));
    }
    validate::count("artifacts", request.artifacts.len(), limits::ARTIFACTS)?;
    let result = Some(&request.result[..]).filter(|result| !result.is_empty());
    Ok(CompletedBody {
        result: result.map(Arc::from),
        usage: usage(request.usage.as_ref()),
        artifacts: request.artifacts.iter().map(artifact).collect(),
        ended_in_lease: true,
        ..CompletedBody::default()
    })
}

fn errored_body(request: &v1::AgentFailRequest) -> ValidationResult<ErroredBody> {
    validate::not_blank("message", &request.message, limits::MESSAGE)?;
    validate::text("user_message", &request.user_message, limits::MESSAGE)?;
    let code = match request.failure_code.as_str() {
        "" => AGENT_REPORTED,
        code => {
            validate::name("failure_code", code, limits::FAILURE_CODE)?;
            if !codes::is_allowed_from_agent(code) {
                let rule = "it is the relay's or a daemon's to say; use a word of your own";
                return Err(invalid_field(
                    "failure_code",
                    InvalidReason::MalformedName { rule },
                ));
            }
            code
        }
    };
    Ok(ErroredBody {
        code: FailureCode::parse(code),
        retryable_hint: request.retryable_hint,
        message: sanitized_text(&request.message),
        user_message: sanitized_text(&request.user_message),
        usage: usage(request.usage.as_ref()),
        agent_session_id: None,
        final_offset: 0,
        termination: ProcessTermination::default(),
        ended_in_lease: true,
    })
}
