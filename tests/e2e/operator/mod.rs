//! What operators do: force, drain, remove and inspect daemons and tasks, upgrade, run under systemd.
//! What every user does at the command line is in `cli`.

pub(crate) mod daemon_drain;
pub(crate) mod daemon_removal;
pub(crate) mod force_commands;
pub(crate) mod inspection;
pub(crate) mod systemd_units;
pub(crate) mod upgrade;
