//! Accepts connections under limits that tonic does not have, and can cut them all at the end
//! of a drain.
//!
//! A refused connection is closed at once without a byte. A peer that sends no HTTP/2 preface
//! in time is cut, because HTTP/2 keepalive begins only after the preface. A peer that sends no
//! credential in time is cut as soon as it has no call open: answering pings must not be enough
//! to occupy a connection.

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

use crate::auth::ConnectionPeer;
use crate::config::NetworkLimits;

/// Size of the HTTP/2 preface and an empty SETTINGS frame. TLS sends more than that in its
/// first flight.
const PREFACE_BYTES: usize = 24 + 9;

/// Pause after a failed accept. A process without free file descriptors would otherwise spin.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Time to send the rest of an answer after its call has ended.
const LAST_ANSWER_TIME: Duration = Duration::from_secs(1);

/// A stream of admitted connections. It never ends; tonic drops it to stop accepting, which
/// closes the socket.
#[derive(Debug)]
pub(super) struct ConnectionListener {
    tcp: TcpListener,
    slots: Arc<Semaphore>,
    addresses: Arc<AddressLimits>,
    preface_timeout: Duration,
    credential_timeout: Duration,
    cut: CancellationToken,
    pause: Option<Pin<Box<Sleep>>>,
}

impl ConnectionListener {
    /// Cancelling `cut` fails every read and write of every connection of this listener.
    pub(super) fn new(tcp: TcpListener, limits: &NetworkLimits, cut: CancellationToken) -> Self {
        Self {
            tcp,
            slots: Arc::new(Semaphore::new(limits.connections)),
            addresses: Arc::new(AddressLimits {
                limit: limits.connections_per_address,
                open_connections: Mutex::default(),
            }),
            preface_timeout: limits.handshake_timeout,
            credential_timeout: limits.credential_timeout,
            cut,
            pause: None,
        }
    }

    fn admit(&self, tcp: TcpStream, address: IpAddr) -> Option<PeerConnection> {
        let slot = self.slots.clone().try_acquire_owned().ok()?;
        let address_permit = AddressLimits::acquire(&self.addresses, address)?;
        // Without nodelay, small frames would wait for the peer's delayed TCP acknowledgement.
        tcp.set_nodelay(true).ok()?;
        Some(PeerConnection {
            tcp,
            preface: Some(PrefaceProgress {
                received: 0,
                deadline: Box::pin(tokio::time::sleep(self.preface_timeout)),
            }),
            peer: ConnectionPeer::default(),
            unauthenticated: Some(UnauthenticatedPeer {
                until: Box::pin(tokio::time::sleep(self.credential_timeout)),
                close_moment: CloseMoment::WhenIdle,
            }),
            cut: Box::pin(self.cut.clone().cancelled_owned()),
            _slot: slot,
            _address_permit: address_permit,
        })
    }
}

impl Stream for ConnectionListener {
    type Item = io::Result<PeerConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.tcp.poll_accept(cx)) {
                Ok((tcp, peer)) => match self.admit(tcp, peer.ip()) {
                    Some(connection) => return Poll::Ready(Some(Ok(connection))),
                    None => debug!(%peer, "connection refused: too many open connections"),
                },
                Err(error) => {
                    warn!(%error, "could not accept a connection");
                    self.pause = Some(Box::pin(tokio::time::sleep(EXHAUSTED_PAUSE)));
                }
            }
        }
    }
}

/// One peer's connection. Dropping it frees its slot and its permit of the address.
#[derive(Debug)]
pub(super) struct PeerConnection {
    tcp: TcpStream,
    preface: Option<PrefaceProgress>,
    peer: ConnectionPeer,
    /// `None` once the peer has authenticated.
    unauthenticated: Option<UnauthenticatedPeer>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _slot: OwnedSemaphorePermit,
    _address_permit: AddressPermit,
}

/// Bytes received of the peer's HTTP/2 preface, and its deadline.
#[derive(Debug)]
struct PrefaceProgress {
    received: usize,
    deadline: Pin<Box<Sleep>>,
}

/// How long the connection may stay without a credential, and how it ends then.
#[derive(Debug)]
struct UnauthenticatedPeer {
    until: Pin<Box<Sleep>>,
    close_moment: CloseMoment,
}

/// When to close an unauthenticated connection whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseMoment {
    WhenIdle,
    /// A call was open at that time. After its end the answer has `LAST_ANSWER_TIME` to be
    /// sent; this is granted once.
    AfterCall,
    Now,
}

impl UnauthenticatedPeer {
    fn poll_expired(&mut self, peer: &ConnectionPeer, cx: &mut Context<'_>) -> Poll<()> {
        if !self.until.is_elapsed() {
            ready!(self.until.as_mut().poll(cx));
        }
        if peer.poll_idle(cx).is_pending() {
            if self.close_moment == CloseMoment::WhenIdle {
                self.close_moment = CloseMoment::AfterCall;
            }
            return Poll::Pending;
        }
        if self.close_moment != CloseMoment::AfterCall {
            return Poll::Ready(());
        }
        self.close_moment = CloseMoment::Now;
        self.until = Box::pin(tokio::time::sleep(LAST_ANSWER_TIME));
        self.until.as_mut().poll(cx)
    }
}

impl PeerConnection {
    /// Polls all timeouts of the connection. An error ends it.
    fn poll_timeouts(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the relay has stopped",
            ));
        }
        if let Some(preface) = &mut self.preface
            && preface.deadline.as_mut().poll(cx).is_ready()
        {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer sent no HTTP/2 preface in time",
            ));
        }
        self.poll_unauthenticated(cx)
    }

    fn poll_unauthenticated(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(unauthenticated) = &mut self.unauthenticated else {
            return Ok(());
        };
        if self.peer.is_authenticated() {
            self.unauthenticated = None;
        } else if unauthenticated.poll_expired(&self.peer, cx).is_ready() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer sent no valid credential in time",
            ));
        }
        Ok(())
    }

    fn count_received(&mut self, bytes: usize) {
        if let Some(preface) = &mut self.preface {
            preface.received += bytes;
            if preface.received >= PREFACE_BYTES {
                self.preface = None;
            }
        }
    }
}

