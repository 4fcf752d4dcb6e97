//! A dispatch of the relay: it is accepted or refused, and what is accepted gets a place in the
//! attempt table and a directory.

use std::time::Duration;

use baton_proto::v1::{AttemptRef, Dispatch, RejectCode};
use tracing::{info, warn};

use super::{Supervisor, positive_millis};
use crate::agents::DispatchRefusal;
use crate::attempt::{AttemptPlan, ChildStdin};
use crate::storage::attempt_dir::{AttemptId, AttemptMeta};
use crate::storage::conversation_store::{ConversationFileKey, ConversationTurn};
use crate::storage::daemon_identity::DaemonIdentity;
use crate::supervised_attempt::{AcceptedDispatch, OutboxLocation, SupervisedAttempt};

/// Used when the relay sets no limit for its confirmation.
const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

impl Supervisor {
    /// A repeated dispatch is answered again; nothing is started twice.
    pub(super) fn on_dispatch(&mut self, attempt: AttemptRef, dispatch: &Dispatch) {
        let id = attempt.attempt_id.clone();
        if id.is_empty() {
            warn!("ignored a dispatch without an attempt id");
            return;
        }
        let repeated = self.attempts.update(&id, |attempt, clock| {
            attempt.resend_acceptance(clock);
        });
        if repeated.is_some() {
            return;
        }
        let token = dispatch.token.clone().unwrap_or_default();
        let conversation = ConversationFileKey::from_bytes(&dispatch.conversation_key).map(|key| {
            ConversationTurn {
                key,
                agent: dispatch.agent.clone(),
            }
        });
        let planned = self.plan_dispatch(&attempt, dispatch, conversation.as_ref());
        let supervised = match planned {
            Ok(plan) => {
                info!(attempt_id = id, task_id = %attempt.task_id, "accepted");
                let confirm_within = positive_millis(dispatch.accept_ms);
                let accepted = AcceptedDispatch {
                    outbox_location: new_outbox_location(&self.identity, &attempt, dispatch, &plan),
                    attempt,
                    token,
                    plan,
                    confirm_within: confirm_within.unwrap_or(DEFAULT_CONFIRM_TIMEOUT),
                    conversation,
                };
                SupervisedAttempt::accept(accepted, &self.clock)
            }
            Err(refusal) => {
                info!(attempt_id = id, reason = %refusal.message, "refused");
                SupervisedAttempt::refuse(attempt, token, &refusal, &self.clock)
            }
        };
        self.attempts.insert(&id, supervised);
    }

    fn plan_dispatch(
        &self,
        attempt: &AttemptRef,
        dispatch: &Dispatch,
        conversation: Option<&ConversationTurn>,
    ) -> Result<AttemptPlan, DispatchRefusal> {
        let refuse = |code, message: &str| {
            Err(DispatchRefusal {
                code,
                message: message.to_owned(),
            })
        };
        if let Err(error) = attempt.attempt_id.parse::<AttemptId>() {
            return refuse(RejectCode::Invalid, &error.to_string());
        }
        if self.attempts.was_removed(&attempt.attempt_id) {
            return refuse(RejectCode::Duplicate, "this attempt already ran here");
        }
        if dispatch.token.is_none() {
            return refuse(RejectCode::Invalid, "the dispatch carries no lease token");
        }
        if !self.shutdown.accepts_work() {
            return refuse(RejectCode::Draining, "the daemon takes no new work");
        }
        if self.attempts.free_slots() == 0 {
            return refuse(RejectCode::AtCapacity, "no free slot");
        }
        if let Some(refusal) = self.resources.refusal() {
            return Err(refusal);
        }
        let daemon_id = self.identity.daemon_id();
        let known = conversation.and_then(|turn| self.conversations.find(turn));
        let tools = dispatch
            .mcp
            .then(|| self.tooling.grant_access(&attempt.attempt_id));
        let registry = self.programs.registry();
        let plan = registry.plan_attempt(attempt, dispatch, daemon_id, known, tools.as_ref())?;
        self.check_workspace_free(&plan)?;
        Ok(plan)
    }

    /// An exclusive root takes one attempt at a time. The others wait at the relay, where they use
    /// neither a slot nor their own time.
    fn check_workspace_free(&self, plan: &AttemptPlan) -> Result<(), DispatchRefusal> {
        let root = plan.workspace.exclusive_root();
        let Some(other) = root.and_then(|root| self.attempts.occupant_of(root)) else {
            return Ok(());
        };
        let message = format!(
            "the workspace {:?} is in use by attempt {} of task {}",
            plan.workspace.name, other.attempt_id, other.task_id
        );
        Err(DispatchRefusal {
            code: RejectCode::WorkspaceBusy,
            message,
        })
    }
}

/// Where the frames of a new attempt are stored, with the description that is stored beside them.
pub(super) fn new_outbox_location(
    identity: &DaemonIdentity,
    attempt: &AttemptRef,
    dispatch: &Dispatch,
    plan: &AttemptPlan,
) -> OutboxLocation {
    let meta = AttemptMeta {
        attempt: attempt.clone(),
        agent: dispatch.agent.clone(),
        daemon_id: identity.daemon_id().to_owned(),
        boot_id: identity.boot_id.clone(),
        deadlines: plan.deadlines,
        cleanup_term: plan.cleanup_term,
        conversation_key: dispatch.conversation_key.clone(),
        workspace: Some(plan.workspace.clone()),
        tools: plan.tools.clone(),
        required_files: plan.required_files.clone(),
        is_coding_agent: matches!(plan.stdin, ChildStdin::AgentSession(_)),
    };
    // The id was checked before the dispatch was accepted.
    let id = attempt.attempt_id.parse();
    id.map_or(OutboxLocation::Memory, |id| OutboxLocation::New {
        id,
        meta: Box::new(meta),
    })
}
