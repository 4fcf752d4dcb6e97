//! The stand-in's pipes: standard input line by line, with a time limit; standard output in
//! whole lines. Both directions are also recorded in the file that `STANDIN_TAPE` names.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::Value;

use crate::{duration_ms, sleep_ms};

#[derive(Debug)]
pub(crate) struct StdioPipes {
    buffered: Vec<u8>,
    closed: bool,
    recording: Option<File>,
}

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    Line(String),
    /// No line within the time limit.
    TimedOut,
    Closed,
}

impl StdioPipes {
    pub(crate) fn open() -> Self {
        let recording = std::env::var_os("STANDIN_TAPE").map(|file| {
            let opened = OpenOptions::new().create(true).append(true).open(file);
            opened.expect("the test names a file that can be written")
        });
        Self {
            buffered: Vec::new(),
            closed: false,
            recording,
        }
    }

    /// Sends one message. The reader may have closed the pipe.
    pub(crate) fn send_message(&mut self, message: &Value) {
        let line = message.to_string();
        self.record_line('<', &line);
        self.send_line(&line);
    }

    /// Sends a line unchanged.
    pub(crate) fn send_line(&mut self, line: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }

    /// The next line; waits without a limit, or up to this limit.
    pub(crate) fn read_line(&mut self, limit: Option<Duration>) -> InputLine {
        let until = limit.map(|limit| now_ms() + duration_ms(limit));
        loop {
            if let Some(at) = self.buffered.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffered.drain(..=at).collect();
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                self.record_line('>', &line);
                return InputLine::Line(line);
            }
            let left = until.map(|until| until.saturating_sub(now_ms()));
            if self.closed {
                left.into_iter().for_each(sleep_ms);
                return InputLine::Closed;
            }
            if !wait_for_stdin(left) {
                return InputLine::TimedOut;
            }
            self.fill_buffer();
        }
    }

    /// All input up to its end.
    pub(crate) fn read_to_end(&mut self) -> String {
        while !self.closed {
            wait_for_stdin(None);
            self.fill_buffer();
        }
        let all = String::from_utf8_lossy(&std::mem::take(&mut self.buffered)).into_owned();
        all.lines().for_each(|line| self.record_line('>', line));
        all
    }

    fn fill_buffer(&mut self) {
        let mut bytes = [0; 64 * 1024];
        match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
            Ok(0) => self.closed = true,
            Ok(read) => self.buffered.extend_from_slice(&bytes[..read]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => self.closed = true,
        }
    }

    fn record_line(&mut self, way: char, line: &str) {
        if let Some(tape) = &mut self.recording {
            let kept = tape.write_all(format!("{way} {line}\n").as_bytes());
            kept.expect("the tape can be written");
        }
    }
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

/// False if the time passed first. Signals do not end the wait.
fn wait_for_stdin(limit: Option<u64>) -> bool {
    let span = limit.map(|ms| Timespec {
        tv_sec: (ms / 1_000).cast_signed(),
        tv_nsec: (ms % 1_000 * 1_000_000).cast_signed(),
    });
    let stdin = rustix::stdio::stdin();
    let mut fds = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
    !matches!(poll(&mut fds, span.as_ref()), Ok(0))
}
