//! Starts relay and daemon from the options of the command line: builds their configuration, opens them and
//! translates their errors.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use baton_relay::auth::bootstrap::DAEMON_TOKEN_FILE;

use baton_daemon::tools::own_program;
use baton_daemon::{
    ANY_COMMAND_AGENT, AgentConfig, AgentWire, CheckFinding, CheckVerdict, Daemon, DaemonConfig,
    DaemonError, DaemonStatus, FileConfig, HealthCheckResult, KERNEL_BOOT_ID_FILE, ShimProgram,
    check_health, list_config_errors, read_config, run_daemon_checks,
};
use baton_relay::auth::bootstrap::BootstrapTokens;
pub(crate) use baton_relay::config::RetentionConfig as Retention;
use baton_relay::config::{RelayConfig, RestartHook, TlsFiles};
use baton_relay::server::{self, RelayError, RelayHandle};
use tokio_util::sync::CancellationToken;

use crate::client::discovery::RELAY_URL_FILE;
use crate::commands::server::demo;
use crate::error::cli_error::{CliError, ErrorText};
use crate::server::open_files;
use crate::server::reexec::RestartState;

/// The clocks of both servers, and where the machine's boot id is.
#[derive(Clone, Debug)]
pub struct ServerClocks {
    pub relay: baton_relay::clock::RelayClock,
    /// The shims of its attempts use the same clock.
    pub daemon: baton_daemon::Clock,
    /// File with the boot id that the daemon reports.
    pub boot_id_file: PathBuf,
    /// Environment variables that shims need to use the same clock.
    pub shim_environment: Vec<(OsString, OsString)>,
}

/// The clocks of the system.
impl Default for ServerClocks {
    fn default() -> Self {
        Self {
            relay: baton_relay::clock::RelayClock::system(),
            daemon: baton_daemon::Clock::boot(),
            boot_id_file: KERNEL_BOOT_ID_FILE.into(),
            shim_environment: Vec::new(),
        }
    }
}

/// The options of a relay.
#[derive(Clone, Debug)]
pub(crate) struct RelayStartOptions {
    pub data: PathBuf,
    pub listen: SocketAddr,
    pub tls: Option<(PathBuf, PathBuf)>,
    pub insecure: bool,
    pub otlp: Option<String>,
    pub drain: Duration,
    /// Continue without acknowledged changes that are missing from the data.
    pub accept_loss: bool,
    pub retention: Retention,
    /// State from an earlier start of this process; `None` if it must not restart itself.
    pub restart: Option<RestartState>,
    /// Limits on open tasks; the relay's defaults if absent.
    pub max_open: Option<usize>,
    pub max_open_per_tenant: Option<usize>,
    /// Limits on connections; the relay's defaults if absent.
    pub max_connections: Option<usize>,
    pub max_connections_per_address: Option<usize>,
    /// Also create a token for a daemon in the same process.
    pub with_daemon: bool,
}

/// The options of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct DaemonStartOptions {
    pub relay: String,
    pub token_file: PathBuf,
    pub data: PathBuf,
    pub name: String,
    pub slots: u32,
    pub labels: Vec<(String, String)>,
    pub capabilities: Vec<String>,
    pub allow_command: bool,
    /// Also configure the agent of the demo.
    pub demo: bool,
    pub ca: Option<PathBuf>,
    pub drain: Duration,
    pub config: Option<PathBuf>,
    /// Working directory for tasks without a workspace; `work` in the data directory if absent.
    pub work_dir: Option<PathBuf>,
    /// How long attempts that did not finish during the drain may continue without the daemon; zero ends them.
    pub lease_extension: Duration,
    /// Address for health checks over HTTP.
    pub health: Option<SocketAddr>,
}

/// A listening relay.
#[derive(Debug)]
pub(crate) struct RunningRelay {
    pub url: String,
    relay: RelayHandle,
    url_file: PathBuf,
}