impl AsyncRead for PeerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_timeouts(cx)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.tcp).poll_read(cx, buffer))?;
        self.count_received(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PeerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_timeouts(cx)?;
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_timeouts(cx)?;
        Pin::new(&mut self.tcp).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_timeouts(cx)?;
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

impl Connected for PeerConnection {
    type ConnectInfo = ConnectionPeer;

    fn connect_info(&self) -> ConnectionPeer {
        self.peer.clone()
    }
}

/// Number of open connections of each address, and their limit.
#[derive(Debug)]
struct AddressLimits {
    limit: usize,
    open_connections: Mutex<HashMap<IpAddr, usize>>,
}

/// Counts one open connection of an address. Dropping it frees the place.
#[derive(Debug)]
struct AddressPermit {
    address: IpAddr,
    addresses: Arc<AddressLimits>,
}

impl AddressLimits {
    fn acquire(this: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let mut open = this
            .open_connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        (*count < this.limit).then(|| {
            *count += 1;
            AddressPermit {
                address,
                addresses: this.clone(),
            }
        })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut open = self
            .addresses
            .open_connections
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

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    async fn listener(
        limits: NetworkLimits,
    ) -> (ConnectionListener, std::net::SocketAddr, CancellationToken) {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let cut = CancellationToken::new();
        (
            ConnectionListener::new(tcp, &limits, cut.clone()),
            address,
            cut,
        )
    }

    #[tokio::test]
    async fn connections_per_address_are_limited_and_freed_on_close() {
        let limits = NetworkLimits {
            connections_per_address: 1,
            ..NetworkLimits::default()
        };
        let (mut listener, address, _cut) = listener(limits).await;
        let _first = TcpStream::connect(address).await.unwrap();
        let served = listener.next().await.unwrap().unwrap();
        let mut refused = TcpStream::connect(address).await.unwrap();
        let mut byte = [0];
        let accepting = async { listener.next().await.unwrap().unwrap() };
        let closed = async { refused.read(&mut byte).await };
        tokio::select! {
            _ = accepting => panic!("the second connection is over the limit"),
            read = tokio::time::timeout(TEST_TIMEOUT, closed) => {
                assert!(matches!(read, Ok(Ok(0) | Err(_))));
            }
        }
        drop(served);
        let _third = TcpStream::connect(address).await.unwrap();
        tokio::time::timeout(TEST_TIMEOUT, listener.next())
            .await
            .expect("the place of the dropped connection is free again");
    }

    #[tokio::test]
    async fn a_peer_without_a_preface_is_cut_in_time() {
        let limits = NetworkLimits {
            handshake_timeout: Duration::from_millis(20),
            ..NetworkLimits::default()
        };
        let (mut listener, address, _cut) = listener(limits).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut served = listener.next().await.unwrap().unwrap();
        let read = tokio::time::timeout(TEST_TIMEOUT, served.read(&mut [0; 64])).await;
        assert_eq!(read.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// Accepts a connection that has sent its preface. Returns both ends.
    async fn connected_pair(
        listener: &mut ConnectionListener,
        address: std::net::SocketAddr,
    ) -> (PeerConnection, TcpStream) {
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(&[7; 64]).await.unwrap();
        let mut served = listener.next().await.unwrap().unwrap();
        served.read_exact(&mut [0; 64]).await.unwrap();
        (served, peer)
    }

    async fn ended(mut served: PeerConnection) -> io::ErrorKind {
        let read = tokio::time::timeout(TEST_TIMEOUT, served.read(&mut [0; 64])).await;
        read.unwrap().unwrap_err().kind()
    }

    #[tokio::test]
    async fn an_unauthenticated_peer_is_cut_after_its_timeout_and_its_call() {
        let limits = NetworkLimits {
            credential_timeout: Duration::from_millis(100),
            ..NetworkLimits::default()
        };
        let (mut listener, address, _cut) = listener(limits).await;
        let (calling, _first) = connected_pair(&mut listener, address).await;
        let (mut authenticated, mut second) = connected_pair(&mut listener, address).await;
        let call = calling.peer.begin_call();
        authenticated.connect_info().mark_authenticated();
        let calling = tokio::spawn(ended(calling));
        // Connected last, so its credential timeout expires after those of the others.
        let (idle, _third) = connected_pair(&mut listener, address).await;
        assert_eq!(ended(idle).await, io::ErrorKind::TimedOut);
        second.write_all(&[7; 64]).await.unwrap();
        authenticated.read_exact(&mut [0; 64]).await.unwrap();
        assert!(!calling.is_finished(), "its call is still open");
        drop(call);
        assert_eq!(calling.await.unwrap(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_cut_ends_a_connection_that_waits_for_its_peer() {
        let (mut listener, address, cut) = listener(NetworkLimits::default()).await;
        let mut greeted = TcpStream::connect(address).await.unwrap();
        greeted.write_all(&[7; 64]).await.unwrap();
        let mut served = listener.next().await.unwrap().unwrap();
        served.read_exact(&mut [0; 64]).await.unwrap();
        cut.cancel();
        let read = tokio::time::timeout(TEST_TIMEOUT, served.read(&mut [0; 64])).await;
        assert_eq!(
            read.unwrap().unwrap_err().kind(),
            io::ErrorKind::ConnectionAborted
        );
    }
}
