//! A tap between a daemon and its relay that forwards every frame unchanged and records it. It
//! can also cut the connection, as a broken network would, and send old frames again.

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

/// Frames being forwarded. If full, the tap waits, as a network would.
const FRAME_QUEUE_LENGTH: usize = 256;

/// One recorded frame.
#[derive(Clone, Debug)]
pub enum TappedFrame {
    FromDaemon(Box<DaemonFrame>),
    FromRelay(Box<RelayFrame>),
}

/// Called for every frame before it is forwarded.
pub type FrameListener = Arc<dyn Fn(TappedFrame) + Send + Sync>;

#[derive(Debug)]
pub struct FrameTap {
    address: SocketAddr,
    recorded_frames: Arc<Mutex<Vec<TappedFrame>>>,
    is_connected: watch::Sender<bool>,
    /// The sender to the relay on the newest stream.
    to_relay: Arc<Mutex<Option<mpsc::Sender<DaemonFrame>>>>,
    _server: AbortOnDropHandle<()>,
}

impl FrameTap {
    /// Listens for daemons and connects to the relay at `url` for each.
    pub async fn start(url: &str) -> Self {
        let frames = Arc::new(Mutex::new(Vec::new()));
        let recorded = frames.clone();
        let record = move |frame| lock(&recorded).push(frame);
        let tap = Self::start_with_listener(url, "127.0.0.1", Arc::new(record)).await;
        Self {
            recorded_frames: frames,
            ..tap
        }
    }

    /// Records nothing and calls `listener`. Daemons connect to `host`, an address of this
    /// machine.
    pub async fn start_with_listener(url: &str, host: &str, listener: FrameListener) -> Self {
        let listener_socket = TcpListener::bind((host, 0)).await.expect("a port is free");
        let address = listener_socket
            .local_addr()
            .expect("a listener_socket socket has an address");
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("the test's address is valid");
        let is_connected = watch::Sender::new(true);
        let to_relay = Arc::default();
        let tap_service = TapService {
            relay: endpoint.tcp_nodelay(true).connect_lazy(),
            listener,
            is_connected: is_connected.subscribe(),
            to_relay: Arc::clone(&to_relay),
        };
        let server = Server::builder()
            .add_service(DaemonLinkServer::new(tap_service))
            .serve_with_incoming(TcpListenerStream::new(listener_socket));
        let server = tokio::spawn(async move { server.await.expect("the tap serves") });
        Self {
            address,
            recorded_frames: Arc::default(),
            is_connected,
            to_relay,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks every stream and rejects new ones until `restore`.
    pub fn cut(&self) {
        self.is_connected.send_replace(false);
    }

    pub fn restore(&self) {
        self.is_connected.send_replace(true);
    }

    pub fn frames(&self) -> Vec<TappedFrame> {
        lock(&self.recorded_frames).clone()
    }

    /// Sends the relay a frame on the daemon's own stream, like a long delayed packet. False
    /// without a stream.
    pub fn inject_frame(&self, frame: DaemonFrame) -> bool {
        let to_relay = lock(&self.to_relay);
        to_relay
            .as_ref()
            .is_some_and(|to_relay| to_relay.try_send(frame).is_ok())
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
        let mut is_connected = self.is_connected.clone();
        // A dropped tap cuts the connection as well.
        let _ = is_connected.wait_for(|is_connected| !is_connected).await;
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
        // The stream ends when its last sender is dropped.
        lock(&self.to_relay).take_if(|to_relay| to_relay.same_channel(&to));
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
                drop(to.send(Err(Status::unavailable("the connection is cut"))).await);
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
            return Err(Status::unavailable("the connection is cut"));
        }
        let token = request.metadata().get("authorization").cloned();
        let (to_relay, queue) = mpsc::channel(FRAME_QUEUE_LENGTH);
        *lock(&self.to_relay) = Some(to_relay.clone());
        let (down, answers) = mpsc::channel(FRAME_QUEUE_LENGTH);
        tokio::spawn(
            self.clone()
                .forward_to_relay(request.into_inner(), to_relay),
        );
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
