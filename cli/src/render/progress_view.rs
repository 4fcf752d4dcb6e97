//! Progress and checkpoints of a task as lines for people. Text from the relay is sanitized.

use baton_proto::ShortName;
use baton_proto::v1::{Checkpoint, Evidence, Progress};

use crate::render::sanitizer::one_line;
use crate::render::task_view::time_of_day;

pub(crate) fn progress_lines(progress: &Progress) -> Vec<String> {
    let done = progress.completed_items.len() as u64 + progress.completed_items_truncated;
    let failed = progress.failed_items.len() as u64 + progress.failed_items_truncated;
    let checkpoints = match progress.checkpoint_count {
        1 => "1 checkpoint".to_owned(),
        count => format!("{count} checkpoints"),
    };
    let mut lines = vec![format!("{done} done, {failed} failed, {checkpoints}")];
    lines.extend(labeled_line("summary", &progress.summary));
    lines.extend(labeled_line("cursor", &progress.cursor));
    let items = progress.completed_items.iter();
    lines.extend(items.map(|item| format!("  done    {}", one_line(item))));
    let items = progress.failed_items.iter();
    lines.extend(items.map(|failed| {
        let (item, reason) = (one_line(&failed.item), one_line(&failed.reason));
        format!("  failed  {item}: {reason}")
    }));
    lines.extend(evidence_lines(&progress.evidence));
    let dropped = progress.completed_items_truncated
        + progress.failed_items_truncated
        + progress.evidence_truncated;
    if dropped > 0 {
        lines.push(format!("  ({dropped} older entries are no longer stored)"));
    }
    lines
}

/// Only the counts, the summary and the cursor.
pub(crate) fn progress_summary_lines(progress: &Progress) -> Vec<String> {
    let mut lines = progress_lines(progress);
    let items = lines.iter().position(|line| line.starts_with("  "));
    lines.truncate(items.unwrap_or(lines.len()));
    lines
}

pub(crate) fn checkpoint_lines(checkpoint: &Checkpoint) -> Vec<String> {
    let mut lines = vec![format!(
        "#{}  {}  {}  attempt {}  by {}",
        checkpoint.number,
        time_of_day(checkpoint.created_at.as_ref()),
        checkpoint.kind().short_name(),
        checkpoint.attempt_number,
        one_line(&checkpoint.created_by),
    )];
    let texts = labeled_line("summary", &checkpoint.summary);
    let texts = texts
        .into_iter()
        .chain(labeled_line("cursor", &checkpoint.cursor));
    lines.extend(texts.map(|line| format!("  {line}")));
    let refs = checkpoint.state_refs.iter();
    lines.extend(refs.map(|at| format!("  state   {}", one_line(at))));
    lines.extend(evidence_lines(&checkpoint.evidence));
    lines
}

fn labeled_line(name: &str, text: &str) -> Option<String> {
    (!text.trim().is_empty()).then(|| format!("{name}: {}", one_line(text)))
}

fn evidence_lines(all: &[Evidence]) -> impl Iterator<Item = String> {
    all.iter().map(|one| {
        let (kind, at) = (one_line(&one.kind), one_line(&one.r#ref));
        format!("  proof   {kind} {at} {}", one_line(&one.summary))
    })
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::FailedItem;

    use super::*;

    #[test]
    fn counts_include_dropped_items_and_text_is_sanitized() {
        let progress = Progress {
            summary: "half\u{1b}[2J done".to_owned(),
            completed_items: vec!["a".to_owned()],
            completed_items_truncated: 4,
            failed_items: vec![FailedItem {
                item: "b".to_owned(),
                reason: "no\naccess".to_owned(),
            }],
            checkpoint_count: 2,
            ..Progress::default()
        };
        let lines = progress_lines(&progress);
        assert_eq!(lines[0], "5 done, 1 failed, 2 checkpoints");
        assert!(
            lines.iter().all(|line| !line.contains(['\u{1b}', '\n'])),
            "{lines:?}"
        );
        assert_eq!(progress_summary_lines(&progress).len(), 2);
    }
}
