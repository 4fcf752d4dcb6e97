//! The relay process: listener, layers, services, and a stop that ends by its deadline even if
//! peers hang.
//!
//! The binary calls `run`; tests `start` the relay on port 0 and `stop` it. Opening and
//! recovery are in `boot.rs`.

mod boot;
mod call_limits;
mod drain;
mod error_status;
mod health;
mod listener;
mod no_space;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::service::Routes;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tower::ServiceBuilder;
use tower::timeout::TimeoutLayer;
use tracing::{info, warn};

use crate::api::Api;
use crate::api::request::limits;
use crate::archive::ImportError;
use crate::auth::AuthLayer;
use crate::config::{NetworkLimits, RelayConfig, RelayConfigError, RetentionConfig, TlsFiles};
use crate::retention;
use crate::space;
use crate::store;
use crate::telemetry::Telemetry;
use boot::BootedRelay;
use call_limits::CallLimitLayer;
use drain::{serve_until_drained, wait_after_stop};
use error_status::ErrorStatusLayer;
use listener::ConnectionListener;

/// Number of streams that a peer may reset before they are accepted. A rapid-reset attack is
/// cut off at this number, which normal clients do not reach.
const PENDING_RESETS: usize = 20;
/// Number of streams that the relay resets because of a peer's errors before it closes the
/// connection.
const LOCAL_RESETS: usize = 1024;
/// Number of tries to open the store after an import. Each waits half a second for the lock of
/// the store.
const BOOT_TRIES: usize = 60;
/// Longest message that is read from a caller without a credential.
const PUBLIC_MESSAGE_BYTES: usize = 16 * 1024;
/// Time at stop for sending the remaining spans to the collector.
const SPAN_FLUSH_TIME: Duration = Duration::from_secs(2);
/// Time after the drain's deadline by which the relay has ended, even if its collector or its
/// peers hang.
const STOP_GRACE: Duration = Duration::from_millis(900);

/// Serves until `stop` completes, then drains.
pub async fn run(config: RelayConfig, stop: impl Future<Output = ()>) -> Result<(), RelayError> {
    let mut relay = start(config).await?;
    tokio::select! {
        () = stop => relay.stop().await,
        ended = relay.ended() => ended,
    }
}

/// A running relay. Dropping the handle without `stop` leaves the relay running.
#[derive(Debug)]
pub struct RelayHandle {
    address: SocketAddr,
    stop: CancellationToken,
    telemetry: Telemetry,
    serving: JoinHandle<Result<(), RelayError>>,
}

impl RelayHandle {
    /// The listening address, with the actual port if port 0 was configured.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters of the relay. They are replaced when an import restarts it with other data.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Drains and stops the relay, at the latest one second after the drain's deadline.
    pub async fn stop(mut self) -> Result<(), RelayError> {
        self.stop.cancel();
        self.ended().await
    }

    /// Completes when the relay has ended. Without `stop` that happens only if its store fails.
    /// Cancel safe.
    pub async fn ended(&mut self) -> Result<(), RelayError> {
        (&mut self.serving)
            .await
            .unwrap_or(Err(RelayError::Stopped))
    }
}

/// Opens the data, recovers, and serves in the background. The listener is bound before the
/// store is opened.
pub async fn start(config: RelayConfig) -> Result<RelayHandle, RelayError> {
    config.check()?;
    let tls = config.tls.as_ref().map(load_tls).transpose()?;
    // Finds an invalid TLS configuration before the port is bound and the store is opened.
    build_server(&config.network, tls.clone())?;
    let tcp = bind(config.listen).await?;
    let address = tcp.local_addr().map_err(|source| RelayError::Listen {
        address: config.listen,
        source,
    })?;
    let config = RelayConfig {
        listen: address,
        ..config
    };
    let stop = CancellationToken::new();
    let cycle = ServeCycle::child_of(&stop);
    let (guard, tcp) = no_space::wait_for_space(&config, tls.as_ref(), tcp).await?;
    let booted = match boot::boot(&config, guard, &cycle.stop, &cycle.restart).await {
        Ok(booted) => booted,
        Err(error) => return Err(restart_if_disk_full(&config, error).await),
    };
    let telemetry = booted.telemetry.clone();
    info!(%address, data = %config.data_dir.display(), "relay listening");
    let serving = tokio::spawn(serve_cycles(config, tls, tcp, stop.clone(), cycle, booted));
    Ok(RelayHandle {
        address,
        stop,
        telemetry,
        serving,
    })
}

/// Restarts the process if the store did not open because the disk is full: sled may need more
/// space to open than the check before the start assumed, and a later start may find it.
async fn restart_if_disk_full(config: &RelayConfig, error: RelayError) -> RelayError {
    let full = match &error {
        RelayError::NoRoom => true,
        RelayError::Store(error) => error.is_disk_full(),
        _other => false,
    };
    if let Some(restart) = config.restart_hook.as_ref().filter(|_| full) {
        tracing::error!(%error, "the store could not be opened because the disk is full; restarting");
        tokio::time::sleep(space::START_RETRY_INTERVAL).await;
        restart.call(config.listen);
    }
    error
}