impl RunningRelay {
    pub(crate) async fn start(
        plan: &RelayStartOptions,
        clocks: &ServerClocks,
    ) -> Result<Self, CliError> {
        let config = relay_config(plan, clocks);
        if let Err(error) = open_files::raise_limit_for(config.network.connections as u64) {
            tracing::warn!(
                "{error}; raise the limit (LimitNOFILE=, ulimit -n) or lower --max-connections"
            );
        }
        let relay = server::start(config)
            .await
            .map_err(|error| start_error(&error))?;
        let address = relay.address();
        let scheme = if plan.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{address}");
        let url_file = write_relay_url(&plan.data, &local_url(scheme, address))?;
        Ok(Self {
            url,
            relay,
            url_file,
        })
    }

    /// Returns only if the relay ends by itself, for example when its store fails.
    pub(crate) async fn wait_for_end(&mut self) -> Result<(), CliError> {
        self.relay
            .ended()
            .await
            .map_err(|error| CliError::local("the relay ended", error))
    }

    pub(crate) async fn stop(self) -> Result<(), CliError> {
        let stopped = self.relay.stop().await;
        drop(fs::remove_file(&self.url_file));
        stopped.map_err(|error| CliError::local("the relay did not stop cleanly", error))
    }
}

fn relay_config(plan: &RelayStartOptions, clocks: &ServerClocks) -> RelayConfig {
    let mut config = RelayConfig::new(plan.data.clone(), plan.listen);
    config.tls = plan.tls.clone().map(|(cert, key)| TlsFiles { cert, key });
    config.insecure = plan.insecure;
    config.drain_timeout = plan.drain;
    if plan.with_daemon {
        config.bootstrap_tokens = BootstrapTokens::AdminAndDaemon;
    }
    config.otlp_endpoint.clone_from(&plan.otlp);
    config.accept_loss = plan.accept_loss;
    config.retention = plan.retention.clone();
    if let Some(restart) = plan.restart {
        config.listen = restart.listen.unwrap_or(plan.listen);
        // --accept-loss was given for the first start only.
        config.accept_loss = plan.accept_loss && restart.is_first_start();
        config.restart_count = restart.restart_count;
        config.restart_hook = Some(RestartHook::new(move |listen| restart.restart(listen)));
    }
    config.max_open_tasks = plan.max_open.unwrap_or(config.max_open_tasks);
    config.max_open_tasks_per_tenant = plan
        .max_open_per_tenant
        .unwrap_or(config.max_open_tasks_per_tenant)
        .min(config.max_open_tasks);
    let network = &mut config.network;
    network.connections = plan.max_connections.unwrap_or(network.connections);
    network.connections_per_address = plan
        .max_connections_per_address
        .unwrap_or(network.connections_per_address)
        .min(network.connections);
    config.clock = clocks.relay.clone();
    config
}

/// A wrong address, certificate or directory is a usage error; the library's text explains how to correct it.
fn start_error(error: &RelayError) -> CliError {
    let text = error.to_string();
    let (what, hint) = text.split_once("; ").unwrap_or((&text, ""));
    let mut message = ErrorText {
        what: with_error_code(error.code(), what),
        why: String::new(),
        hint: hint.to_owned(),
    };
    if let RelayError::Listen { source, .. } = error
        && source.kind() == io::ErrorKind::AddrInUse
    {
        "choose another port with --listen 127.0.0.1:7071, or 127.0.0.1:0 for a free one"
            .clone_into(&mut message.hint);
    }
    CliError::Usage(message)
}

/// The message with the machine code in front.
fn with_error_code(code: Option<&str>, what: &str) -> String {
    code.map_or_else(|| what.to_owned(), |code| format!("[{code}] {what}"))
}

/// The relay's address for commands on this machine. It keeps the scheme: with http:// commands would connect
/// without TLS and send their token in the clear. If the certificate does not contain this address, the error message
/// asks for another --relay.
fn local_url(scheme: &str, address: SocketAddr) -> String {
    let host = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    format!("{scheme}://{}", SocketAddr::new(host, address.port()))
}

