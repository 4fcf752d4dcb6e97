//! Which agent started which tool. Messages of a subagent name the tool that started it;
//! messages of the main agent name none.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::agent_event::AgentEvent;
use super::super::json_rpc::text_at;
use super::ClaudeAdapter;

/// Nesting depth of subagents; a deeper chain is a loop.
const MAX_DEPTH: usize = 8;

/// Where a tool call came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ToolOrigin {
    /// The tool whose subagent it was; empty for the main agent.
    pub(super) thread: String,
    pub(super) message: String,
}

impl ClaudeAdapter {
    /// The model is not called again before all tool results are in. So a tool of an earlier
    /// message has ended and its result line was lost. If it stayed open, it would be waited
    /// for until its deadline.
    pub(super) fn on_message_start(
        &mut self,
        thread: &str,
        message: &str,
        out: &mut Vec<AgentEvent>,
    ) {
        if message.is_empty() {
            return;
        }
        let ended = self
            .tools
            .iter()
            .filter(|(_, origin)| origin.thread == thread && origin.message != message);
        let ended: Vec<String> = ended.map(|(id, _)| id.clone()).collect();
        for id in ended {
            self.on_tool_end(&id, true, out);
        }
    }

    /// Ends a tool together with the open tools of its subagent.
    pub(super) fn on_tool_end(&mut self, id: &str, failed: bool, out: &mut Vec<AgentEvent>) {
        self.tools.remove(id);
        let nested = self.tools.iter().filter(|(_, origin)| origin.thread == id);
        let nested: Vec<String> = nested.map(|(nested, _)| nested.clone()).collect();
        for nested_id in nested {
            self.tools.remove(&nested_id);
            self.turn.on_tool_finished(&nested_id, true, out);
        }
        self.turn.on_tool_finished(id, failed, out);
    }

    /// The open tool that a subagent runs in, and the tools that enclose it.
    pub(super) fn open_ancestors(&self, thread: &str) -> Vec<String> {
        let parent = |tool: &String| self.tools.get(tool).map(|origin| origin.thread.clone());
        let chain = std::iter::successors(Some(thread.to_owned()), parent);
        let chain = chain.take_while(|tool| !tool.is_empty()).take(MAX_DEPTH);
        chain.filter(|tool| self.turn.is_tool_open(tool)).collect()
    }

    /// Every message of a subagent counts as activity of its tool, except a heartbeat, which
    /// only keeps the connection open.
    pub(super) fn mark_parents_active(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        if message.get("heartbeat") == Some(&Value::Bool(true)) {
            return;
        }
        let parent = text_at(message, "/parent_tool_use_id");
        let activity = json!({"type": text_at(message, "/type"), "parent_tool_use_id": parent});
        for tool in self.open_ancestors(parent) {
            let activity = activity.to_string();
            self.turn
                .push_output(OutputKind::System, false, activity, Some(&tool), out);
        }
    }
}
