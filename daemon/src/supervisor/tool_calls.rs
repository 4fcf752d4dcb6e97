//! Calls of agents' tools: who may speak is asked first, then what is said becomes a frame of that attempt.

use baton_proto::v1::ErrorDetail;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::worker::{ToolAnswer, tool_answer, tool_call};

use super::Supervisor;
use crate::tools::{CapabilityHash, ToolRequest, ToolRequestKind, error_detail, refused_answer};

impl Supervisor {
    /// A secret that fits no running attempt learns nothing: not whether there was one.
    pub(super) fn on_tool_call(&mut self, asked: ToolRequest) {
        let ToolRequest { secret, kind: step } = asked;
        let now = self.clock.now();
        let id = CapabilityHash::attempt_id_in(&secret)
            .unwrap_or_default()
            .to_owned();
        let held = self
            .supervised
            .get_mut(&id)
            .filter(|held| held.accepts_secret(&secret, now));
        let (verb, reply) = match step {
            ToolRequestKind::RequiredFiles(reply) => {
                // Whoever asked may have gone; so below.
                let _ = reply.send(held.and_then(|held| held.required_files()));
                return;
            }
            ToolRequestKind::Call { verb, reply } => (verb, reply),
        };
        let Some(held) = held else {
            // Whoever asked may have gone.
            let _ = reply.send(no_such_capability());
            return;
        };
        let said = match &verb {
            tool_call::Verb::Finish(finish) => Some(finish),
            tool_call::Verb::Look(_)
            | tool_call::Verb::Progress(_)
            | tool_call::Verb::Checkpoint(_)
            | tool_call::Verb::Block(_) => None,
        };
        let is_look = matches!(verb, tool_call::Verb::Look(_));
        if let Some(over) = held.refuse_after_outcome(said).filter(|_| !is_look) {
            let _ = reply.send(over);
            return;
        }
        let body = match verb {
            tool_call::Verb::Look(_) => {
                let task = held.own_task();
                let _ = reply.send(ToolAnswer {
                    answer: Some(tool_answer::Answer::Task(task)),
                });
                return;
            }
            tool_call::Verb::Progress(update) => Body::Progress(update),
            tool_call::Verb::Checkpoint(draft) => Body::Checkpoint(draft),
            tool_call::Verb::Block(draft) => Body::Block(draft),
            tool_call::Verb::Finish(finish) => {
                held.fix_outcome(finish, reply, &self.clock);
                self.enqueue(&id);
                return;
            }
        };
        if held.has_frame_room() {
            held.push_tool_frame(body, reply, &self.clock);
            self.enqueue(&id);
        } else {
            let _ = reply.send(too_many_unacked());
        }
    }
}

/// How its work ends is always heard: that is said once.
fn too_many_unacked() -> ToolAnswer {
    let message = "too much of what this attempt said has not reached the relay";
    let hint = "go on with the work, and say it again later, in fewer words";
    let detail = ErrorDetail {
        retryable: true,
        ..error_detail("too_much_untold", message, hint, "")
    };
    refused_answer("failed_precondition", detail)
}

fn no_such_capability() -> ToolAnswer {
    let message = "this capability belongs to no attempt that runs here";
    let hint = "stop: the attempt that it was made for is over, or it was never one";
    refused_answer(
        "permission_denied",
        error_detail("capability_refused", message, hint, ""),
    )
}
