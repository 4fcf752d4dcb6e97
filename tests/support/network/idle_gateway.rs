//! A gateway like those of cloud providers in front of a relay: it answers pings by itself and
//! ends every stream without messages for a while. It handles requests and streams without
//! decoding them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use tokio::net::TcpListener;
use tokio::time::Interval;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};

#[derive(Debug)]
pub struct IdleGateway {
    address: SocketAddr,
    ended_streams: Arc<AtomicUsize>,
    _server: AbortOnDropHandle<()>,
}

impl IdleGateway {
    /// Forwards the calls of daemons and clients to the relay at `url`.
    pub async fn start(url: &str, idle: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("the test's address is valid");
        let ended = Arc::new(AtomicUsize::new(0));
        let passage = Passage {
            relay: endpoint.tcp_nodelay(true).connect_lazy(),
            idle,
            ended_streams: ended.clone(),
        };
        let server = Server::builder()
            .add_service(ToDaemonLink(passage.clone()))
            .add_service(ToTasks(passage))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { server.await.expect("the gateway serves") });
        Self {
            address,
            ended_streams: ended,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of streams that it ended as idle.
    pub fn ended_streams(&self) -> usize {
        self.ended_streams.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Debug)]
struct Passage {
    relay: Channel,
    idle: Duration,
    ended_streams: Arc<AtomicUsize>,
}

impl Passage {
    async fn pass(mut self, request: http::Request<Body>) -> http::Response<Body> {
        let ready = std::future::poll_fn(|context| self.relay.poll_ready(context)).await;
        let answer = match ready {
            Ok(()) => self.relay.call(request).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(response) => response.map(|body| Body::new(IdleLimitedBody::new(body, &self))),
            Err(error) => Status::unavailable(error.to_string()).into_http(),
        }
    }
}

/// A response body that is ended if no data arrives for too long.
struct IdleLimitedBody {
    body: Body,
    idle_timer: Interval,
    ended_streams: Arc<AtomicUsize>,
}

impl IdleLimitedBody {
    fn new(body: Body, passage: &Passage) -> Self {
        let mut idle_timer = tokio::time::interval(passage.idle);
        idle_timer.reset();
        Self {
            body,
            idle_timer,
            ended_streams: passage.ended_streams.clone(),
        }
    }
}

impl HttpBody for IdleLimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.idle_timer.reset();
            return Poll::Ready(frame);
        }
        match self.idle_timer.poll_tick(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(_) => {
                self.ended_streams.fetch_add(1, Ordering::Relaxed);
                Poll::Ready(Some(Err(Status::unavailable("the stream was idle"))))
            }
        }
    }
}

macro_rules! passages {
    ($($to:ident: $name:literal),*) => {$(
        #[derive(Clone, Debug)]
        struct $to(Passage);

        impl NamedService for $to {
            const NAME: &'static str = $name;
        }

        impl Service<http::Request<Body>> for $to {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<Self::Response, Infallible>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                let passed = self.0.clone().pass(request);
                Box::pin(async move { Ok(passed.await) })
            }
        }
    )*};
}

passages! { ToDaemonLink: "baton.v1.DaemonLink", ToTasks: "baton.v1.Tasks" }
