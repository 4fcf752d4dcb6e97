//! Accepts connections under caps that tonic does not have, and can cut them all at the end of a drain.
//!
//! A refused connection is closed at once without a byte. A peer that does not speak HTTP/2 in time is cut, since
//! HTTP/2 keepalive begins only after the preface. One that speaks and shows no credential in time is cut when it has no call
//! under way: answering pings is no reason to keep a place.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::auth::Peer;
use crate::config::NetworkLimits;

/// HTTP/2's preface and an empty SETTINGS frame; TLS sends more than that in its first flight.
const GREETING_BYTES: usize = 24 + 9;

/// Between tries when the process is out of descriptors: accepting again at once would spin.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// For the end of an answer that is still on its way when its call is over.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A stream of admitted connections. Never ends; tonic drops it when it stops accepting, which closes the socket.
#[derive(Debug)]
pub(super) struct Listener {
    tcp: TcpListener,
    slots: Arc<Semaphore>,
    addresses: Arc<Addresses>,
    greeting: Duration,
    stranger: Duration,
    cut: CancellationToken,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Listener {
    /// Cancelling `cut` fails every read and write of every connection that was accepted here.
    pub(super) fn new(tcp: TcpListener, limits: &NetworkLimits, cut: CancellationToken) -> Self {
        Self {
            tcp,
            slots: Arc::new(Semaphore::new(limits.connections)),
            addresses: Arc::new(Addresses {
                limit: limits.connections_per_address,
                open: Mutex::default(),
            }),
            greeting: limits.handshake_timeout,
            stranger: limits.stranger_timeout,
            cut,
            pause: None,
        }
    }

    fn admit(&self, tcp: TcpStream, address: IpAddr) -> Option<Connection> {
        let slot = self.slots.clone().try_acquire_owned().ok()?;
        let place = Addresses::enter(&self.addresses, address)?;
        // Small frames must not wait for the peer's delayed acknowledgement.
        tcp.set_nodelay(true).ok()?;
        Some(Connection {
            tcp,
            greeting: Some(Greeting {
                heard: 0,
                deadline: Box::pin(tokio::time::sleep(self.greeting)),
            }),
            peer: Peer::default(),
            stranger: Some(Stranger {
                until: Box::pin(tokio::time::sleep(self.stranger)),
                leaving: Leaving::WhenIdle,
            }),
            cut: Box::pin(self.cut.clone().cancelled_owned()),
            _slot: slot,
            _place: place,
        })
    }
}

impl Stream for Listener {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.tcp.poll_accept(cx)) {
                Ok((tcp, peer)) => match self.admit(tcp, peer.ip()) {
                    Some(connection) => return Poll::Ready(Some(Ok(connection))),
                    None => debug!(%peer, "connection refused: too many are open"),
                },
                Err(error) => {
                    warn!(%error, "could not accept a connection");
                    self.pause = Some(Box::pin(tokio::time::sleep(EXHAUSTED_PAUSE)));
                }
            }
        }
    }
}

/// One peer's connection; closing it gives its places back.
#[derive(Debug)]
pub(super) struct Connection {
    tcp: TcpStream,
    greeting: Option<Greeting>,
    peer: Peer,
    /// None when it is not, or no longer.
    stranger: Option<Stranger>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _slot: OwnedSemaphorePermit,
    _place: Place,
}

/// What is still missing before the peer counts as speaking.
#[derive(Debug)]
struct Greeting {
    heard: usize,
    deadline: Pin<Box<Sleep>>,
}

/// How long nobody need know who this is.
#[derive(Debug)]
struct Stranger {
    until: Pin<Box<Sleep>>,
    leaving: Leaving,
}

/// What is owed to a stranger whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    WhenIdle,
    /// It was in the middle of a call then, whose answer gets a moment to leave; once.
    AfterItsCall,
    Now,
}

impl Stranger {
    fn poll_over(&mut self, peer: &Peer, cx: &mut Context<'_>) -> Poll<()> {
        if !self.until.is_elapsed() {
            ready!(self.until.as_mut().poll(cx));
        }
        if peer.poll_idle(cx).is_pending() {
            if self.leaving == Leaving::WhenIdle {
                self.leaving = Leaving::AfterItsCall;
            }
            return Poll::Pending;
        }
        if self.leaving != Leaving::AfterItsCall {
            return Poll::Ready(());
        }
        self.leaving = Leaving::Now;
        self.until = Box::pin(tokio::time::sleep(LAST_WORDS));
        self.until.as_mut().poll(cx)
    }
}

