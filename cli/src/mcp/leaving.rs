//! What becomes of a task whose agent's session ends while it is held.
//!
//! Nobody can say how far the agent came: it works with other tools than these, so that it wrote nothing down proves nothing. So
//! the task is blocked, where it stood, and waits for whoever looks. Two cases are clear: a grant that the agent was never
//! told of goes back to the queue, for nothing can have been done under it; and a task that somebody wants canceled is
//! canceled. The lease's own end is the last resort, when the relay cannot be reached in time or the process is killed.

use baton_proto::v1::BlockDraft;

use super::alone::{Alone, fresh_id};
use super::answer::Answer;
use super::lease::Lease;

/// The relay's word for a task that somebody wants to end.
const BEING_CANCELED: &str = "being_canceled";
const UNTOLD: &str =
    "the agent's session ended before the agent was told that it holds the task; nothing was done";
const HINT: &str = "see what the agent has done already, outside of Baton too; then resume the task, or pick it up";

impl Alone {
    /// Sees to what is held. Whether that is heard makes no difference to whoever leaves.
    pub(super) async fn leave(&mut self) {
        let lease = self.held.borrow().clone();
        let Some(lease) = lease.filter(|lease| lease.check(self.clock.now()).is_ok()) else {
            return;
        };
        let seen_to = self.see_to(&lease).await;
        if seen_to.is_ok() {
            self.held.send_replace(None);
        }
    }

    async fn see_to(&mut self, lease: &Lease) -> Answer {
        self.call_id = fresh_id();
        if !lease.told {
            return self.release_for(lease, UNTOLD.to_owned()).await;
        }
        let how = self.session.how_it_ended();
        let reason = format!("the agent's session ended while it held the task: {how}");
        if lease.cancel_requested {
            return self.cancel_for(lease, reason).await;
        }
        let block = BlockDraft {
            reason: reason.clone(),
            resume_hint: HINT.to_owned(),
            checkpoint: None,
        };
        match self.block_for(lease, block).await {
            // It was wanted since the last renewal, so nobody has told yet.
            Err(refusal) if refusal.code == BEING_CANCELED => {
                self.call_id = fresh_id();
                self.cancel_for(lease, reason).await
            }
            answer => answer,
        }
    }
}
