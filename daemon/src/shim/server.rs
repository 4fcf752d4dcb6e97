//! The shim's loop: waits for the next event, checks the time before anything else, then reads
//! and writes what it can. One thread, no async runtime; all state is here or on the disk.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use baton_proto::codes;
use baton_proto::worker::{EndedBy, Greeting, Refused, Report, ToShim, from_shim, to_shim};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::process::umask;

use super::boottime_timer::BoottimeTimer;
use super::child_process::{ChildProcess, not_started, not_started_report};
use super::daemon_connection::{ConnectionClosed, DaemonConnection, PendingNotice};
use super::descendants;
use super::notices::{ReportedFacts, common_version, notice_message, wrap_message};
use super::peer_check::may_connect;
use super::report::{self, ReportFile};
use super::stdin_queue::{StdinQueue, StdinQueueFull};
use super::{HIGHEST_VERSION, LOWEST_VERSION, REPORT_FILE, SOCKET_FILE, SPOOL_DIR};
use crate::clock::{BootTime, Clock};
use crate::spool::ChildPipe;

/// Connections without a greeting. Above it the next one waits in the kernel's queue.
const UNGREETED_MAX: usize = 4;
/// How long a connection may take to send its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages that are read from a connection before the time is checked again.
const MESSAGES_PER_TURN: usize = 32;

#[derive(Debug)]
pub(super) struct ShimServer {
    clock: Clock,
    timer: BoottimeTimer,
    listener: UnixListener,
    report_file: ReportFile,
    /// Connections that have not sent a greeting.
    ungreeted: Vec<DaemonConnection>,
    /// The daemon that controls the shim. A newer one displaces it.
    daemon: Option<DaemonConnection>,
    /// The daemon may have sent more messages than were read.
    has_unread_messages: bool,
    state: ShimState,
    reported: ReportedFacts,
}

#[derive(Debug)]
enum ShimState {
    /// Not launched; the child's first input may have arrived already.
    Idle(StdinQueue),
    Running(Box<ChildProcess>),
    /// With the child that the report is about, if there was one.
    Ended(Report, Option<Box<ChildProcess>>),
}

impl Default for ShimState {
    fn default() -> Self {
        Self::Idle(StdinQueue::default())
    }
}

/// What a wait has found ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadySource {
    Timer,
    Listener,
    Ungreeted,
    Daemon,
    Exit,
    Stdin,
    Output(ChildPipe),
}

impl ShimServer {
    /// Sets up the shim in the current directory. `first` is the connection that it was started
    /// with.
    pub(super) fn open(first: UnixStream, clock: Clock) -> io::Result<Self> {
        let report_file = ReportFile::reserve(Path::new(REPORT_FILE))?;
        let listener = bind_socket()?;
        let first = DaemonConnection::new(first, clock.now())?;
        Ok(Self {
            timer: BoottimeTimer::new()?,
            clock,
            listener,
            report_file,
            ungreeted: vec![first],
            daemon: None,
            has_unread_messages: false,
            state: ShimState::default(),
            reported: ReportedFacts::default(),
        })
    }

