//! An operator ends an attempt: at once, without asking its holder, which is told to stop.
//!
//! What the worker did since its last word is not known, and that its processes are gone is proved by nothing: the
//! successor rule holds here as everywhere.

use std::sync::Arc;

use super::{AttemptMachine, EventOutcome};
use crate::io::rejection::Rejection;
use crate::record::{EndState, EndedBy, FailureCode, TerminationReceipt};

/// What an operator makes of an attempt that is open.
#[derive(Clone, Debug)]
pub(crate) struct ForceAttemptEnd {
    pub(crate) end: ForcedEnd,
    pub(crate) reason: Arc<str>,
}

#[derive(Clone, Debug)]
pub(crate) enum ForcedEnd {
    /// Taken away from its holder.
    Released,
    Failed,
    /// By hand.
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
                // Without words of the operator's own, what the agent had to say counts: a park keeps it for that.
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

    /// Whether its processes are known to be gone, as far as anybody has said.
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
