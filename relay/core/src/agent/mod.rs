//! Agents that hold a lease themselves, without a daemon: how one gets a lease, its calls under that lease, and repeated calls.
//! The same rules as for daemon frames apply; state transitions are left to attempt/machine.

pub(crate) mod attempt_verb;
pub(crate) mod lease_call;
pub(crate) mod lease_grant;
pub(crate) mod repeated_call;
