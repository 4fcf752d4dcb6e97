//! Decodes frames of a daemon from the wire into types of the core. This module checks their
//! shape; the core checks their meaning.
//!
//! A fault names the field, so that the author of a daemon sees what to fix. It never ends the
//! stream.

mod field_checks;
#[cfg(test)]
mod tests;

use baton_core::goal::completion_contract::FoundArtifact;
use baton_core::goal::progress;
use baton_core::goal::progress::{GoalReport, SanitizedText};
use baton_core::ids::{AttemptId, Incarnation, TaskId};
use baton_core::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, FrameBody, FrameRef, LeaseToken, MachineLoad,
    ProcessTermination,
};
use baton_core::record::{
    FailureCode, LifecyclePhase, ProcessExitStatus, RejectCode, TokenUsage, WorkspaceReport,
};
use baton_core::time::WallTime;
use baton_proto::ShortName;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::{codes, v1};
use prost::Message;
use sha2::{Digest, Sha256};

pub(crate) use field_checks::sanitized_text;
use field_checks::{
    TEXT_MAX, bytes, check_count, check_size, clip, clipped_text, id, input_id,
    message_with_stderr, not_blank, timeline_note, tool_id,
};

use super::fault::FrameFault;
use crate::api::wire;
use crate::api::wire::enums;

pub(super) use field_checks::TOOL_ID_MAX;
const TOOL_INPUT_MAX: usize = 256 * 1024;
const QUESTION_MAX: usize = 64 * 1024;
const ARTIFACTS_MAX: usize = baton_validation::PATHS_MAX;

/// The kinds of attempt frames that a session handles differently.
#[derive(Debug)]
pub(super) enum DecodedFrame {
    Control(FrameBody),
    Output(v1::Stream),
    Cut(v1::OutputCut),
}

pub(super) fn frame_ref(sent: Option<&v1::AttemptRef>) -> Result<FrameRef, FrameFault> {
    let sent = sent.ok_or(FrameFault::MissingRef)?;
    Ok(FrameRef {
        task: TaskId(id("ref.task_id", &sent.task_id)?),
        attempt: AttemptId(id("ref.attempt_id", &sent.attempt_id)?),
        number: sent.attempt_number,
        incarnation: Incarnation(id("ref.incarnation", &sent.incarnation)?),
    })
}

/// Checks that a block has a reason. Runs before any lookup, so that the answer to a blank
/// reason reveals nothing.
pub(super) fn check_block_reason(body: Option<&Body>) -> Result<(), FrameFault> {
    match body {
        Some(Body::Block(block)) => not_blank("block.reason", &block.reason),
        Some(_) | None => Ok(()),
    }
}

pub(super) fn observed_at(frame: &v1::AttemptFrame) -> WallTime {
    frame.observed_at.as_ref().map_or(WallTime(0), wall)
}

pub(super) fn wall(time: &prost_types::Timestamp) -> WallTime {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    let millis = u64::try_from(time.nanos).unwrap_or(0) / 1_000_000;
    WallTime(seconds.saturating_mul(1_000).saturating_add(millis))
}

pub(super) fn lease_token(sent: Option<&v1::LeaseToken>) -> Option<LeaseToken> {
    let bytes: [u8; 32] = sent?.value.as_ref().try_into().ok()?;
    Some(LeaseToken(bytes))
}

/// The lease token of a frame. A token of the wrong size counts as wrong and not as absent.
pub(super) fn proof(frame: &v1::AttemptFrame) -> Option<LeaseToken> {
    let sent = frame.token.as_ref()?;
    Some(lease_token(Some(sent)).unwrap_or(LeaseToken([0; 32])))
}

/// The load of the daemon's machine, for display.
pub(super) fn machine_load(sent: &v1::DaemonLoad) -> MachineLoad {
    MachineLoad {
        memory_available_percent: sent.memory_available_percent,
        load_1m_milli: sent.load_1m.map(|load| (load * 1_000.0) as u64),
        disk_free_percent: sent.disk_free_percent,
        unacked_bytes: sent.unacked_bytes,
    }
}