/// One cycle from boot to the end of serving. A relay has one cycle, unless an import restarts
/// it with other data.
struct ServeCycle {
    /// Cancelled when the relay stops, or when an import starts another cycle.
    stop: CancellationToken,
    restart: CancellationToken,
}

impl ServeCycle {
    fn child_of(relay: &CancellationToken) -> Self {
        Self {
            stop: relay.child_token(),
            restart: CancellationToken::new(),
        }
    }
}

async fn serve_cycles(
    mut config: RelayConfig,
    tls: Option<ServerTlsConfig>,
    mut tcp: TcpListener,
    stop: CancellationToken,
    mut cycle: ServeCycle,
    mut booted: BootedRelay,
) -> Result<(), RelayError> {
    // `accept_loss` holds for the first start only; later damage needs a new decision of the
    // operator.
    config.accept_loss = false;
    loop {
        let serving = ServeTask {
            booted,
            tls: tls.clone(),
            stop: cycle.stop.clone(),
            drain: config.drain_timeout,
            network: config.network.clone(),
            retention_config: config.retention.clone(),
        };
        serving.run(tcp).await?;
        if stop.is_cancelled() || !cycle.restart.is_cancelled() {
            return Ok(());
        }
        cycle = ServeCycle::child_of(&stop);
        tcp = bind(config.listen).await?;
        booted = match boot_after_import(&config, &cycle).await {
            Ok(booted) => booted,
            Err(error) => return Err(restart_if_disk_full(&config, error).await),
        };
        info!("relay restarted with the imported data");
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, RelayError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| RelayError::Listen { address, source })
}

/// Boots with the imported data. Connections and threads of the previous cycle may keep the
/// store locked shortly after its server has ended, so a locked store is tried again.
async fn boot_after_import(
    config: &RelayConfig,
    cycle: &ServeCycle,
) -> Result<BootedRelay, RelayError> {
    for _ in 0..BOOT_TRIES {
        match boot_once(config, cycle).await {
            Err(
                RelayError::Store(store::StoreOpenError::Locked { .. })
                | RelayError::Import(ImportError::Store(store::StoreOpenError::Locked { .. })),
            ) => {}
            booted => return booted,
        }
    }
    boot_once(config, cycle).await
}

async fn boot_once(config: &RelayConfig, cycle: &ServeCycle) -> Result<BootedRelay, RelayError> {
    let Ok(guard) = no_space::release_ballast_for_start(config).await? else {
        return Err(RelayError::NoRoom);
    };
    boot::boot(config, guard, &cycle.stop, &cycle.restart).await
}

/// Everything that runs between start and stop.
struct ServeTask {
    booted: BootedRelay,
    tls: Option<ServerTlsConfig>,
    stop: CancellationToken,
    drain: Duration,
    network: NetworkLimits,
    retention_config: RetentionConfig,
}

impl ServeTask {
    async fn run(self, tcp: TcpListener) -> Result<(), RelayError> {
        let Self {
            booted,
            tls,
            stop,
            drain,
            network,
            retention_config,
        } = self;
        let BootedRelay {
            api,
            output,
            mut dispatch_task,
            finish,
            telemetry,
            retention_parts,
            space_guard,
        } = booted;
        let (reporter, health) = tonic_health::server::health_reporter();
        let store = api.reader.store().clone();
        let space = api.space.clone();
        tokio::spawn(health::report_health(reporter, store, space, stop.clone()));
        tokio::spawn(retention::run_retention(
            retention_config,
            retention_parts,
            finish.clone(),
        ));
        tokio::spawn(space_guard.watch(boot::space_guard_parts(&api), finish.clone()));
        let cut = CancellationToken::new();
        let listener = ConnectionListener::new(tcp, &network, cut.clone());
        let routes =
            routes(&api)?.add_service(health.max_decoding_message_size(PUBLIC_MESSAGE_BYTES));
        let call_limits = CallLimitLayer::new(network.unary_in_flight, network.unary_timeout);
        let serve = build_server(&network, tls)?
            .layer(layers(&network, &api, &call_limits))
            .add_routes(routes)
            .serve_with_incoming_shutdown(listener, stop.clone().cancelled_owned());
        drop(api);
        // A task of its own, so that the time counts from the stop request and not from the
        // first poll.
        let stop_deadline = AbortOnDropHandle::new(tokio::spawn(wait_after_stop(
            stop.clone(),
            drain + STOP_GRACE,
        )));
        let served = tokio::select! {
            served = serve_until_drained(serve, &stop, drain, &cut, call_limits.wait_answered()) => served.map_err(RelayError::Serve),
            // Without a dispatcher no call can be answered. The process must end and be
            // restarted.
            _ = &mut dispatch_task => return Err(RelayError::Stopped),
        };
        finish.cancel();
        let close = async {
            let _ = dispatch_task.await; // The dispatcher has logged its own failure.
            output.close().await;
            telemetry.finish(SPAN_FLUSH_TIME).await;
        };
        tokio::select! {
            () = close => info!("relay stopped"),
            _ = stop_deadline => warn!(
                "relay stopped before its data was closed and its last spans were sent; the disk or the OTLP collector is slow"
            ),
        }
        served
    }
}

