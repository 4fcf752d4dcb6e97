//! A relay that has no room to start: it listens all the same, and says so to whoever calls, until there is room.

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

use super::listener::Listener;
use super::{RelayError, bind, drained, health, server};
use crate::api::fault::Fault;
use crate::api::status;
use crate::config::{NetworkLimits, RelayConfig};
use crate::private_dir;
use crate::space::{self, Guard, Shortage};

const HEALTH: &str = "/grpc.health.";

/// Waits until there is room to open the data, and says so to whoever calls meanwhile.
pub(super) async fn until_room(
    config: &RelayConfig,
    tls: Option<&ServerTlsConfig>,
    mut tcp: TcpListener,
) -> Result<(Guard, TcpListener), RelayError> {
    loop {
        let Shortage { free, needed } = match make_room(config).await? {
            Ok(guard) => return Ok((guard, tcp)),
            Err(shortage) => shortage,
        };
        let data = config.data.display();
        tracing::warn!(%data, free, needed, "the disk is full: the relay waits for room to start");
        let room = CancellationToken::new();
        let waited = async {
            while make_room(config).await?.is_err() {
                tokio::time::sleep(space::WAIT).await;
            }
            room.cancel();
            Ok(())
        };
        let answered = answer(tcp, &config.network, tls.cloned(), room.clone());
        tokio::try_join!(waited, answered)?;
        tcp = bind(config.listen).await?;
    }
}

/// Gives up ballast where that makes a start possible.
pub(super) async fn make_room(config: &RelayConfig) -> Result<Result<Guard, Shortage>, RelayError> {
    let data = config.data.clone();
    let made = tokio::task::spawn_blocking(move || {
        private_dir::make(&data).and_then(|()| space::make_room(&data))
    });
    let made = made.await.map_err(|_| RelayError::Stopped)?;
    made.map_err(|source| RelayError::Data {
        path: config.data.clone(),
        source,
    })
}

/// Answers until `room`. The listener is used up.
async fn answer(
    tcp: TcpListener,
    network: &NetworkLimits,
    tls: Option<ServerTlsConfig>,
    room: CancellationToken,
) -> Result<(), RelayError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    health::tell(&reporter, false, false).await;
    let cut = CancellationToken::new();
    let listener = Listener::new(tcp, network, cut.clone());
    let serve = server(network, tls)?
        .layer(ClosedLayer)
        .add_routes(Routes::new(health))
        .serve_with_incoming_shutdown(listener, room.clone().cancelled_owned());
    let served = drained(serve, &room, Duration::ZERO, &cut, std::future::ready(())).await;
    served.map_err(RelayError::Serve)
}

#[derive(Clone, Copy, Debug)]
struct ClosedLayer;

impl<S> Layer<S> for ClosedLayer {
    type Service = Closed<S>;

    fn layer(&self, health: S) -> Closed<S> {
        Closed { health }
    }
}

#[derive(Clone, Debug)]
struct Closed<S> {
    health: S,
}

type Answer<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Closed<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer<Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.health.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path().starts_with(HEALTH) {
            return Box::pin(self.health.call(request));
        }
        Box::pin(async { Ok(status::status(&Fault::DiskFull).into_http()) })
    }
}