    /// Runs until the attempt has ended and is reported.
    pub(super) fn run(mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            self.advance();
            self.handle_ready(&ready);
            self.advance();
            self.queue_notices();
            self.send_notices();
            if matches!(self.state, ShimState::Ended(..)) {
                return self.finish();
            }
        }
    }

    /// Checks the time first: after a suspend nothing may be sent or read before the lease is
    /// checked.
    fn advance(&mut self) {
        self.state = match std::mem::take(&mut self.state) {
            ShimState::Running(mut child) => {
                child.advance(&self.clock);
                match child.final_report(self.clock.now()) {
                    Some(report) => ShimState::Ended(report, Some(child)),
                    None => ShimState::Running(child),
                }
            }
            ShimState::Idle(early) => ShimState::Idle(early),
            ShimState::Ended(report, child) => ShimState::Ended(report, child),
        };
        let now = self.clock.now();
        self.ungreeted
            .retain(|peer| now < peer.connected_at.after(GREETING_TIMEOUT));
        if matches!(self.state, ShimState::Idle(_))
            && self.daemon.is_none()
            && self.ungreeted.is_empty()
        {
            self.state = never_launched("the daemon disconnected before it launched anything", now);
        }
    }

    fn wait(&mut self) -> io::Result<Vec<ReadySource>> {
        let now = self.clock.now();
        let child = match &self.state {
            ShimState::Running(child) => child.next_wake(now),
            ShimState::Idle(_) => None,
            ShimState::Ended(..) => Some(now),
        };
        let greeting = self
            .ungreeted
            .iter()
            .map(|peer| peer.connected_at.after(GREETING_TIMEOUT));
        let at_once = self.has_unread_messages.then_some(now);
        let moments = child.into_iter().chain(greeting).chain(at_once);
        self.timer.arm(moments.min())?;
        let sources = self.poll_sources();
        let mut fds: Vec<PollFd<'_>> = sources
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        let timeout = self.clock.max_poll_wait().map(|wait| Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        match poll(&mut fds, timeout.as_ref()) {
            // A signal: a descendant may have died.
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            polled => polled?,
        };
        let ready = fds.iter().zip(&sources);
        Ok(ready
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, (ready, _, _))| *ready)
            .collect())
    }

    /// A pipe that must not be read now is left out: its end would be reported again and again.
    fn poll_sources(&self) -> Vec<(ReadySource, BorrowedFd<'_>, PollFlags)> {
        let (read, write) = (PollFlags::IN, PollFlags::OUT);
        let mut sources = vec![(ReadySource::Timer, self.timer.fd(), read)];
        if self.ungreeted.len() < UNGREETED_MAX {
            sources.push((ReadySource::Listener, self.listener.as_fd(), read));
        }
        let waiting = self.ungreeted.iter();
        sources.extend(waiting.map(|peer| (ReadySource::Ungreeted, peer.fd(), read)));
        if let Some(peer) = &self.daemon {
            let flags = if peer.has_unsent() {
                read | write
            } else {
                read
            };
            sources.push((ReadySource::Daemon, peer.fd(), flags));
        }
        if let ShimState::Running(child) = &self.state {
            let mode = child.read_mode(self.daemon.is_some());
            let pipes = child.recorder.readable_pipes(mode);
            sources.extend(pipes.map(|(kind, fd)| (ReadySource::Output(kind), fd, read)));
            sources.extend(child.exit_fd().map(|fd| (ReadySource::Exit, fd, read)));
            let stdin = child.stdin.writable_pipe();
            sources.extend(stdin.map(|fd| (ReadySource::Stdin, fd, write)));
        }
        sources
    }

    fn handle_ready(&mut self, ready: &[ReadySource]) {
        if std::mem::take(&mut self.has_unread_messages) {
            self.has_unread_messages = self.read_daemon_messages();
        }
        for ready in ready {
            match ready {
                ReadySource::Timer => self.timer.clear(),
                ReadySource::Listener => self.accept_connection(),
                ReadySource::Ungreeted => self.read_greetings(),
                ReadySource::Daemon => self.has_unread_messages |= self.read_daemon_messages(),
                // Reaping is part of `advance`.
                ReadySource::Exit => {}
                ReadySource::Stdin => self.write_stdin(),
                ReadySource::Output(kind) => self.record_output(*kind),
            }
        }
    }

    fn record_output(&mut self, kind: ChildPipe) {
        if let ShimState::Running(child) = &mut self.state {
            let wall_ms = self.clock.wall_ms();
            child.recorder.read_pipe(kind, wall_ms, self.clock.now());
        }
    }

    fn write_stdin(&mut self) {
        if let ShimState::Running(child) = &mut self.state {
            child.stdin.write_pending();
        }
    }

    /// Accepts a connection if it is permitted. Others are closed without a message.
    fn accept_connection(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        let attempt_id = match &self.state {
            ShimState::Running(child) => child.attempt_id.as_str(),
            // No process of the attempt exists that could connect.
            ShimState::Idle(_) | ShimState::Ended(..) => "",
        };
        if may_connect(&stream, attempt_id)
            && let Ok(peer) = DaemonConnection::new(stream, self.clock.now())
        {
            self.ungreeted.push(peer);
        }
    }

    /// Reads the first message of connections without a greeting.
    fn read_greetings(&mut self) {
        for mut peer in std::mem::take(&mut self.ungreeted) {
            match peer.read_message() {
                Ok(None) => self.ungreeted.push(peer),
                Ok(Some(ToShim {
                    message: Some(to_shim::Message::Greeting(greeting)),
                })) => self.attach_daemon(peer, &greeting),
                Ok(Some(_)) | Err(ConnectionClosed) => {}
            }
        }
    }

    fn attach_daemon(&mut self, mut peer: DaemonConnection, greeting: &Greeting) {
        if let Some(version) = common_version(greeting) {
            // The last messages of the previous daemon count, even if it has died.
            for _ in 0..MESSAGES_PER_TURN {
                if !self.read_daemon_messages() {
                    break;
                }
            }
            peer.version = version;
            peer.queue_notice(PendingNotice::Presence);
            self.daemon = Some(peer);
            self.has_unread_messages = true;
        } else {
            peer.push_message(&wrap_message(from_shim::Message::Refused(Refused {
                lowest_version: LOWEST_VERSION,
                highest_version: HIGHEST_VERSION,
            })));
            peer.flush();
        }
    }

    /// Reads the daemon's messages. True when there may be more, for which `poll` would not
    /// return.
    fn read_daemon_messages(&mut self) -> bool {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(peer) = &mut self.daemon else {
                return false;
            };
            match peer.read_message() {
                Ok(Some(message)) => self.on_message(message),
                Ok(None) => return false,
                Err(ConnectionClosed) => self.daemon = None,
            }
        }
        true
    }

    /// A message that this version does not know is ignored.
    fn on_message(&mut self, message: ToShim) {
        let Some(message) = message.message else {
            return;
        };
        match &mut self.state {
            ShimState::Idle(early) => {
                let early = std::mem::take(early);
                self.state = self.on_idle_message(message, early);
            }
            ShimState::Running(child) => {
                if child.on_message(message, self.clock.now()) == Err(StdinQueueFull) {
                    self.daemon = None;
                }
            }
            ShimState::Ended(..) => {}
        }
    }

    /// A message before the child runs.
    fn on_idle_message(&mut self, message: to_shim::Message, mut early: StdinQueue) -> ShimState {
        let now = self.clock.now();
        match message {
            to_shim::Message::Launch(launch) => {
                let id = launch.attempt_id.clone();
                match ChildProcess::launch(launch, early, Path::new(SPOOL_DIR), now) {
                    Ok(child) => ShimState::Running(Box::new(child)),
                    Err(why) => {
                        ShimState::Ended(not_started_report(&id, EndedBy::Child, why, now), None)
                    }
                }
            }
            to_shim::Message::Stdin(stdin) => {
                if early.push(stdin) == Err(StdinQueueFull) {
                    self.daemon = None;
                }
                ShimState::Idle(early)
            }
            to_shim::Message::Stop(_) => {
                never_launched("the attempt was stopped before it was launched", now)
            }
            to_shim::Message::Greeting(_)
            | to_shim::Message::Lease(_)
            | to_shim::Message::Consumed(_) => ShimState::Idle(early),
        }
    }

    /// Queues a notice to the connected daemon for everything that has changed.
    fn queue_notices(&mut self) {
        let ShimState::Running(child) = &self.state else {
            return;
        };
        let facts = ReportedFacts::of_child(child);
        let changes = facts.changes_since(&self.reported);
        if let Some(peer) = &mut self.daemon {
            for notice in changes {
                peer.queue_notice(notice);
            }
        }
        self.reported = facts;
    }

    fn send_notices(&mut self) {
        while let Some(peer) = &mut self.daemon {
            peer.flush();
            let Some(notice) = peer.next_notice() else {
                return;
            };
            let child = match &self.state {
                ShimState::Running(child) => Some(&**child),
                ShimState::Idle(_) | ShimState::Ended(..) => None,
            };
            if let Some(message) = notice_message(notice, child, peer.version) {
                peer.push_message(&wrap_message(message));
            }
        }
    }

    /// The report is written to the disk first, because only that one counts, and then sent to
    /// the daemon. Processes that are left are killed afterwards, which nothing waits for.
    fn finish(mut self) -> io::Result<()> {
        self.send_notices();
        let Self {
            clock,
            listener,
            report_file,
            daemon: peer,
            state,
            ..
        } = self;
        let ShimState::Ended(final_report, child) = state else {
            return Ok(());
        };
        let stored = report::store_report(&report_file, &final_report, || {
            report::close_listener(listener);
            if let Some(child) = &child {
                child.recorder.sync();
            }
        });
        let is_empty = final_report.empty;
        if let Some(peer) = peer {
            report::send_report(peer, final_report, &clock);
        }
        if !is_empty {
            descendants::kill_all_descendants();
        }
        stored
    }
}

/// Ends the shim without a launch.
fn never_launched(why: &str, now: BootTime) -> ShimState {
    let not_started = not_started(codes::SPAWN_FAILED, &why);
    ShimState::Ended(
        not_started_report("", EndedBy::Order, not_started, now),
        None,
    )
}

/// Only the owner may connect. The path is relative, because an absolute one may be too long
/// for a socket.
fn bind_socket() -> io::Result<UnixListener> {
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let listener = UnixListener::bind(SOCKET_FILE);
    umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
