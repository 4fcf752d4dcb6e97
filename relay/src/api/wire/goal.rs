//! Conversions of progress, checkpoints, blocks and the resume context between core and protocol.

use std::sync::Arc;

use baton_core::goal::progress::{BlockDraft, CheckpointDraft, ProgressUpdate};
use baton_core::ids::AttemptId;
use baton_core::record::{
    CheckpointKind, CheckpointRecord, EvidenceItem, FailedItem, ProgressRecord, ResumeInstructions,
};
use baton_proto::v1;
use prost::Message;

use super::timestamp;

/// A larger checkpoint is shortened for the next attempt, which can read the rest by its id.
const RESUME_CHECKPOINT_BYTES: usize = 16 * 1024;
const RESUME_SUMMARY_BYTES: usize = 4 * 1024;

pub(crate) fn progress_from_wire(sent: v1::ProgressUpdate) -> ProgressUpdate {
    let failed = |sent: v1::FailedItem| FailedItem {
        item: sent.item.into(),
        reason: sent.reason.into(),
    };
    ProgressUpdate {
        summary: sent.summary.map(Into::into),
        completed: sent.completed_items.into_iter().map(Into::into).collect(),
        failed: sent.failed_items.into_iter().map(failed).collect(),
        cursor: sent.cursor.map(Into::into),
        evidence: evidence_from_wire(sent.evidence),
    }
}

pub(crate) fn checkpoint_from_wire(sent: v1::CheckpointDraft) -> CheckpointDraft {
    CheckpointDraft {
        summary: sent.summary.into(),
        cursor: sent.cursor.into(),
        evidence: evidence_from_wire(sent.evidence),
        agent_session_id: non_empty(sent.agent_session_id),
        state_refs: sent.state_refs.into_iter().map(Into::into).collect(),
    }
}

pub(crate) fn block_from_wire(sent: v1::BlockDraft) -> BlockDraft {
    BlockDraft {
        reason: sent.reason.into(),
        hint: non_empty(sent.resume_hint),
        checkpoint: sent.checkpoint.map(checkpoint_from_wire),
    }
}

fn evidence_from_wire(sent: Vec<v1::Evidence>) -> Vec<EvidenceItem> {
    let one = |sent: v1::Evidence| EvidenceItem {
        kind: sent.kind.into(),
        reference: sent.r#ref.into(),
        summary: sent.summary.into(),
    };
    sent.into_iter().map(one).collect()
}

fn non_empty(sent: String) -> Option<Arc<str>> {
    (!sent.trim().is_empty()).then(|| sent.into())
}

/// `checkpoints` is the number of checkpoints that the task ever wrote.
pub(crate) fn progress(record: &ProgressRecord, checkpoints: u64) -> v1::Progress {
    let failed = |failed: &FailedItem| v1::FailedItem {
        item: failed.item.to_string(),
        reason: failed.reason.to_string(),
    };
    v1::Progress {
        summary: record.summary.to_string(),
        completed_items: record.completed.iter().map(ToString::to_string).collect(),
        failed_items: record.failed.iter().map(failed).collect(),
        cursor: record.cursor.to_string(),
        evidence: evidence(&record.evidence),
        completed_items_truncated: record.completed_truncated,
        failed_items_truncated: record.failed_truncated,
        evidence_truncated: record.evidence_truncated,
        checkpoint_count: checkpoints,
        updated_at: Some(timestamp(record.updated)),
    }
}

pub(crate) fn checkpoint(record: &CheckpointRecord) -> v1::Checkpoint {
    v1::Checkpoint {
        checkpoint_id: record.id.to_string(),
        number: record.number,
        task_id: record.task.to_string(),
        attempt_id: record.attempt.to_string(),
        attempt_number: record.attempt_number,
        kind: checkpoint_kind(record.kind).into(),
        summary: record.summary.to_string(),
        cursor: record.cursor.to_string(),
        evidence: evidence(&record.evidence),
        agent_session_id: record
            .agent_session_id
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        state_refs: record.state_refs.iter().map(ToString::to_string).collect(),
        completed_count: record.completed_count,
        failed_count: record.failed_count,
        from_revision: record.after_revision,
        to_revision: record.to_revision,
        redacted: record.redacted,
        created_at: Some(timestamp(record.created)),
        created_by: record.by.to_string(),
    }
}

