//! `baton up`: runs a relay and a daemon in one process on loopback, to try Baton out and for laptops.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::client::discovery;
use crate::client::discovery::{ConnectionArgs, DEFAULT_LISTEN};
use crate::client::relay_client::RelayClient;
use crate::commands::server::{daemon, demo, relay};
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::server::logging::LogArgs;
use crate::server::reexec::RestartState;
use crate::server::start::{
    DAEMON_TOKEN_FILE, DaemonStartOptions, ReadyDaemon, RelayStartOptions, Retention, RunningRelay,
    ServerClocks,
};
use crate::server::stop_signals;

/// A person waits for the stop, so it is short.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// `up` prints messages for people, so the log only has warnings and errors.
const LOG_FILTER: &str = "warn";

#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// Directory for all data of relay and daemon. The default is $XDG_DATA_HOME/baton or ~/.local/share/baton; with --exit
    /// it is a temporary directory.
    #[arg(long, env = "BATON_DATA", value_name = "DIR")]
    data: Option<PathBuf>,

    /// Loopback address to listen on. The default is 127.0.0.1:7070; with --exit it is a free port.
    #[arg(long, env = "BATON_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,

    /// Maximum of concurrent attempts.
    #[arg(long, env = "BATON_SLOTS", value_name = "N", default_value_t = daemon::DEFAULT_SLOTS,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: u32,

    /// TOML file with further agents for the daemon; plain commands are always allowed here.
    #[arg(long, env = "BATON_DAEMON_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Directory in which commands and agents run if their task has no workspace, for example `.`. The default is
    /// `daemon/work` in the data directory.
    #[arg(long, env = "BATON_WORK_DIR", value_name = "DIR")]
    work_dir: Option<PathBuf>,

    /// Send traces to this OTLP collector over gRPC, for example http://127.0.0.1:4317. The OTEL_* variables work as well.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// Run two demo tasks, one of which asks for permission, show what they do, and keep running.
    #[arg(long)]
    demo: bool,

    /// Stop after the demo and leave no data behind, for scripts.
    #[arg(long, requires = "demo")]
    exit: bool,

    #[command(flatten)]
    log: LogArgs,
}

pub(crate) async fn run(
    args: UpArgs,
    console: &CliConsole,
    clocks: &ServerClocks,
) -> Result<CommandExit, CliError> {
    args.log.init(Some(LOG_FILTER))?;
    let stop = stop_signals::cancel_on_signals()?;
    let location = DataLocation::choose(&args)?;
    let plan = relay_options(location.path(), &args)?;
    // A relay on a full disk waits for space and must be stoppable meanwhile.
    let mut relay = tokio::select! {
        started = RunningRelay::start(&plan, clocks) => started?,
        () = stop.cancelled() => return Ok(CommandExit::Done),
    };
    console.note(&relay::started_message(&relay.url, &plan));
    let daemon = ReadyDaemon::open(daemon_options(&args, &relay.url, location.path()), clocks);
    let result = match daemon {
        Ok(daemon) => {
            run_with_daemon(&args, daemon, &mut relay, location.path(), &stop, console).await
        }
        Err(error) => Err(error),
    };
    relay.stop().await?;
    result
}

/// Runs the daemon next to the demo or the wait for a signal, and stops it in any case.
async fn run_with_daemon(
    args: &UpArgs,
    daemon: ReadyDaemon,
    relay: &mut RunningRelay,
    data: &Path,
    stop: &CancellationToken,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let url = relay.url.clone();
    let connected = daemon.wait_until_connected();
    let work = daemon.activity();
    console.note(&format!("tasks run in {}", daemon.work_dir.display()));
    let daemon_stop = CancellationToken::new();
    let mut running = pin!(daemon.run(daemon_stop.clone()));
    let result = tokio::select! {
        ended = relay.wait_for_end() => ended.map(|()| CommandExit::NotCompleted),
        ended = &mut running => return ended.map(|()| CommandExit::NotCompleted),
        result = serve_until_stopped(args, &url, data, connected, stop, console) => result,
    };
    if let Some(warning) = running_tasks_warning(work.running()) {
        console.note(&warning);
    }
    daemon_stop.cancel();
    running.await?;
    result
}

