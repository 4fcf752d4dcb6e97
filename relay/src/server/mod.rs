//! The relay as a whole: listener, layers, services, and a stop that ends by its deadline whatever peers do.
//!
//! `run` is what the binary calls; tests `start` it on port 0 and `stop` it. Opening and recovery are in `boot.rs`.

mod boot;
mod closed;
mod drain;
mod edge;
mod health;
mod listener;
mod shares;
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

use crate::api::{Api, limits};
use crate::archive::ImportError;
use crate::auth::AuthLayer;
use crate::config::{ConfigError, NetworkLimits, RelayConfig, RetentionConfig, TlsFiles};
use crate::retention;
use crate::space;
use crate::store;
use crate::telemetry::Telemetry;
use boot::Booted;
use drain::{after, drained};
use edge::EdgeLayer;
use listener::Listener;
use shares::Shares;

/// Streams that a peer may reset before they were accepted, and that we reset because of its errors: a rapid-reset
/// attacker is cut after this many, and no honest peer comes near.
const PENDING_RESETS: usize = 20;
const LOCAL_RESETS: usize = 1024;
/// Tries to open the store again after an import; each waits half a second for its lock.
const BOOT_TRIES: usize = 60;
/// Longest message that is read from somebody without a credential.
const PUBLIC_BYTES: usize = 16 * 1024;
/// For spans that the collector has not taken yet.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// By this time after the drain's deadline the relay has ended, whatever its collector or its peers do.
const LAST: Duration = Duration::from_millis(900);

/// Serves until `stop` completes, then drains.
pub async fn run(config: RelayConfig, stop: impl Future<Output = ()>) -> Result<(), RelayError> {
    let mut relay = start(config).await?;
    tokio::select! {
        () = stop => relay.stop().await,
        ended = relay.ended() => ended,
    }
}

/// A relay that serves. Dropping it without `stop` leaves it running.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    stop: CancellationToken,
    telemetry: Telemetry,
    serving: JoinHandle<Result<(), RelayError>>,
}

impl Relay {
    /// Where it listens; tells the port that was chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counts, until an import gives it other data.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Drains and ends, at the latest one second after the drain's deadline.
    pub async fn stop(mut self) -> Result<(), RelayError> {
        self.stop.cancel();
        self.ended().await
    }

    /// Completes when the relay has ended by itself, which it does only if its store fails. Cancel safe.
    pub async fn ended(&mut self) -> Result<(), RelayError> {
        (&mut self.serving)
            .await
            .unwrap_or(Err(RelayError::Stopped))
    }
}

/// Opens everything, recovers, and serves in the background. The listener is bound before the store is touched.
pub async fn start(config: RelayConfig) -> Result<Relay, RelayError> {
    config.check()?;
    let tls = config.tls.as_ref().map(tls).transpose()?;
    // What does not fit together is found before anything is opened or announced.
    server(&config.network, tls.clone())?;
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
    let life = Life::of(&stop);
    let (guard, tcp) = closed::until_room(&config, tls.as_ref(), tcp).await?;
    let booted = match boot::boot(&config, guard, &life.stop, &life.again).await {
        Ok(booted) => booted,
        Err(error) => return Err(or_restart(&config, error).await),
    };
    let telemetry = booted.telemetry.clone();
    info!(%address, data = %config.data.display(), "relay listening");
    let serving = tokio::spawn(lives(config, tls, tcp, stop.clone(), life, booted));
    Ok(Relay {
        address,
        stop,
        telemetry,
        serving,
    })
}

/// sled took more to open than there seemed to be: another start may find more.
async fn or_restart(config: &RelayConfig, error: RelayError) -> RelayError {
    let full = match &error {
        RelayError::NoRoom => true,
        RelayError::Store(error) => error.is_disk_full(),
        _of_another_kind => false,
    };
    if let Some(restart) = config.restart.as_ref().filter(|_| full) {
        tracing::error!(%error, "the store did not open");
        tokio::time::sleep(space::WAIT).await;
        restart.call(config.listen);
    }
    error
}

/// From one boot to the end of serving. A relay has one life, unless an import gives it other data.
struct Life {
    /// Ends with the relay, or by itself when there is to be another life.
    stop: CancellationToken,
    again: CancellationToken,
}

impl Life {
    fn of(relay: &CancellationToken) -> Self {
        Self {
            stop: relay.child_token(),
            again: CancellationToken::new(),
        }
    }
}

async fn lives(
    mut config: RelayConfig,
    tls: Option<ServerTlsConfig>,
    mut tcp: TcpListener,
    stop: CancellationToken,
    mut life: Life,
    mut booted: Booted,
) -> Result<(), RelayError> {
    // What was accepted once is not accepted again unasked.
    config.accept_loss = false;
    loop {
        let serving = Serving {
            booted,
            tls: tls.clone(),
            stop: life.stop.clone(),
            drain: config.drain,
            network: config.network.clone(),
            kept: config.retention.clone(),
        };
        serving.run(tcp).await?;
        if stop.is_cancelled() || !life.again.is_cancelled() {
            return Ok(());
        }
        life = Life::of(&stop);
        tcp = bind(config.listen).await?;
        booted = match boot_again(&config, &life).await {
            Ok(booted) => booted,
            Err(error) => return Err(or_restart(&config, error).await),
        };
        info!("relay started again with the imported data");
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, RelayError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| RelayError::Listen { address, source })
}

