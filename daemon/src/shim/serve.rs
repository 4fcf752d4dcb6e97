//! The shim's loop: waits for whatever comes first, judges the time before anything else, then moves what can be
//! moved. One thread, no runtime; everything is either a fact in here or on the disk.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use baton_proto::codes;
use baton_proto::worker::{
    EndedBy, FromShim, Greeting, Grown, LeaseKept, Presence, Refused, Report, StdinDone, ToShim,
    from_shim, to_shim,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::process::umask;

use super::charge::{Charge, failed, nothing_ran};
use super::descendants;
use super::farewell;
use super::peer::{Gone, Owed, Peer};
use super::report::ReportFile;
use super::stdin::{StdinQueue, TooMuch};
use super::timer::Timer;
use super::visitor::is_welcome;
use super::{HIGHEST_VERSION, LOWEST_VERSION, REPORT, SOCKET, SPOOL};
use crate::clock::{Clock, Moment};
use crate::spool::OutputKind;

/// Connections that have not greeted yet. Full: the next one waits in the kernel's queue.
const WAITING: usize = 4;
/// How long a connection may take to greet.
const GREET: Duration = Duration::from_secs(5);
/// Messages taken from a connection before the time is looked at again.
const AT_ONCE: usize = 32;

#[derive(Debug)]
pub(super) struct Shim {
    clock: Clock,
    timer: Timer,
    listener: UnixListener,
    place: ReportFile,
    /// Came, and have not greeted.
    waiting: Vec<Peer>,
    /// The daemon that is heard. A newer one takes its place.
    peer: Option<Peer>,
    /// The peer may have said more than was heard.
    unheard: bool,
    state: State,
    facts: Facts,
}

#[derive(Debug)]
enum State {
    /// Not launched; the child's first input may be here already.
    Idle(StdinQueue),
    Running(Box<Charge>),
    /// With the charge that it is the report of, if there ever was one.
    Over(Report, Option<Box<Charge>>),
}

impl Default for State {
    fn default() -> Self {
        Self::Idle(StdinQueue::default())
    }
}

/// What a connected daemon is told when it changes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    started: bool,
    end: u64,
    stdin_done: StdinDone,
    spool_fails: bool,
    /// Of the lease.
    limit: Option<Moment>,
}

/// What a wait has found ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Timer,
    Door,
    Waiting,
    Peer,
    Exit,
    Stdin,
    Output(OutputKind),
}

impl Shim {
    /// Takes its place in the current directory. `first` is the connection that it was started with.
    pub(super) fn open(first: UnixStream, clock: Clock) -> io::Result<Self> {
        let place = ReportFile::reserve(Path::new(REPORT))?;
        let listener = listen()?;
        let first = Peer::new(first, clock.now())?;
        Ok(Self {
            timer: Timer::new()?,
            clock,
            listener,
            place,
            waiting: vec![first],
            peer: None,
            unheard: false,
            state: State::default(),
            facts: Facts::default(),
        })
    }

