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
pub enum Passing {
    Both,
    /// Only from the daemon to the relay: the daemon is deaf.
    Up,
    /// Neither way, and no word of it to anybody.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl Passing {
    fn lets(self, way: Way) -> bool {
        match self {
            Self::Both => true,
            Self::Up => way == Way::Up,
            Self::Nothing => false,
        }
    }
}

#[derive(Debug)]
pub struct Wire {
    address: SocketAddr,
    passing: watch::Sender<Passing>,
    cuts: watch::Sender<u64>,
    accepted: Arc<AtomicUsize>,
    _server: AbortOnDropHandle<()>,
}

/// What each connection needs to know.
#[derive(Clone, Debug)]
struct Nature {
    relay: String,
    passing: watch::Receiver<Passing>,
    cuts: watch::Receiver<u64>,
    idle: Option<Duration>,
}

impl Wire {
    pub async fn to(url: &str) -> Self {
        Self::start(url, None).await
    }

    /// Ends connections that carry nothing for so long.
    pub async fn that_kills_idle(url: &str, idle: Duration) -> Self {
        Self::start(url, Some(idle)).await
    }

    async fn start(url: &str, idle: Option<Duration>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let (passing, cuts) = (watch::Sender::new(Passing::Both), watch::Sender::new(0));
        let accepted = Arc::new(AtomicUsize::new(0));
        let nature = Nature {
            relay: url.trim_start_matches("http://").to_owned(),
            passing: passing.subscribe(),
            cuts: cuts.subscribe(),
            idle,
        };
        let server = tokio::spawn(serve(listener, nature, accepted.clone()));
        Self {
            address,
            passing,
            cuts,
            accepted,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn let_pass(&self, passing: Passing) {
        self.passing.send_replace(passing);
    }

    /// Breaks every connection that there is; new ones are made as before.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Connections made so far.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

async fn serve(listener: TcpListener, nature: Nature, accepted: Arc<AtomicUsize>) {
    // Dropped with the wire: what still goes through it ends.
    let mut open = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            Ok((daemon, _)) = listener.accept() => {
                accepted.fetch_add(1, Ordering::Relaxed);
                open.spawn(connection(daemon, nature.clone()));
            }
            Some(_) = open.join_next() => {}
        }
    }
}

async fn connection(daemon: TcpStream, mut nature: Nature) {
    nature.cuts.mark_unchanged();
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
    let up = carry(from_daemon, to_relay, Way::Up, &nature, &carried);
    let down = carry(from_relay, to_daemon, Way::Down, &nature, &carried);
    let mut cuts = nature.cuts.clone();
    tokio::select! {
        _ = async { tokio::join!(up, down) } => {}
        // A wire that is gone has broken, too.
        _ = cuts.changed() => {}
        () = quiet(nature.idle, &carried) => {}
    }
}

/// Copies one way while that passes, the end of the stream too.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Way,
    nature: &Nature,
    carried: &Notify,
) {
    let mut passing = nature.passing.clone();
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        if passing.wait_for(|passing| passing.lets(way)).await.is_err() {
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
async fn quiet(idle: Option<Duration>, carried: &Notify) {
    let Some(idle) = idle else {
        return std::future::pending().await;
    };
    while tokio::time::timeout(idle, carried.notified()).await.is_ok() {}
}
