//! Commands on daemons: list, drain, disconnect, forget.
//! They call the relay only; `baton daemon` and `baton health` are in commands/server.

pub(crate) mod daemons;
pub(crate) mod disconnect;
pub(crate) mod drain;
pub(crate) mod forget;
