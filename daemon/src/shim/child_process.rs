//! The child of a shim: how it is started, gets its input, is recorded, ended and reported.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use baton_daemon_core::child_lifecycle;
use baton_daemon_core::child_lifecycle::{ChildLifecycle, ProcessScan};
use baton_daemon_core::termination_sequence::ScanResult;
use baton_proto::codes;
use baton_proto::v1::LeaseToken;
use baton_proto::worker::to_shim::Message;
use baton_proto::worker::{EndedBy, Launch, NotStarted, Report, Started, report};
use bytes::Bytes;
use rustix::io::ioctl_fionbio;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, WaitStatus, getpid, pidfd_open};

use super::descendants::{self, LiveDescendants, reap_dead};
use super::lease_message;
use super::output_recorder::{OutputReadMode, OutputRecorder};
use super::stdin_queue::{StdinQueue, StdinQueueFull};
use crate::clock::{BootTime, Clock};
use crate::process::{ChildExit, ChildSpec, ProcessId, SpawnError, build_command, identity_of};
use crate::spool::SpoolWriter;

/// The longest message in a report, which has one block on the disk.
const REPORT_MESSAGE_BYTES_MAX: usize = 1024;
/// The longest attempt id, for the same reason.
const ATTEMPT_ID_BYTES_MAX: usize = 128;

#[derive(Debug)]
pub(super) struct ChildProcess {
    pub(super) attempt_id: String,
    pub(super) token: Option<LeaseToken>,
    pub(super) lifecycle: ChildLifecycle,
    pub(super) stdin: StdinQueue,
    pub(super) recorder: OutputRecorder,
    id: ProcessId,
    pidfd: Option<OwnedFd>,
    exit: Option<ChildExit>,
    exited_wall_ms: u64,
    /// What the last scan has found.
    descendants: LiveDescendants,
}

impl ChildProcess {
    /// Starts the child; `early` is the input that arrived before. An error before it runs
    /// becomes part of the report.
    pub(super) fn launch(
        launch: Launch,
        mut early: StdinQueue,
        spool: &Path,
        now: BootTime,
    ) -> Result<Self, NotStarted> {
        let lease = launch.lease.map(lease_message::from_message);
        let lease =
            lease.ok_or_else(|| not_started(codes::SPAWN_FAILED, &"the launch has no lease"))?;
        if launch.attempt_id.len() > ATTEMPT_ID_BYTES_MAX {
            return Err(not_started(
                codes::SPAWN_FAILED,
                &"the attempt's id is too long",
            ));
        }
        if now >= lease.term_at {
            return Err(not_started(
                codes::LEASE_EXPIRED,
                &"the lease ended before the start",
            ));
        }
        let writer = SpoolWriter::create(spool)
            .map_err(|error| disk_failure("create the transcript", &error))?;
        let spec = child_spec(&launch);
        let (id, pipes) =
            spawn_child(spec).map_err(|error| not_started(error.failure_code(), &error))?;
        let [stdin, stdout, stderr] = pipes;
        early.attach(stdin);
        // Writes what fits at once: a quick child may have exited before the first wait.
        early.write_pending();
        Ok(Self {
            // A copy, because the bytes of the launch share the message's whole buffer.
            token: launch.token.map(|token| LeaseToken {
                value: Bytes::copy_from_slice(&token.value),
            }),
            attempt_id: launch.attempt_id,
            lifecycle: ChildLifecycle::new(lease, Duration::from_millis(launch.cleanup_term_ms)),
            stdin: early,
            recorder: OutputRecorder::new(writer, stdout, stderr),
            id,
            pidfd: open_pidfd(id),
            exit: None,
            exited_wall_ms: 0,
            descendants: LiveDescendants::default(),
        })
    }

    pub(super) fn started(&self) -> Started {
        Started {
            pid: self.id.pid,
            start_time: self.id.start_time,
        }
    }

