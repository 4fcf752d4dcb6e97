//! The daemon's side of the agents' tools: a socket in the data directory, a capability for
//! each attempt whose task asks for tools, and calls that become frames of that attempt. A
//! capability allows calls for its own attempt while that runs. It gives no rights on the relay
//! or on other attempts.

mod call_limiter;
mod capability;
mod tool_client;
mod tool_grant;
mod tool_socket;

pub(crate) use capability::{Capability, CapabilityHash};
pub use tool_client::{ToolEndpoint, call_tool, find_endpoint};
pub use tool_grant::own_program;
pub(crate) use tool_grant::{AgentToolAccess, ToolGrant, ToolServerSettings};
pub(crate) use tool_socket::{
    CALL_QUEUE_SIZE, ToolRequest, ToolRequestKind, ToolSocket, error_detail, noted_answer,
    refused_answer,
};

/// Environment variable of the agent and its child processes: the attempt's capability.
pub const CAPABILITY_VARIABLE: &str = "BATON_CAPABILITY";
/// Environment variable with the path of the socket for tool calls.
pub const SOCKET_VARIABLE: &str = "BATON_TOOLS_SOCKET";

/// Name of the socket in the data directory.
pub(crate) const SOCKET_FILE: &str = "tools.sock";
