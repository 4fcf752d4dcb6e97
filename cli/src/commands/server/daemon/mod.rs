//! `baton daemon`: the worker that runs agents for a relay.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{duration, pairs};
use crate::client::discovery;
use crate::client::discovery::DEFAULT_RELAY;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::server::logging::LogArgs;
use crate::server::start::{DaemonStartOptions, ReadyDaemon, ServerClocks};
use crate::server::stop_signals;

mod check;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct DaemonArgs {
    #[command(subcommand)]
    verb: Option<DaemonCommand>,

    #[command(flatten)]
    server: DaemonServerArgs,
}

#[derive(Debug, Subcommand)]
enum DaemonCommand {
    /// Check whether a daemon would work on this machine: agents, git, limits, directories, the relay.
    Check(check::DaemonCheckArgs),
}

impl DaemonArgs {
    /// Only the server handles signals itself.
    pub(crate) fn is_server(&self) -> bool {
        self.verb.is_none()
    }
}

#[derive(Args, Debug)]
struct DaemonServerArgs {
    /// Address of the relay.
    #[arg(long, env = "BATON_RELAY", value_name = "URL", default_value = DEFAULT_RELAY)]
    relay: String,

    /// File with this daemon's own token; create one with `baton token create --role daemon --out FILE`.
    #[arg(long, env = "BATON_TOKEN_FILE", value_name = "FILE", required = true)]
    token_file: Option<PathBuf>,

    /// Directory for the daemon's identity and its attempts. The default is $XDG_DATA_HOME/baton/daemon or
    /// ~/.local/share/baton/daemon.
    #[arg(long, env = "BATON_DATA", value_name = "DIR")]
    data: Option<PathBuf>,

    /// Name for people. The default is the machine's name.
    #[arg(long, env = "BATON_NAME", value_name = "NAME")]
    name: Option<String>,

    /// Maximum of concurrent attempts.
    #[arg(long, env = "BATON_SLOTS", value_name = "N", default_value_t = DEFAULT_SLOTS,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: u32,

    /// Label that tasks can require with `submit --label`. May be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pairs::pair)]
    labels: Vec<(String, String)>,

    /// Capability that tasks can require with `submit --capability`. May be repeated.
    #[arg(long = "capability", value_name = "WORD")]
    capabilities: Vec<String>,

    /// Run plain commands for everyone who may submit tasks. By default only configured agents run.
    #[arg(long, env = "BATON_ALLOW_COMMAND")]
    allow_command: bool,

    /// PEM file with the certificate authority of the relay's certificate. The default is the system's list of authorities.
    #[arg(long, env = "BATON_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// How long a stopping daemon waits for its attempts to finish. See --hold for those that do not.
    #[arg(long, env = "BATON_DRAIN", value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    drain: Duration,

    /// How long attempts that did not finish during --drain continue without a daemon until the next daemon takes them over,
    /// at most 10m. 0s ends them instead.
    #[arg(long, env = "BATON_HOLD", value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    hold: Duration,

    /// TOML file with the agents, workspace roots and limits of this daemon; see docs/daemon.md.
    #[arg(long, env = "BATON_DAEMON_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Directory in which an agent runs if its task has no workspace. The default is `work` in the data directory.
    #[arg(long, env = "BATON_WORK_DIR", value_name = "DIR")]
    work_dir: Option<PathBuf>,

    /// Also serve health checks over HTTP (/healthz and /livez) on this address, for example 127.0.0.1:9090. They are always
    /// available over a socket in the data directory; see `baton health`.
    #[arg(long, env = "BATON_HEALTH", value_name = "ADDR")]
    health: Option<SocketAddr>,

    #[command(flatten)]
    log: LogArgs,
}

pub(crate) const DEFAULT_SLOTS: u32 = 4;

pub(crate) async fn run(
    args: DaemonArgs,
    console: &CliConsole,
    clocks: &ServerClocks,
) -> Result<CommandExit, CliError> {
    match args.verb {
        Some(DaemonCommand::Check(check)) => check::run(check, console, clocks).await,
        None => serve(args.server, console, clocks).await,
    }
}

async fn serve(
    args: DaemonServerArgs,
    console: &CliConsole,
    clocks: &ServerClocks,
) -> Result<CommandExit, CliError> {
    args.log.init(None)?;
    let stop = stop_signals::cancel_on_signals()?;
    let plan = start_options(args);
    let started = format!(
        "baton daemon {} named {} for relay {}, data in {}",
        env!("CARGO_PKG_VERSION"),
        plan.name,
        plan.relay,
        plan.data.display()
    );
    let daemon = ReadyDaemon::open(plan, clocks)?;
    console.note(&started);
    if !daemon.has_agents {
        console.note(
            "this daemon has no agents, so no task can run here: configure agents with --config FILE (docs/daemon.md), or \
             allow plain commands with --allow-command",
        );
    }
    if let Some(address) = daemon.health_address() {
        console.note(&format!("health checks on http://{address}/healthz"));
    }
    daemon.run(stop).await?;
    Ok(CommandExit::Done)
}

fn start_options(args: DaemonServerArgs) -> DaemonStartOptions {
    DaemonStartOptions {
        relay: args.relay,
        // clap requires this flag.
        token_file: args.token_file.unwrap_or_default(),
        data: args.data.unwrap_or_else(default_daemon_dir),
        name: args.name.unwrap_or_else(machine_name),
        slots: args.slots,
        labels: args.labels,
        capabilities: args.capabilities,
        demo: false,
        allow_command: args.allow_command,
        ca: args.ca,
        drain: args.drain,
        config: args.config,
        work_dir: args.work_dir,
        lease_extension: args.hold,
        health: args.health,
    }
}

pub(crate) fn default_daemon_dir() -> PathBuf {
    discovery::default_data_dir().join("daemon")
}

pub(crate) fn machine_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    if name.is_empty() {
        "daemon".to_owned()
    } else {
        name
    }
}
