//! The daemon's side of what an agent says through its tools: a socket in the data directory, a capability for each attempt
//! whose task asks for tools, and calls that become frames of that attempt and no other. Whoever has the capability may
//! speak for the attempt while it runs; it proves nothing to the relay and nothing about another attempt.

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

/// In the agent's environment, and so in that of everything it starts: the right to speak for its attempt.
pub const CAPABILITY_VARIABLE: &str = "BATON_CAPABILITY";
/// Where to say it.
pub const SOCKET_VARIABLE: &str = "BATON_TOOLS_SOCKET";

/// The socket's name in the data directory.
pub(crate) const SOCKET_FILE: &str = "tools.sock";
