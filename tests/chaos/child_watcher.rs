//! Watches child processes. Every child has a connection to this watcher, and the kernel closes
//! it when the child dies, so a death does not depend on any report by Baton.
//!
//! When a child reports its start, the watcher first records all deaths that it can detect, and
//! then the start. If another attempt of the task is recorded as alive at that point, it really
//! was alive after the start.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use baton_history::{Observation, ParticipantLog};
use baton_tests::boottime;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;

#[derive(Debug)]
pub(crate) struct ChildWatcher {
    pub(crate) socket: PathBuf,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl ChildWatcher {
    pub(crate) fn watch(dir: &Path, view: ParticipantLog) -> Self {
        let socket = dir.join("alive");
        let listener = UnixListener::bind(&socket).expect("the socket path is short enough");
        listener.set_nonblocking(true).expect("a socket");
        let (stop, stopped) = UnixStream::pair().expect("a pair of sockets");
        let thread = std::thread::spawn(move || ChildRegistry::new(listener, stopped, view).run());
        Self {
            socket,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for ChildWatcher {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread's panic has been printed.
            let _ = thread.join();
        }
    }
}

/// The connection of a child.
struct WatchedChild {
    stream: UnixStream,
    pid: u32,
    start_ticks: u64,
    /// Bytes after the last line break.
    partial_line: Vec<u8>,
    attempt: Option<String>,
    has_ended: bool,
}

struct ChildRegistry {
    listener: UnixListener,
    stopped: UnixStream,
    view: ParticipantLog,
    children: Vec<WatchedChild>,
}

impl ChildRegistry {
    fn new(listener: UnixListener, stopped: UnixStream, view: ParticipantLog) -> Self {
        Self {
            listener,
            stopped,
            view,
            children: Vec::new(),
        }
    }

    fn run(mut self) {
        while self.wait_for_input() {
            while let Ok((stream, _)) = self.listener.accept() {
                self.children.push(WatchedChild::new(stream));
            }
            let started = self.read_new_children();
            self.read_known_children(&started);
            self.record_starts(started);
            self.children.retain(|child| !child.has_ended);
        }
    }

    /// False when the test has ended.
    fn wait_for_input(&self) -> bool {
        let mut waits = vec![
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(&self.stopped, PollFlags::IN),
        ];
        let streams = self.children.iter().map(|child| &child.stream);
        waits.extend(streams.map(|stream| PollFd::new(stream, PollFlags::IN)));
        while poll(&mut waits, None).is_err() {}
        waits[1].revents().is_empty()
    }

    /// Children that have identified themselves since the last call, each with the lines that
    /// follow.
    fn read_new_children(&mut self) -> Vec<(usize, Vec<String>)> {
        let mut started = Vec::new();
        let new = self.children.iter_mut().enumerate();
        for (index, child) in new.filter(|(_, child)| child.attempt.is_none()) {
            let mut lines = child.read_lines().into_iter();
            if let Some(attempt) = lines.next() {
                child.attempt = Some(attempt);
                started.push((index, lines.collect()));
            }
        }
        started
    }

    fn read_known_children(&mut self, started: &[(usize, Vec<String>)]) {
        for index in 0..self.children.len() {
            if started.iter().any(|(new, _)| *new == index)
                || self.children[index].attempt.is_none()
            {
                continue;
            }
            let lines = self.children[index].read_lines();
            self.record_lines(index, lines);
        }
    }

    fn record_starts(&mut self, started: Vec<(usize, Vec<String>)>) {
        for (index, lines) in started {
            let child = &self.children[index];
            let (pid, started) = (child.pid, child.start_ticks);
            let attempt = child.attempt.clone().unwrap_or_default();
            self.record_observation(Observation::Began {
                attempt,
                pid,
                started,
            });
            self.record_lines(index, lines);
        }
    }

    fn record_lines(&mut self, index: usize, lines: Vec<String>) {
        let child = &self.children[index];
        let attempt = child.attempt.clone().unwrap_or_default();
        for mut text in lines {
            text.push('\n');
            let attempt = attempt.clone();
            self.record_observation(Observation::Wrote { attempt, text });
        }
        if child.has_ended {
            let (pid, started) = (child.pid, child.start_ticks);
            self.record_observation(Observation::Ended {
                attempt,
                pid,
                started,
            });
        }
    }

    fn record_observation(&self, observation: Observation) {
        let at = u64::try_from(boottime().as_millis()).unwrap_or(u64::MAX);
        self.view
            .record(at, observation)
            .expect("the history can be written");
    }
}

impl WatchedChild {
    fn new(stream: UnixStream) -> Self {
        stream.set_nonblocking(true).expect("a socket");
        let pid = socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        let pid = pid.unsigned_abs();
        Self {
            stream,
            pid,
            start_ticks: process_start_ticks(pid).unwrap_or(0),
            partial_line: Vec::new(),
            attempt: None,
            has_ended: false,
        }
    }

    /// All complete lines that are available now.
    fn read_lines(&mut self) -> Vec<String> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    self.has_ended = true;
                    break;
                }
                Ok(read) => self.partial_line.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.has_ended = error.kind() != ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        let whole = self.partial_line.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = self
            .partial_line
            .drain(..whole.map_or(0, |at| at + 1))
            .collect();
        let text = String::from_utf8_lossy(&lines).into_owned();
        text.lines().map(str::to_owned).collect()
    }
}

/// In the kernel's ticks. Together with the pid it identifies a process forever.
fn process_start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}
