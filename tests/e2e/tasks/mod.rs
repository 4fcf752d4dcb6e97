//! One task from submission to its end: admission, deadlines, cancel, goals, workspaces,
//! results. Agents, leases and operators have their own folders.

pub(crate) mod admission;
pub(crate) mod cancel;
pub(crate) mod completion_contracts;
pub(crate) mod deadline_profiles;
pub(crate) mod deadlines;
pub(crate) mod goals;
pub(crate) mod late_results;
pub(crate) mod task_lifecycle;
pub(crate) mod task_traces;
pub(crate) mod undelivered_results;
pub(crate) mod workspace_locks;
pub(crate) mod workspaces;