/// The workspace report of a frame.
pub(super) fn workspace(body: Option<&Body>) -> Option<Box<WorkspaceReport>> {
    let sent = match body? {
        Body::Started(started) => started.workspace.as_ref(),
        Body::Complete(complete) => complete.workspace.as_ref(),
        Body::Error(error) => error.workspace.as_ref(),
        Body::Canceled(canceled) => canceled.workspace.as_ref(),
        Body::Receipt(receipt) => receipt.workspace.as_ref(),
        Body::Accepted(_)
        | Body::Rejected(_)
        | Body::Lifecycle(_)
        | Body::Stream(_)
        | Body::OutputCut(_)
        | Body::PermissionRequest(_)
        | Body::Question(_)
        | Body::InputWithdrawn(_)
        | Body::Progress(_)
        | Body::Checkpoint(_)
        | Body::Block(_)
        | Body::Release(_) => None,
    }?;
    Some(Box::new(WorkspaceReport {
        path: clip(&sent.path).into(),
        mode: enums::workspace_mode_from_wire(sent.mode()),
        base_commit: clipped_text(&sent.base_commit),
        branch: clipped_text(&sent.branch),
        head_commit: clipped_text(&sent.head_commit),
        dirty_digest: clipped_text(&sent.dirty_digest),
        changed_files: sent.changed_files,
        is_retained: sent.kept,
    }))
}

/// Decodes a body. `in_lease` is the daemon's claim that a terminal frame was made within the
/// lease.
pub(super) fn decode_body(body: Option<Body>, in_lease: bool) -> Result<DecodedFrame, FrameFault> {
    let Some(body) = body else {
        return Ok(DecodedFrame::Control(FrameBody::Unknown));
    };
    Ok(DecodedFrame::Control(match body {
        Body::Stream(stream) => return Ok(DecodedFrame::Output(stream)),
        Body::OutputCut(cut) => return Ok(DecodedFrame::Cut(cut)),
        Body::Accepted(_) => FrameBody::Accepted,
        Body::Rejected(rejected) => FrameBody::Rejected {
            code: RejectCode::parse(rejected.code().short_name()),
            message: sanitized_text(&rejected.message),
        },
        Body::Started(_) => FrameBody::Started,
        Body::Lifecycle(lifecycle) => phase(&lifecycle)?,
        Body::PermissionRequest(request) => permission(&request)?,
        Body::Question(question) => self::question(&question)?,
        Body::InputWithdrawn(withdrawn) => FrameBody::InputWithdrawn {
            input: input_id(&withdrawn.input_id)?,
        },
        Body::Progress(update) => {
            check_count(
                "progress.completed_items",
                update.completed_items.len(),
                progress::MAX_ITEMS,
            )?;
            check_count(
                "progress.failed_items",
                update.failed_items.len(),
                progress::MAX_ITEMS,
            )?;
            check_count(
                "progress.evidence",
                update.evidence.len(),
                progress::MAX_EVIDENCE,
            )?;
            let update = SanitizedText::new(wire::goal::progress_from_wire(update));
            FrameBody::Goal(GoalReport::Progress(update))
        }
        Body::Checkpoint(draft) => {
            not_blank("checkpoint.summary", &draft.summary)?;
            let draft = SanitizedText::new(wire::goal::checkpoint_from_wire(draft));
            FrameBody::Goal(GoalReport::Checkpoint(draft))
        }
        Body::Block(block) => {
            let block = SanitizedText::new(wire::goal::block_from_wire(block));
            FrameBody::Goal(GoalReport::Block(block))
        }
        Body::Release(release) => FrameBody::Released {
            reason: sanitized_text(&release.reason),
            termination: termination(release.receipt.as_ref()),
        },
        Body::Complete(complete) => FrameBody::Completed(completed(complete, in_lease)?),
        Body::Error(error) => FrameBody::Errored(errored(&error, in_lease)?),
        Body::Canceled(canceled) => FrameBody::Canceled(self::canceled(&canceled, in_lease)),
        Body::Receipt(receipt) => FrameBody::Receipt {
            termination: termination(Some(&receipt)),
        },
    }))
}

/// The total number of output bytes, according to a terminal frame.
pub(super) fn final_offset(body: &FrameBody) -> Option<u64> {
    match body {
        FrameBody::Completed(done) => Some(done.final_offset),
        FrameBody::Errored(error) => Some(error.final_offset),
        FrameBody::Canceled(canceled) => Some(canceled.final_offset),
        FrameBody::Accepted
        | FrameBody::Rejected { .. }
        | FrameBody::Started
        | FrameBody::Phase { .. }
        | FrameBody::ToolStarted { .. }
        | FrameBody::ToolFinished { .. }
        | FrameBody::PermissionRequest { .. }
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Released { .. }
        | FrameBody::Receipt { .. }
        | FrameBody::Goal(_)
        | FrameBody::Unknown => None,
    }
}

