//! Errors and exit codes of the command line.
//! CliError is the only error type of this crate; every text has what happened, why, and a hint.
//! flag_hints replaces the relay's field names by flags; tls_hints explains failed TLS connections.
//! Prints nothing.

pub(crate) mod cli_error;
pub mod exit_code;
pub(crate) mod flag_hints;
pub(crate) mod tls_hints;
