//! One try at a task under one lease: the state machine, its timers, the consequences of a
//! lease end, retries, fences and late results.
//!
//! The machine changes one attempt record; the files beside it apply the consequences to the
//! core. This module does not choose daemons and does not read frames (fleet/frame).

pub(crate) mod attempt_owners;
pub mod deadline_profile;
pub mod fences;
pub(crate) mod late_result;
pub(crate) mod lease_end;
pub(crate) mod lease_index;
pub(crate) mod machine;
pub mod retry_policy;
pub(crate) mod retry_schedule;
pub mod timers;