    /// Runs until the attempt is over and reported.
    pub(super) fn run(mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            self.tend();
            self.exchange(&ready);
            self.tend();
            self.notice();
            self.speak();
            if matches!(self.state, State::Over(..)) {
                return self.finish();
            }
        }
    }

    /// Time first: after a suspend, nothing may be said or taken before the lease was judged.
    fn tend(&mut self) {
        self.state = match std::mem::take(&mut self.state) {
            State::Running(mut charge) => {
                charge.tend(&self.clock);
                match charge.report(self.clock.now()) {
                    Some(report) => State::Over(report, Some(charge)),
                    None => State::Running(charge),
                }
            }
            State::Idle(early) => State::Idle(early),
            State::Over(report, charge) => State::Over(report, charge),
        };
        let now = self.clock.now();
        self.waiting.retain(|peer| now < peer.since.after(GREET));
        if matches!(self.state, State::Idle(_)) && self.peer.is_none() && self.waiting.is_empty() {
            self.state = given_up("the daemon went away before it launched anything", now);
        }
    }

    fn wait(&mut self) -> io::Result<Vec<Ready>> {
        let now = self.clock.now();
        let charge = match &self.state {
            State::Running(charge) => charge.next(now),
            State::Idle(_) => None,
            State::Over(..) => Some(now),
        };
        let greeting = self.waiting.iter().map(|peer| peer.since.after(GREET));
        let at_once = self.unheard.then_some(now);
        let moments = charge.into_iter().chain(greeting).chain(at_once);
        self.timer.arm(moments.min())?;
        let watched = self.watched();
        let mut fds: Vec<PollFd<'_>> = watched
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        let timeout = self.clock.longest_wait().map(|wait| Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        match poll(&mut fds, timeout.as_ref()) {
            // A signal: a child of a child may have died.
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            polled => polled?,
        };
        let ready = fds.iter().zip(&watched);
        Ok(ready
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, (ready, _, _))| *ready)
            .collect())
    }

    /// A pipe that is not to be read is left out: its end would be reported again and again.
    fn watched(&self) -> Vec<(Ready, BorrowedFd<'_>, PollFlags)> {
        let (read, write) = (PollFlags::IN, PollFlags::OUT);
        let mut watched = vec![(Ready::Timer, self.timer.fd(), read)];
        if self.waiting.len() < WAITING {
            watched.push((Ready::Door, self.listener.as_fd(), read));
        }
        let waiting = self.waiting.iter();
        watched.extend(waiting.map(|peer| (Ready::Waiting, peer.fd(), read)));
        if let Some(peer) = &self.peer {
            let flags = if peer.has_unsent() {
                read | write
            } else {
                read
            };
            watched.push((Ready::Peer, peer.fd(), flags));
        }
        if let State::Running(charge) = &self.state {
            let appetite = charge.appetite(self.peer.is_some());
            let pipes = charge.recorder.wants_read(appetite);
            watched.extend(pipes.map(|(kind, fd)| (Ready::Output(kind), fd, read)));
            watched.extend(charge.exit_fd().map(|fd| (Ready::Exit, fd, read)));
            let stdin = charge.stdin.wants_write();
            watched.extend(stdin.map(|fd| (Ready::Stdin, fd, write)));
        }
        watched
    }

    fn exchange(&mut self, ready: &[Ready]) {
        if std::mem::take(&mut self.unheard) {
            self.unheard = self.hear();
        }
        for ready in ready {
            match ready {
                Ready::Timer => self.timer.clear(),
                Ready::Door => self.admit(),
                Ready::Waiting => self.greet(),
                Ready::Peer => self.unheard |= self.hear(),
                // Waiting for the dead is part of tending.
                Ready::Exit => {}
                Ready::Stdin => self.feed(),
                Ready::Output(kind) => self.record(*kind),
            }
        }
    }

    fn record(&mut self, kind: OutputKind) {
        if let State::Running(charge) = &mut self.state {
            let wall_ms = self.clock.wall_ms();
            charge.recorder.read(kind, wall_ms, self.clock.now());
        }
    }

    fn feed(&mut self) {
        if let State::Running(charge) = &mut self.state {
            charge.stdin.write();
        }
    }

    /// Lets a connection in if it may be heard. One that may not is closed without a word.
    fn admit(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        let attempt_id = match &self.state {
            State::Running(charge) => charge.attempt_id.as_str(),
            // There is nothing yet, or no longer, that could disguise itself.
            State::Idle(_) | State::Over(..) => "",
        };
        if is_welcome(&stream, attempt_id)
            && let Ok(peer) = Peer::new(stream, self.clock.now())
        {
            self.waiting.push(peer);
        }
    }

    /// Hears the first message of those who have not greeted.
    fn greet(&mut self) {
        for mut peer in std::mem::take(&mut self.waiting) {
            match peer.hear() {
                Ok(None) => self.waiting.push(peer),
                Ok(Some(ToShim {
                    message: Some(to_shim::Message::Greeting(greeting)),
                })) => self.meet(peer, &greeting),
                Ok(Some(_)) | Err(Gone) => {}
            }
        }
    }

    fn meet(&mut self, mut peer: Peer, greeting: &Greeting) {
        if let Some(version) = common_version(greeting) {
            // What the one before said last counts, even if it died of it.
            for _ in 0..AT_ONCE {
                if !self.hear() {
                    break;
                }
            }
            peer.version = version;
            peer.owe(Owed::Presence);
            self.peer = Some(peer);
            self.unheard = true;
        } else {
            peer.say(&said(from_shim::Message::Refused(Refused {
                lowest_version: LOWEST_VERSION,
                highest_version: HIGHEST_VERSION,
            })));
            peer.flush();
        }
    }

    /// Hears the daemon. True when it may have said more than was heard, which no wait would tell.
    fn hear(&mut self) -> bool {
        for _ in 0..AT_ONCE {
            let Some(peer) = &mut self.peer else {
                return false;
            };
            match peer.hear() {
                Ok(Some(message)) => self.obey(message),
                Ok(None) => return false,
                Err(Gone) => self.peer = None,
            }
        }
        true
    }

    /// An arm that this version does not know is ignored.
    fn obey(&mut self, message: ToShim) {
        let Some(message) = message.message else {
            return;
        };
        match &mut self.state {
            State::Idle(early) => {
                let early = std::mem::take(early);
                self.state = self.prepare(message, early);
            }
            State::Running(charge) => {
                if charge.obey(message, self.clock.now()) == Err(TooMuch) {
                    self.peer = None;
                }
            }
            State::Over(..) => {}
        }
    }

    /// A message before the child runs.
    fn prepare(&mut self, message: to_shim::Message, mut early: StdinQueue) -> State {
        let now = self.clock.now();
        match message {
            to_shim::Message::Launch(launch) => {
                let id = launch.attempt_id.clone();
                match Charge::launch(launch, early, Path::new(SPOOL), now) {
                    Ok(charge) => State::Running(Box::new(charge)),
                    Err(why) => State::Over(nothing_ran(&id, EndedBy::Child, why, now), None),
                }
            }
            to_shim::Message::Stdin(stdin) => {
                if early.take(stdin) == Err(TooMuch) {
                    self.peer = None;
                }
                State::Idle(early)
            }
            to_shim::Message::Stop(_) => given_up("it was stopped before it was launched", now),
            to_shim::Message::Greeting(_)
            | to_shim::Message::Lease(_)
            | to_shim::Message::Consumed(_) => State::Idle(early),
        }
    }

    /// What changed since the last time is owed to whoever is connected.
    fn notice(&mut self) {
        let State::Running(charge) = &self.state else {
            return;
        };
        let facts = Facts {
            started: true,
            end: charge.recorder.end(),
            stdin_done: charge.stdin.done(),
            spool_fails: charge.recorder.failure().is_some(),
            limit: Some(charge.course.lease().limit),
        };
        let changes = [
            (Owed::Started, facts.started != self.facts.started),
            (Owed::StdinDone, facts.stdin_done != self.facts.stdin_done),
            (
                Owed::SpoolFailed,
                facts.spool_fails && !self.facts.spool_fails,
            ),
            (Owed::LeaseKept, facts.limit != self.facts.limit),
            (Owed::Grown, facts.end != self.facts.end),
        ];
        if let Some(peer) = &mut self.peer {
            for (owed, _) in changes.into_iter().filter(|(_, changed)| *changed) {
                peer.owe(owed);
            }
        }
        self.facts = facts;
    }

    fn speak(&mut self) {
        while let Some(peer) = &mut self.peer {
            peer.flush();
            let Some(owed) = peer.due() else {
                return;
            };
            if let Some(message) = tell(owed, &self.state, peer.version) {
                peer.say(&said(message));
            }
        }
    }

    /// The report goes to the disk first: it is the one truth. Then to the daemon. Whoever is left is pursued until it is
    /// gone, which nobody waits for.
    fn finish(mut self) -> io::Result<()> {
        self.speak();
        let Self {
            clock,
            listener,
            place,
            peer,
            state,
            ..
        } = self;
        let State::Over(report, charge) = state else {
            return Ok(());
        };
        let kept = farewell::keep(&place, &report, || {
            farewell::close_door(listener);
            if let Some(charge) = &charge {
                charge.recorder.sync();
            }
        });
        let is_empty = report.empty;
        if let Some(peer) = peer {
            farewell::tell(peer, report, &clock);
        }
        if !is_empty {
            descendants::kill_all();
        }
        kept
    }
}

