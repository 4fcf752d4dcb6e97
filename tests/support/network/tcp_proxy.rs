//! A wire between a daemon and its relay that behaves like a bad network: it can break, hold packets back in either
//! direction without anybody being told, and end what carries nothing for a while. Bytes only; it knows no frames.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

/// Which packets arrive. Those that do not are held back and not lost, as TCP would send them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedTraffic {
    Both,
    /// Only from the daemon to the relay: the daemon is deaf.
    ToRelayOnly,
    /// Neither way, and no word of it to anybody.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrafficDirection {
    ToRelay,
    ToDaemon,
}

impl PassedTraffic {
    fn passes(self, way: TrafficDirection) -> bool {
        match self {
            Self::Both => true,
            Self::ToRelayOnly => way == TrafficDirection::ToRelay,
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

/// What each connection needs to know.
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

    /// Ends connections that carry nothing for so long.
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
        let nature = ProxySettings {
            relay: url.trim_start_matches("http://").to_owned(),
            passed_traffic: passing.subscribe(),
            cut_count: cuts.subscribe(),
            idle_limit: idle,
        };
        let server = tokio::spawn(accept_connections(listener, nature, accepted.clone()));
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

    /// Breaks every connection that there is; new ones are made as before.
    pub fn cut_connections(&self) {
        self.cut_count.send_modify(|cuts| *cuts += 1);
    }

    /// Connections made so far.
    pub fn connection_count(&self) -> usize {
        self.accepted_connections.load(Ordering::Relaxed)
    }
}

async fn accept_connections(
    listener: TcpListener,
    nature: ProxySettings,
    accepted: Arc<AtomicUsize>,
) {
    // Dropped with the wire: what still goes through it ends.
    let mut open = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            Ok((daemon, _)) = listener.accept() => {
                accepted.fetch_add(1, Ordering::Relaxed);
                open.spawn(forward_connection(daemon, nature.clone()));
            }
            Some(_) = open.join_next() => {}
        }
    }
}

async fn forward_connection(daemon: TcpStream, mut nature: ProxySettings) {
    nature.cut_count.mark_unchanged();
    let Ok(relay) = TcpStream::connect(&nature.relay).await else {
        return;
    };
    for end in [&daemon, &relay] {
        // Both ends learn of a cut at once.
        end.set_zero_linger().expect("a socket takes the option");
        end.set_nodelay(true).expect("a socket takes the option");
    }
    let ((from_daemon, to_daemon), (from_relay, to_relay)) =
        (daemon.into_split(), relay.into_split());
    let carried = Arc::new(Notify::new());
    let up = forward_bytes(
        from_daemon,
        to_relay,
        TrafficDirection::ToRelay,
        &nature,
        &carried,
    );
    let down = forward_bytes(
        from_relay,
        to_daemon,
        TrafficDirection::ToDaemon,
        &nature,
        &carried,
    );
    let mut cuts = nature.cut_count.clone();
    tokio::select! {
        _ = async { tokio::join!(up, down) } => {}
        // A wire that is gone has broken, too.
        _ = cuts.changed() => {}
        () = wait_until_idle(nature.idle_limit, &carried) => {}
    }
}

/// Copies one way while that passes, the end of the stream too.
async fn forward_bytes(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: TrafficDirection,
    nature: &ProxySettings,
    carried: &Notify,
) {
    let mut passing = nature.passed_traffic.clone();
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        if passing
            .wait_for(|passing| passing.passes(way))
            .await
            .is_err()
        {
            return;
        }
        carried.notify_one();
        if read == 0 {
            drop(to.shutdown().await);
            return;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

/// Returns when nothing was carried for `idle`.
async fn wait_until_idle(idle: Option<Duration>, carried: &Notify) {
    let Some(idle) = idle else {
        return std::future::pending().await;
    };
    while tokio::time::timeout(idle, carried.notified()).await.is_ok() {}
}
