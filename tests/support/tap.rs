//! A tap on the wire: stands between a daemon and its relay, passes every frame on unchanged and keeps a copy.
//! It can also cut the wire, as a broken network would.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use baton_proto::v1::daemon_link_client::DaemonLinkClient;
use baton_proto::v1::daemon_link_server::{DaemonLink, DaemonLinkServer};
use baton_proto::v1::{DaemonFrame, RelayFrame};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::codegen::BoxStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

/// Frames on their way through. Full: the tap waits, as the wire would.
const FRAMES: usize = 256;

/// One frame as it was seen.
#[derive(Clone, Debug)]
pub enum Taped {
    Up(Box<DaemonFrame>),
    Down(Box<RelayFrame>),
}

#[derive(Debug)]
pub struct Tap {
    address: SocketAddr,
    tape: Arc<Mutex<Vec<Taped>>>,
    whole: watch::Sender<bool>,
    _server: AbortOnDropHandle<()>,
}

impl Tap {
    /// Listens for daemons and dials the relay at `url` for each.
    pub async fn start(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("tests make good addresses");
        let tape = Arc::new(Mutex::new(Vec::new()));
        let whole = watch::Sender::new(true);
        let wire = Wire {
            relay: endpoint.tcp_nodelay(true).connect_lazy(),
            tape: tape.clone(),
            whole: whole.subscribe(),
        };
        let server = Server::builder()
            .add_service(DaemonLinkServer::new(wire))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { server.await.expect("the tap serves") });
        Self {
            address,
            tape,
            whole,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks every stream and refuses new ones until `mend`.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    pub fn mend(&self) {
        self.whole.send_replace(true);
    }

    pub fn frames(&self) -> Vec<Taped> {
        self.tape
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[derive(Clone, Debug)]
struct Wire {
    relay: Channel,
    tape: Arc<Mutex<Vec<Taped>>>,
    whole: watch::Receiver<bool>,
}

impl Wire {
    fn record(&self, frame: Taped) {
        self.tape
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(frame);
    }

    async fn broken(&self) {
        let mut whole = self.whole.clone();
        // A tap that is gone has broken the wire as well.
        let _ = whole.wait_for(|whole| !whole).await;
    }

    async fn carry_up(self, mut from: Streaming<DaemonFrame>, to: mpsc::Sender<DaemonFrame>) {
        let copy = async {
            while let Ok(Some(frame)) = from.message().await {
                self.record(Taped::Up(Box::new(frame.clone())));
                if to.send(frame).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = copy => {}
            () = self.broken() => {}
        }
    }

    async fn carry_down(
        self,
        mut from: Streaming<RelayFrame>,
        to: mpsc::Sender<Result<RelayFrame, Status>>,
    ) {
        let copy = async {
            while let Some(frame) = from.next().await {
                if let Ok(frame) = &frame {
                    self.record(Taped::Down(Box::new(frame.clone())));
                }
                if to.send(frame).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = copy => {}
            () = self.broken() => {
                drop(to.send(Err(Status::unavailable("the wire is cut"))).await);
            }
        }
    }
}

#[tonic::async_trait]
impl DaemonLink for Wire {
    async fn link(
        &self,
        request: Request<Streaming<DaemonFrame>>,
    ) -> Result<Response<BoxStream<RelayFrame>>, Status> {
        if !*self.whole.borrow() {
            return Err(Status::unavailable("the wire is cut"));
        }
        let token = request.metadata().get("authorization").cloned();
        let (up, queue) = mpsc::channel(FRAMES);
        let (down, answers) = mpsc::channel(FRAMES);
        tokio::spawn(self.clone().carry_up(request.into_inner(), up));
        let mut onward = Request::new(ReceiverStream::new(queue));
        if let Some(token) = token {
            onward.metadata_mut().insert("authorization", token);
        }
        let opened = DaemonLinkClient::new(self.relay.clone())
            .link(onward)
            .await?;
        tokio::spawn(self.clone().carry_down(opened.into_inner(), down));
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}
