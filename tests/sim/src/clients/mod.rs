//! Clients, operators and watchers: which requests they send, what was acknowledged to them, and that it still holds in the end.
//! It must not know how the relay stores anything beyond its records.

pub(crate) mod foreign_clients;
pub(crate) mod goal_clients;
pub(crate) mod operators;
pub(crate) mod sim_clients;
pub(crate) mod task_specs;
pub(crate) mod watchers;