/// Builds the server. Every limit is set explicitly, because tonic's defaults may change.
fn build_server(
    network: &NetworkLimits,
    tls: Option<ServerTlsConfig>,
) -> Result<Server, RelayError> {
    let server = Server::builder()
        .accept_http1(false)
        .max_concurrent_streams(network.streams_per_connection)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS))
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS))
        .http2_max_header_list_size(limits::HEADER_LIST_BYTES)
        .max_frame_size(16 * 1024)
        .initial_stream_window_size(network.stream_window)
        .initial_connection_window_size(network.connection_window)
        .http2_adaptive_window(Some(false))
        .http2_keepalive_interval(Some(network.keepalive_interval))
        .http2_keepalive_timeout(Some(network.keepalive_timeout));
    match tls {
        Some(tls) => server
            .tls_config(tls.timeout(network.handshake_timeout))
            .map_err(RelayError::Tls),
        None => Ok(server),
    }
}

type ServerLayers = ServiceBuilder<
    tower::layer::util::Stack<
        TimeoutLayer,
        tower::layer::util::Stack<
            CallLimitLayer,
            tower::layer::util::Stack<
                AuthLayer,
                tower::layer::util::Stack<ErrorStatusLayer, tower::layer::util::Identity>,
            >,
        >,
    >,
>;

/// The layers, outermost first. The timeout ends with the head of a response, so it limits
/// unary calls and never a stream.
fn layers(network: &NetworkLimits, api: &Api, call_limits: &CallLimitLayer) -> ServerLayers {
    ServiceBuilder::new()
        .layer(ErrorStatusLayer)
        .layer(AuthLayer::new(api.token_table.clone()))
        .layer(call_limits.clone())
        .layer(TimeoutLayer::new(network.unary_timeout))
}

fn routes(api: &Api) -> Result<Routes, RelayError> {
    macro_rules! service {
        ($server:ty) => {
            <$server>::new(api.clone())
                .max_decoding_message_size(limits::MAX_WIRE_BYTES)
                .max_encoding_message_size(limits::MAX_WIRE_BYTES)
        };
    }
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(baton_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(service!(v1::tasks_server::TasksServer<Api>))
        .add_service(service!(v1::inputs_server::InputsServer<Api>))
        .add_service(service!(v1::fleet_server::FleetServer<Api>))
        .add_service(service!(v1::operator_server::OperatorServer<Api>))
        .add_service(service!(v1::agents_server::AgentsServer<Api>))
        .add_service(service!(v1::daemon_link_server::DaemonLinkServer<Api>))
        .add_service(
            reflection()
                .build_v1()?
                .max_decoding_message_size(PUBLIC_MESSAGE_BYTES),
        )
        .add_service(
            reflection()
                .build_v1alpha()?
                .max_decoding_message_size(PUBLIC_MESSAGE_BYTES),
        ))
}

fn load_tls(files: &TlsFiles) -> Result<ServerTlsConfig, RelayConfigError> {
    let read = |what: &'static str, path: &Path| {
        std::fs::read(path).map_err(|source| RelayConfigError::TlsFile {
            what,
            path: path.to_owned(),
            source,
        })
    };
    let identity = Identity::from_pem(read("certificate", &files.cert)?, read("key", &files.key)?);
    Ok(ServerTlsConfig::new().identity(identity))
}

/// Why a relay did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error(transparent)]
    Config(#[from] RelayConfigError),
    #[error(
        "cannot listen on {address}: {source}; choose another --listen address, or stop the process that uses it"
    )]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("cannot use the data directory {}: {source}; choose a directory that the relay can write to", path.display())]
    Data {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Store(#[from] store::StoreOpenError),
    #[error(
        "the stored records cannot be read: {0}; check the disk, or restore a backup with `baton import FILE`"
    )]
    Records(#[from] store::StoreReadError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Output(#[from] crate::output::OutputError),
    #[error(transparent)]
    Telemetry(#[from] crate::telemetry::TelemetryError),
    #[error(
        "the TLS certificate and key do not match: {0}; give PEM files of one certificate and its key"
    )]
    Tls(tonic::transport::Error),
    #[error("cannot build the gRPC reflection service: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the gRPC server failed: {0}")]
    Serve(tonic::transport::Error),
    #[error("the disk of the data directory is full; free some space and start the relay again")]
    NoRoom,
    #[error(
        "the relay stopped because its store can no longer be written; read its log, then start it again"
    )]
    Stopped,
}

impl RelayError {
    /// The machine code of this error, if it has one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Store(error) | Self::Import(ImportError::Store(error)) => Some(error.code()),
            Self::NoRoom => Some("store_disk_full"),
            Self::Config(_)
            | Self::Listen { .. }
            | Self::Data { .. }
            | Self::Records(_)
            | Self::Import(_)
            | Self::Output(_)
            | Self::Telemetry(_)
            | Self::Tls(_)
            | Self::Reflection(_)
            | Self::Serve(_)
            | Self::Stopped => None,
        }
    }
}