/// The last life's connections and threads may hold the store for a moment longer than its server.
async fn boot_again(config: &RelayConfig, life: &Life) -> Result<Booted, RelayError> {
    for _ in 0..BOOT_TRIES {
        match boot_once(config, life).await {
            Err(
                RelayError::Store(store::OpenError::Locked { .. })
                | RelayError::Import(ImportError::Store(store::OpenError::Locked { .. })),
            ) => {}
            booted => return booted,
        }
    }
    boot_once(config, life).await
}

async fn boot_once(config: &RelayConfig, life: &Life) -> Result<Booted, RelayError> {
    let Ok(guard) = closed::make_room(config).await? else {
        return Err(RelayError::NoRoom);
    };
    boot::boot(config, guard, &life.stop, &life.again).await
}

/// Everything that runs between start and stop.
struct Serving {
    booted: Booted,
    tls: Option<ServerTlsConfig>,
    stop: CancellationToken,
    drain: Duration,
    network: NetworkLimits,
    kept: RetentionConfig,
}

impl Serving {
    async fn run(self, tcp: TcpListener) -> Result<(), RelayError> {
        let Self {
            booted,
            tls,
            stop,
            drain,
            network,
            kept,
        } = self;
        let Booted {
            api,
            output,
            mut dispatching,
            finish,
            telemetry,
            retained,
            guard,
        } = booted;
        let (reporter, health) = tonic_health::server::health_reporter();
        let store = api.reader.store().clone();
        let space = api.space.clone();
        tokio::spawn(health::report(reporter, store, space, stop.clone()));
        tokio::spawn(retention::run(kept, retained, finish.clone()));
        tokio::spawn(guard.watch(boot::watched(&api), finish.clone()));
        let cut = CancellationToken::new();
        let listener = Listener::new(tcp, &network, cut.clone());
        let routes = routes(&api)?.add_service(health.max_decoding_message_size(PUBLIC_BYTES));
        let shares = Shares::new(network.unary_in_flight, network.unary_timeout);
        let serve = server(&network, tls)?
            .layer(layers(&network, &api, &shares))
            .add_routes(routes)
            .serve_with_incoming_shutdown(listener, stop.clone().cancelled_owned());
        drop(api);
        // On its own: it counts from the order to stop, whoever looks at it when.
        let over = AbortOnDropHandle::new(tokio::spawn(after(stop.clone(), drain + LAST)));
        let served = tokio::select! {
            served = drained(serve, &stop, drain, &cut, shares.none_owed()) => served.map_err(RelayError::Serve),
            // Without a dispatcher nothing can be answered; the process must end and be started again.
            _ = &mut dispatching => return Err(RelayError::Stopped),
        };
        finish.cancel();
        let last = async {
            let _ = dispatching.await; // It has logged why, if it did not end well.
            output.close().await;
            telemetry.finish(LAST_SPANS).await;
        };
        tokio::select! {
            () = last => info!("relay stopped"),
            _ = over => warn!("relay stopped; its last spans were not taken, or its disk hangs"),
        }
        served
    }
}

/// Every limit is set here; tonic's own defaults are not relied upon.
fn server(network: &NetworkLimits, tls: Option<ServerTlsConfig>) -> Result<Server, RelayError> {
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

type Layers = ServiceBuilder<
    tower::layer::util::Stack<
        TimeoutLayer,
        tower::layer::util::Stack<
            Shares,
            tower::layer::util::Stack<
                AuthLayer,
                tower::layer::util::Stack<EdgeLayer, tower::layer::util::Identity>,
            >,
        >,
    >,
>;

/// Outside in. The timeout ends with a response's head, so it binds unary calls and never a stream.
fn layers(network: &NetworkLimits, api: &Api, shares: &Shares) -> Layers {
    ServiceBuilder::new()
        .layer(EdgeLayer)
        .layer(AuthLayer::new(api.tokens.clone()))
        .layer(shares.clone())
        .layer(TimeoutLayer::new(network.unary_timeout))
}

fn routes(api: &Api) -> Result<Routes, RelayError> {
    macro_rules! service {
        ($server:ty) => {
            <$server>::new(api.clone())
                .max_decoding_message_size(limits::WIRE_BYTES)
                .max_encoding_message_size(limits::WIRE_BYTES)
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
                .max_decoding_message_size(PUBLIC_BYTES),
        )
        .add_service(
            reflection()
                .build_v1alpha()?
                .max_decoding_message_size(PUBLIC_BYTES),
        ))
}

fn tls(files: &TlsFiles) -> Result<ServerTlsConfig, ConfigError> {
    let read = |what: &'static str, path: &Path| {
        std::fs::read(path).map_err(|source| ConfigError::TlsFile {
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
    Config(#[from] ConfigError),
    #[error(
        "cannot listen on {address}: {source}; choose another --listen, or stop who listens there"
    )]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("cannot use the data directory {}: {source}; give a directory that the relay may write", path.display())]
    Data {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Store(#[from] store::OpenError),
    #[error(
        "the stored records cannot be read: {0}; look at the disk, or restore a backup with `baton import FILE`"
    )]
    Records(#[from] store::ReadError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Output(#[from] crate::output::OutputError),
    #[error(transparent)]
    Telemetry(#[from] crate::telemetry::TelemetryError),
    #[error("the TLS certificate and key do not fit: {0}; give PEM files that belong together")]
    Tls(tonic::transport::Error),
    #[error("reflection cannot describe the protocol: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the server failed: {0}")]
    Serve(tonic::transport::Error),
    #[error("the disk under the data directory is full; make room and start the relay again")]
    NoRoom,
    #[error(
        "the relay stopped because its store can no longer be written; see its log, then start it again"
    )]
    Stopped,
}

impl RelayError {
    /// A stable word for programs, where there is one.
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
