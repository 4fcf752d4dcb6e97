//! A relay whose disk is too full to start: it listens and answers every call with `disk full`
//! until there is enough space.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::ServerTlsConfig;
use tower::{Layer, Service};

use super::listener::ConnectionListener;
use super::{RelayError, bind, build_server, health, serve_until_drained};
use crate::api::error::fault::ApiFault;
use crate::api::error::status;
use crate::config::{NetworkLimits, RelayConfig};
use crate::private_dir;
use crate::space::{self, SpaceGuard, SpaceShortage};

const HEALTH_PATH_PREFIX: &str = "/grpc.health.";

/// Waits until there is enough space to open the data. Calls are answered with `disk full`
/// meanwhile.
pub(super) async fn wait_for_space(
    config: &RelayConfig,
    tls: Option<&ServerTlsConfig>,
    mut tcp: TcpListener,
) -> Result<(SpaceGuard, TcpListener), RelayError> {
    loop {
        let SpaceShortage {
            free,
            needed_bytes: needed,
        } = match release_ballast_for_start(config).await? {
            Ok(guard) => return Ok((guard, tcp)),
            Err(shortage) => shortage,
        };
        let data = config.data_dir.display();
        tracing::warn!(%data, free, needed, "the disk is full; waiting for free space to start");
        let enough_space = CancellationToken::new();
        let waited = async {
            while release_ballast_for_start(config).await?.is_err() {
                tokio::time::sleep(space::START_RETRY_INTERVAL).await;
            }
            enough_space.cancel();
            Ok(())
        };
        let answered = serve_no_space(tcp, &config.network, tls.cloned(), enough_space.clone());
        tokio::try_join!(waited, answered)?;
        tcp = bind(config.listen).await?;
    }
}

/// Releases the ballast if that makes a start possible.
pub(super) async fn release_ballast_for_start(
    config: &RelayConfig,
) -> Result<Result<SpaceGuard, SpaceShortage>, RelayError> {
    let data = config.data_dir.clone();
    let released = tokio::task::spawn_blocking(move || {
        private_dir::create_private(&data).and_then(|()| space::free_space_to_start(&data))
    });
    let released = released.await.map_err(|_| RelayError::Stopped)?;
    released.map_err(|source| RelayError::Data {
        path: config.data_dir.clone(),
        source,
    })
}

/// Answers calls until `enough_space` is cancelled. Consumes the listener.
async fn serve_no_space(
    tcp: TcpListener,
    network: &NetworkLimits,
    tls: Option<ServerTlsConfig>,
    enough_space: CancellationToken,
) -> Result<(), RelayError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    health::set_serving(&reporter, false, false).await;
    let cut = CancellationToken::new();
    let listener = ConnectionListener::new(tcp, network, cut.clone());
    let serve = build_server(network, tls)?
        .layer(NoSpaceLayer)
        .add_routes(Routes::new(health))
        .serve_with_incoming_shutdown(listener, enough_space.clone().cancelled_owned());
    let served = serve_until_drained(
        serve,
        &enough_space,
        Duration::ZERO,
        &cut,
        std::future::ready(()),
    )
    .await;
    served.map_err(RelayError::Serve)
}

#[derive(Clone, Copy, Debug)]
struct NoSpaceLayer;

impl<S> Layer<S> for NoSpaceLayer {
    type Service = NoSpaceService<S>;

    fn layer(&self, health: S) -> NoSpaceService<S> {
        NoSpaceService { health }
    }
}

#[derive(Clone, Debug)]
struct NoSpaceService<S> {
    health: S,
}

type ResponseFuture<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for NoSpaceService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture<Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.health.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path().starts_with(HEALTH_PATH_PREFIX) {
            return Box::pin(self.health.call(request));
        }
        Box::pin(async { Ok(status::status(&ApiFault::DiskFull).into_http()) })
    }
}
