//! `baton up`: a relay and a daemon in one process on loopback, to try Baton out and for laptops.

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

/// Stopping a laptop's relay and daemon should not keep a person waiting.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// `up` talks to a person; the log is for trouble.
const LOG_FILTER: &str = "warn";

#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// Directory for everything relay and daemon keep. The default is $XDG_DATA_HOME/baton or ~/.local/share/baton;
    /// with --exit it is a temporary one that is removed at the end.
    #[arg(long, env = "BATON_DATA", value_name = "DIR")]
    data: Option<PathBuf>,

    /// Address to listen on, which must be of this machine. The default is 127.0.0.1:7070; with --exit it is a free port.
    #[arg(long, env = "BATON_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,

    /// How many attempts run at once at most.
    #[arg(long, env = "BATON_SLOTS", value_name = "N", default_value_t = daemon::DEFAULT_SLOTS,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: u32,

    /// TOML file that names further agents the daemon can run; plain commands are always allowed here.
    #[arg(long, env = "BATON_DAEMON_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Directory in which commands and agents run if their task asks for no workspace, for example `.`. The default is
    /// `daemon/work` in the data directory.
    #[arg(long, env = "BATON_WORK_DIR", value_name = "DIR")]
    work_dir: Option<PathBuf>,

    /// Send traces to this OTLP collector over gRPC, for example http://127.0.0.1:4317. The OTEL_* variables work too.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// Run a small task and one that asks for a permission, show what they do, and then stay up.
    #[arg(long)]
    demo: bool,

    /// Stop after the demo and leave nothing behind, for scripts.
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
    let place = DataLocation::choose(&args)?;
    let plan = relay_options(place.path(), &args)?;
    // A relay without room waits for it, and must be stoppable meanwhile.
    let mut relay = tokio::select! {
        started = RunningRelay::start(&plan, clocks) => started?,
        () = stop.cancelled() => return Ok(CommandExit::Done),
    };
    console.note(&relay::started_message(&relay.url, &plan));
    let daemon = ReadyDaemon::open(daemon_options(&args, &relay.url, place.path()), clocks);
    let result = match daemon {
        Ok(daemon) => {
            run_with_daemon(&args, daemon, &mut relay, place.path(), &stop, console).await
        }
        Err(error) => Err(error),
    };
    relay.stop().await?;
    result
}

/// Runs the daemon beside what the person wants, and stops it in any case.
async fn run_with_daemon(
    args: &UpArgs,
    daemon: ReadyDaemon,
    relay: &mut RunningRelay,
    data: &Path,
    stop: &CancellationToken,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let url = relay.url.clone();
    let welcomed = daemon.wait_until_connected();
    let work = daemon.activity();
    console.note(&format!("tasks run in {}", daemon.work_dir.display()));
    let daemon_stop = CancellationToken::new();
    let mut running = pin!(daemon.run(daemon_stop.clone()));
    let result = tokio::select! {
        ended = relay.wait_for_end() => ended.map(|()| CommandExit::NotCompleted),
        ended = &mut running => return ended.map(|()| CommandExit::NotCompleted),
        result = serve_until_stopped(args, &url, data, welcomed, stop, console) => result,
    };
    if let Some(words) = running_tasks_warning(work.running()) {
        console.note(&words);
    }
    daemon_stop.cancel();
    running.await?;
    result
}

/// Whoever stops it should not find out later what that has cost.
fn running_tasks_warning(running: u32) -> Option<String> {
    let run = match running {
        0 => return None,
        1 => "1 task runs".to_owned(),
        more => format!("{more} tasks run"),
    };
    Some(format!(
        "{run}; what does not finish in the next {} s ends with `baton up`: it is tried again where that is safe, and else \
         waits for you (`baton blocked`). Work that is to go on over a restart needs `baton relay` and `baton daemon --token-file FILE`",
        DRAIN_LIMIT.as_secs()
    ))
}

/// Where the data is, and whether it goes away again.
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
                .map_err(|error| CliError::local("make a temporary directory", error)),
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
                "baton up runs commands for whoever reaches it, so it does not listen on {listen}"
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
        // Only who can read the token files of this user can submit, and that is this user.
        allow_command: true,
        demo: args.demo,
        ca: None,
        drain: DRAIN_LIMIT,
        config: args.config.clone(),
        work_dir: args.work_dir.clone(),
        // Relay and daemon end together, and so does what they run.
        lease_extension: Duration::ZERO,
        health: None,
    }
}

/// The demo if wanted, then up until a signal.
async fn serve_until_stopped(
    args: &UpArgs,
    url: &str,
    data: &Path,
    welcomed: impl Future<Output = ()>,
    stop: &CancellationToken,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    tokio::select! {
        () = welcomed => {}
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
    fn who_stops_it_is_told_what_that_ends_and_nothing_where_nothing_runs() {
        assert_eq!(running_tasks_warning(0), None);
        let words = running_tasks_warning(2).expect("two run");
        assert!(
            words.starts_with("2 tasks run;") && words.contains("baton blocked"),
            "{words}"
        );
    }
}