/// Other commands with the same data directory find the relay by this file.
fn write_relay_url(data: &Path, url: &str) -> Result<PathBuf, CliError> {
    let path = data.join(RELAY_URL_FILE);
    fs::write(&path, format!("{url}\n"))
        .map_err(|error| CliError::local(format!("cannot write {}", path.display()), error))?;
    Ok(path)
}

/// A daemon with a valid configuration and a locked data directory that has not connected yet.
#[derive(Debug)]
pub(crate) struct ReadyDaemon {
    daemon: Daemon,
    pub has_agents: bool,
    /// Working directory for tasks without a workspace.
    pub work_dir: PathBuf,
}

/// The number of running attempts, also while the daemon runs.
#[derive(Debug)]
pub(crate) struct DaemonActivity(tokio::sync::watch::Receiver<DaemonStatus>);

impl DaemonActivity {
    /// Attempts that occupy a slot.
    pub(crate) fn running(&self) -> u32 {
        self.0.borrow().running
    }
}

impl ReadyDaemon {
    pub(crate) fn open(plan: DaemonStartOptions, clocks: &ServerClocks) -> Result<Self, CliError> {
        let config = daemon_config(plan, clocks)?;
        let work = &config.work_dir;
        // This may create the data directory, which must be readable by its owner only.
        let mut private = fs::DirBuilder::new();
        let private = private.recursive(true).mode(0o700);
        private
            .create(work)
            .map_err(|error| CliError::local(format!("cannot create {}", work.display()), error))?;
        let has_agents = !config.agents.is_empty();
        let work_dir = config.work_dir.clone();
        let daemon = Daemon::open(config).map_err(|error| {
            CliError::usage(
                format!("cannot start the daemon: {error}"),
                "correct this and start it again",
            )
        })?;
        Ok(Self {
            daemon,
            has_agents,
            work_dir,
        })
    }

    pub(crate) fn activity(&self) -> DaemonActivity {
        DaemonActivity(self.daemon.status())
    }

