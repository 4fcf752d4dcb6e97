//! The child's stdin: complete messages in their order, each at most once, whichever daemon
//! sends them and however often.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use baton_proto::worker::{Stdin, StdinDone};
use bytes::Buf;
use rustix::io::Errno;

use super::STDIN_QUEUE_BYTES_MAX as WAITING;

#[derive(Debug, Default)]
pub(super) struct StdinQueue {
    pipe: StdinPipe,
    queue: VecDeque<Stdin>,
    /// The highest id that was ever accepted; it is never accepted again.
    last_taken_id: u64,
    last_done_id: u64,
    refused: bool,
    /// The child is being ended: stdin stays open, so that half a message is not taken for a
    /// whole one.
    stopped: bool,
}

#[derive(Debug, Default)]
enum StdinPipe {
    /// There is no child yet; messages are kept for it.
    #[default]
    NotAttached,
    Open(OwnedFd),
    Closed,
}

/// More bytes wait than are allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StdinQueueFull;

impl StdinQueue {
    /// The child runs. `pipe` must not block.
    pub(super) fn attach(&mut self, pipe: OwnedFd) {
        self.pipe = StdinPipe::Open(pipe);
    }

    /// A message that was accepted before is ignored.
    pub(super) fn push(&mut self, message: Stdin) -> Result<(), StdinQueueFull> {
        if message.id <= self.last_taken_id {
            return Ok(());
        }
        let waiting: usize = self.queue.iter().map(|message| message.data.len()).sum();
        if !self.queue.is_empty() && waiting + message.data.len() > WAITING {
            return Err(StdinQueueFull);
        }
        self.last_taken_id = message.id;
        self.queue.push_back(message);
        Ok(())
    }

    /// Writes what the pipe accepts. True when a message was completed.
    pub(super) fn write_pending(&mut self) -> bool {
        let before = self.last_done_id;
        while !self.stopped
            && let Some(message) = self.queue.front_mut()
        {
            let written = match &self.pipe {
                StdinPipe::NotAttached => break,
                StdinPipe::Open(_) if message.data.is_empty() => Ok(0),
                StdinPipe::Open(pipe) => rustix::io::write(pipe, &message.data),
                StdinPipe::Closed => Err(Errno::PIPE),
            };
            match written {
                Ok(length) => message.data.advance(length),
                Err(Errno::AGAIN | Errno::INTR) => break,
                // The child may close its stdin; any other error ends the writing too.
                Err(_) => {
                    self.close_refused();
                    break;
                }
            }
            if message.data.is_empty() {
                self.finish_message();
            }
        }
        self.last_done_id > before
    }

    /// Nothing more is written.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// The pipe, when there is something to write to it.
    pub(super) fn writable_pipe(&self) -> Option<BorrowedFd<'_>> {
        match &self.pipe {
            StdinPipe::Open(pipe) if !self.stopped && !self.queue.is_empty() => Some(pipe.as_fd()),
            StdinPipe::NotAttached | StdinPipe::Open(_) | StdinPipe::Closed => None,
        }
    }

    pub(super) fn done(&self) -> StdinDone {
        StdinDone {
            id: self.last_done_id,
            refused: self.refused,
        }
    }

    fn finish_message(&mut self) {
        if let Some(message) = self.queue.pop_front() {
            self.last_done_id = message.id;
            if message.close {
                self.pipe = StdinPipe::Closed;
            }
        }
    }

    fn close_refused(&mut self) {
        self.pipe = StdinPipe::Closed;
        self.refused = true;
        self.last_done_id = self.last_taken_id;
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn queue() -> (OwnedFd, StdinQueue) {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let mut queue = StdinQueue::default();
        queue.attach(writer);
        (reader, queue)
    }

    fn message(id: u64, data: &'static [u8], close: bool) -> Stdin {
        let data = Bytes::from_static(data);
        Stdin { id, data, close }
    }

    fn read(pipe: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; 128 * 1024];
        match rustix::io::read(pipe, &mut bytes) {
            Ok(length) => bytes.truncate(length),
            Err(_) => bytes.clear(),
        }
        bytes
    }

    #[test]
    fn each_id_is_written_once_in_order_and_close_comes_after_its_message() {
        let (reader, mut queue) = queue();
        queue.push(message(1, b"one ", false)).unwrap();
        queue.push(message(1, b"one ", false)).unwrap();
        assert!(queue.write_pending());
        queue.push(message(1, b"one ", false)).unwrap();
        queue.push(message(2, b"two", true)).unwrap();
        assert!(queue.write_pending() && queue.writable_pipe().is_none());
        assert_eq!(read(&reader), b"one two");
        assert_eq!(rustix::io::read(&reader, &mut [0]), Ok(0), "closed");
        assert_eq!((queue.done().id, queue.done().refused), (2, false));
        queue.push(message(3, b"late", false)).unwrap();
        assert!(queue.write_pending());
        assert_eq!((queue.done().id, queue.done().refused), (3, true));
    }

    #[test]
    fn messages_before_the_child_starts_are_kept_for_it() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let mut queue = StdinQueue::default();
        queue.push(message(1, b"early", true)).unwrap();
        assert!(!queue.write_pending() && queue.writable_pipe().is_none());
        queue.attach(writer);
        assert!(queue.write_pending());
        assert_eq!(read(&reader), b"early");
    }

    #[test]
    fn writing_waits_for_a_full_pipe_and_too_much_is_refused() {
        let (reader, mut queue) = queue();
        let large = Bytes::from(vec![1; WAITING]);
        let first = Stdin {
            id: 1,
            data: large.clone(),
            close: false,
        };
        queue.push(first).unwrap();
        assert!(!queue.write_pending() && queue.writable_pipe().is_some());
        let second = Stdin {
            id: 2,
            data: large,
            close: false,
        };
        assert_eq!(queue.push(second), Err(StdinQueueFull));
        let mut total = 0;
        while !queue.write_pending() {
            total += read(&reader).len();
        }
        total += read(&reader).len();
        assert_eq!((total, queue.done().id), (WAITING, 1));
    }

    #[test]
    fn a_closed_or_stopped_stdin_gets_nothing_more() {
        let (reader, mut queue) = queue();
        drop(reader);
        queue.push(message(1, b"x", false)).unwrap();
        assert!(queue.write_pending());
        assert_eq!((queue.done().id, queue.done().refused), (1, true));
        let (_reader, mut queue) = self::queue();
        queue.stop();
        queue.push(message(1, b"x", false)).unwrap();
        assert!(!queue.write_pending() && queue.writable_pipe().is_none());
    }
}