    /// A message of the daemon to the shim of a running child. A second greeting or launch has
    /// no effect.
    pub(super) fn on_message(
        &mut self,
        message: Message,
        now: BootTime,
    ) -> Result<(), StdinQueueFull> {
        match message {
            Message::Lease(lease) => self
                .lifecycle
                .on_lease(lease_message::from_message(lease), now),
            Message::Stop(stop) => self
                .lifecycle
                .on_stop(BootTime::from_millis(stop.kill_at_ms)),
            Message::Consumed(consumed) => self.recorder.consume(consumed.position),
            Message::Stdin(stdin) => {
                self.stdin.push(stdin)?;
                self.stdin.write_pending();
            }
            Message::Greeting(_) | Message::Launch(_) => {}
        }
        Ok(())
    }

    /// Readable once the child has exited.
    pub(super) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(OwnedFd::as_fd)
    }

    pub(super) fn read_mode(&self, with_daemon: bool) -> OutputReadMode {
        match (
            self.lifecycle.is_draining(),
            self.lifecycle.is_ending(),
            with_daemon,
        ) {
            (true, _, _) => OutputReadMode::Draining,
            (false, true, _) => OutputReadMode::Ending,
            (false, false, true) => OutputReadMode::WithDaemon,
            (false, false, false) => OutputReadMode::Alone,
        }
    }

    /// Does what is due: reaps dead processes, advances the lifecycle, scans, sends signals.
    pub(super) fn advance(&mut self, clock: &Clock) {
        let now = clock.now();
        let reaped = reap_dead(self.id);
        let exit = reaped.child.map(to_child_exit);
        // No other process can reap it, but a child without an exit would be waited for until
        // the lease ends.
        let exit = exit.or(reaped.no_children_left.then_some(ChildExit::Unknown));
        if let (Some(exit), None) = (exit, self.exit) {
            self.exit = Some(exit);
            self.exited_wall_ms = clock.wall_ms();
            self.pidfd = None;
            self.lifecycle.on_exit(now);
        }
        self.recorder.retry_write(now);
        self.lifecycle.advance(now, self.recorder.is_drained());
        if self.lifecycle.is_ending() {
            self.stdin.stop();
        }
        if reaped.no_children_left {
            self.lifecycle.on_scan(ScanResult::NoProcess, now);
        } else if let Some(scan) = self.lifecycle.due_scan(now) {
            self.check_descendants(scan, now);
        }
        self.lifecycle.advance(now, self.recorder.is_drained());
    }

    fn check_descendants(&mut self, scan: ProcessScan, now: BootTime) {
        let child = descendants::ChildGroup {
            group: self.id.pid,
            is_unreaped: self.exit.is_none(),
        };
        let result = if scan == ProcessScan::KnownOnly && self.descendants.any_alive() {
            ScanResult::KnownRemain
        } else {
            // A failed scan finds no process, which does not mean that none exists.
            self.descendants = LiveDescendants::scan().unwrap_or_default();
            self.descendants.summary(child)
        };
        if let Some(signal) = self.lifecycle.on_scan(result, now) {
            self.descendants.signal(child, signal);
        }
    }

    /// When `advance` has to be called again if nothing happens before.
    pub(super) fn next_wake(&self, now: BootTime) -> Option<BootTime> {
        let lifecycle = self.lifecycle.next_wakeup_at(now);
        let unwatched = self.pidfd.is_none() && self.exit.is_none();
        let moments = [
            lifecycle,
            self.recorder.retry_at(),
            unwatched.then(|| now.after(EXIT_POLL_INTERVAL)),
        ];
        moments.into_iter().flatten().min()
    }

    /// The report, once the child has ended.
    pub(super) fn final_report(&mut self, now: BootTime) -> Option<Report> {
        let (ended_by, termination) = self.lifecycle.outcome()?;
        let lost = self.recorder.finish(now);
        let how = match self.exit {
            Some(ChildExit::Code(code)) => report::How::ExitCode(code),
            Some(ChildExit::Signal(signal)) => report::How::Signal(signal),
            Some(ChildExit::Unknown) | None => report::How::Unseen(true),
        };
        Some(Report {
            attempt_id: self.attempt_id.clone(),
            how: Some(how),
            ended_by: wire_ended_by(ended_by).into(),
            empty: termination.proved_empty,
            terminated: termination.terminated,
            killed: termination.killed,
            swept: termination.signaled_singly,
            exited_at_ms: self.lifecycle.exited_at().map_or(0, BootTime::as_millis),
            over_at_ms: now.as_millis(),
            exited_wall_ms: self.exited_wall_ms,
            lease: Some(lease_message::to_message(self.lifecycle.lease())),
            transcript_end: self.recorder.end(),
            stdin_done: self.stdin.done().id,
            lost_bytes: lost.bytes,
            disk_refused: lost.disk_refused,
        })
    }
}

