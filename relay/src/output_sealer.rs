//! Tells the output log which attempts will write no more, so that it need not expect them.
//!
//! Only an attempt whose daemon said the last word and proved the end is sealed: anything else may still bring output
//! with a late result. Off the dispatcher's loop; an attempt that is missed costs a little memory until retention.

use baton_core::ids::AttemptId;
use baton_core::record::{
    EndedBy, TaskRecord, TerminationReceipt, TimelineEvent, TimelineEventKind,
};
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::output::OutputLog;

/// Ended attempts that wait to be sealed. Full: the attempt is left to retention.
const SEAL_QUEUE: usize = 4096;

#[derive(Clone, Debug)]
pub(crate) struct OutputSealer {
    ended: mpsc::Sender<AttemptId>,
}

impl OutputSealer {
    /// Runs until the last clone is dropped.
    pub(crate) fn start(output: OutputLog) -> Self {
        let (ended, mut waiting) = mpsc::channel::<AttemptId>(SEAL_QUEUE);
        tokio::spawn(async move {
            while let Some(attempt) = waiting.recv().await {
                if let Err(error) = output.seal(attempt.0).await {
                    tracing::debug!(attempt_id = %attempt, %error, "output was not sealed");
                }
            }
        });
        Self { ended }
    }

    /// Looks at what became durable.
    pub(crate) fn record_published(&self, record: &TaskRecord, events: &[Arc<TimelineEvent>]) {
        for event in events {
            let Some(attempt) = event.attempt else {
                continue;
            };
            let ended = matches!(event.kind, TimelineEventKind::Ended { .. });
            if ended && has_final_output(record, attempt) {
                let _ = self.ended.try_send(attempt); // Full: see `WAITING`.
            }
        }
    }
}

fn has_final_output(record: &TaskRecord, attempt: AttemptId) -> bool {
    record.attempt(attempt).is_some_and(|attempt| {
        let wrote = attempt.final_offset.is_some_and(|offset| offset > 0);
        let proved = attempt.state.end().is_some_and(|end| {
            end.ended_by == EndedBy::Daemon && end.receipt == TerminationReceipt::Confirmed
        });
        wrote && proved
    })
}
