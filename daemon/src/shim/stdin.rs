//! What the child is given on its standard input: whole messages in their order, each at most once, whoever sends
//! them and however often.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use baton_proto::worker::{Stdin, StdinDone};
use bytes::Buf;
use rustix::io::Errno;

use super::STDIN_WAITING as WAITING;

#[derive(Debug, Default)]
pub(super) struct StdinQueue {
    pipe: Pipe,
    queue: VecDeque<Stdin>,
    /// Highest id that was ever taken; it is never taken again.
    taken: u64,
    done: u64,
    refused: bool,
    /// The child is being ended: stdin stays open, so that half a message is not taken for a whole one.
    stopped: bool,
}

#[derive(Debug, Default)]
enum Pipe {
    /// There is no child yet; what comes is kept for it.
    #[default]
    NotYet,
    Open(OwnedFd),
    Closed,
}

/// More waits than may.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuch;

impl StdinQueue {
    /// The child runs. `pipe` must not block.
    pub(super) fn attach(&mut self, pipe: OwnedFd) {
        self.pipe = Pipe::Open(pipe);
    }

    /// One that was taken before is ignored.
    pub(super) fn take(&mut self, message: Stdin) -> Result<(), TooMuch> {
        if message.id <= self.taken {
            return Ok(());
        }
        let waiting: usize = self.queue.iter().map(|message| message.data.len()).sum();
        if !self.queue.is_empty() && waiting + message.data.len() > WAITING {
            return Err(TooMuch);
        }
        self.taken = message.id;
        self.queue.push_back(message);
        Ok(())
    }

    /// Writes what the pipe takes. True when a message was done by it.
    pub(super) fn write(&mut self) -> bool {
        let before = self.done;
        while !self.stopped
            && let Some(message) = self.queue.front_mut()
        {
            let written = match &self.pipe {
                Pipe::NotYet => break,
                Pipe::Open(_) if message.data.is_empty() => Ok(0),
                Pipe::Open(pipe) => rustix::io::write(pipe, &message.data),
                Pipe::Closed => Err(Errno::PIPE),
            };
            match written {
                Ok(length) => message.data.advance(length),
                Err(Errno::AGAIN | Errno::INTR) => break,
                // A closed pipe is the child's right; any other error ends the writing all the same.
                Err(_) => {
                    self.refuse();
                    break;
                }
            }
            if message.data.is_empty() {
                self.finish();
            }
        }
        self.done > before
    }

    /// No more is written.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// The pipe, when there is something to write to it.
    pub(super) fn wants_write(&self) -> Option<BorrowedFd<'_>> {
        match &self.pipe {
            Pipe::Open(pipe) if !self.stopped && !self.queue.is_empty() => Some(pipe.as_fd()),
            Pipe::NotYet | Pipe::Open(_) | Pipe::Closed => None,
        }
    }

    pub(super) fn done(&self) -> StdinDone {
        StdinDone {
            id: self.done,
            refused: self.refused,
        }
    }

    fn finish(&mut self) {
        if let Some(message) = self.queue.pop_front() {
            self.done = message.id;
            if message.close {
                self.pipe = Pipe::Closed;
            }
        }
    }

    fn refuse(&mut self) {
        self.pipe = Pipe::Closed;
        self.refused = true;
        self.done = self.taken;
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
        queue.take(message(1, b"one ", false)).unwrap();
        queue.take(message(1, b"one ", false)).unwrap();
        assert!(queue.write());
        queue.take(message(1, b"one ", false)).unwrap();
        queue.take(message(2, b"two", true)).unwrap();
        assert!(queue.write() && queue.wants_write().is_none());
        assert_eq!(read(&reader), b"one two");
        assert_eq!(rustix::io::read(&reader, &mut [0]), Ok(0), "closed");
        assert_eq!((queue.done().id, queue.done().refused), (2, false));
        queue.take(message(3, b"late", false)).unwrap();
        assert!(queue.write());
        assert_eq!((queue.done().id, queue.done().refused), (3, true));
    }

    #[test]
    fn what_comes_before_the_child_is_kept_for_it() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let mut queue = StdinQueue::default();
        queue.take(message(1, b"early", true)).unwrap();
        assert!(!queue.write() && queue.wants_write().is_none());
        queue.attach(writer);
        assert!(queue.write());
        assert_eq!(read(&reader), b"early");
    }

    #[test]
    fn a_full_pipe_is_waited_for_and_too_much_is_refused() {
        let (reader, mut queue) = queue();
        let large = Bytes::from(vec![1; WAITING]);
        let first = Stdin {
            id: 1,
            data: large.clone(),
            close: false,
        };
        queue.take(first).unwrap();
        assert!(!queue.write() && queue.wants_write().is_some());
        let second = Stdin {
            id: 2,
            data: large,
            close: false,
        };
        assert_eq!(queue.take(second), Err(TooMuch));
        let mut total = 0;
        while !queue.write() {
            total += read(&reader).len();
        }
        total += read(&reader).len();
        assert_eq!((total, queue.done().id), (WAITING, 1));
    }

    #[test]
    fn a_child_that_closed_its_stdin_refuses_and_one_that_is_being_ended_gets_no_more() {
        let (reader, mut queue) = queue();
        drop(reader);
        queue.take(message(1, b"x", false)).unwrap();
        assert!(queue.write());
        assert_eq!((queue.done().id, queue.done().refused), (1, true));
        let (_reader, mut queue) = self::queue();
        queue.stop();
        queue.take(message(1, b"x", false)).unwrap();
        assert!(!queue.write() && queue.wants_write().is_none());
    }
}
