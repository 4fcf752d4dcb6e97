//! Limits on the size of a task record. It is written whole, and the journal accepts no entry
//! over 1 MiB.
//!
//! The largest legal record: open inputs and their answers 330 KiB, their tools and names 130
//! KiB, open tool calls 165 KiB, the timeline 125 KiB, earlier attempts 105 KiB, resume
//! instructions 96 KiB, receipts of a refused completion 90 KiB. A test builds it. Texts are
//! clipped; fields that decisions depend on are not.

use std::sync::Arc;

use crate::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, FrameBody, ProcessTermination,
};
use crate::record::{
    ArtifactEvidence, AttemptEnd, AttemptRecord, InputRecord, InputState, RejectCode, StoredAnswer,
    TaskRecord, TokenUsage, WorkspaceReport,
};

/// Total payload of the open inputs of one attempt. One input of the largest allowed size fits.
pub(crate) const MAX_ASKED_BYTES: usize = 264 * 1024;
/// Total payload of answers that the daemon has not confirmed.
pub(crate) const MAX_ANSWERED_BYTES: usize = 64 * 1024;
/// A confirmed answer is stored in full only up to this length.
const MAX_STORED_ANSWER_BYTES: usize = 256;
/// Attempts of one task, including those that were never offered.
pub(crate) const MAX_ATTEMPTS: usize = 100;
/// Stored offers that daemons refused because of their machines. The number of such refusals
/// has no other limit.
const MAX_REFUSED_OFFERS: usize = 8;
/// Inputs that an attempt retains after its end, and after its successor starts.
const MAX_ENDED_INPUTS: usize = 16;
const MAX_EARLIER_INPUTS: usize = 4;
const MAX_ARTIFACTS: usize = 64;

pub(crate) const MAX_NAME_BYTES: usize = 128;
const MAX_ID_BYTES: usize = 256;
pub(crate) const MAX_NOTE_BYTES: usize = 256;
pub(crate) const MAX_TEXT_BYTES: usize = 4096;
const MAX_PATH_BYTES: usize = 1024;

/// Cuts at a character boundary.
pub(crate) fn clip(text: &mut Arc<str>, bytes: usize) {
    if text.len() > bytes {
        *text = text[..text.floor_char_boundary(bytes)].into();
    }
}

pub(crate) fn clip_optional(text: &mut Option<Arc<str>>, bytes: usize) {
    if let Some(text) = text {
        clip(text, bytes);
    }
}

/// Clips the texts of a frame to the lengths that a record may store.
pub(crate) fn clip_body(body: &mut FrameBody) {
    match body {
        FrameBody::Rejected { code, message } => {
            if let RejectCode::Other(code) = code {
                clip(code, MAX_NAME_BYTES);
            }
            clip_optional(message, MAX_NOTE_BYTES);
        }
        FrameBody::Phase { message, .. } => clip_optional(message, MAX_NOTE_BYTES),
        FrameBody::ToolStarted { id, name } => {
            clip(id, MAX_ID_BYTES);
            clip(name, MAX_NAME_BYTES);
        }
        FrameBody::ToolFinished { id } => clip(id, MAX_ID_BYTES),
        FrameBody::PermissionRequest { tool_name, .. } => clip(tool_name, MAX_ID_BYTES),
        FrameBody::Completed(body) => clip_completed(body),
        FrameBody::Errored(body) => clip_errored(body),
        FrameBody::Canceled(CanceledBody {
            reason,
            usage,
            termination,
            ..
        }) => {
            clip_optional(reason, MAX_TEXT_BYTES);
            clip_usage(usage, termination);
        }
        FrameBody::Released {
            reason,
            termination,
        } => {
            clip_optional(reason, MAX_TEXT_BYTES);
            clip_optional(&mut termination.cleanup, MAX_NOTE_BYTES);
        }
        FrameBody::Receipt { termination } => {
            clip_optional(&mut termination.cleanup, MAX_NOTE_BYTES)
        }
        FrameBody::Accepted
        | FrameBody::Started
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Goal(_)
        | FrameBody::Unknown => {}
    }
}

fn clip_completed(body: &mut CompletedBody) {
    clip_session(&mut body.agent_session_id);
    clip_usage(&mut body.usage, &mut body.termination);
    body.artifacts.truncate(MAX_ARTIFACTS);
}

/// A truncated path would name another file, so a path that is too long is dropped.
pub(crate) fn clip_artifact(mut artifact: ArtifactEvidence) -> ArtifactEvidence {
    clip_optional(&mut artifact.sha256, MAX_NAME_BYTES);
    clip_optional(&mut artifact.problem, MAX_NOTE_BYTES);
    artifact.resolved = artifact
        .resolved
        .filter(|path| path.len() <= MAX_PATH_BYTES);
    artifact
}

