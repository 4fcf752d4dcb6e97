//! Checks and conversions of single fields: ids, sizes, counts and free text.

use std::sync::Arc;

use baton_core::ids::{InputId, TaskId};
use baton_core::redaction;
use bytes::Bytes;

use crate::session::fault::FrameFault;

/// Longest free text that is stored. Longer text is cut at a character boundary.
pub(super) const TEXT_MAX: usize = 4096;
const NOTE_MAX: usize = 256;
pub(in crate::session) const TOOL_ID_MAX: usize = 256;

pub(super) fn id(field: &'static str, sent: &str) -> Result<uuid::Uuid, FrameFault> {
    let parsed = sent
        .parse::<TaskId>()
        .map_err(|_| FrameFault::MalformedId(field))?;
    Ok(parsed.0)
}

pub(super) fn input_id(sent: &str) -> Result<InputId, FrameFault> {
    sent.parse()
        .map_err(|_| FrameFault::MalformedId("input_id"))
}

pub(super) fn tool_id(sent: &str) -> Result<Arc<str>, FrameFault> {
    not_blank("tool_call_id", sent)?;
    check_size("tool_call_id", sent.len(), TOOL_ID_MAX)?;
    Ok(sent.into())
}

pub(super) fn not_blank(field: &'static str, sent: &str) -> Result<(), FrameFault> {
    if sent.trim().is_empty() {
        Err(FrameFault::Blank(field))
    } else {
        Ok(())
    }
}

/// Limits the length of a list. Lists are processed on the dispatch loop, so a list may not be
/// longer than what is stored of it.
pub(super) fn check_count(
    field: &'static str,
    count: usize,
    limit: usize,
) -> Result<(), FrameFault> {
    if count <= limit {
        Ok(())
    } else {
        Err(FrameFault::TooMany {
            field,
            count,
            limit,
        })
    }
}

pub(super) fn check_size(field: &'static str, size: usize, limit: usize) -> Result<(), FrameFault> {
    if size <= limit {
        Ok(())
    } else {
        Err(FrameFault::TooLong { field, size, limit })
    }
}

/// Appends the end of the agent's standard error to the message that operators read.
pub(super) fn message_with_stderr(message: &str, tail: &str) -> Option<Arc<str>> {
    let tail = redaction::redact(tail.trim());
    if tail.is_empty() {
        return sanitized_text(message);
    }
    let tail = &tail[tail.ceil_char_boundary(tail.len().saturating_sub(TEXT_MAX / 2))..];
    sanitized_text(&format!("{message}; stderr: {tail}"))
}

/// Free text for display, without secrets. They are redacted before the text is cut, because a
/// cut could leave half a secret.
pub(crate) fn sanitized_text(sent: &str) -> Option<Arc<str>> {
    clipped_text(&redaction::redact(sent))
}

pub(super) fn clipped_text(sent: &str) -> Option<Arc<str>> {
    (!sent.is_empty()).then(|| clip(sent).into())
}

/// A note in the timeline. It is short because a record contains hundreds of them.
pub(super) fn timeline_note(sent: &str) -> Option<Arc<str>> {
    let clean = redaction::redact(sent);
    (!clean.is_empty()).then(|| clean[..clean.floor_char_boundary(NOTE_MAX)].into())
}

pub(super) fn clip(sent: &str) -> &str {
    &sent[..sent.floor_char_boundary(TEXT_MAX)]
}

pub(super) fn bytes(sent: &Bytes) -> Option<Arc<[u8]>> {
    (!sent.is_empty()).then(|| sent.as_ref().into())
}