fn phase(sent: &v1::TaskLifecycle) -> Result<FrameBody, FrameFault> {
    use v1::LifecyclePhase as Wire;
    let plain = |phase| FrameBody::Phase {
        phase,
        message: timeline_note(&sent.message),
        deadline: enums::daemon_timer_from_wire(sent.deadline()),
    };
    // A phase of a newer protocol consumes its control_seq and changes nothing.
    let Ok(wire) = Wire::try_from(sent.phase) else {
        return Ok(FrameBody::Unknown);
    };
    Ok(match wire {
        Wire::Unspecified => FrameBody::Unknown,
        Wire::ToolStarted => FrameBody::ToolStarted {
            id: tool_id(&sent.tool_call_id)?,
            name: timeline_note(&sent.tool_name).unwrap_or_else(|| "unnamed".into()),
        },
        Wire::ToolFinished => FrameBody::ToolFinished {
            id: tool_id(&sent.tool_call_id)?,
        },
        Wire::InputReceived => FrameBody::InputReceived {
            input: input_id(&sent.input_id)?,
        },
        Wire::Accepted => plain(LifecyclePhase::Accepted),
        Wire::Queued => plain(LifecyclePhase::Queued),
        Wire::Started => plain(LifecyclePhase::Started),
        Wire::AgentStarted => plain(LifecyclePhase::AgentStarted),
        Wire::PromptWritten => plain(LifecyclePhase::PromptWritten),
        Wire::FirstEventSeen => plain(LifecyclePhase::FirstEventSeen),
        Wire::FirstVisibleEventSeen => plain(LifecyclePhase::FirstVisibleEventSeen),
        Wire::Streaming => plain(LifecyclePhase::Streaming),
        Wire::WaitingInput => plain(LifecyclePhase::WaitingInput),
        Wire::CleanupStarted => plain(LifecyclePhase::CleanupStarted),
        Wire::CleanupFinished => plain(LifecyclePhase::CleanupFinished),
        Wire::Heartbeat => plain(LifecyclePhase::Heartbeat),
        Wire::RetryScheduled => plain(LifecyclePhase::RetryScheduled),
        Wire::Completed => plain(LifecyclePhase::Completed),
        Wire::Failed => plain(LifecyclePhase::Failed),
        Wire::Canceled => plain(LifecyclePhase::Canceled),
        Wire::TimedOut => plain(LifecyclePhase::TimedOut),
        Wire::Lost => plain(LifecyclePhase::Lost),
        Wire::Blocked => plain(LifecyclePhase::Blocked),
        Wire::Checkpointed => plain(LifecyclePhase::Checkpointed),
        Wire::Released => plain(LifecyclePhase::Released),
    })
}

fn permission(request: &v1::PermissionRequest) -> Result<FrameBody, FrameFault> {
    not_blank("permission_request.tool_name", &request.tool_name)?;
    check_size(
        "permission_request.tool_name",
        request.tool_name.len(),
        TOOL_ID_MAX,
    )?;
    check_size(
        "permission_request.tool_call_id",
        request.tool_call_id.len(),
        TOOL_ID_MAX,
    )?;
    check_size(
        "permission_request.description",
        request.description.len(),
        TEXT_MAX,
    )?;
    check_size(
        "permission_request.tool_input",
        request.tool_input.len(),
        TOOL_INPUT_MAX,
    )?;
    // The answer is bound to the digest, so the shown input must be what the agent will run.
    let digest: [u8; 32] = Sha256::digest(&request.tool_input).into();
    if request.tool_input_sha256.as_ref() != digest {
        return Err(FrameFault::DigestMismatch);
    }
    Ok(FrameBody::PermissionRequest {
        input: input_id(&request.input_id)?,
        tool_name: request.tool_name.as_str().into(),
        arguments: request.tool_input[..].into(),
        payload: request.encode_to_vec().into(),
    })
}

