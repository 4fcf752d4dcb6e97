//! Seals the output of attempts that will write no more, so that the output log stops expecting
//! them.
//!
//! An attempt is sealed only if its daemon reported the end with a confirmed termination
//! receipt. Any other attempt may still send output with a late result. Runs outside the
//! dispatcher's loop; an attempt that is missed costs a little memory until retention removes
//! it.

use baton_core::ids::AttemptId;
use baton_core::record::{
    EndedBy, TaskRecord, TerminationReceipt, TimelineEvent, TimelineEventKind,
};
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::output::OutputLog;

/// Ended attempts that may wait to be sealed. When the queue is full, the attempt is left to
/// retention.
const SEAL_QUEUE: usize = 4096;

#[derive(Clone, Debug)]
pub(crate) struct OutputSealer {
    ended: mpsc::Sender<AttemptId>,
}

impl OutputSealer {
    /// Starts the sealer. It runs until the last clone is dropped.
    pub(crate) fn start(output: OutputLog) -> Self {
        let (ended, mut waiting) = mpsc::channel::<AttemptId>(SEAL_QUEUE);
        tokio::spawn(async move {
            while let Some(attempt) = waiting.recv().await {
                if let Err(error) = output.seal(attempt.0).await {
                    tracing::debug!(attempt_id = %attempt, %error, "output could not be sealed");
                }
            }
        });
        Self { ended }
    }

    /// Queues the attempts that ended with these durable events.
    pub(crate) fn record_published(&self, record: &TaskRecord, events: &[Arc<TimelineEvent>]) {
        for event in events {
            let Some(attempt) = event.attempt else {
                continue;
            };
            let ended = matches!(event.kind, TimelineEventKind::Ended { .. });
            if ended && has_final_output(record, attempt) {
                let _ = self.ended.try_send(attempt); // Full: see `SEAL_QUEUE`.
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
