//! Who may run a task and for how long: leases, fences, pick-up, restarts, crashes, suspended
//! machines and clock changes. Clean-up of processes within one attempt is in `tasks`.

pub(crate) mod agent_leases;
pub(crate) mod clock_jumps;
pub(crate) mod daemon_crash;
pub(crate) mod fencing;
pub(crate) mod inherited_tasks;
pub(crate) mod machine_suspend;
pub(crate) mod pick_up;
pub(crate) mod planned_restarts;
pub(crate) mod relay_restart;
pub(crate) mod shim_crash;
