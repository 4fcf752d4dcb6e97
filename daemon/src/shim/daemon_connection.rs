//! One connection of a daemon: its decoder, its pending notices, and its outgoing bytes. A
//! daemon that does not read costs only a few messages: pending notices are kept as facts, and
//! sent when there is room.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use baton_proto::worker::{FromShim, ToShim};
use bytes::{Buf, BytesMut};

use super::framing::{MessageDecoder, encode};
use crate::clock::BootTime;

/// The size of one read.
const READ_BYTES: usize = 16 * 1024;

/// What still has to be sent to the daemon, in the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PendingNotice {
    Presence,
    Started,
    StdinDone,
    SpoolFailed,
    LeaseKept,
    Grown,
}

#[derive(Debug)]
pub(super) struct DaemonConnection {
    stream: UnixStream,
    decoder: MessageDecoder,
    outgoing: BytesMut,
    pending: BTreeSet<PendingNotice>,
    /// The daemon does not read any more. Its last messages may still be readable, and count.
    is_write_closed: bool,
    /// When the connection was made.
    pub(super) connected_at: BootTime,
    /// The common version, once it is known.
    pub(super) version: u32,
}

/// The daemon has closed the connection, or does not follow the protocol.
#[derive(Debug)]
pub(super) struct ConnectionClosed;

impl DaemonConnection {
    pub(super) fn new(stream: UnixStream, now: BootTime) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            decoder: MessageDecoder::default(),
            outgoing: BytesMut::new(),
            pending: BTreeSet::new(),
            is_write_closed: false,
            connected_at: now,
            version: 0,
        })
    }

    /// The next message, if there is one by now; reads only when none is complete already.
    pub(super) fn read_message(&mut self) -> Result<Option<ToShim>, ConnectionClosed> {
        loop {
            if let Some(message) = self.decoder.next_message().map_err(|_| ConnectionClosed)? {
                return Ok(Some(message));
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ConnectionClosed),
                Ok(length) => self.decoder.feed(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ConnectionClosed),
            }
        }
    }

    pub(super) fn queue_notice(&mut self, what: PendingNotice) {
        self.pending.insert(what);
    }

    /// The next notice to send; `None` while earlier messages are still being sent.
    pub(super) fn next_notice(&mut self) -> Option<PendingNotice> {
        if self.outgoing.is_empty() && !self.is_write_closed {
            self.pending.pop_first()
        } else {
            None
        }
    }

    /// Queues a message after those that are being sent. The shim's own messages are never too
    /// long.
    pub(super) fn push_message(&mut self, message: &FromShim) {
        if encode(message, &mut self.outgoing).is_err() {
            debug_assert!(false, "the shim's own messages are short");
        }
    }

    /// Sends what the connection accepts.
    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(length) => self.outgoing.advance(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.is_write_closed = true;
                    self.outgoing.clear();
                }
            }
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
