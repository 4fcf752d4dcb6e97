//! The child that a shim has in its charge: started, fed, recorded, ended, reported.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use baton_daemon_core::course::{self, Course, Look};
use baton_daemon_core::ladder::Sight;
use baton_proto::codes;
use baton_proto::v1::LeaseToken;
use baton_proto::worker::to_shim::Message;
use baton_proto::worker::{EndedBy, Launch, NotStarted, Report, Started, report};
use bytes::Bytes;
use rustix::io::ioctl_fionbio;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, WaitStatus, getpid, pidfd_open};

use super::descendants::{self, Members, reap};
use super::lease;
use super::recorder::{Appetite, Recorder};
use super::stdin::{StdinQueue, TooMuch};
use crate::clock::{Clock, Moment};
use crate::process::{ChildSpec, Exit, ProcessId, SpawnError, command, identity_of};
use crate::spool::Writer;

/// Longest message in a report: it has one block on the disk.
const MESSAGE_BYTES: usize = 1024;
/// Longest attempt id, for the same reason.
const ID_BYTES: usize = 128;

#[derive(Debug)]
pub(super) struct Charge {
    pub(super) attempt_id: String,
    pub(super) token: Option<LeaseToken>,
    pub(super) course: Course,
    pub(super) stdin: StdinQueue,
    pub(super) recorder: Recorder,
    id: ProcessId,
    pidfd: Option<OwnedFd>,
    exit: Option<Exit>,
    exited_wall_ms: u64,
    /// Whom the last look has seen.
    members: Members,
}

impl Charge {
    /// Starts the child; `early` is what came for it before. Whatever goes wrong until it runs is the report's to say.
    pub(super) fn launch(
        launch: Launch,
        mut early: StdinQueue,
        spool: &Path,
        now: Moment,
    ) -> Result<Self, NotStarted> {
        let lease = launch.lease.map(lease::from_message);
        let lease =
            lease.ok_or_else(|| failed(codes::SPAWN_FAILED, &"the launch names no lease"))?;
        if launch.attempt_id.len() > ID_BYTES {
            return Err(failed(codes::SPAWN_FAILED, &"the attempt's id is too long"));
        }
        if now >= lease.term_at {
            return Err(failed(
                codes::LEASE_EXPIRED,
                &"the lease ended before the start",
            ));
        }
        let writer =
            Writer::create(spool).map_err(|error| disk_failed("begin the transcript", &error))?;
        let spec = spec_of(&launch);
        let (id, pipes) = start(spec).map_err(|error| failed(error.failure_code(), &error))?;
        let [stdin, stdout, stderr] = pipes;
        early.attach(stdin);
        // What fits goes in at once: a quick child may be gone before the first wait.
        early.write();
        Ok(Self {
            // A copy: the bytes of the launch are the message's whole buffer.
            token: launch.token.map(|token| LeaseToken {
                value: Bytes::copy_from_slice(&token.value),
            }),
            attempt_id: launch.attempt_id,
            course: Course::new(lease, Duration::from_millis(launch.cleanup_term_ms)),
            stdin: early,
            recorder: Recorder::new(writer, stdout, stderr),
            id,
            pidfd: watch(id),
            exit: None,
            exited_wall_ms: 0,
            members: Members::default(),
        })
    }

    pub(super) fn started(&self) -> Started {
        Started {
            pid: self.id.pid,
            start_time: self.id.start_time,
        }
    }

    /// What a daemon says to a running child's shim. A second greeting or launch says nothing.
    pub(super) fn obey(&mut self, message: Message, now: Moment) -> Result<(), TooMuch> {
        match message {
            Message::Lease(lease) => self.course.on_lease(lease::from_message(lease), now),
            Message::Stop(stop) => self.course.on_stop(Moment::from_millis(stop.kill_at_ms)),
            Message::Consumed(consumed) => self.recorder.consume(consumed.position),
            Message::Stdin(stdin) => {
                self.stdin.take(stdin)?;
                self.stdin.write();
            }
            Message::Greeting(_) | Message::Launch(_) => {}
        }
        Ok(())
    }

