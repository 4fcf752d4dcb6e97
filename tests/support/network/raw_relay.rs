//! A relay that a test drives with raw bytes: it accepts daemons' streams and passes each to
//! the test.

use std::convert::Infallible;
use std::future::Ready;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::network::raw_link::RawCodec;
use crate::wait::wait_within;

/// Frames queued for the daemon. If full, the test waits.
const FRAME_QUEUE_LENGTH: usize = 256;
/// Streams that the test has not taken yet. If full, a connecting daemon is rejected.
const STREAM_QUEUE_LENGTH: usize = 16;

#[derive(Debug)]
pub struct RawRelay {
    address: SocketAddr,
    admits_streams: watch::Sender<bool>,
    opened_streams: mpsc::Receiver<RawRelayStream>,
    _server: AbortOnDropHandle<()>,
}

/// One stream of a daemon. Dropping it ends it.
#[derive(Debug)]
pub struct RawRelayStream {
    incoming: Streaming<Bytes>,
    outgoing: mpsc::Sender<Result<Bytes, Status>>,
}

impl RawRelay {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let admits = watch::Sender::new(true);
        let (streams, opened) = mpsc::channel(STREAM_QUEUE_LENGTH);
        let link = RawLinkService {
            admits_streams: admits.subscribe(),
            streams,
        };
        let server = Server::builder()
            .add_service(link)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { server.await.expect("the relay serves") });
        Self {
            address,
            admits_streams: admits,
            opened_streams: opened,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Whether new streams are accepted. Rejected ones get UNAVAILABLE.
    pub fn set_admitting(&mut self, admits: bool) {
        self.admits_streams.send_replace(admits);
        if !admits {
            // Streams that were opened meanwhile are closed.
            while self.opened_streams.try_recv().is_ok() {}
        }
    }

    /// The next stream that a daemon opened.
    pub async fn next_stream(&mut self) -> RawRelayStream {
        let stream = wait_within("a daemon's stream", self.opened_streams.recv()).await;
        stream.expect("the relay serves")
    }
}

impl RawRelayStream {
    /// The next frame; none if the daemon has closed or lost the stream.
    pub async fn next(&mut self) -> Option<Bytes> {
        let frame = wait_within("a daemon's frame", self.incoming.message()).await;
        frame.ok().flatten()
    }

    pub async fn send(&self, frame: Bytes) {
        // A send to a daemon that has disconnected is not an error here: the test notices when
        // it waits for frames.
        drop(self.outgoing.send(Ok(frame)).await);
    }
}

#[derive(Clone, Debug)]
struct RawLinkService {
    admits_streams: watch::Receiver<bool>,
    streams: mpsc::Sender<RawRelayStream>,
}

impl NamedService for RawLinkService {
    const NAME: &'static str = "baton.v1.DaemonLink";
}

impl Service<http::Request<Body>> for RawLinkService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let link = self.clone();
        Box::pin(async move { Ok(Grpc::new(RawCodec).streaming(link, request).await) })
    }
}

impl StreamingService<Bytes> for RawLinkService {
    type Response = Bytes;
    type ResponseStream = ReceiverStream<Result<Bytes, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        std::future::ready(self.open_stream(request))
    }
}

impl RawLinkService {
    fn open_stream(
        &self,
        request: Request<Streaming<Bytes>>,
    ) -> Result<Response<ReceiverStream<Result<Bytes, Status>>>, Status> {
        if !*self.admits_streams.borrow() {
            return Err(Status::unavailable("the relay is unavailable"));
        }
        let (outgoing, frames) = mpsc::channel(FRAME_QUEUE_LENGTH);
        let stream = RawRelayStream {
            incoming: request.into_inner(),
            outgoing,
        };
        let taken = self.streams.try_send(stream);
        taken.map_err(|_| Status::unavailable("the test accepts no more streams"))?;
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}
