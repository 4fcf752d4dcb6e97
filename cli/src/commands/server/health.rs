//! `baton health`: checks whether the daemon on a data directory can receive work. The exit code is 0 if it
//! can, so this command can be a container's probe.

use std::path::PathBuf;

use clap::Args;

use crate::commands::server::daemon;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::server::start;

#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// Data directory of the daemon. The default is $XDG_DATA_HOME/baton/daemon or ~/.local/share/baton/daemon.
    #[arg(long, env = "BATON_DATA", value_name = "DIR")]
    data: Option<PathBuf>,

    /// Print the daemon's answer as one JSON object.
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
    let status: serde_json::Value = serde_json::from_str(&checkup.json).unwrap_or_default();
    if checkup.healthy {
        let count = |name: &str| status[name].as_u64().unwrap_or(0);
        let (running, slots) = (count("running"), count("slots"));
        console.line(&format!("healthy: {running} of {slots} slots in use"))?;
    } else {
        let problem = status["problem"].as_str().unwrap_or("unknown problem");
        console.line(&format!(
            "unhealthy: {}",
            crate::render::sanitizer::one_line(problem)
        ))?;
    }
    Ok(exit)
}