    /// Readable once the child has ended.
    pub(super) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(OwnedFd::as_fd)
    }

    pub(super) fn appetite(&self, with_daemon: bool) -> Appetite {
        match (
            self.course.is_draining(),
            self.course.is_ending(),
            with_daemon,
        ) {
            (true, _, _) => Appetite::Draining,
            (false, true, _) => Appetite::Ending,
            (false, false, true) => Appetite::WithDaemon,
            (false, false, false) => Appetite::Alone,
        }
    }

    /// Does what the moment asks for: buries the dead, moves on, looks, signals.
    pub(super) fn tend(&mut self, clock: &Clock) {
        let now = clock.now();
        let reaped = reap(self.id);
        let exit = reaped.child.map(exit_of);
        // Nobody else can wait for it, but a child without an exit would be waited for until the lease ends.
        let exit = exit.or(reaped.nobody_left.then_some(Exit::Unseen));
        if let (Some(exit), None) = (exit, self.exit) {
            self.exit = Some(exit);
            self.exited_wall_ms = clock.wall_ms();
            self.pidfd = None;
            self.course.on_exit(now);
        }
        self.recorder.retry(now);
        self.course.advance(now, self.recorder.is_drained());
        if self.course.is_ending() {
            self.stdin.stop();
        }
        if reaped.nobody_left {
            self.course.on_sight(Sight::Nobody, now);
        } else if let Some(look) = self.course.wants_look(now) {
            self.look(look, now);
        }
        self.course.advance(now, self.recorder.is_drained());
    }

    fn look(&mut self, look: Look, now: Moment) {
        let child = descendants::Child {
            group: self.id.pid,
            is_unreaped: self.exit.is_none(),
        };
        let sight = if look == Look::AtKnown && self.members.any_alive() {
            Sight::Known
        } else {
            // A look that fails has seen nobody, which does not mean that nobody is there.
            self.members = Members::look().unwrap_or_default();
            self.members.sight(child)
        };
        if let Some(rung) = self.course.on_sight(sight, now) {
            self.members.signal(child, rung);
        }
    }

    /// When it wants to be tended again if nothing happens before.
    pub(super) fn next(&self, now: Moment) -> Option<Moment> {
        let course = self.course.next(now);
        let unwatched = self.pidfd.is_none() && self.exit.is_none();
        let moments = [
            course,
            self.recorder.retry_at(),
            unwatched.then(|| now.after(UNWATCHED)),
        ];
        moments.into_iter().flatten().min()
    }

    /// The report, once it is over.
    pub(super) fn report(&mut self, now: Moment) -> Option<Report> {
        let (ended_by, cleared) = self.course.over()?;
        let lost = self.recorder.finish(now);
        let how = match self.exit {
            Some(Exit::Code(code)) => report::How::ExitCode(code),
            Some(Exit::Signal(signal)) => report::How::Signal(signal),
            Some(Exit::Unseen) | None => report::How::Unseen(true),
        };
        Some(Report {
            attempt_id: self.attempt_id.clone(),
            how: Some(how),
            ended_by: reported(ended_by).into(),
            empty: cleared.empty,
            terminated: cleared.terminated,
            killed: cleared.killed,
            swept: cleared.swept,
            exited_at_ms: self.course.exited_at().map_or(0, Moment::as_millis),
            over_at_ms: now.as_millis(),
            exited_wall_ms: self.exited_wall_ms,
            lease: Some(lease::to_message(self.course.lease())),
            transcript_end: self.recorder.end(),
            stdin_done: self.stdin.done().id,
            lost_bytes: lost.bytes,
            disk_refused: lost.disk_refused,
        })
    }
}

/// Between two looks at a child that the kernel gave no descriptor for.
const UNWATCHED: Duration = Duration::from_millis(50);

/// Without a descriptor the child is looked after from time to time.
fn watch(id: ProcessId) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(id.pid)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn reported(by: course::EndedBy) -> EndedBy {
    match by {
        course::EndedBy::Child => EndedBy::Child,
        course::EndedBy::Lease => EndedBy::Lease,
        course::EndedBy::Order => EndedBy::Order,
    }
}

/// The report of an attempt that never had a process.
pub(super) fn nothing_ran(
    attempt_id: &str,
    ended_by: EndedBy,
    not_started: NotStarted,
    now: Moment,
) -> Report {
    Report {
        attempt_id: clipped(attempt_id, ID_BYTES),
        how: Some(report::How::NotStarted(not_started)),
        ended_by: ended_by.into(),
        empty: true,
        over_at_ms: now.as_millis(),
        ..Report::default()
    }
}

pub(super) fn failed(code: &str, why: &impl ToString) -> NotStarted {
    NotStarted {
        code: code.to_owned(),
        message: clipped(&why.to_string(), MESSAGE_BYTES),
    }
}

fn clipped(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}

/// A full disk has its own code: it says what to do.
pub(crate) fn disk_failed(what: &str, error: &io::Error) -> NotStarted {
    let full = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    );
    let code = if full {
        codes::WORKER_DISK_FULL
    } else {
        codes::SPAWN_FAILED
    };
    failed(code, &format!("cannot {what}: {error}"))
}

fn spec_of(launch: &Launch) -> ChildSpec {
    let text = |bytes: &Bytes| OsString::from_vec(bytes.to_vec());
    let variables = launch.environment.iter();
    ChildSpec {
        program: text(&launch.program),
        args: launch.args.iter().map(text).collect(),
        cwd: text(&launch.cwd).into(),
        environment: variables
            .map(|variable| (text(&variable.name), text(&variable.value)))
            .collect(),
        group: (!launch.control_group.is_empty()).then(|| text(&launch.control_group).into()),
    }
}

/// All that can fail is done before the child runs: then it is in this shim's charge, or it never was.
fn start(spec: ChildSpec) -> Result<(ProcessId, [OwnedFd; 3]), SpawnError> {
    let (program, cwd) = (spec.program.clone(), spec.cwd.clone());
    let mut command = command(spec, getpid())?;
    let started = pipes(&mut command).and_then(|pipes| Ok((command.spawn()?, pipes)));
    let (child, pipes) = started.map_err(|source| SpawnError::NotStarted {
        program,
        cwd,
        source,
    })?;
    let pid = child.id().cast_signed();
    let unknown = ProcessId { pid, start_time: 0 };
    Ok((identity_of(pid).unwrap_or(unknown), pipes))
}

/// Gives the child its ends of three pipes and returns the shim's, which do not block.
fn pipes(command: &mut Command) -> io::Result<[OwnedFd; 3]> {
    let (theirs_in, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, theirs_out) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, theirs_err) = pipe_with(PipeFlags::CLOEXEC)?;
    let ours = [stdin, stdout, stderr];
    for pipe in &ours {
        ioctl_fionbio(pipe, true)?;
    }
    command
        .stdin(theirs_in)
        .stdout(theirs_out)
        .stderr(theirs_err);
    Ok(ours)
}

fn exit_of(status: WaitStatus) -> Exit {
    let code = status.exit_status().map(Exit::Code);
    code.or_else(|| status.terminating_signal().map(Exit::Signal))
        .unwrap_or(Exit::Unseen)
}