    /// Resolves when the relay has sent Welcome.
    pub(crate) fn wait_until_connected(&self) -> impl Future<Output = ()> + use<> {
        let mut status = self.daemon.status();
        async move {
            if status.wait_for(|status| status.connected).await.is_err() {
                // The daemon has ended; `run` returns the reason.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The address of health checks over HTTP, if any.
    pub(crate) fn health_address(&self) -> Option<SocketAddr> {
        self.daemon.health_address()
    }

    /// Runs until `stop`, then drains.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), CliError> {
        let what = "the daemon stopped";
        self.daemon.run(stop).await.map_err(|error| match error {
            DaemonError::Link(error) => CliError::Unreachable(ErrorText {
                what: what.to_owned(),
                why: error.to_string(),
                hint: "check that its token is still valid: baton token list".to_owned(),
            }),
            error => CliError::local(what, error),
        })
    }
}

/// The demo agent is this executable with another command.
fn demo_agent_config() -> Result<AgentConfig, CliError> {
    let program = std::env::current_exe()
        .map_err(|error| CliError::local("cannot find the path of this executable", error))?;
    Ok(AgentConfig::Coding {
        wire: AgentWire::Acp,
        program: program.into(),
        args: vec!["demo-agent".into()],
        env: BTreeMap::new(),
        task_env: Vec::new(),
    })
}

fn daemon_config(
    plan: DaemonStartOptions,
    clocks: &ServerClocks,
) -> Result<DaemonConfig, CliError> {
    let FileConfig {
        mut agents,
        roots,
        limits,
    } = read_daemon_toml(plan.config.as_deref())?;
    if plan.allow_command {
        agents.insert(ANY_COMMAND_AGENT.to_owned(), AgentConfig::AnyCommand);
    }
    if plan.demo {
        agents.insert(demo::DEMO_AGENT.to_owned(), demo_agent_config()?);
    }
    let data = daemon_data_dir(&plan.data)?;
    // Children start in their own directory, so a relative path would point elsewhere.
    let work_dir = match &plan.work_dir {
        Some(work_dir) => absolute_path(work_dir)?,
        None => data.join("work"),
    };
    Ok(DaemonConfig {
        relay: plan.relay,
        token_file: plan.token_file,
        ca_file: plan.ca,
        data_dir: data,
        name: plan.name,
        slots: plan.slots,
        labels: plan.labels.into_iter().collect(),
        capabilities: plan.capabilities,
        agents,
        roots,
        work_dir,
        limits,
        drain: plan.drain,
        lease_extension: plan.lease_extension,
        health: plan.health,
        shim: ShimProgram {
            environment: clocks.shim_environment.clone(),
            ..ShimProgram::own_executable()
        },
        tools_program: own_program()
            .map_err(|error| CliError::local("cannot find the path of this executable", error))?,
        boot_id_file: clocks.boot_id_file.clone(),
        adopt_orphans: true,
        clock: clocks.daemon.clone(),
    })
}

/// Reads the file of --config; an empty configuration without one.
pub(crate) fn read_daemon_toml(path: Option<&Path>) -> Result<FileConfig, CliError> {
    let read = path.map(read_config).transpose();
    let read = read.map_err(|error| {
        CliError::usage(
            error.to_string(),
            "correct the file of --config; docs/daemon.md describes its format",
        )
    });
    read.map(Option::unwrap_or_default)
}

/// Checks whether a daemon would work with these options. Errors in its configuration file are reported together
/// with all other findings.
pub(crate) async fn check_daemon(
    mut plan: DaemonStartOptions,
    clocks: &ServerClocks,
) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    if let Some(file) = plan.config.take() {
        let faults = list_config_errors(&file);
        let fault = |fault| CheckFinding::new("configuration", CheckVerdict::Problem, fault);
        if faults.is_empty() {
            let read = file.display().to_string();
            findings.push(CheckFinding::new("configuration", CheckVerdict::Good, read));
            plan.config = Some(file);
        }
        findings.extend(faults.into_iter().map(fault));
    }
    let has_bad_config = findings.iter().any(CheckFinding::is_problem);
    match daemon_config(plan, clocks) {
        Ok(config) => {
            let checks = run_daemon_checks(&config).await.into_iter();
            // With a bad file the agents are unknown.
            findings.extend(checks.filter(|check| !has_bad_config || check.subject != "agents"));
        }
        Err(error) => {
            findings.push(CheckFinding::new(
                "configuration",
                CheckVerdict::Problem,
                error.to_string(),
            ));
        }
    }
    findings
}

fn absolute_path(path: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(path)
        .map_err(|error| CliError::local(format!("cannot find {}", path.display()), error))
}

/// The daemon's directory. It must not be a relay's, or the data of both would be mixed.
fn daemon_data_dir(data: &Path) -> Result<PathBuf, CliError> {
    if data.join("store").exists() {
        return Err(CliError::usage(
            format!("{} is a relay's data directory", data.display()),
            "choose another directory for the daemon with --data",
        ));
    }
    absolute_path(data)
}

/// Asks the daemon on `data` for its health. Without a daemon no work can reach this machine, so that is an error.
pub(crate) async fn daemon_health(data: PathBuf) -> Result<HealthCheckResult, CliError> {
    let daemon_data = data.clone();
    let checkup = tokio::task::spawn_blocking(move || check_health(&daemon_data)).await;
    let checkup = checkup.map_err(|error| CliError::local("cannot ask the daemon", error))?;
    checkup.map_err(|error| {
        CliError::Local(ErrorText {
            what: format!("no daemon answers on {}", data.display()),
            why: error.to_string(),
            hint: "start one with `baton daemon --token-file FILE`, or pass its data directory with --data"
                .to_owned(),
        })
    })
}
