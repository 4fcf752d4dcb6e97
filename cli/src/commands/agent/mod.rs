//! Commands for tokens with the role agent: claim, pick up, renew and release a lease, and the MCP server.
//! A lease token is read from the environment only and printed once.

pub(crate) mod lease;
pub(crate) mod mcp;