/// A warning for the person who stops `baton up` while tasks run.
fn running_tasks_warning(running: u32) -> Option<String> {
    let tasks = match running {
        0 => return None,
        1 => "1 task is running".to_owned(),
        count => format!("{count} tasks are running"),
    };
    Some(format!(
        "{tasks}; a task that does not finish within {} s is ended with `baton up`. It is retried later if that is safe, else \
         it is parked for you (`baton blocked`). For tasks that survive a restart, run `baton relay` and \
         `baton daemon --token-file FILE`",
        DRAIN_LIMIT.as_secs()
    ))
}

/// Where the data is, and whether it is removed at the end.
enum DataLocation {
    Kept(PathBuf),
    Temporary(TempDir),
}

impl DataLocation {
    fn choose(args: &UpArgs) -> Result<Self, CliError> {
        match (&args.data, args.exit) {
            (Some(data), _) => Ok(DataLocation::Kept(data.clone())),
            (None, false) => Ok(DataLocation::Kept(discovery::default_data_dir())),
            (None, true) => tempfile::Builder::new()
                .prefix("baton-demo-")
                .tempdir()
                .map(DataLocation::Temporary)
                .map_err(|error| CliError::local("cannot create a temporary directory", error)),
        }
    }

    fn path(&self) -> &Path {
        match self {
            DataLocation::Kept(path) => path,
            DataLocation::Temporary(dir) => dir.path(),
        }
    }
}

fn relay_options(data: &Path, args: &UpArgs) -> Result<RelayStartOptions, CliError> {
    let default = if args.exit {
        "127.0.0.1:0"
    } else {
        DEFAULT_LISTEN
    };
    let listen = args
        .listen
        .unwrap_or_else(|| default.parse().expect("a constant address"));
    if !listen.ip().is_loopback() {
        return Err(CliError::usage(
            format!(
                "baton up runs commands for every client, so it listens on loopback only, not on {listen}"
            ),
            "listen on 127.0.0.1, or run `baton relay` and `baton daemon --token-file FILE` with TLS",
        ));
    }
    Ok(RelayStartOptions {
        data: data.to_owned(),
        listen,
        tls: None,
        insecure: false,
        otlp: args.otlp.clone(),
        drain: DRAIN_LIMIT,
        accept_loss: false,
        retention: Retention::default(),
        // A temporary directory would be another one.
        restart: (!args.exit).then(RestartState::from_environment),
        max_open: None,
        max_open_per_tenant: None,
        max_connections: None,
        max_connections_per_address: None,
        with_daemon: true,
    })
}

fn daemon_options(args: &UpArgs, url: &str, data: &Path) -> DaemonStartOptions {
    DaemonStartOptions {
        relay: url.to_owned(),
        token_file: data.join(DAEMON_TOKEN_FILE),
        data: data.join("daemon"),
        name: daemon::machine_name(),
        slots: args.slots,
        labels: Vec::new(),
        capabilities: Vec::new(),
        // Only this user can read the token files, so only this user can submit.
        allow_command: true,
        demo: args.demo,
        ca: None,
        drain: DRAIN_LIMIT,
        config: args.config.clone(),
        work_dir: args.work_dir.clone(),
        // Relay and daemon end together, so no attempt can continue.
        lease_extension: Duration::ZERO,
        health: None,
    }
}

/// Runs the demo if requested, then waits for a signal.
async fn serve_until_stopped(
    args: &UpArgs,
    url: &str,
    data: &Path,
    connected: impl Future<Output = ()>,
    stop: &CancellationToken,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    tokio::select! {
        () = connected => {}
        () = stop.cancelled() => return Ok(CommandExit::Done),
    }
    if args.demo && RestartState::from_environment().is_first_start() {
        let exit = tokio::select! {
            exit = run_demo(url, data, console) => exit?,
            () = stop.cancelled() => CommandExit::Interrupted,
        };
        if args.exit || exit != CommandExit::Done {
            return Ok(exit);
        }
    }
    console.note(&demo::next_steps_text(args.data.as_deref(), args.demo));
    stop.cancelled().await;
    Ok(CommandExit::Done)
}

async fn run_demo(url: &str, data: &Path, console: &CliConsole) -> Result<CommandExit, CliError> {
    let connection = ConnectionArgs {
        relay: Some(url.to_owned()),
        data: Some(data.to_owned()),
        ..ConnectionArgs::default()
    };
    demo::run(&RelayClient::discover(&connection).await?, console).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_shown_only_if_tasks_are_running() {
        assert_eq!(running_tasks_warning(0), None);
        let warning = running_tasks_warning(2).expect("two tasks are running");
        assert!(
            warning.starts_with("2 tasks are running;") && warning.contains("baton blocked"),
            "{warning}"
        );
    }
}
