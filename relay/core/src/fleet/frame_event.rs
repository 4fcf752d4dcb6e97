//! What the body of a frame means for its attempt: the event that it is, and whether it proves that
//! the processes are gone.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::attempt::machine::{MachineEvent, RuleAnswer};
use crate::goal::completion_contract;
use crate::goal::permission_rules;
use crate::ids::InputId;
use crate::io::session_input::{CompletedBody, FrameBody};
use crate::record::{InputKind, InputRecord, InputState, LifecyclePhase, OpenTool};
use crate::task::spec::TaskSpec;
use crate::time::WallTime;

/// None for what is no event of the attempt: bodies of a newer protocol, and reports about the
/// goal.
pub(crate) fn frame_event(body: FrameBody, spec: &TaskSpec, now: WallTime) -> Option<MachineEvent> {
    Some(match body {
        FrameBody::Accepted => MachineEvent::Accepted,
        FrameBody::Rejected { code, message } => MachineEvent::Rejected { code, message },
        FrameBody::Started => MachineEvent::Phase(LifecyclePhase::Started),
        FrameBody::Phase {
            phase: LifecyclePhase::CleanupStarted,
            deadline: Some(timer),
            ..
        } => MachineEvent::DaemonDeadline(timer),
        FrameBody::Phase { phase, .. } => MachineEvent::Phase(phase),
        FrameBody::ToolStarted { id, name } => MachineEvent::ToolStarted(OpenTool { id, name }),
        FrameBody::ToolFinished { id } => MachineEvent::ToolFinished(id),
        FrameBody::PermissionRequest {
            input,
            tool_name,
            arguments,
            payload,
        } => {
            let asked = input_record(input, InputKind::Permission, payload, &arguments, now);
            let ruled = permission_rules::find_rule(&spec.permission_rules, &tool_name, &arguments);
            let asked = InputRecord {
                tool_name: Some(tool_name),
                ..asked
            };
            MachineEvent::InputAsked(
                Box::new(asked),
                ruled.and_then(|said| RuleAnswer::from_rule(spec, said)),
            )
        }
        FrameBody::Question { input, payload } => {
            let shown = Arc::clone(&payload);
            let asked = input_record(input, InputKind::Question, payload, &shown, now);
            MachineEvent::InputAsked(Box::new(asked), None)
        }
        FrameBody::InputWithdrawn { input } => MachineEvent::InputWithdrawn(input),
        FrameBody::InputReceived { input } => MachineEvent::InputReceived(input),
        FrameBody::Completed(completed) => completion_event(completed, spec),
        FrameBody::Errored(errored) => MachineEvent::Errored(errored),
        FrameBody::Canceled(canceled) => MachineEvent::Canceled(canceled),
        FrameBody::Released {
            reason,
            termination,
        } => MachineEvent::Released {
            reason,
            termination,
        },
        FrameBody::Receipt { termination } => MachineEvent::Receipt(termination),
        // Reports about the goal are applied elsewhere.
        FrameBody::Goal(_) | FrameBody::Unknown => return None,
    })
}

/// A result counts only with every file that the contract asks for.
fn completion_event(completed: CompletedBody, spec: &TaskSpec) -> MachineEvent {
    if completion_contract::judge_found(spec, &completed.artifacts).is_empty() {
        MachineEvent::Completed(completed)
    } else {
        MachineEvent::ContractUnmet(completed)
    }
}

/// Output before a result that the relay neither has nor knows to be gone.
pub(crate) fn lacks_output(body: &FrameBody) -> bool {
    let missing = matches!(body, FrameBody::Completed(body) if body.output_missing > 0);
    missing && !mutant!(OutputGapTaken)
}

fn input_record(
    id: InputId,
    kind: InputKind,
    payload: Arc<[u8]>,
    shown: &[u8],
    asked: WallTime,
) -> InputRecord {
    InputRecord {
        id,
        kind,
        state: InputState::Open,
        payload,
        tool_name: None,
        asked,
        digest: Sha256::digest(shown).into(),
    }
}

/// Whether a body ends the attempt, and if so whether it proves that its processes are gone.
pub(crate) fn proof_of_death(body: &FrameBody) -> Option<bool> {
    match body {
        FrameBody::Completed(body) => Some(body.termination.group_empty),
        FrameBody::Errored(body) => Some(body.termination.group_empty),
        FrameBody::Canceled(body) => Some(body.termination.group_empty),
        FrameBody::Released { termination, .. } | FrameBody::Receipt { termination } => {
            Some(termination.group_empty)
        }
        // Never started: nothing can be left.
        FrameBody::Rejected { .. } => Some(true),
        FrameBody::Accepted
        | FrameBody::Started
        | FrameBody::Phase { .. }
        | FrameBody::ToolStarted { .. }
        | FrameBody::ToolFinished { .. }
        | FrameBody::PermissionRequest { .. }
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Goal(_)
        | FrameBody::Unknown => None,
    }
}
