//! Commands for holders of an agent token: claim, pick-up, renew and release a lease, and the MCP server.
//! A lease token is read from the environment only and printed once.

pub(crate) mod lease;
pub(crate) mod mcp;
