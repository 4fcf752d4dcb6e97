//! `baton relay`: the server that owns tasks, attempts and leases.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::duration;
use crate::args::size;
use crate::client::discovery;
use crate::client::discovery::DEFAULT_LISTEN;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::server::logging::LogArgs;
use crate::server::reexec::RestartState;
use crate::server::start::{RelayStartOptions, Retention, RunningRelay, ServerClocks};
use crate::server::stop_signals;

/// Text before the address in the line that a started relay prints. The load generator and scripts search
/// for it.
pub(crate) const LISTENING_ON: &str = "listening on ";

#[derive(Args, Debug)]
pub(crate) struct RelayServerArgs {
    /// Directory for all data of the relay. The default is $XDG_DATA_HOME/baton or ~/.local/share/baton.
    #[arg(long, env = "BATON_DATA", value_name = "DIR")]
    data: Option<PathBuf>,

    /// Address to listen on. Port 0 chooses a free port.
    #[arg(long, env = "BATON_LISTEN", value_name = "ADDR", default_value = DEFAULT_LISTEN)]
    listen: SocketAddr,

    /// PEM file with the relay's certificate. Needed for an address that other machines can reach.
    #[arg(
        long,
        env = "BATON_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,

    /// PEM file with the key of that certificate.
    #[arg(
        long,
        env = "BATON_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,

    /// Listen without TLS on an address that other machines can reach. Tokens are sent unencrypted, so something else must
    /// encrypt the connection.
    #[arg(long, env = "BATON_INSECURE")]
    insecure: bool,

    /// Send traces to this OTLP collector over gRPC, for example http://127.0.0.1:4317. The OTEL_* variables work as well.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// How long a stopping relay waits for running requests.
    #[arg(long, env = "BATON_DRAIN", value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    drain: Duration,

    /// Maximum of open tasks over all tenants. Further submits wait briefly and are then refused.
    #[arg(long, env = "BATON_MAX_OPEN", value_name = "N")]
    max_open: Option<usize>,

    /// Maximum of open tasks of one tenant.
    #[arg(long, env = "BATON_MAX_OPEN_PER_TENANT", value_name = "N")]
    max_open_per_tenant: Option<usize>,

    /// Maximum of connections. Each needs an open file; the relay raises its limit of open files as far as the system
    /// allows.
    #[arg(long, env = "BATON_MAX_CONNECTIONS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: Option<u32>,

    /// Maximum of connections from one address. All connections through a proxy have the same address.
    #[arg(long, env = "BATON_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,

    /// How long finished tasks and their output are kept.
    #[arg(long, env = "BATON_RETAIN_FOR", value_name = "DURATION", default_value = "14d", value_parser = duration::parse)]
    retain_for: Duration,

    /// Maximum size of the data directory. The oldest finished tasks and output are removed first.
    #[arg(long, env = "BATON_RETAIN_BYTES", value_name = "SIZE", default_value = "10GiB", value_parser = size::parse)]
    retain_bytes: u64,

    /// Maximum size of output within --retain-bytes. The default is three quarters of it.
    #[arg(long, env = "BATON_RETAIN_OUTPUT_BYTES", value_name = "SIZE", value_parser = size::parse)]
    retain_output_bytes: Option<u64>,

    /// Minimum time that a finished task is kept, regardless of the size.
    #[arg(long, env = "BATON_RETAIN_AT_LEAST", value_name = "DURATION", default_value = "1m", value_parser = duration::parse)]
    retain_at_least: Duration,

    /// Remove daemons that have been disconnected for this long.
    #[arg(long, env = "BATON_FORGET_DAEMONS", value_name = "DURATION", default_value = "30d", value_parser = duration::parse)]
    forget_daemons: Duration,

    /// Start although acknowledged changes are missing from the data, and continue without them. The relay's error message
    /// says when this is needed.
    #[arg(long)]
    accept_loss: bool,

    #[command(flatten)]
    log: LogArgs,
}

pub(crate) async fn run(
    args: RelayServerArgs,
    console: &CliConsole,
    clocks: &ServerClocks,
) -> Result<CommandExit, CliError> {
    args.log.init(None)?;
    let stop = stop_signals::cancel_on_signals()?;
    let plan = start_options(args)?;
    // A relay on a full disk waits for space and must be stoppable meanwhile.
    let mut relay = tokio::select! {
        started = RunningRelay::start(&plan, clocks) => started?,
        () = stop.cancelled() => return Ok(CommandExit::Done),
    };
    console.note(&started_message(&relay.url, &plan));
    tokio::select! {
        () = stop.cancelled() => relay.stop().await?,
        ended = relay.wait_for_end() => ended?,
    }
    Ok(CommandExit::Done)
}

fn start_options(args: RelayServerArgs) -> Result<RelayStartOptions, CliError> {
    let retention = retention_config(&args)?;
    Ok(RelayStartOptions {
        retention,
        restart: Some(RestartState::from_environment()),
        data: args.data.unwrap_or_else(discovery::default_data_dir),
        listen: args.listen,
        tls: args.tls_cert.zip(args.tls_key),
        insecure: args.insecure,
        otlp: args.otlp,
        drain: args.drain,
        accept_loss: args.accept_loss,
        max_open: args.max_open,
        max_open_per_tenant: args.max_open_per_tenant,
        max_connections: args.max_connections.map(|most| most as usize),
        max_connections_per_address: args.max_connections_per_address.map(|most| most as usize),
        with_daemon: false,
    })
}

/// sled and the output log need at least this much space to work.
const MIN_PART_BYTES: u64 = 64 << 20;

fn retention_config(args: &RelayServerArgs) -> Result<Retention, CliError> {
    let default = Retention::within(args.retain_bytes);
    let output_bytes = args.retain_output_bytes.unwrap_or(default.max_output_bytes);
    let for_records = args.retain_bytes.saturating_sub(output_bytes);
    if for_records < MIN_PART_BYTES || output_bytes < MIN_PART_BYTES {
        return Err(CliError::usage(
            "--retain-bytes leaves less than 64 MiB for records, or for output",
            "set --retain-bytes to at least 256MiB, or change --retain-output-bytes",
        ));
    }
    Ok(Retention {
        max_age: args.retain_for,
        max_output_bytes: output_bytes,
        min_age: args.retain_at_least,
        daemon_max_age: args.forget_daemons,
        ..default
    })
}

pub(crate) fn started_message(url: &str, plan: &RelayStartOptions) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "baton relay {version} {LISTENING_ON}{url}, data in {}",
        plan.data.display()
    )
}
