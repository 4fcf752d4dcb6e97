//! What becomes of a task whose agent's session ends while it is held.
//!
//! Nobody can say how far the agent came: it works with other tools than these, so that it wrote nothing down proves nothing. So
//! the task is blocked, where it stood, and waits for whoever looks. Two cases are clear: a grant that the agent was never
//! told of goes back to the queue, for nothing can have been done under it; and a task that somebody wants canceled is
//! canceled. The lease's own end is the last resort, when the relay cannot be reached in time or the process is killed.

use baton_proto::v1::BlockDraft;

use super::agent_lease::AgentLeaseState;
use super::standalone_handler::{StandaloneHandler, new_call_id};
use super::tool_result::ToolResult;

/// The relay's word for a task that somebody wants to end.
const BEING_CANCELED: &str = "being_canceled";
const NEVER_STARTED_REASON: &str =
    "the agent's session ended before the agent was told that it holds the task; nothing was done";
const RESUME_HINT: &str = "see what the agent has done already, outside of Baton too; then resume the task, or pick it up";

impl StandaloneHandler {
    /// Sees to what is held. Whether that is heard makes no difference to whoever leaves.
    pub(super) async fn hand_back_task(&mut self) {
        let lease = self.current_lease.borrow().clone();
        let Some(lease) = lease.filter(|lease| lease.check_valid(self.clock.now()).is_ok()) else {
            return;
        };
        let seen_to = self.hand_back_under(&lease).await;
        if seen_to.is_ok() {
            self.current_lease.send_replace(None);
        }
    }

    async fn hand_back_under(&mut self, lease: &AgentLeaseState) -> ToolResult {
        self.call_id = new_call_id();
        if !lease.known_to_agent {
            return self
                .release_task(lease, NEVER_STARTED_REASON.to_owned())
                .await;
        }
        let how = self.session.end_reason();
        let reason = format!("the agent's session ended while it held the task: {how}");
        if lease.cancel_requested {
            return self.cancel_task(lease, reason).await;
        }
        let block = BlockDraft {
            reason: reason.clone(),
            resume_hint: RESUME_HINT.to_owned(),
            checkpoint: None,
        };
        match self.block_task(lease, block).await {
            // It was wanted since the last renewal, so nobody has told yet.
            Err(refusal) if refusal.code == BEING_CANCELED => {
                self.call_id = new_call_id();
                self.cancel_task(lease, reason).await
            }
            answer => answer,
        }
    }
}
