//! What an agent asks, in the words of the relay, and whether it can be put to people at all.

use std::collections::BTreeSet;

use baton_proto::v1::{
    InputOutcome, PermissionDecision, PermissionRequest, PermissionScope, QuestionOption,
};
use bytes::Bytes;

use super::OpenInput;
use crate::agents::{self, AgentInputAnswer, AgentQuestion, ToolPermission};

/// What the wire takes of a tool's id or name.
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
    asked: &ToolPermission,
) -> PermissionRequest {
    PermissionRequest {
        input_id,
        tool_name: asked.tool_name.clone(),
        tool_input: Bytes::copy_from_slice(asked.arguments.as_bytes()),
        tool_call_id: tool,
        description: asked.description.clone(),
        tool_input_sha256: Bytes::copy_from_slice(&asked.digest),
        can_allow_for_attempt: asked.can_allow_for_attempt,
    }
}

pub(super) fn question_frame(
    input_id: String,
    tool: &str,
    asked: &AgentQuestion,
) -> baton_proto::v1::Question {
    let option = |choice: &agents::QuestionChoice| QuestionOption {
        label: choice.label.clone(),
        description: choice.description.clone(),
        preview: String::new(),
    };
    baton_proto::v1::Question {
        input_id,
        question: asked.text.clone(),
        header: asked.header.clone(),
        multi_select: asked.multi_select,
        options: asked.options.iter().map(option).collect(),
        group_id: String::new(),
        allow_free_text: asked.allow_free_text,
        tool_call_id: tool.to_owned(),
        group_size: 0,
    }
}

pub(super) fn truncate_id(text: &str) -> String {
    text[..text.floor_char_boundary(ID_MAX.min(text.len()))].to_owned()
}

/// Only what was shown is allowed.
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
            message: "what was allowed is not what was asked for".to_owned(),
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
