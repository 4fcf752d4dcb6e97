//! The command line as a person or a script uses it: arguments, exit codes, terminals, short
//! ids. These tests start the executable; gRPC details are in `protocol`.

pub(crate) mod command_line;
pub(crate) mod lease_commands;
pub(crate) mod short_ids;
pub(crate) mod terminal_follow;
pub(crate) mod up_command;
pub(crate) mod wait_reasons;
