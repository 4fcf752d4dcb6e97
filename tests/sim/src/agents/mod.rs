//! Agents without a daemon that have leases themselves, and the transport of their calls, with
//! losses and repetitions. The results of the calls are checked in checks/agent_calls.rs.

pub(crate) mod agent_call;
pub(crate) mod lease_holding_agent;
