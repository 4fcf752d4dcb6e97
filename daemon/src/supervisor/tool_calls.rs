//! Calls of agents' tools: the capability is checked first, then the call becomes a frame of its
//! attempt.

use baton_proto::v1::ErrorDetail;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::worker::{ToolAnswer, tool_answer, tool_call};

use super::Supervisor;
use crate::tools::{CapabilityHash, ToolRequest, ToolRequestKind, error_detail, refused_answer};

impl Supervisor {
    /// A secret that matches no running attempt gets one answer, so that it cannot be used to find
    /// out which attempts exist. The caller may have gone, so failed replies are ignored.
    pub(super) fn on_tool_call(&mut self, request: ToolRequest) {
        let ToolRequest { secret, kind } = request;
        let now = self.clock.now();
        let id = CapabilityHash::attempt_id_in(&secret)
            .unwrap_or_default()
            .to_owned();
        let attempt = self
            .attempts
            .get_mut(&id)
            .filter(|attempt| attempt.accepts_secret(&secret, now));
        let (verb, reply) = match kind {
            ToolRequestKind::RequiredFiles(reply) => {
                let _ = reply.send(attempt.and_then(|attempt| attempt.required_files()));
                return;
            }
            ToolRequestKind::Call { verb, reply } => (verb, reply),
        };
        let Some(attempt) = attempt else {
            let _ = reply.send(no_such_capability());
            return;
        };
        let finish = match &verb {
            tool_call::Verb::Finish(finish) => Some(finish),
            tool_call::Verb::Look(_)
            | tool_call::Verb::Progress(_)
            | tool_call::Verb::Checkpoint(_)
            | tool_call::Verb::Block(_) => None,
        };
        let is_look = matches!(verb, tool_call::Verb::Look(_));
        if let Some(refusal) = attempt.refuse_after_outcome(finish).filter(|_| !is_look) {
            let _ = reply.send(refusal);
            return;
        }
        let body = match verb {
            tool_call::Verb::Look(_) => {
                let task = attempt.own_task();
                let _ = reply.send(ToolAnswer {
                    answer: Some(tool_answer::Answer::Task(task)),
                });
                return;
            }
            tool_call::Verb::Progress(update) => Body::Progress(update),
            tool_call::Verb::Checkpoint(draft) => Body::Checkpoint(draft),
            tool_call::Verb::Block(draft) => Body::Block(draft),
            tool_call::Verb::Finish(finish) => {
                attempt.fix_outcome(finish, reply, &self.clock);
                self.attempts.enqueue(&id);
                return;
            }
        };
        if attempt.has_frame_room() {
            attempt.push_tool_frame(body, reply, &self.clock);
            self.attempts.enqueue(&id);
        } else {
            let _ = reply.send(too_many_unacked());
        }
    }
}

/// Not for the outcome of an attempt, which is reported only once.
fn too_many_unacked() -> ToolAnswer {
    let message = "too many frames of this attempt have not reached the relay yet";
    let hint = "go on with the work, and report it again later, in fewer words";
    let detail = ErrorDetail {
        retryable: true,
        ..error_detail("too_much_untold", message, hint, "")
    };
    refused_answer("failed_precondition", detail)
}

fn no_such_capability() -> ToolAnswer {
    let message = "this capability belongs to no attempt that runs here";
    let hint = "stop: the attempt that it was made for has ended, or never existed";
    refused_answer(
        "permission_denied",
        error_detail("capability_refused", message, hint, ""),
    )
}
