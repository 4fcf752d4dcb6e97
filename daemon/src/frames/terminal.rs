//! The terminal frames of an attempt: a result, a failure or a cancel, and the receipt for its
//! processes.

use std::time::SystemTime;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    CancelReason, ReleaseNote, TaskCanceled, TaskComplete, TaskError, TerminationReceipt,
    TimerKind, WorkspaceReport,
};
use prost_types::Timestamp;

use super::{agent_frame, wire_timer};
use crate::agents::{AttemptVerdict, FinalAgentUsage};
use crate::attempt::AttemptEnding;
use crate::process::{ChildExit, TerminationOutcome};

/// The fields that every terminal frame has.
pub(crate) struct TerminalFields {
    pub(crate) final_offset: u64,
    pub(crate) receipt: TerminationReceipt,
}

impl TerminalFields {
    /// Terminal frames have their own field for what is left of the workspace.
    fn into_parts(self) -> (u64, Option<WorkspaceReport>, TerminationReceipt) {
        let mut receipt = self.receipt;
        let workspace = receipt.workspace.take();
        (self.final_offset, workspace, receipt)
    }
}

/// The receipt of an attempt whose process was never started.
pub(crate) fn no_process_receipt(wall: SystemTime) -> TerminationReceipt {
    TerminationReceipt {
        group_empty: true,
        prompt_written: Some(false),
        ended_at: Some(Timestamp::from(wall)),
        ..TerminationReceipt::default()
    }
}

pub(crate) fn termination_receipt(ending: &AttemptEnding, wall: SystemTime) -> TerminationReceipt {
    let (exit_code, signal) = match ending.exit {
        Some(ChildExit::Code(code)) => (Some(code), None),
        Some(ChildExit::Signal(signal)) => (None, Some(signal)),
        Some(ChildExit::Unknown) | None => (None, None),
    };
    // The shim observed the end; this may be much later.
    let wall = ending.child_ended.map_or(wall, |ended| ended.wall);
    TerminationReceipt {
        exit_code,
        signal,
        group_empty: ending.termination.proved_empty,
        prompt_written: Some(ending.prompted),
        swept_processes: ending.termination.signaled_singly,
        killed: ending.termination.killed,
        process_started: ending.process_started,
        ended_at: Some(Timestamp::from(wall)),
        cleanup: cleanup_text(ending.termination).to_owned(),
        workspace: ending.workspace.clone(),
        ..TerminationReceipt::default()
    }
}

fn cleanup_text(termination: TerminationOutcome) -> &'static str {
    match termination {
        TerminationOutcome {
            proved_empty: false,
            ..
        } => "processes_left",
        TerminationOutcome { killed: true, .. } => "process_group_killed",
        TerminationOutcome {
            terminated: true, ..
        } => "process_group_terminated",
        TerminationOutcome { .. } => "exited",
    }
}

/// The terminal frame of an attempt that ended by itself or at a deadline; `None` when it was
/// ordered to stop.
pub(crate) fn terminal_frame(
    verdict: &AttemptVerdict,
    ending: &AttemptEnding,
    fields: TerminalFields,
) -> Option<Body> {
    let (final_offset, workspace, receipt) = fields.into_parts();
    match verdict {
        AttemptVerdict::Complete(completed) => Some(Body::Complete(TaskComplete {
            final_offset,
            receipt: Some(receipt),
            result: completed.result.clone().into(),
            agent_session_id: completed.used.conversation.clone(),
            usage: agent_frame::wire_usage(&completed.used),
            artifacts: ending.artifacts.clone(),
            killed_after_result: completed.killed_after_result,
            workspace,
        })),
        AttemptVerdict::Failed(failure) => Some(Body::Error(TaskError {
            final_offset,
            receipt: Some(receipt),
            failure_code: failure.code.clone(),
            message: failure.message.clone(),
            user_message: failure.user_message.clone(),
            retryable_hint: failure.retryable,
            stderr_tail: baton_redaction::redact(&ending.stderr_tail).into_owned(),
            agent_session_id: failure.used.conversation.clone(),
            usage: agent_frame::wire_usage(&failure.used),
            timer: failure
                .deadline
                .map_or(TimerKind::Unspecified, wire_timer)
                .into(),
            workspace,
        })),
        AttemptVerdict::Withdrawn { reason, used } => Some(Body::Canceled(TaskCanceled {
            final_offset,
            receipt: Some(receipt),
            reason: CancelReason::User.into(),
            message: reason.clone(),
            workspace,
            usage: agent_frame::wire_usage(used),
            agent_session_id: used.conversation.clone(),
        })),
        AttemptVerdict::Stopped => None,
    }
}

pub(crate) fn canceled(
    reason: CancelReason,
    used: &FinalAgentUsage,
    fields: TerminalFields,
) -> Body {
    let (final_offset, workspace, receipt) = fields.into_parts();
    Body::Canceled(TaskCanceled {
        final_offset,
        receipt: Some(receipt),
        reason: reason.into(),
        workspace,
        usage: agent_frame::wire_usage(used),
        agent_session_id: used.conversation.clone(),
        ..TaskCanceled::default()
    })
}

/// The attempt was accepted and never ran: the relay may place it elsewhere, and it does not
/// count against the task.
pub(crate) fn released(reason: &str, receipt: TerminationReceipt) -> Body {
    Body::Release(ReleaseNote {
        reason: reason.to_owned(),
        receipt: Some(receipt),
    })
}

/// The worker's disk does not store more of the attempt's frames.
pub(crate) fn disk_full(stderr_tail: &str, fields: TerminalFields) -> Body {
    let (final_offset, workspace, receipt) = fields.into_parts();
    Body::Error(TaskError {
        final_offset,
        receipt: Some(receipt),
        failure_code: baton_proto::codes::WORKER_DISK_FULL.to_owned(),
        message: "the worker's disk could not store the attempt's frames; see the daemon's log"
            .to_owned(),
        user_message: "the worker's disk is full".to_owned(),
        stderr_tail: baton_redaction::redact(stderr_tail).into_owned(),
        workspace,
        ..TaskError::default()
    })
}

/// A frame of the attempt is larger than what the worker stores at once.
pub(crate) fn too_long(stderr_tail: &str, fields: TerminalFields) -> Body {
    let (final_offset, workspace, receipt) = fields.into_parts();
    let message = "a message of the agent is too long to be stored on the worker";
    Body::Error(TaskError {
        final_offset,
        receipt: Some(receipt),
        failure_code: baton_proto::codes::OUTPUT_INVALID.to_owned(),
        message: format!("{message}; see the daemon's log"),
        user_message: message.to_owned(),
        stderr_tail: baton_redaction::redact(stderr_tail).into_owned(),
        workspace,
        ..TaskError::default()
    })
}

/// The relay refused a completion because of its contract. The process is gone and cannot
/// correct it.
pub(crate) fn contract_unmet(message: &str, fields: TerminalFields) -> Body {
    let (final_offset, workspace, receipt) = fields.into_parts();
    Body::Error(TaskError {
        final_offset,
        receipt: Some(receipt),
        failure_code: baton_proto::codes::RECEIPTS_MISSING.to_owned(),
        message: message.to_owned(),
        user_message: message.to_owned(),
        workspace,
        ..TaskError::default()
    })
}
