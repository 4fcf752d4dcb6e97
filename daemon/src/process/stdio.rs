//! The child's three pipes in one place: the prompt is written while output is read, stdin is closed
//! after it, and a child that never reads is no error. Bytes are passed on as they are. Nothing here
//! decides that the attempt is over: a pipe may stay open long after its process is gone.

use std::collections::VecDeque;
use std::io;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use crate::outbox::OutputKind;

/// One read; also what a pipe holds at most.
const READ: usize = 64 * 1024;
/// What is kept of standard error for the failure report.
const TAIL: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) enum PipeEvent {
    /// The whole prompt is in the pipe and stdin is closed.
    PromptWritten,
    /// The child closed its stdin before it had all of the prompt.
    PromptRefused,
    /// `length` bytes are at the front of [`Pipes::read_buffer`].
    Output { kind: OutputKind, length: usize },
    /// Both output pipes are at their end.
    Drained,
}

#[derive(Debug)]
pub(crate) struct Pipes {
    stdin: Option<ChildStdin>,
    prompt: Bytes,
    /// Off on the way out: stdin stays open, so that half a prompt is not taken for a whole one.
    writing: bool,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    out_buffer: Box<[u8]>,
    err_buffer: Box<[u8]>,
    tail: VecDeque<u8>,
}

impl Pipes {
    pub(crate) fn take(child: &mut Child, prompt: Bytes) -> Self {
        Self {
            stdin: child.stdin.take(),
            prompt,
            writing: true,
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            out_buffer: vec![0; READ].into_boxed_slice(),
            err_buffer: vec![0; READ].into_boxed_slice(),
            tail: VecDeque::new(),
        }
    }

    /// The next thing that happens on a pipe. With `reading` off, output stays in the pipe and the
    /// child is held back. Pending for ever once everything has ended. Cancel safe: each branch is one
    /// single read or write.
    pub(crate) async fn next(&mut self, reading: bool) -> PipeEvent {
        loop {
            let had_output = self.stdout.is_some() || self.stderr.is_some();
            tokio::select! {
                // The prompt first: it is what the output answers.
                biased;
                written = write_some(&mut self.stdin, &self.prompt),
                    if self.writing && self.stdin.is_some() =>
                {
                    if let Some(event) = self.on_write(written) {
                        return event;
                    }
                }
                (kind, length) = read_either(
                    (&mut self.stdout, &mut self.out_buffer),
                    (&mut self.stderr, &mut self.err_buffer),
                ), if reading && had_output =>
                {
                    if let Some(length) = length {
                        self.remember_tail(kind, length);
                        return PipeEvent::Output { kind, length };
                    }
                    self.close_output(kind);
                }
                else => std::future::pending().await,
            }
            if had_output && self.stdout.is_none() && self.stderr.is_none() {
                return PipeEvent::Drained;
            }
        }
    }

    pub(crate) fn read_buffer(&self, kind: OutputKind) -> &[u8] {
        match kind {
            OutputKind::Stdout => &self.out_buffer,
            OutputKind::Stderr => &self.err_buffer,
        }
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none()
    }

    /// No more of the prompt is written.
    pub(crate) fn stop_writing(&mut self) {
        self.writing = false;
    }

    /// The last 16 KiB of standard error as text.
    pub(crate) fn stderr_tail(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn on_write(&mut self, written: io::Result<usize>) -> Option<PipeEvent> {
        match written {
            Ok(length) => {
                self.prompt.advance(length);
                if self.prompt.has_remaining() {
                    return None;
                }
                self.stdin = None;
                Some(PipeEvent::PromptWritten)
            }
            // A closed pipe is the child's right; any other error ends the writing all the same.
            Err(_) => {
                self.stdin = None;
                Some(PipeEvent::PromptRefused)
            }
        }
    }

    fn close_output(&mut self, kind: OutputKind) {
        match kind {
            OutputKind::Stdout => self.stdout = None,
            OutputKind::Stderr => self.stderr = None,
        }
    }

    fn remember_tail(&mut self, kind: OutputKind, length: usize) {
        if kind == OutputKind::Stdout {
            return;
        }
        let fresh = &self.err_buffer[length.saturating_sub(TAIL)..length];
        let surplus = (self.tail.len() + fresh.len()).saturating_sub(TAIL);
        self.tail.drain(..surplus.min(self.tail.len()));
        self.tail.extend(fresh);
    }
}

async fn write_some(stdin: &mut Option<ChildStdin>, prompt: &Bytes) -> io::Result<usize> {
    match stdin {
        Some(_) if prompt.is_empty() => Ok(0),
        Some(pipe) => pipe.write(prompt).await,
        None => std::future::pending().await,
    }
}

/// Whichever has something. Picked at random when both have, so that neither starves the other.
async fn read_either(
    (stdout, out_buffer): (&mut Option<ChildStdout>, &mut [u8]),
    (stderr, err_buffer): (&mut Option<ChildStderr>, &mut [u8]),
) -> (OutputKind, Option<usize>) {
    tokio::select! {
        length = read_some(stdout, out_buffer) => (OutputKind::Stdout, length),
        length = read_some(stderr, err_buffer) => (OutputKind::Stderr, length),
    }
}

/// `None` at the end of the pipe; an unreadable pipe has ended too.
async fn read_some(
    pipe: &mut Option<impl tokio::io::AsyncRead + Unpin>,
    buffer: &mut [u8],
) -> Option<usize> {
    match pipe {
        Some(pipe) => pipe.read(buffer).await.ok().filter(|length| *length > 0),
        None => std::future::pending().await,
    }
}