/// Between two checks of a child for which the kernel provided no pidfd.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Without a pidfd the child is polled.
fn open_pidfd(id: ProcessId) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(id.pid)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn wire_ended_by(by: child_lifecycle::ChildEndCause) -> EndedBy {
    match by {
        child_lifecycle::ChildEndCause::Child => EndedBy::Child,
        child_lifecycle::ChildEndCause::Lease => EndedBy::Lease,
        child_lifecycle::ChildEndCause::Order => EndedBy::Order,
    }
}

/// The report of an attempt that never had a process.
pub(super) fn not_started_report(
    attempt_id: &str,
    ended_by: EndedBy,
    not_started: NotStarted,
    now: BootTime,
) -> Report {
    Report {
        attempt_id: clip_text(attempt_id, ATTEMPT_ID_BYTES_MAX),
        how: Some(report::How::NotStarted(not_started)),
        ended_by: ended_by.into(),
        empty: true,
        over_at_ms: now.as_millis(),
        ..Report::default()
    }
}

pub(super) fn not_started(code: &str, why: &impl ToString) -> NotStarted {
    NotStarted {
        code: code.to_owned(),
        message: clip_text(&why.to_string(), REPORT_MESSAGE_BYTES_MAX),
    }
}

fn clip_text(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}

/// A full disk has its own code, which tells the operator what to do.
pub(crate) fn disk_failure(what: &str, error: &io::Error) -> NotStarted {
    let full = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    );
    let code = if full {
        codes::WORKER_DISK_FULL
    } else {
        codes::SPAWN_FAILED
    };
    not_started(code, &format!("cannot {what}: {error}"))
}

fn child_spec(launch: &Launch) -> ChildSpec {
    let text = |bytes: &Bytes| OsString::from_vec(bytes.to_vec());
    let variables = launch.environment.iter();
    ChildSpec {
        program: text(&launch.program),
        args: launch.args.iter().map(text).collect(),
        cwd: text(&launch.cwd).into(),
        environment: variables
            .map(|variable| (text(&variable.name), text(&variable.value)))
            .collect(),
        control_group: (!launch.control_group.is_empty())
            .then(|| text(&launch.control_group).into()),
    }
}

/// Everything that can fail is done before the child runs: an error means that there is no
/// child.
fn spawn_child(spec: ChildSpec) -> Result<(ProcessId, [OwnedFd; 3]), SpawnError> {
    let (program, cwd) = (spec.program.clone(), spec.cwd.clone());
    let mut command = build_command(spec, getpid())?;
    let started = attach_pipes(&mut command).and_then(|pipes| Ok((command.spawn()?, pipes)));
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
fn attach_pipes(command: &mut Command) -> io::Result<[OwnedFd; 3]> {
    let (child_in, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, child_out) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, child_err) = pipe_with(PipeFlags::CLOEXEC)?;
    let shim_pipes = [stdin, stdout, stderr];
    for pipe in &shim_pipes {
        ioctl_fionbio(pipe, true)?;
    }
    command.stdin(child_in).stdout(child_out).stderr(child_err);
    Ok(shim_pipes)
}

fn to_child_exit(status: WaitStatus) -> ChildExit {
    let code = status.exit_status().map(ChildExit::Code);
    code.or_else(|| status.terminating_signal().map(ChildExit::Signal))
        .unwrap_or(ChildExit::Unknown)
}