/// What the next attempt gets from earlier ones: a person's instructions and the newest checkpoint.
pub(crate) fn resume_context(
    previous: AttemptId,
    instructions: Option<&ResumeInstructions>,
    newest: Option<&CheckpointRecord>,
) -> v1::ResumeContext {
    let answer = |(question, answer): &(Arc<str>, Arc<str>)| v1::ResumeAnswer {
        question: question.to_string(),
        answer: answer.to_string(),
    };
    let text = |field: fn(&ResumeInstructions) -> &str| {
        instructions.map(field).unwrap_or_default().to_owned()
    };
    v1::ResumeContext {
        previous_attempt_id: previous.to_string(),
        checkpoint: newest.map(|newest| shorten_large(checkpoint(newest))),
        resume_reason: text(|sent| &sent.reason),
        instructions: text(|sent| &sent.instructions),
        answers: instructions
            .map(|sent| sent.answers.iter().map(answer).collect())
            .unwrap_or_default(),
    }
}

/// Removes the evidence of a large checkpoint and truncates its summary. The agent can read the
/// whole checkpoint by its id.
fn shorten_large(mut checkpoint: v1::Checkpoint) -> v1::Checkpoint {
    if checkpoint.encoded_len() > RESUME_CHECKPOINT_BYTES {
        let end = checkpoint.summary.floor_char_boundary(RESUME_SUMMARY_BYTES);
        checkpoint.summary.truncate(end);
        checkpoint.evidence.clear();
    }
    checkpoint
}

fn evidence(evidence: &[EvidenceItem]) -> Vec<v1::Evidence> {
    let one = |evidence: &EvidenceItem| v1::Evidence {
        kind: evidence.kind.to_string(),
        r#ref: evidence.reference.to_string(),
        summary: evidence.summary.to_string(),
    };
    evidence.iter().map(one).collect()
}

fn checkpoint_kind(kind: CheckpointKind) -> v1::CheckpointKind {
    match kind {
        CheckpointKind::Progress => v1::CheckpointKind::Progress,
        CheckpointKind::Blocked => v1::CheckpointKind::Blocked,
    }
}

#[cfg(test)]
mod tests {
    use baton_core::goal::progress::{SUMMARY_CHARS, SanitizedText};
    use baton_core::ids::{CheckpointId, TaskId, TenantId};
    use baton_core::time::WallTime;
    use uuid::Uuid;

    use super::*;

    fn record(summary: &str, evidence: usize) -> CheckpointRecord {
        let proof = EvidenceItem {
            kind: "log".into(),
            reference: "x".repeat(900).into(),
            summary: "".into(),
        };
        CheckpointRecord {
            id: CheckpointId(Uuid::from_u128(1)),
            tenant: TenantId::new("acme").unwrap(),
            task: TaskId(Uuid::from_u128(2)),
            number: 3,
            attempt: AttemptId(Uuid::from_u128(4)),
            attempt_number: 1,
            kind: CheckpointKind::Blocked,
            summary: summary.into(),
            cursor: "page 3".into(),
            evidence: vec![proof; evidence],
            agent_session_id: None,
            state_refs: vec!["notes.md".into()],
            completed_count: 1,
            failed_count: 0,
            after_revision: 2,
            to_revision: 9,
            redacted: false,
            created: WallTime(1),
            by: "rack-7".into(),
        }
    }

    #[test]
    fn a_small_checkpoint_is_sent_whole_and_a_large_one_shortened() {
        let previous = AttemptId(Uuid::from_u128(4));
        let short = record("half of it", 2);
        let sent = resume_context(previous, None, Some(&short))
            .checkpoint
            .unwrap();
        assert_eq!(sent, checkpoint(&short));
        let long = record(&"é".repeat(SUMMARY_CHARS), 40);
        let sent = resume_context(previous, None, Some(&long))
            .checkpoint
            .unwrap();
        assert!(sent.encoded_len() < RESUME_CHECKPOINT_BYTES);
        assert_eq!((sent.number, &*sent.cursor), (3, "page 3"));
        assert_eq!(sent.state_refs, ["notes.md"]);
        assert!(sent.summary.starts_with("é") && sent.evidence.is_empty());
    }

    #[test]
    fn blank_hints_and_sessions_are_none() {
        let sent = v1::BlockDraft {
            reason: "no access".into(),
            resume_hint: " ".into(),
            checkpoint: None,
        };
        let block = block_from_wire(sent);
        assert_eq!(block.hint, None);
        assert_eq!(SanitizedText::new(block.clone()), SanitizedText::new(block));
    }
}
