//! A TCP proxy between a daemon and its relay that behaves like a bad network: it can break
//! connections, delay packets in either direction without an error, and end idle connections.
//! It forwards bytes without decoding frames.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

/// Which packets arrive. The others are delayed and not lost, because TCP would send them
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedTraffic {
    Both,
    /// Only from the daemon to the relay: the daemon receives nothing.
    ToRelayOnly,
    /// Neither direction, without an error.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrafficDirection {
    ToRelay,
    ToDaemon,
}

impl PassedTraffic {
    fn passes(self, direction: TrafficDirection) -> bool {
        match self {
            Self::Both => true,
            Self::ToRelayOnly => direction == TrafficDirection::ToRelay,
            Self::Nothing => false,
        }
    }
}

#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    passed_traffic: watch::Sender<PassedTraffic>,
    cut_count: watch::Sender<u64>,
    accepted_connections: Arc<AtomicUsize>,
    _server: AbortOnDropHandle<()>,
}

/// Settings of each connection.
#[derive(Clone, Debug)]
struct ProxySettings {
    relay: String,
    passed_traffic: watch::Receiver<PassedTraffic>,
    cut_count: watch::Receiver<u64>,
    idle_limit: Option<Duration>,
}

impl TcpProxy {
    pub async fn start_to(url: &str) -> Self {
        Self::start(url, None).await
    }

    /// Ends connections that carry no bytes for this long.
    pub async fn start_with_idle_limit(url: &str, idle: Duration) -> Self {
        Self::start(url, Some(idle)).await
    }

    async fn start(url: &str, idle: Option<Duration>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let (passing, cuts) = (
            watch::Sender::new(PassedTraffic::Both),
            watch::Sender::new(0),
        );
        let accepted = Arc::new(AtomicUsize::new(0));
        let settings = ProxySettings {
            relay: url.trim_start_matches("http://").to_owned(),
            passed_traffic: passing.subscribe(),
            cut_count: cuts.subscribe(),
            idle_limit: idle,
        };
        let server = tokio::spawn(accept_connections(listener, settings, accepted.clone()));
        Self {
            address,
            passed_traffic: passing,
            cut_count: cuts,
            accepted_connections: accepted,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set_passed_traffic(&self, passing: PassedTraffic) {
        self.passed_traffic.send_replace(passing);
    }

    /// Breaks all current connections; new ones are accepted as before.
    pub fn cut_connections(&self) {
        self.cut_count.send_modify(|cuts| *cuts += 1);
    }

    /// Number of connections so far.
    pub fn connection_count(&self) -> usize {
        self.accepted_connections.load(Ordering::Relaxed)
    }
}

async fn accept_connections(
    listener: TcpListener,
    settings: ProxySettings,
    accepted: Arc<AtomicUsize>,
) {
    // Dropped with the proxy, which ends all connections.
    let mut open = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            Ok((daemon, _)) = listener.accept() => {
                accepted.fetch_add(1, Ordering::Relaxed);
                open.spawn(forward_connection(daemon, settings.clone()));
            }
            Some(_) = open.join_next() => {}
        }
    }
}

async fn forward_connection(daemon: TcpStream, mut settings: ProxySettings) {
    settings.cut_count.mark_unchanged();
    let Ok(relay) = TcpStream::connect(&settings.relay).await else {
        return;
    };
    for end in [&daemon, &relay] {
        // Closing a socket resets it, so that both sides notice a cut at once.
        end.set_zero_linger().expect("the socket option can be set");
        end.set_nodelay(true).expect("the socket option can be set");
    }
    let ((from_daemon, to_daemon), (from_relay, to_relay)) =
        (daemon.into_split(), relay.into_split());
    let forwarded = Arc::new(Notify::new());
    let up = forward_bytes(
        from_daemon,
        to_relay,
        TrafficDirection::ToRelay,
        &settings,
        &forwarded,
    );
    let down = forward_bytes(
        from_relay,
        to_daemon,
        TrafficDirection::ToDaemon,
        &settings,
        &forwarded,
    );
    let mut cuts = settings.cut_count.clone();
    tokio::select! {
        _ = async { tokio::join!(up, down) } => {}
        // A dropped proxy breaks its connections too.
        _ = cuts.changed() => {}
        () = wait_until_idle(settings.idle_limit, &forwarded) => {}
    }
}

/// Copies one direction while it is passed, including the end of the stream.
async fn forward_bytes(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: TrafficDirection,
    settings: &ProxySettings,
    forwarded: &Notify,
) {
    let mut passing = settings.passed_traffic.clone();
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        if passing
            .wait_for(|passing| passing.passes(direction))
            .await
            .is_err()
        {
            return;
        }
        forwarded.notify_one();
        if read == 0 {
            drop(to.shutdown().await);
            return;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

/// Returns when nothing was forwarded for `idle`.
async fn wait_until_idle(idle: Option<Duration>, forwarded: &Notify) {
    let Some(idle) = idle else {
        return std::future::pending().await;
    };
    while tokio::time::timeout(idle, forwarded.notified())
        .await
        .is_ok()
    {}
}
