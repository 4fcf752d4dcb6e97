//! The daemon's end of a connection to a shim: starting a shim, or finding one that an earlier
//! daemon started, the handshake, and the messages in both directions. A shim that does not
//! read delays nothing: only the latest of each update is kept for it, so no queue builds up.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use baton_proto::worker::{
    Consumed, FromShim, Greeting, Launch, Lease, Presence, Refused, Stdin, Stop, ToShim, from_shim,
    to_shim,
};
use bytes::{Buf, BytesMut};
use rustix::fs::{Mode, OFlags};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::framing::{self, MessageDecoder};
use super::{HIGHEST_VERSION, LOWEST_VERSION, SHIM_ENVIRONMENT, SOCKET_FILE};
use crate::clock::BootTime;
use crate::process::{
    ATTEMPT_MARKER, DAEMON_MARKER, ProcessId, identify_child, identity_of, start_registered,
};

/// The size of one read. A shim's messages are short.
const READ_BYTES: usize = 4096;

/// The program that is started for each attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimProgram {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Its environment in addition to the allocator's settings. Nothing of the daemon's own:
    /// every agent can read its shim's environment.
    pub environment: Vec<(OsString, OsString)>,
}

impl ShimProgram {
    /// This executable, even if its file is replaced meanwhile. It must call
    /// [`super::run_if_requested`] first.
    pub fn own_executable() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            args: vec![super::SHIM_ARGUMENT.into()],
            environment: Vec::new(),
        }
    }
}

/// The owner of a shim, stored in its environment, so that the shim is found with all that it
/// started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShimMarkers<'a> {
    pub(crate) attempt_id: &'a str,
    pub(crate) daemon_id: &'a str,
}

/// Why the handshake with a shim failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("the shim supports only versions {0} to {1}")]
    Refused(u32, u32),
    #[error("the shim closed the connection")]
    Closed,
    #[error("the shim did not answer with its presence")]
    UnexpectedMessage,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A connection to one shim.
#[derive(Debug)]
pub(crate) struct ShimConnection {
    stream: UnixStream,
    incoming: MessageDecoder,
    outgoing: BytesMut,
    /// The shim does not read any more; what it sent may still be read.
    is_write_closed: bool,
    opening_messages: Vec<to_shim::Message>,
    /// Messages for the child. They come last: no renewal and no order waits for a child that
    /// does not read.
    stdin: Vec<Stdin>,
    /// The number of the last message for the child on this connection.
    last_stdin: u64,
    pending: PendingUpdates,
    /// The limit of the lease that is in `outgoing`.
    lease_in_flight: Option<BootTime>,
    /// Receives the limit of every lease that was sent, for a shim that does not confirm
    /// leases.
    lease_delivered: Option<watch::Sender<Option<BootTime>>>,
    shim: Option<ProcessId>,
    /// A shim that this process started. Dropping it leaves it running, and the runtime still
    /// reaps it.
    _child: Option<Child>,
}

/// Updates for the shim. Only the latest of each is sent.
#[derive(Debug, Default)]
struct PendingUpdates {
    lease: Option<Lease>,
    stop: Option<Stop>,
    consumed: Option<Consumed>,
}

/// Starts a shim in the attempt's directory. It inherits nothing of the daemon but the
/// connection.
pub(crate) fn start_shim(
    shim: &ShimProgram,
    directory: &Path,
    markers: ShimMarkers<'_>,
) -> io::Result<ShimConnection> {
    let (daemon_end, shim_end) = std::os::unix::net::UnixStream::pair()?;
    daemon_end.set_nonblocking(true)?;
    let mut command = Command::new(&shim.program);
    command
        .args(&shim.args)
        .arg(markers.attempt_id)
        .current_dir(directory)
        .env_clear()
        .envs(SHIM_ENVIRONMENT)
        .envs(shim.environment.iter().cloned())
        .env(ATTEMPT_MARKER, markers.attempt_id)
        .env(DAEMON_MARKER, markers.daemon_id)
        .stdin(OwnedFd::from(shim_end))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (child, id) = start_registered(|| {
        let child = command.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let id = identify_child(pid.ok_or(io::ErrorKind::NotFound)?)?;
        Ok::<_, io::Error>((id, (child, id)))
    })?;
    let stream = UnixStream::from_std(daemon_end)?;
    Ok(ShimConnection::new(stream, Some(id), Some(child)))
}

/// Connects to the shim that listens in this directory. Through a file descriptor, because a
/// path may be too long for a socket.
pub(crate) async fn connect_to_shim(directory: &Path) -> io::Result<ShimConnection> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let socket = format!("/proc/self/fd/{}/{SOCKET_FILE}", directory.as_raw_fd());
    let stream = UnixStream::connect(socket).await?;
    let shim = stream.peer_cred()?.pid().and_then(identity_of);
    Ok(ShimConnection::new(stream, shim, None))
}

impl ShimConnection {
    fn new(stream: UnixStream, shim: Option<ProcessId>, child: Option<Child>) -> Self {
        Self {
            stream,
            incoming: MessageDecoder::default(),
            outgoing: BytesMut::new(),
            is_write_closed: false,
            opening_messages: Vec::new(),
            stdin: Vec::new(),
            last_stdin: 0,
            pending: PendingUpdates::default(),
            lease_in_flight: None,
            lease_delivered: None,
            shim,
            _child: child,
        }
    }

    /// The process at the other end.
    pub(crate) fn shim(&self) -> Option<ProcessId> {
        self.shim
    }

