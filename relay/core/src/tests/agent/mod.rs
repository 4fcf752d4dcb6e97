//! Tests of leases that agents hold themselves: grants, calls, pick-up, repeated calls.

pub(crate) mod lease_call;
pub(crate) mod lease_grant;
pub(crate) mod lease_survival;
pub(crate) mod pick_up;
pub(crate) mod repeated_call;
