//! Hands back the task of an agent whose session ends while it holds a lease.
//!
//! How far the agent got is unknown: it also works with other tools, so missing progress proves
//! nothing. The task is therefore blocked for a person. There are two exceptions: a grant that
//! never reached the agent is released, because no work can have been done; and a task with a
//! requested cancellation is canceled. If the relay cannot be reached in time or the process is
//! killed, the lease expires.

use baton_proto::v1::BlockDraft;

use super::agent_lease::AgentLeaseState;
use super::standalone_handler::{StandaloneHandler, new_call_id};
use super::tool_result::ToolResult;

/// The relay's code for a task with a requested cancellation.
const BEING_CANCELED: &str = "being_canceled";
const NEVER_STARTED_REASON: &str =
    "the agent's session ended before the agent received the task; no work was done";
const RESUME_HINT: &str = "check what the agent has already done, also outside of Baton; then resume the task or pick it up";

impl StandaloneHandler {
    /// Hands back the current task. An error is ignored, because the session is over anyway.
    pub(super) async fn hand_back_task(&mut self) {
        let lease = self.current_lease.borrow().clone();
        let Some(lease) = lease.filter(|lease| lease.check_valid(self.clock.now()).is_ok()) else {
            return;
        };
        let result = self.hand_back_under(&lease).await;
        if result.is_ok() {
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
            // The cancellation was requested after the last renewal.
            Err(rejection) if rejection.code == BEING_CANCELED => {
                self.call_id = new_call_id();
                self.cancel_task(lease, reason).await
            }
            answer => answer,
        }
    }
}
