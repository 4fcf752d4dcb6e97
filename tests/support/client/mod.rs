//! Clients of a relay: gRPC with a token, agents that hold leases, `baton mcp`, a terminal.
//! Each call waits under the one test deadline.
//! Starts no relay and no daemon.

pub(crate) mod input_answers;
pub(crate) mod lease_agent;
pub(crate) mod mcp_client;
pub(crate) mod task_watch;
pub(crate) mod terminal;
pub(crate) mod test_client;