    /// The handshake. The caller sets the time limit.
    pub(crate) async fn handshake(
        &mut self,
        instance_id: &str,
    ) -> Result<Presence, HandshakeError> {
        self.opening_messages
            .push(to_shim::Message::Greeting(greeting(instance_id)));
        match self.next().await? {
            Some(from_shim::Message::Presence(presence)) => Ok(presence),
            Some(from_shim::Message::Refused(Refused {
                lowest_version,
                highest_version,
            })) => Err(HandshakeError::Refused(lowest_version, highest_version)),
            Some(_) => Err(HandshakeError::UnexpectedMessage),
            None => Err(HandshakeError::Closed),
        }
    }

    /// Queues everything that a new shim needs at once, so that it has the prompt before it
    /// starts the child.
    pub(crate) fn launch(&mut self, instance_id: &str, prompt: Stdin, launch: Launch) {
        self.lease_in_flight = launch
            .lease
            .map(|lease| BootTime::from_millis(lease.limit_ms));
        self.last_stdin = prompt.id;
        self.opening_messages.extend([
            to_shim::Message::Greeting(greeting(instance_id)),
            to_shim::Message::Stdin(prompt),
            to_shim::Message::Launch(launch),
        ]);
    }

    /// Queues one more message for the child, in order.
    pub(crate) fn push_stdin(&mut self, message: Stdin) {
        if message.id > self.last_stdin {
            self.last_stdin = message.id;
            self.stdin.push(message);
        }
    }

    pub(crate) fn renew(&mut self, lease: Lease) {
        self.pending.lease = Some(lease);
    }

    pub(crate) fn order_stop(&mut self, stop: Stop) {
        self.pending.stop = Some(stop);
    }

    pub(crate) fn set_consumed(&mut self, position: u64) {
        self.pending.consumed = Some(Consumed { position });
    }

    /// Where the limits of sent leases are reported, for a shim that does not confirm leases.
    pub(crate) fn watch_lease_delivery(&mut self, delivered: watch::Sender<Option<BootTime>>) {
        self.lease_delivered = Some(delivered);
    }

    /// Sends what is due and returns the shim's next message; `None` when it has closed. Cancel
    /// safe.
    pub(crate) async fn next(&mut self) -> io::Result<Option<from_shim::Message>> {
        loop {
            if let Some(message) = self.decode()? {
                return Ok(Some(message));
            }
            self.encode_pending()?;
            let mut interest = Interest::READABLE;
            if !self.outgoing.is_empty() {
                interest |= Interest::WRITABLE;
            }
            let ready = self.stream.ready(interest).await?;
            if ready.is_writable() {
                self.write();
            }
            if ready.is_readable() && self.read()? == Some(0) {
                return Ok(None);
            }
        }
    }

    /// A message of a later version is ignored.
    fn decode(&mut self) -> io::Result<Option<from_shim::Message>> {
        while let Some(message) = self
            .incoming
            .next_message::<FromShim>()
            .map_err(io::Error::other)?
        {
            if message.message.is_some() {
                return Ok(message.message);
            }
        }
        Ok(None)
    }

    fn encode_pending(&mut self) -> io::Result<()> {
        if self.is_write_closed || !self.outgoing.is_empty() {
            return Ok(());
        }
        let due = std::mem::take(&mut self.pending);
        if let Some(lease) = &due.lease {
            self.lease_in_flight = Some(BootTime::from_millis(lease.limit_ms));
        }
        let due = [
            due.lease.map(to_shim::Message::Lease),
            due.stop.map(to_shim::Message::Stop),
            due.consumed.map(to_shim::Message::Consumed),
        ];
        let stdin = self.stdin.drain(..).map(to_shim::Message::Stdin);
        let due = due.into_iter().flatten().chain(stdin);
        for message in self.opening_messages.drain(..).chain(due) {
            let message = ToShim {
                message: Some(message),
            };
            framing::encode(&message, &mut self.outgoing).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn write(&mut self) {
        match self.stream.try_write(&self.outgoing) {
            Ok(length) => self.outgoing.advance(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Its last messages may still be readable.
            Err(_) => {
                self.is_write_closed = true;
                self.outgoing.clear();
                self.lease_in_flight = None;
            }
        }
        if self.outgoing.is_empty()
            && let Some(limit) = self.lease_in_flight.take()
            && let Some(delivered) = &self.lease_delivered
        {
            delivered.send_replace(Some(limit));
        }
    }

    /// The number of bytes that were read; `None` when there was nothing to read.
    fn read(&mut self) -> io::Result<Option<usize>> {
        let buffer = self.incoming.buffer();
        buffer.reserve(READ_BYTES);
        match self.stream.try_read_buf(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // A shim that died with unread messages resets the connection.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }
}

fn greeting(instance_id: &str) -> Greeting {
    Greeting {
        lowest_version: LOWEST_VERSION,
        highest_version: HIGHEST_VERSION,
        instance_id: instance_id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn renewals_and_orders_are_sent_before_stdin() {
        let (daemon_end, _theirs) = UnixStream::pair().unwrap();
        let mut connection = ShimConnection::new(daemon_end, None, None);
        connection.push_stdin(Stdin {
            id: 1,
            ..Stdin::default()
        });
        connection.order_stop(Stop::default());
        connection.renew(Lease::default());
        connection.encode_pending().unwrap();
        let mut decoder = MessageDecoder::default();
        decoder.buffer().extend_from_slice(&connection.outgoing);
        let sent = std::iter::from_fn(|| decoder.next_message::<ToShim>().unwrap()?.message);
        let sent: Vec<_> = sent.collect();
        use to_shim::Message;
        assert!(
            matches!(
                sent[..],
                [Message::Lease(_), Message::Stop(_), Message::Stdin(_)]
            ),
            "{sent:?}"
        );
    }
}
