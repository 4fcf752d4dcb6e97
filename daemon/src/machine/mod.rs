//! The state of the worker machine: free disk space, available memory, control groups of
//! attempts. Reads the kernel's figures and decides whether new work can be accepted. It must
//! not depend on attempts, frames or the relay.

pub(crate) mod control_groups;
pub(crate) mod disk_monitor;
pub(crate) mod memory_monitor;