impl Connection {
    /// Registers for every end of patience; an error ends the connection.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the relay has stopped",
            ));
        }
        if let Some(greeting) = &mut self.greeting
            && greeting.deadline.as_mut().poll(cx).is_ready()
        {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer did not greet in time",
            ));
        }
        self.poll_stranger(cx)
    }

    fn poll_stranger(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(stranger) = &mut self.stranger else {
            return Ok(());
        };
        if self.peer.is_known() {
            self.stranger = None;
        } else if stranger.poll_over(&self.peer, cx).is_ready() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer showed no credential in time",
            ));
        }
        Ok(())
    }

    fn heard(&mut self, bytes: usize) {
        if let Some(greeting) = &mut self.greeting {
            greeting.heard += bytes;
            if greeting.heard >= GREETING_BYTES {
                self.greeting = None;
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_patience(cx)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.tcp).poll_read(cx, buffer))?;
        self.heard(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_patience(cx)?;
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_patience(cx)?;
        Pin::new(&mut self.tcp).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_patience(cx)?;
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// How many connections each address has open.
#[derive(Debug)]
struct Addresses {
    limit: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection's place among its address's; dropping it gives the place back.
#[derive(Debug)]
struct Place {
    address: IpAddr,
    addresses: Arc<Addresses>,
}

impl Addresses {
    fn enter(this: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut open = this.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        (*count < this.limit).then(|| {
            *count += 1;
            Place {
                address,
                addresses: this.clone(),
            }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self
            .addresses
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_stream::StreamExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    async fn listener(
        limits: NetworkLimits,
    ) -> (Listener, std::net::SocketAddr, CancellationToken) {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let cut = CancellationToken::new();
        (Listener::new(tcp, &limits, cut.clone()), address, cut)
    }

    #[tokio::test]
    async fn one_address_cannot_take_every_place_and_gives_it_back() {
        let limits = NetworkLimits {
            connections_per_address: 1,
            ..NetworkLimits::default()
        };
        let (mut listener, address, _cut) = listener(limits).await;
        let _first = TcpStream::connect(address).await.unwrap();
        let held = listener.next().await.unwrap().unwrap();
        let mut refused = TcpStream::connect(address).await.unwrap();
        let mut byte = [0];
        let accepting = async { listener.next().await.unwrap().unwrap() };
        let closed = async { refused.read(&mut byte).await };
        tokio::select! {
            _ = accepting => panic!("the second connection is over the limit"),
            read = tokio::time::timeout(PATIENCE, closed) => {
                assert!(matches!(read, Ok(Ok(0) | Err(_))));
            }
        }
        drop(held);
        let _third = TcpStream::connect(address).await.unwrap();
        tokio::time::timeout(PATIENCE, listener.next())
            .await
            .expect("its place is free again");
    }

    #[tokio::test]
    async fn a_peer_that_does_not_greet_in_time_ends() {
        let limits = NetworkLimits {
            handshake_timeout: Duration::from_millis(20),
            ..NetworkLimits::default()
        };
        let (mut listener, address, _cut) = listener(limits).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut served = listener.next().await.unwrap().unwrap();
        let read = tokio::time::timeout(PATIENCE, served.read(&mut [0; 64])).await;
        assert_eq!(read.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// Accepts a connection that has greeted, and gives the peer's end of it too.
    async fn greeted(
        listener: &mut Listener,
        address: std::net::SocketAddr,
    ) -> (Connection, TcpStream) {
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(&[7; 64]).await.unwrap();
        let mut served = listener.next().await.unwrap().unwrap();
        served.read_exact(&mut [0; 64]).await.unwrap();
        (served, peer)
    }

    async fn ended(mut served: Connection) -> io::ErrorKind {
        let read = tokio::time::timeout(PATIENCE, served.read(&mut [0; 64])).await;
        read.unwrap().unwrap_err().kind()
    }

    #[tokio::test]
    async fn a_stranger_goes_when_its_time_is_over_and_its_call_too_and_whoever_was_met_stays() {
        let limits = NetworkLimits {
            stranger_timeout: Duration::from_millis(100),
            ..NetworkLimits::default()
        };
        let (mut listener, address, _cut) = listener(limits).await;
        let (calling, _first) = greeted(&mut listener, address).await;
        let (mut met, mut second) = greeted(&mut listener, address).await;
        let call = calling.peer.calls();
        met.connect_info().is_met();
        let calling = tokio::spawn(ended(calling));
        // Its time is over after theirs.
        let (idle, _third) = greeted(&mut listener, address).await;
        assert_eq!(ended(idle).await, io::ErrorKind::TimedOut);
        second.write_all(&[7; 64]).await.unwrap();
        met.read_exact(&mut [0; 64]).await.unwrap();
        assert!(!calling.is_finished(), "it is in the middle of a call");
        drop(call);
        assert_eq!(calling.await.unwrap(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn cutting_ends_a_connection_that_waits_for_its_peer() {
        let (mut listener, address, cut) = listener(NetworkLimits::default()).await;
        let mut greeted = TcpStream::connect(address).await.unwrap();
        greeted.write_all(&[7; 64]).await.unwrap();
        let mut served = listener.next().await.unwrap().unwrap();
        served.read_exact(&mut [0; 64]).await.unwrap();
        cut.cancel();
        let read = tokio::time::timeout(PATIENCE, served.read(&mut [0; 64])).await;
        assert_eq!(
            read.unwrap().unwrap_err().kind(),
            io::ErrorKind::ConnectionAborted
        );
    }
}
