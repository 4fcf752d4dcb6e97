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
const FRAME_QUEUE_LENGTH: usize = 256;

/// One frame as it was seen.
#[derive(Clone, Debug)]
pub enum TappedFrame {
    FromDaemon(Box<DaemonFrame>),
    FromRelay(Box<RelayFrame>),
}

/// Hears of every frame before it is passed on.
pub type FrameListener = Arc<dyn Fn(TappedFrame) + Send + Sync>;

#[derive(Debug)]
pub struct FrameTap {
    address: SocketAddr,
    recorded_frames: Arc<Mutex<Vec<TappedFrame>>>,
    is_connected: watch::Sender<bool>,
    /// To the relay, by the newest stream.
    to_relay: Arc<Mutex<Option<mpsc::Sender<DaemonFrame>>>>,
    _server: AbortOnDropHandle<()>,
}

impl FrameTap {
    /// Listens for daemons and dials the relay at `url` for each.
    pub async fn start(url: &str) -> Self {
        let tape = Arc::new(Mutex::new(Vec::new()));
        let kept = tape.clone();
        let keep = move |frame| lock(&kept).push(frame);
        let tap = Self::start_with_listener(url, "127.0.0.1", Arc::new(keep)).await;
        Self {
            recorded_frames: tape,
            ..tap
        }
    }

    /// Keeps nothing and tells `listener`. Daemons find it at `host`, an address of this machine.
    pub async fn start_with_listener(url: &str, host: &str, listener: FrameListener) -> Self {
        let bound = TcpListener::bind((host, 0)).await.expect("a port is free");
        let address = bound.local_addr().expect("a bound socket has an address");
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("tests make good addresses");
        let whole = watch::Sender::new(true);
        let up = Arc::default();
        let wire = TapService {
            relay: endpoint.tcp_nodelay(true).connect_lazy(),
            listener,
            is_connected: whole.subscribe(),
            to_relay: Arc::clone(&up),
        };
        let server = Server::builder()
            .add_service(DaemonLinkServer::new(wire))
            .serve_with_incoming(TcpListenerStream::new(bound));
        let server = tokio::spawn(async move { server.await.expect("the tap serves") });
        Self {
            address,
            recorded_frames: Arc::default(),
            is_connected: whole,
            to_relay: up,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks every stream and refuses new ones until `mend`.
    pub fn cut(&self) {
        self.is_connected.send_replace(false);
    }

    pub fn restore(&self) {
        self.is_connected.send_replace(true);
    }

    pub fn frames(&self) -> Vec<TappedFrame> {
        lock(&self.recorded_frames).clone()
    }

    /// Sends the relay a frame on the daemon's own stream, as a network that held it back for long would. False without a stream.
    pub fn inject_frame(&self, frame: DaemonFrame) -> bool {
        let up = lock(&self.to_relay);
        up.as_ref().is_some_and(|up| up.try_send(frame).is_ok())
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct TapService {
    relay: Channel,
    listener: FrameListener,
    is_connected: watch::Receiver<bool>,
    to_relay: Arc<Mutex<Option<mpsc::Sender<DaemonFrame>>>>,
}

impl TapService {
    fn notify_listener(&self, frame: TappedFrame) {
        (self.listener)(frame);
    }

    async fn until_cut(&self) {
        let mut whole = self.is_connected.clone();
        // A tap that is gone has broken the wire as well.
        let _ = whole.wait_for(|whole| !whole).await;
    }

    async fn forward_to_relay(
        self,
        mut from: Streaming<DaemonFrame>,
        to: mpsc::Sender<DaemonFrame>,
    ) {
        let copy = async {
            while let Ok(Some(frame)) = from.message().await {
                self.notify_listener(TappedFrame::FromDaemon(Box::new(frame.clone())));
                if to.send(frame).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = copy => {}
            () = self.until_cut() => {}
        }
        // The stream ends when nobody can say anything on it any more.
        lock(&self.to_relay).take_if(|up| up.same_channel(&to));
    }

    async fn forward_to_daemon(
        self,
        mut from: Streaming<RelayFrame>,
        to: mpsc::Sender<Result<RelayFrame, Status>>,
    ) {
        let copy = async {
            while let Some(frame) = from.next().await {
                if let Ok(frame) = &frame {
                    self.notify_listener(TappedFrame::FromRelay(Box::new(frame.clone())));
                }
                if to.send(frame).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = copy => {}
            () = self.until_cut() => {
                drop(to.send(Err(Status::unavailable("the wire is cut"))).await);
            }
        }
    }
}

#[tonic::async_trait]
impl DaemonLink for TapService {
    async fn link(
        &self,
        request: Request<Streaming<DaemonFrame>>,
    ) -> Result<Response<BoxStream<RelayFrame>>, Status> {
        if !*self.is_connected.borrow() {
            return Err(Status::unavailable("the wire is cut"));
        }
        let token = request.metadata().get("authorization").cloned();
        let (up, queue) = mpsc::channel(FRAME_QUEUE_LENGTH);
        *lock(&self.to_relay) = Some(up.clone());
        let (down, answers) = mpsc::channel(FRAME_QUEUE_LENGTH);
        tokio::spawn(self.clone().forward_to_relay(request.into_inner(), up));
        let mut onward = Request::new(ReceiverStream::new(queue));
        if let Some(token) = token {
            onward.metadata_mut().insert("authorization", token);
        }
        let opened = DaemonLinkClient::new(self.relay.clone())
            .link(onward)
            .await?;
        tokio::spawn(self.clone().forward_to_daemon(opened.into_inner(), down));
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}
