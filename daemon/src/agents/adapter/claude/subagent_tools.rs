//! Whose tool is whose. The messages of a subagent name the tool that started it; the agent's own name none.

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::agent_event::AgentEvent;
use super::super::json_rpc::text_at;
use super::ClaudeAdapter;

/// Agents in agents in agents: more is a loop.
const MAX_DEPTH: usize = 8;

/// Where a tool was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ToolOrigin {
    /// The tool whose subagent it was; empty for the agent itself.
    pub(super) thread: String,
    pub(super) message: String,
}

impl ClaudeAdapter {
    /// No model is asked again while results are missing. So a tool of an earlier message is over, and a line that said
    /// so was lost: open, it would be waited for until its deadline.
    pub(super) fn on_message_start(
        &mut self,
        thread: &str,
        message: &str,
        out: &mut Vec<AgentEvent>,
    ) {
        if message.is_empty() {
            return;
        }
        let over = self
            .tools
            .iter()
            .filter(|(_, began)| began.thread == thread && began.message != message);
        let over: Vec<String> = over.map(|(id, _)| id.clone()).collect();
        for id in over {
            self.on_tool_end(&id, true, out);
        }
    }

    /// With what its subagent still has open.
    pub(super) fn on_tool_end(&mut self, id: &str, failed: bool, out: &mut Vec<AgentEvent>) {
        self.tools.remove(id);
        let own = self.tools.iter().filter(|(_, began)| began.thread == id);
        let own: Vec<String> = own.map(|(own, _)| own.clone()).collect();
        for own in own {
            self.tools.remove(&own);
            self.turn.on_tool_finished(&own, true, out);
        }
        self.turn.on_tool_finished(id, failed, out);
    }

    /// The tool that a subagent runs in, and those that this one runs in.
    pub(super) fn open_ancestors(&self, thread: &str) -> Vec<String> {
        let above = |tool: &String| self.tools.get(tool).map(|began| began.thread.clone());
        let chain = std::iter::successors(Some(thread.to_owned()), above);
        let chain = chain.take_while(|tool| !tool.is_empty()).take(MAX_DEPTH);
        chain.filter(|tool| self.turn.is_tool_open(tool)).collect()
    }

    /// What a subagent says or does is a sign of life of its tool, whatever else it comes to. Not a pulse that only keeps
    /// the line open.
    pub(super) fn mark_parents_active(&mut self, message: &Value, out: &mut Vec<AgentEvent>) {
        if message.get("heartbeat") == Some(&Value::Bool(true)) {
            return;
        }
        let parent = text_at(message, "/parent_tool_use_id");
        let sign = json!({"type": text_at(message, "/type"), "parent_tool_use_id": parent});
        for tool in self.open_ancestors(parent) {
            let sign = sign.to_string();
            self.turn
                .push_output(OutputKind::System, false, sign, Some(&tool), out);
        }
    }
}
