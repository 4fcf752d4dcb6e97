//! How large a task's record may grow. It is written whole, and the journal takes no entry over 1 MiB.
//!
//! The worst legal record: open inputs and their answers 330 KiB, their tools and names 130 KiB, open tool calls
//! 165 KiB, the timeline 125 KiB, earlier attempts 105 KiB, words of whoever resumed it 96 KiB, receipts of a refused completion 90 KiB. A test
//! builds it. Words are clipped; what decides is not.

use std::sync::Arc;

use crate::input::{CanceledBody, Completed, Errored, FrameBody, Termination};
use crate::record::{
    Answer, Artifact, AttemptRecord, End, InputRecord, InputState, RejectCode, TaskRecord, Usage,
    Workspace,
};

/// What open inputs of one attempt ask, together: one of the largest kind fits.
pub(crate) const ASKED_BYTES: usize = 264 * 1024;
/// What people answered and the daemon has not confirmed, together.
pub(crate) const ANSWERED_BYTES: usize = 64 * 1024;
/// An answer that the daemon has is kept only if it is short.
const ANSWER_KEPT_BYTES: usize = 256;
/// Attempts of one task, also those that nobody was offered.
pub(crate) const ATTEMPTS: usize = 100;
/// Offers that daemons refused because of their machines: there may be any number of them.
const REFUSED: usize = 8;
/// Inputs that an attempt keeps after its end, and after its successor's start.
const INPUTS_KEPT: usize = 16;
const INPUTS_OF_EARLIER: usize = 4;
const ARTIFACTS: usize = 64;

pub(crate) const NAME_BYTES: usize = 128;
const ID_BYTES: usize = 256;
pub(crate) const NOTE_BYTES: usize = 256;
pub(crate) const WORDS_BYTES: usize = 4096;
const PATH_BYTES: usize = 1024;

/// Cuts at a character's edge.
pub(crate) fn clip(words: &mut Arc<str>, bytes: usize) {
    if words.len() > bytes {
        *words = words[..words.floor_char_boundary(bytes)].into();
    }
}

pub(crate) fn clip_some(words: &mut Option<Arc<str>>, bytes: usize) {
    if let Some(words) = words {
        clip(words, bytes);
    }
}

/// A frame's words at the lengths that a record may keep.
pub(crate) fn clip_body(body: &mut FrameBody) {
    match body {
        FrameBody::Rejected { code, message } => {
            if let RejectCode::Other(code) = code {
                clip(code, NAME_BYTES);
            }
            clip_some(message, NOTE_BYTES);
        }
        FrameBody::Phase { message, .. } => clip_some(message, NOTE_BYTES),
        FrameBody::ToolStarted { id, name } => {
            clip(id, ID_BYTES);
            clip(name, NAME_BYTES);
        }
        FrameBody::ToolFinished { id } => clip(id, ID_BYTES),
        FrameBody::PermissionRequest { tool_name, .. } => clip(tool_name, ID_BYTES),
        FrameBody::Completed(body) => clip_completed(body),
        FrameBody::Errored(body) => clip_errored(body),
        FrameBody::Canceled(CanceledBody {
            reason,
            usage,
            termination,
            ..
        }) => {
            clip_some(reason, WORDS_BYTES);
            clip_usage(usage, termination);
        }
        FrameBody::Released {
            reason,
            termination,
        } => {
            clip_some(reason, WORDS_BYTES);
            clip_some(&mut termination.cleanup, NOTE_BYTES);
        }
        FrameBody::Receipt { termination } => clip_some(&mut termination.cleanup, NOTE_BYTES),
        FrameBody::Accepted
        | FrameBody::Started
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Goal(_)
        | FrameBody::Unknown => {}
    }
}

fn clip_completed(body: &mut Completed) {
    clip_session(&mut body.agent_session_id);
    clip_usage(&mut body.usage, &mut body.termination);
    body.artifacts.truncate(ARTIFACTS);
}