/// Nothing was launched, and nothing will be.
fn given_up(why: &str, now: Moment) -> State {
    let not_started = failed(codes::SPAWN_FAILED, &why);
    State::Over(nothing_ran("", EndedBy::Order, not_started, now), None)
}

fn said(message: from_shim::Message) -> FromShim {
    FromShim {
        message: Some(message),
    }
}

/// The highest version that both speak.
fn common_version(greeting: &Greeting) -> Option<u32> {
    let highest = greeting.highest_version.min(HIGHEST_VERSION);
    (highest >= greeting.lowest_version.max(LOWEST_VERSION)).then_some(highest)
}

/// The newest word on what is owed.
fn tell(owed: Owed, state: &State, version: u32) -> Option<from_shim::Message> {
    use from_shim::Message;
    let State::Running(charge) = state else {
        return match owed {
            Owed::Presence => Some(Message::Presence(presence(version, None))),
            Owed::Started | Owed::StdinDone | Owed::SpoolFailed | Owed::LeaseKept | Owed::Grown => {
                None
            }
        };
    };
    Some(match owed {
        Owed::Presence => Message::Presence(presence(version, Some(charge))),
        Owed::Started => Message::Started(charge.started()),
        Owed::StdinDone => Message::StdinDone(charge.stdin.done()),
        Owed::SpoolFailed => Message::SpoolFailed(charge.recorder.failure()?.clone()),
        Owed::LeaseKept => Message::LeaseKept(LeaseKept {
            limit_ms: charge.course.lease().limit.as_millis(),
        }),
        Owed::Grown => Message::Grown(Grown {
            end: charge.recorder.end(),
        }),
    })
}

fn presence(version: u32, charge: Option<&Charge>) -> Presence {
    let own = Presence {
        version,
        shim_pid: std::process::id().cast_signed(),
        says_lease_kept: true,
        ..Presence::default()
    };
    let Some(charge) = charge else {
        return own;
    };
    Presence {
        attempt_id: charge.attempt_id.clone(),
        started: Some(charge.started()),
        transcript_end: charge.recorder.end(),
        consumed: charge.recorder.consumed(),
        stdin_done: charge.stdin.done().id,
        lease: Some(super::lease::to_message(charge.course.lease())),
        token: charge.token.clone(),
        spool_failed: charge.recorder.failure().cloned(),
        ..own
    }
}

/// Only the owner may connect. The path is relative: an absolute one may be longer than a socket's can be.
fn listen() -> io::Result<UnixListener> {
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let listener = UnixListener::bind(SOCKET);
    umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
