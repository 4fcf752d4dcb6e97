//! A tap on the wire: stands between a daemon and its relay, passes every frame on unchanged and tells of it.
//! It can also cut the wire, as a broken network would, and say again what was said long ago.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Hears of every frame before it is passed on.
pub type Listener = Arc<dyn Fn(Taped) + Send + Sync>;

#[derive(Debug)]
pub struct Tap {
    address: SocketAddr,
    tape: Arc<Mutex<Vec<Taped>>>,
    whole: watch::Sender<bool>,
    /// To the relay, by the newest stream.
    up: Arc<Mutex<Option<mpsc::Sender<DaemonFrame>>>>,
    _server: AbortOnDropHandle<()>,
}

impl Tap {
    /// Listens for daemons and dials the relay at `url` for each.
    pub async fn start(url: &str) -> Self {
        let tape = Arc::new(Mutex::new(Vec::new()));
        let kept = tape.clone();
        let keep = move |frame| lock(&kept).push(frame);
        let tap = Self::telling(url, "127.0.0.1", Arc::new(keep)).await;
        Self { tape, ..tap }
    }

    /// Keeps nothing and tells `listener`. Daemons find it at `host`, an address of this machine.
    pub async fn telling(url: &str, host: &str, listener: Listener) -> Self {
        let bound = TcpListener::bind((host, 0)).await.expect("a port is free");
        let address = bound.local_addr().expect("a bound socket has an address");
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("tests make good addresses");
        let whole = watch::Sender::new(true);
        let up = Arc::default();
        let wire = Wire {
            relay: endpoint.tcp_nodelay(true).connect_lazy(),
            listener,
            whole: whole.subscribe(),
            up: Arc::clone(&up),
        };
        let server = Server::builder()
            .add_service(DaemonLinkServer::new(wire))
            .serve_with_incoming(TcpListenerStream::new(bound));
        let server = tokio::spawn(async move { server.await.expect("the tap serves") });
        Self {
            address,
            tape: Arc::default(),
            whole,
            up,
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
        lock(&self.tape).clone()
    }

    /// Sends the relay a frame on the daemon's own stream, as a network that held it back for long would. False without a stream.
    pub fn say_again(&self, frame: DaemonFrame) -> bool {
        let up = lock(&self.up);
        up.as_ref().is_some_and(|up| up.try_send(frame).is_ok())
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct Wire {
    relay: Channel,
    listener: Listener,
    whole: watch::Receiver<bool>,
    up: Arc<Mutex<Option<mpsc::Sender<DaemonFrame>>>>,
}

impl Wire {
    fn record(&self, frame: Taped) {
        (self.listener)(frame);
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
        // The stream ends when nobody can say anything on it any more.
        lock(&self.up).take_if(|up| up.same_channel(&to));
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
        *lock(&self.up) = Some(up.clone());
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