fn question(question: &v1::Question) -> Result<FrameBody, FrameFault> {
    not_blank("question.question", &question.question)?;
    if question
        .options
        .iter()
        .any(|option| option.label.trim().is_empty())
    {
        return Err(FrameFault::Blank("question.options.label"));
    }
    let payload = question.encode_to_vec();
    check_size("question", payload.len(), QUESTION_MAX)?;
    Ok(FrameBody::Question {
        input: input_id(&question.input_id)?,
        payload: payload.into(),
    })
}

fn completed(sent: v1::TaskComplete, in_lease: bool) -> Result<CompletedBody, FrameFault> {
    check_size(
        "complete.result",
        sent.result.len(),
        codes::MAX_RESULT_BYTES,
    )?;
    check_size("complete.artifacts", sent.artifacts.len(), ARTIFACTS_MAX)?;
    Ok(CompletedBody {
        result: bytes(&sent.result),
        usage: usage(sent.usage.as_ref()),
        agent_session_id: clipped_text(&sent.agent_session_id),
        artifacts: sent.artifacts.iter().map(artifact).collect(),
        final_offset: sent.final_offset,
        output_missing: 0,
        termination: termination(sent.receipt.as_ref()),
        killed_after_result: sent.killed_after_result,
        ended_in_lease: in_lease,
    })
}

fn errored(sent: &v1::TaskError, in_lease: bool) -> Result<ErroredBody, FrameFault> {
    not_blank("error.failure_code", &sent.failure_code)?;
    check_size(
        "error.failure_code",
        sent.failure_code.len(),
        codes::MAX_CODE_BYTES,
    )?;
    Ok(ErroredBody {
        code: FailureCode::parse(&sent.failure_code),
        retryable_hint: sent.retryable_hint,
        message: message_with_stderr(&sent.message, &sent.stderr_tail),
        user_message: sanitized_text(&sent.user_message),
        usage: usage(sent.usage.as_ref()),
        agent_session_id: clipped_text(&sent.agent_session_id),
        final_offset: sent.final_offset,
        termination: termination(sent.receipt.as_ref()),
        ended_in_lease: in_lease,
    })
}

fn canceled(sent: &v1::TaskCanceled, in_lease: bool) -> CanceledBody {
    CanceledBody {
        reason: sanitized_text(&sent.message),
        usage: usage(sent.usage.as_ref()),
        final_offset: sent.final_offset,
        termination: termination(sent.receipt.as_ref()),
        ended_in_lease: in_lease,
    }
}

fn termination(sent: Option<&v1::TerminationReceipt>) -> ProcessTermination {
    let Some(sent) = sent else {
        return ProcessTermination::default();
    };
    let exit = sent
        .exit_code
        .map(ProcessExitStatus::Code)
        .or_else(|| sent.signal.map(ProcessExitStatus::Signal));
    let swept = format!("swept {} beyond the group", sent.swept_processes);
    ProcessTermination {
        loss: enums::loss_from_wire(sent.loss()),
        exit,
        group_empty: sent.group_empty,
        prompt_written: sent.prompt_written,
        cleanup: (sent.killed || sent.swept_processes > 0).then(|| {
            if sent.killed {
                format!("killed; {swept}").into()
            } else {
                swept.into()
            }
        }),
    }
}

pub(crate) fn usage(sent: Option<&v1::Usage>) -> TokenUsage {
    let Some(sent) = sent else {
        return TokenUsage::default();
    };
    TokenUsage {
        input_tokens: sent.input_tokens,
        output_tokens: sent.output_tokens,
        cache_read_tokens: sent.cache_read_tokens,
        cache_write_tokens: sent.cache_write_tokens,
        cost_usd: clipped_text(&sent.cost_usd),
        duration_ms: sent.duration_ms,
    }
}

/// What a holder found at the path of a required artifact, in a frame or in a request.
pub(crate) fn artifact(sent: &v1::ArtifactReceipt) -> FoundArtifact {
    FoundArtifact {
        path: clip(&sent.path).into(),
        exists: sent.exists,
        is_file: sent.exists && sent.is_file,
        size: sent.size,
        sha256: clipped_text(&sent.sha256),
        modified: sent.modified_at.as_ref().map(wall),
        resolved: clipped_text(&sent.resolved_path),
        problem: clipped_text(&sent.problem),
    }
}
