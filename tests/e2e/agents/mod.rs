//! Agents that a daemon runs: every wire protocol, permissions and questions, conversations,
//! `baton mcp`. Leases that agents hold themselves are in `leases`.

pub(crate) mod agent_environment;
pub(crate) mod attempt_tools;
pub(crate) mod coding_agents;
pub(crate) mod conversations;
pub(crate) mod further_turns;
pub(crate) mod input_answers;
pub(crate) mod input_lists;
pub(crate) mod lost_tool_answers;
pub(crate) mod mcp_server;
pub(crate) mod mcp_session_end;
pub(crate) mod resumed_commands;
pub(crate) mod shell_agents;
pub(crate) mod standin_shapes;
