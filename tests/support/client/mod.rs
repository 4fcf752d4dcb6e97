//! Clients of a relay: gRPC with a token, agents with leases, `baton mcp`, a terminal. Each
//! call waits under the common test deadline. This module starts no relay and no daemon.

pub(crate) mod input_answers;
pub(crate) mod lease_agent;
pub(crate) mod mcp_client;
pub(crate) mod task_watch;
pub(crate) mod terminal;
pub(crate) mod test_client;
