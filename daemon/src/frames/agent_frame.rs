//! Tool calls, requests and usage of a coding agent as protocol messages.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{InputWithdrawn, LifecyclePhase, TaskLifecycle, Usage};

use crate::agents::FinalAgentUsage;
use crate::attempt::AgentNotice;

/// The frame for an event of an agent.
pub(crate) fn agent_event_frame(notice: AgentNotice) -> Body {
    let lifecycle = |phase: LifecyclePhase| TaskLifecycle {
        phase: phase.into(),
        ..TaskLifecycle::default()
    };
    match notice {
        AgentNotice::ToolStarted { id, name } => Body::Lifecycle(TaskLifecycle {
            tool_call_id: id,
            tool_name: name,
            ..lifecycle(LifecyclePhase::ToolStarted)
        }),
        AgentNotice::ToolFinished { id, failed } => Body::Lifecycle(TaskLifecycle {
            tool_call_id: id,
            tool_failed: Some(failed),
            ..lifecycle(LifecyclePhase::ToolFinished)
        }),
        // Each of these two opens its input by itself.
        AgentNotice::Permission(request) => Body::PermissionRequest(request),
        AgentNotice::Question(question) => Body::Question(question),
        AgentNotice::InputReceived { input_id } => Body::Lifecycle(TaskLifecycle {
            input_id,
            ..lifecycle(LifecyclePhase::InputReceived)
        }),
        AgentNotice::InputWithdrawn { input_id, reason } => {
            Body::InputWithdrawn(InputWithdrawn { input_id, reason })
        }
    }
}

pub(super) fn wire_usage(used: &FinalAgentUsage) -> Option<Usage> {
    let usage = used.usage.as_ref()?;
    Some(Usage {
        input_tokens: usage.tokens.input,
        output_tokens: usage.tokens.output,
        cache_read_tokens: usage.tokens.cache_read,
        cache_write_tokens: usage.tokens.cache_write,
        cost_usd: usage.cost.map(|cost| cost.to_string()).unwrap_or_default(),
        model: usage.model.clone().unwrap_or_default(),
        turns: usage.turns,
        duration_ms: 0,
    })
}