fn clip_errored(body: &mut ErroredBody) {
    clip_session(&mut body.agent_session_id);
    clip_usage(&mut body.usage, &mut body.termination);
    clip_optional(&mut body.message, MAX_TEXT_BYTES);
    clip_optional(&mut body.user_message, MAX_TEXT_BYTES);
}

fn clip_usage(usage: &mut TokenUsage, termination: &mut ProcessTermination) {
    clip_optional(&mut usage.cost_usd, MAX_NAME_BYTES);
    clip_optional(&mut termination.cleanup, MAX_NOTE_BYTES);
}

pub(crate) fn clip_workspace(workspace: &mut WorkspaceReport) {
    clip(&mut workspace.path, MAX_PATH_BYTES);
    for text in [
        &mut workspace.base_commit,
        &mut workspace.branch,
        &mut workspace.head_commit,
        &mut workspace.dirty_digest,
    ] {
        clip_optional(text, MAX_NAME_BYTES);
    }
}

/// A truncated id would name another conversation, so an id that is too long is dropped.
fn clip_session(id: &mut Option<Arc<str>>) {
    if id.as_ref().is_some_and(|id| id.len() > MAX_ID_BYTES) {
        *id = None;
    }
}

/// Retains only the newest offers that daemons refused because of their machines or workspaces.
/// Those do not count against the task, so no other limit applies. The neighbours of a removed
/// attempt are linked to each other.
pub(crate) fn drop_oldest_refused(record: &mut TaskRecord) {
    let is_refused = |attempt: &AttemptRecord| {
        let end = attempt.state.end();
        end.is_some_and(AttemptEnd::is_uncounted_refusal)
    };
    let refused = record.attempts.iter().filter(|attempt| is_refused(attempt));
    if refused.count() <= MAX_REFUSED_OFFERS {
        return;
    }
    let Some(oldest) = record.attempts.iter().position(is_refused) else {
        return;
    };
    let removed = record.attempts.remove(oldest);
    if let Some(next) = record.attempts.get_mut(oldest) {
        next.previous = removed.previous;
    }
    if let Some(before) = oldest.checked_sub(1) {
        record.attempts[before].successor = removed.successor;
    }
}

/// Bytes of the open inputs of an attempt: of the requests and of the answers.
pub(crate) fn open_input_bytes(inputs: &[InputRecord]) -> (usize, usize) {
    let mut sums = (0, 0);
    for input in inputs {
        match &input.state {
            InputState::Open => sums.0 += input.payload.len(),
            InputState::Answered(answer) => {
                sums.0 += input.payload.len();
                sums.1 += answer.payload.len();
            }
            InputState::Received(_)
            | InputState::Withdrawn
            | InputState::Expired
            | InputState::Superseded(_) => {}
        }
    }
    sums
}

/// Drops a long payload of an answer that the daemon has confirmed. It need not be sent again.
pub(crate) fn shorten_received(mut answer: StoredAnswer) -> StoredAnswer {
    if answer.payload.len() > MAX_STORED_ANSWER_BYTES {
        answer.payload = Arc::from([]);
    }
    answer
}

/// Whether a repeated answer equals the stored one. For a long confirmed answer only the
/// decision is compared, because its payload was dropped.
pub(crate) fn is_same_answer(given: &StoredAnswer, repeated: &StoredAnswer) -> bool {
    let payload_dropped =
        given.payload.is_empty() && repeated.payload.len() > MAX_STORED_ANSWER_BYTES;
    given.decision == repeated.decision && (payload_dropped || given.payload == repeated.payload)
}

pub(crate) fn clip_actor(answer: &mut StoredAnswer) {
    clip(&mut answer.by, MAX_NAME_BYTES);
}

/// Retains only the newest inputs of an attempt that has ended.
pub(crate) fn trim_ended_attempt(attempt: &mut AttemptRecord) {
    retain_newest_inputs(&mut attempt.inputs, MAX_ENDED_INPUTS);
}

/// Trims an attempt that has a successor: its result is not the result of the task, and its
/// messages are clipped.
pub(crate) fn trim_earlier_attempt(attempt: &mut AttemptRecord) {
    retain_newest_inputs(&mut attempt.inputs, MAX_EARLIER_INPUTS);
    attempt.result = None;
    attempt.artifacts.clear();
    attempt.budgets.clear();
    if let crate::record::AttemptState::Ended(end) = &mut attempt.state {
        clip_optional(&mut end.message, MAX_NOTE_BYTES);
        clip_optional(&mut end.user_message, MAX_NOTE_BYTES);
    }
}

fn retain_newest_inputs(inputs: &mut Vec<InputRecord>, count: usize) {
    inputs.drain(..inputs.len().saturating_sub(count));
}
