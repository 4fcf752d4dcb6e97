//! What a command ends with when it fails, its exit code, and what to try next.
//! CliError is the one error type of this crate; every text has what happened, why, and a hint.
//! flag_hints puts flags in place of the relay's field names; tls_hints explains failed TLS connections.
//! Prints nothing, and names no task or daemon of its own.

pub(crate) mod cli_error;
pub mod exit_code;
pub(crate) mod flag_hints;
pub(crate) mod tls_hints;
