//! `baton health`: asks the daemon that runs on a data directory whether work reaches it. Exit 0 means that it does, so a
//! container's probe can be this command.

use std::path::PathBuf;

use clap::Args;

use crate::commands::server::daemon;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::server::start;

#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// The daemon's data directory. The default is the same as the daemon's: $XDG_DATA_HOME/baton/daemon or
    /// ~/.local/share/baton/daemon.
    #[arg(long, env = "BATON_DATA", value_name = "DIR")]
    data: Option<PathBuf>,

    /// Print what the daemon says as one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: HealthArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let data = args.data.unwrap_or_else(daemon::default_daemon_dir);
    let checkup = start::daemon_health(data).await?;
    let exit = if checkup.healthy {
        CommandExit::Done
    } else {
        CommandExit::NotCompleted
    };
    if args.json {
        console.line(&checkup.json)?;
        return Ok(exit);
    }
    let told: serde_json::Value = serde_json::from_str(&checkup.json).unwrap_or_default();
    if checkup.healthy {
        let count = |name: &str| told[name].as_u64().unwrap_or(0);
        let (running, slots) = (count("running"), count("slots"));
        console.line(&format!("healthy: {running} of {slots} slots in use"))?;
    } else {
        let problem = told["problem"].as_str().unwrap_or("it does not say why");
        console.line(&format!(
            "unhealthy: {}",
            crate::render::sanitizer::one_line(problem)
        ))?;
    }
    Ok(exit)
}
