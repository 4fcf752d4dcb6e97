//! The log of the servers: one line per event on stderr, as text or JSON. Commands that run a server set it
//! up once; client commands write no log.

use std::io::IsTerminal;

use clap::Args;
use tracing_subscriber::EnvFilter;

use crate::error::cli_error::CliError;

const DEFAULT_FILTER: &str = "info";

#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// Write the log as JSON, one object per line. RUST_LOG sets the log level, for example `debug` or
    /// `baton_relay=trace`.
    #[arg(long, env = "BATON_LOG_JSON", help_heading = "Logging")]
    pub log_json: bool,
}

impl LogArgs {
    /// `quiet` is the filter if RUST_LOG is not set.
    pub(crate) fn init(&self, quiet: Option<&str>) -> Result<(), CliError> {
        let filter = EnvFilter::try_from_default_env()
            .or_else(|_| EnvFilter::try_new(quiet.unwrap_or(DEFAULT_FILTER)))
            .map_err(|error| {
                CliError::usage(
                    format!("RUST_LOG is not valid: {error}"),
                    "set it to a level like `info`",
                )
            })?;
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let result = if self.log_json {
            builder.json().try_init()
        } else {
            builder.try_init()
        };
        result.map_err(|error| CliError::local("cannot set up the log", error))
    }
}
