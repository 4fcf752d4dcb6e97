//! Translates an agent's requests into frames for the relay, and checks whether they can be
//! shown to people at all.

use std::collections::BTreeSet;

use baton_proto::v1::{
    InputOutcome, PermissionDecision, PermissionRequest, PermissionScope, QuestionOption,
};
use bytes::Bytes;

use super::OpenInput;
use crate::agents::{self, AgentInputAnswer, AgentQuestion, ToolPermission};

/// The relay's limit for a tool's id or name.
const ID_MAX: usize = 256;
const OPTIONS_MAX: usize = 64;
const QUESTION_MAX: usize = 8192;

pub(super) fn is_askable(question: &AgentQuestion) -> bool {
    let labels: BTreeSet<&str> = question
        .options
        .iter()
        .map(|option| option.label.as_str())
        .collect();
    let fits = |label: &&str| !label.trim().is_empty() && label.chars().count() <= ID_MAX;
    !question.text.trim().is_empty()
        && question.text.chars().count() <= QUESTION_MAX
        && question.options.len() <= OPTIONS_MAX
        && labels.len() == question.options.len()
        && labels.iter().all(fits)
}

pub(super) fn permission_request(
    input_id: String,
    tool: String,
    request: &ToolPermission,
) -> PermissionRequest {
    PermissionRequest {
        input_id,
        tool_name: request.tool_name.clone(),
        tool_input: Bytes::copy_from_slice(request.arguments.as_bytes()),
        tool_call_id: tool,
        description: request.description.clone(),
        tool_input_sha256: Bytes::copy_from_slice(&request.digest),
        can_allow_for_attempt: request.can_allow_for_attempt,
    }
}

pub(super) fn question_frame(
    input_id: String,
    tool: &str,
    request: &AgentQuestion,
) -> baton_proto::v1::Question {
    let option = |choice: &agents::QuestionChoice| QuestionOption {
        label: choice.label.clone(),
        description: choice.description.clone(),
        preview: String::new(),
    };
    baton_proto::v1::Question {
        input_id,
        question: request.text.clone(),
        header: request.header.clone(),
        multi_select: request.multi_select,
        options: request.options.iter().map(option).collect(),
        group_id: String::new(),
        allow_free_text: request.allow_free_text,
        tool_call_id: tool.to_owned(),
        group_size: 0,
    }
}

pub(super) fn truncate_id(text: &str) -> String {
    text[..text.floor_char_boundary(ID_MAX.min(text.len()))].to_owned()
}

/// Allows only the arguments that were shown.
pub(super) fn permission_answer(
    decision: &PermissionDecision,
    open: &OpenInput,
) -> AgentInputAnswer {
    let same = open
        .digest
        .is_some_and(|digest| decision.tool_input_sha256 == digest[..]);
    match decision.outcome() {
        InputOutcome::Allowed if same => AgentInputAnswer::Allow {
            for_attempt: decision.scope() == PermissionScope::Attempt,
        },
        InputOutcome::Allowed => AgentInputAnswer::Deny {
            message: "the permission was given for other arguments".to_owned(),
        },
        InputOutcome::Denied => AgentInputAnswer::Deny {
            message: decision.message.clone(),
        },
        InputOutcome::Unspecified
        | InputOutcome::Answered
        | InputOutcome::Expired
        | InputOutcome::Withdrawn
        | InputOutcome::Superseded => AgentInputAnswer::None,
    }
}
