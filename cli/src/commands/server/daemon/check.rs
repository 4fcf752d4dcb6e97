//! `baton daemon check`: checks whether a daemon would work on this machine. The exit code is 0 if there is
//! no problem.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{DEFAULT_SLOTS, default_daemon_dir, machine_name};
use crate::client::discovery::DEFAULT_RELAY;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::sanitizer::one_line;
use crate::render::table::TextTable;
use crate::server::start::{DaemonStartOptions, ServerClocks, check_daemon};

/// The flags of the daemon that matter for the check.
#[derive(Args, Debug)]
pub(crate) struct DaemonCheckArgs {
    /// Address of the relay.
    #[arg(long, env = "BATON_RELAY", value_name = "URL", default_value = DEFAULT_RELAY)]
    relay: String,

    /// File with the daemon's token. The default is `token` in the data directory.
    #[arg(long, env = "BATON_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Data directory of the daemon. The default is $XDG_DATA_HOME/baton/daemon or ~/.local/share/baton/daemon.
    #[arg(long, env = "BATON_DATA", value_name = "DIR")]
    data: Option<PathBuf>,

    /// Maximum of concurrent attempts.
    #[arg(long, env = "BATON_SLOTS", value_name = "N", default_value_t = DEFAULT_SLOTS,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: u32,

    /// The daemon will run plain commands.
    #[arg(long, env = "BATON_ALLOW_COMMAND")]
    allow_command: bool,

    /// PEM file with the certificate authority of the relay's certificate. The default is the system's list of authorities.
    #[arg(long, env = "BATON_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// TOML file with the agents, workspace roots and limits of the daemon.
    #[arg(long, env = "BATON_DAEMON_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print one JSON object with the list in `findings`.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(
    args: DaemonCheckArgs,
    console: &CliConsole,
    clocks: &ServerClocks,
) -> Result<CommandExit, CliError> {
    let as_json = args.json;
    let findings = check_daemon(start_options(args), clocks).await;
    let is_ok = findings.iter().all(|finding| !finding.is_problem());
    if as_json {
        let rows = findings.iter().map(|finding| {
            json!({
                "what": finding.subject,
                "verdict": finding.verdict.as_str(),
                "detail": finding.detail,
            })
        });
        let rows: Vec<_> = rows.collect();
        console.json(&json!({ "ok": is_ok, "findings": rows }))?;
    } else {
        let mut table = TextTable::new(["VERDICT", "WHAT", "DETAIL"]);
        for finding in &findings {
            table.row([
                finding.verdict.as_str().to_owned(),
                one_line(&finding.subject),
                one_line(&finding.detail),
            ]);
        }
        for line in table.lines() {
            console.line(&line)?;
        }
    }
    Ok(if is_ok {
        CommandExit::Done
    } else {
        CommandExit::NotCompleted
    })
}

fn start_options(args: DaemonCheckArgs) -> DaemonStartOptions {
    let data = args.data.unwrap_or_else(default_daemon_dir);
    DaemonStartOptions {
        relay: args.relay,
        token_file: args.token_file.unwrap_or_else(|| data.join("token")),
        data,
        name: machine_name(),
        slots: args.slots,
        labels: Vec::new(),
        capabilities: Vec::new(),
        allow_command: args.allow_command,
        ca: args.ca,
        drain: Duration::ZERO,
        config: args.config,
        work_dir: None,
        lease_extension: Duration::ZERO,
        health: None,
        demo: false,
    }
}
