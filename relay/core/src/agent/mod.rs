//! Agents that hold a lease themselves, without a daemon: granting a lease, calls under that
//! lease, and repeated calls. The rules for daemon frames apply; state transitions are made in
//! attempt/machine.

pub(crate) mod attempt_verb;
pub(crate) mod lease_call;
pub(crate) mod lease_grant;
pub(crate) mod repeated_call;
