//! Clients, operators and watchers: their requests, the answers they got, and the check that
//! acknowledged effects still hold at the end. It uses the relay's records only, not its
//! storage.

pub(crate) mod foreign_clients;
pub(crate) mod goal_clients;
pub(crate) mod operators;
pub(crate) mod sim_clients;
pub(crate) mod task_specs;
pub(crate) mod watchers;