/// Half a path names another file, so one that is too long is none.
pub(crate) fn clip_artifact(mut artifact: Artifact) -> Artifact {
    clip_some(&mut artifact.sha256, NAME_BYTES);
    clip_some(&mut artifact.problem, NOTE_BYTES);
    artifact.resolved = artifact.resolved.filter(|path| path.len() <= PATH_BYTES);
    artifact
}

fn clip_errored(body: &mut Errored) {
    clip_session(&mut body.agent_session_id);
    clip_usage(&mut body.usage, &mut body.termination);
    clip_some(&mut body.message, WORDS_BYTES);
    clip_some(&mut body.user_message, WORDS_BYTES);
}

fn clip_usage(usage: &mut Usage, termination: &mut Termination) {
    clip_some(&mut usage.cost_usd, NAME_BYTES);
    clip_some(&mut termination.cleanup, NOTE_BYTES);
}

pub(crate) fn clip_workspace(workspace: &mut Workspace) {
    clip(&mut workspace.path, PATH_BYTES);
    for words in [
        &mut workspace.base_commit,
        &mut workspace.branch,
        &mut workspace.head_commit,
        &mut workspace.dirty_digest,
    ] {
        clip_some(words, NAME_BYTES);
    }
}

/// Half an id names another conversation, so one that is too long is none.
fn clip_session(id: &mut Option<Arc<str>>) {
    if id.as_ref().is_some_and(|id| id.len() > ID_BYTES) {
        *id = None;
    }
}

/// Keeps the newest offers that daemons refused for their machines or workspaces: those do not count against the task, so
/// nothing else bounds them. Neighbours are joined where one goes.
pub(crate) fn drop_refused(record: &mut TaskRecord) {
    let is_refused = |attempt: &AttemptRecord| {
        let end = attempt.state.end();
        end.is_some_and(End::is_free_refusal)
    };
    let refused = record.attempts.iter().filter(|attempt| is_refused(attempt));
    if refused.count() <= REFUSED {
        return;
    }
    let Some(oldest) = record.attempts.iter().position(is_refused) else {
        return;
    };
    let gone = record.attempts.remove(oldest);
    if let Some(next) = record.attempts.get_mut(oldest) {
        next.previous = gone.previous;
    }
    if let Some(before) = oldest.checked_sub(1) {
        record.attempts[before].successor = gone.successor;
    }
}

/// What the open inputs of an attempt ask and are told, in bytes.
pub(crate) fn asked_and_answered(inputs: &[InputRecord]) -> (usize, usize) {
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

/// The daemon has it: long words need not be sent again.
pub(crate) fn received(mut answer: Answer) -> Answer {
    if answer.payload.len() > ANSWER_KEPT_BYTES {
        answer.payload = Arc::from([]);
    }
    answer
}

/// Whether a repeated answer is the one that was given; of a long one that was received only the decision is known.
pub(crate) fn is_same(given: &Answer, repeated: &Answer) -> bool {
    let forgotten = given.payload.is_empty() && repeated.payload.len() > ANSWER_KEPT_BYTES;
    given.decision == repeated.decision && (forgotten || given.payload == repeated.payload)
}

pub(crate) fn clip_actor(answer: &mut Answer) {
    clip(&mut answer.by, NAME_BYTES);
}

/// An attempt that is over keeps its newest inputs.
pub(crate) fn shrink_ended(attempt: &mut AttemptRecord) {
    keep_newest(&mut attempt.inputs, INPUTS_KEPT);
}

/// An attempt that has a successor is history: its result is not the task's, and its words are short.
pub(crate) fn shrink_earlier(attempt: &mut AttemptRecord) {
    keep_newest(&mut attempt.inputs, INPUTS_OF_EARLIER);
    attempt.result = None;
    attempt.artifacts.clear();
    attempt.budgets.clear();
    if let crate::record::State::Ended(end) = &mut attempt.state {
        clip_some(&mut end.message, NOTE_BYTES);
        clip_some(&mut end.user_message, NOTE_BYTES);
    }
}

fn keep_newest(inputs: &mut Vec<InputRecord>, count: usize) {
    inputs.drain(..inputs.len().saturating_sub(count));
}
