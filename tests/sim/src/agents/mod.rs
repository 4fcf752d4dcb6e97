//! Agents without a daemon that have leases themselves, and how their calls travel, get lost and are repeated.
//! What the relay makes of the calls is checked in checks/agent_calls.rs.

pub(crate) mod agent_call;
pub(crate) mod lease_holding_agent;
