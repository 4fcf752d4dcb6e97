//! One connection of a daemon: what came in, what is owed, what is on its way out. A daemon that does not read costs a
//! few messages and never more: what is owed is kept as facts, and said when there is room.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use baton_proto::worker::{FromShim, ToShim};
use bytes::{Buf, BytesMut};

use super::framing::{Decoder, encode};
use crate::clock::Moment;

/// One read of a connection.
const READ: usize = 16 * 1024;

/// What the daemon has yet to be told, in the order of telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owed {
    Presence,
    Started,
    StdinDone,
    SpoolFailed,
    LeaseKept,
    Grown,
}

#[derive(Debug)]
pub(super) struct Peer {
    stream: UnixStream,
    decoder: Decoder,
    out: BytesMut,
    owed: BTreeSet<Owed>,
    /// It reads no more. What it said last may still be there to hear, and counts.
    deaf: bool,
    /// When it came.
    pub(super) since: Moment,
    /// What both speak, once that is known.
    pub(super) version: u32,
}

/// The daemon has gone away, or speaks something else.
#[derive(Debug)]
pub(super) struct Gone;

impl Peer {
    pub(super) fn new(stream: UnixStream, now: Moment) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            decoder: Decoder::default(),
            out: BytesMut::new(),
            owed: BTreeSet::new(),
            deaf: false,
            since: now,
            version: 0,
        })
    }

    /// The next message, if there is one by now; reads only when none is whole already.
    pub(super) fn hear(&mut self) -> Result<Option<ToShim>, Gone> {
        loop {
            if let Some(message) = self.decoder.take().map_err(|_| Gone)? {
                return Ok(Some(message));
            }
            let mut bytes = [0; READ];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Gone),
                Ok(length) => self.decoder.feed(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
    }

    pub(super) fn owe(&mut self, what: Owed) {
        self.owed.insert(what);
    }

    /// What can be said now: nothing while earlier words are still on their way.
    pub(super) fn due(&mut self) -> Option<Owed> {
        if self.out.is_empty() && !self.deaf {
            self.owed.pop_first()
        } else {
            None
        }
    }

    /// Says it, behind what is on its way. A message that is too long to be sent is not ours.
    pub(super) fn say(&mut self, message: &FromShim) {
        if encode(message, &mut self.out).is_err() {
            debug_assert!(false, "the shim's own messages are short");
        }
    }

    /// Sends what the connection takes.
    pub(super) fn flush(&mut self) {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(length) => self.out.advance(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.deaf = true;
                    self.out.clear();
                }
            }
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.out.is_empty()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
