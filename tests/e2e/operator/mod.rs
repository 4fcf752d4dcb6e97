//! Work of operators: force, drain, remove and inspect daemons and tasks, upgrade, run under
//! systemd. Commands of ordinary users are in `cli`.

pub(crate) mod daemon_drain;
pub(crate) mod daemon_removal;
pub(crate) mod force_commands;
pub(crate) mod inspection;
pub(crate) mod systemd_units;
pub(crate) mod upgrade;
