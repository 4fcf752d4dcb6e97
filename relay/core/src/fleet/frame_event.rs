//! Maps frame bodies to state machine events, and tells whether a body proves that the
//! processes are gone.

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

/// The event of a body. `None` for bodies of a newer protocol and for goal reports, which are
/// not machine events.
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
            let record = input_record(input, InputKind::Permission, payload, &arguments, now);
            let rule = permission_rules::find_rule(&spec.permission_rules, &tool_name, &arguments);
            let record = InputRecord {
                tool_name: Some(tool_name),
                ..record
            };
            MachineEvent::InputAsked(
                Box::new(record),
                rule.and_then(|rule| RuleAnswer::from_rule(spec, rule)),
            )
        }
        FrameBody::Question { input, payload } => {
            let digested = Arc::clone(&payload);
            let record = input_record(input, InputKind::Question, payload, &digested, now);
            MachineEvent::InputAsked(Box::new(record), None)
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
        // Goal reports are applied by `apply_goal_report`.
        FrameBody::Goal(_) | FrameBody::Unknown => return None,
    })
}

/// A completion counts only with every file that the contract requires.
fn completion_event(completed: CompletedBody, spec: &TaskSpec) -> MachineEvent {
    if completion_contract::judge_found(spec, &completed.artifacts).is_empty() {
        MachineEvent::Completed(completed)
    } else {
        MachineEvent::ContractUnmet(completed)
    }
}

/// Whether output before the result is missing: neither stored nor recorded as cut.
pub(crate) fn lacks_output(body: &FrameBody) -> bool {
    let missing = matches!(body, FrameBody::Completed(body) if body.output_missing > 0);
    missing && !mutant!(OutputGapTaken)
}

fn input_record(
    id: InputId,
    kind: InputKind,
    payload: Arc<[u8]>,
    digested: &[u8],
    asked: WallTime,
) -> InputRecord {
    InputRecord {
        id,
        kind,
        state: InputState::Open,
        payload,
        tool_name: None,
        asked,
        digest: Sha256::digest(digested).into(),
    }
}

/// Whether a body ends the attempt; if so, whether it proves that the processes are gone.
pub(crate) fn proof_of_death(body: &FrameBody) -> Option<bool> {
    match body {
        FrameBody::Completed(body) => Some(body.termination.group_empty),
        FrameBody::Errored(body) => Some(body.termination.group_empty),
        FrameBody::Canceled(body) => Some(body.termination.group_empty),
        FrameBody::Released { termination, .. } | FrameBody::Receipt { termination } => {
            Some(termination.group_empty)
        }
        // The attempt was never started, so no process can be left.
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
