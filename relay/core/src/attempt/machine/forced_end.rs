//! An operator's forced end of an attempt: it takes effect at once, and the holder is sent
//! Abandon.
//!
//! It is unknown what the worker did since its last frame, and nothing proves that its
//! processes are gone. So the successor rule applies here too.

use std::sync::Arc;

use super::{AttemptMachine, EventOutcome};
use crate::io::rejection::Rejection;
use crate::record::{EndState, EndedBy, FailureCode, TerminationReceipt};

/// An operator's request to end an open attempt.
#[derive(Clone, Debug)]
pub(crate) struct ForceAttemptEnd {
    pub(crate) end: ForcedEnd,
    pub(crate) reason: Arc<str>,
}

#[derive(Clone, Debug)]
pub(crate) enum ForcedEnd {
    /// Taken from its holder.
    Released,
    Failed,
    /// Completed by hand.
    Completed {
        result: Option<Arc<[u8]>>,
    },
}

impl AttemptMachine<'_> {
    pub(super) fn force_end(&mut self, forced: ForceAttemptEnd) -> EventOutcome {
        let receipt = self.known_receipt();
        let (state, code) = match forced.end {
            ForcedEnd::Released if !self.attempt.state.is_leased() => {
                return EventOutcome::Refused(Rejection::NotHeld);
            }
            ForcedEnd::Released => (EndState::Released, None),
            ForcedEnd::Failed => (EndState::Failed, Some(FailureCode::OperatorForced)),
            ForcedEnd::Completed { result } => {
                // Without a result from the operator, the agent's own result stands. A park
                // keeps it for this case.
                if result.is_some() {
                    self.attempt.result = result;
                }
                (EndState::Completed, None)
            }
        };
        self.update_retry_safety();
        self.finish(state, code, EndedBy::Operator, receipt);
        if let Some(end) = self.end_mut() {
            end.message = Some(forced.reason);
        }
        EventOutcome::Applied
    }

    /// The receipt recorded so far, else the one that the lease state implies.
    fn known_receipt(&self) -> TerminationReceipt {
        let known = self.attempt.state.receipt();
        known.unwrap_or_else(|| {
            if mutant!(ForceTakenForReceipt) {
                TerminationReceipt::Confirmed
            } else {
                self.assumed_receipt()
            }
        })
    }
}
