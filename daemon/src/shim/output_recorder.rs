//! The child's output pipes and the transcript that they are written to. Output that was read
//! is not dropped while it can still be stored: when the disk refuses a write, its chunk stays
//! in memory, and the child waits at its pipes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use baton_proto::worker::SpoolFailed;
use rustix::io::{Errno, ioctl_fionread};

use crate::clock::BootTime;
use crate::spool::{ChildPipe, LARGEST_CHUNK, SpoolWriter};

/// Unconsumed transcript at which the child has to wait, with a connected daemon.
const UNCONSUMED_MAX_WITH_DAEMON: u64 = 8 * 1024 * 1024;
/// The same without a daemon.
const UNCONSUMED_MAX_ALONE: u64 = 64 * 1024 * 1024;
/// The same while the child is being ended: a child that waits at its pipe could not exit by
/// itself.
const UNCONSUMED_MAX_ENDING: u64 = UNCONSUMED_MAX_ALONE + UNCONSUMED_MAX_WITH_DAEMON;
/// Between two tries to write to a disk that refused.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// How much output may be read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputReadMode {
    WithDaemon,
    Alone,
    Ending,
    /// No process is left that could write more: the pipes hold all that there will be.
    Draining,
}

impl OutputReadMode {
    fn unconsumed_max(self) -> u64 {
        match self {
            Self::WithDaemon => UNCONSUMED_MAX_WITH_DAEMON,
            Self::Alone => UNCONSUMED_MAX_ALONE,
            Self::Ending => UNCONSUMED_MAX_ENDING,
            Self::Draining => u64::MAX,
        }
    }
}

#[derive(Debug)]
pub(super) struct OutputRecorder {
    writer: SpoolWriter,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    buffer: Box<[u8]>,
    unwritten: Option<UnwrittenChunk>,
    failure: Option<SpoolFailed>,
    consumed: u64,
}

/// Output that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LostOutput {
    pub(super) bytes: u64,
    /// The disk refused the first of these bytes, so the rest was not read.
    pub(super) disk_refused: bool,
}

/// A chunk at the front of the buffer that the disk has not stored.
#[derive(Clone, Copy, Debug)]
struct UnwrittenChunk {
    kind: ChildPipe,
    wall_ms: u64,
    length: usize,
    retry_at: BootTime,
}

impl OutputRecorder {
    /// The pipes must not block.
    pub(super) fn new(writer: SpoolWriter, stdout: OwnedFd, stderr: OwnedFd) -> Self {
        Self {
            writer,
            stdout: Some(stdout),
            stderr: Some(stderr),
            buffer: vec![0; LARGEST_CHUNK].into_boxed_slice(),
            unwritten: None,
            failure: None,
            consumed: 0,
        }
    }

    /// The end of the transcript.
    pub(super) fn end(&self) -> u64 {
        self.writer.end()
    }

    pub(super) fn consumed(&self) -> u64 {
        self.consumed
    }

    pub(super) fn failure(&self) -> Option<&SpoolFailed> {
        self.failure.as_ref()
    }

    /// All output is in the transcript, and no more will come.
    pub(super) fn is_drained(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none() && self.unwritten.is_none()
    }

    /// The pipes that should be read now.
    pub(super) fn readable_pipes(
        &self,
        mode: OutputReadMode,
    ) -> impl Iterator<Item = (ChildPipe, BorrowedFd<'_>)> {
        let has_room =
            self.unwritten.is_none() && self.end() - self.consumed < mode.unconsumed_max();
        let both = [
            (ChildPipe::Stdout, &self.stdout),
            (ChildPipe::Stderr, &self.stderr),
        ];
        both.into_iter().filter_map(move |(kind, pipe)| {
            Some((kind, pipe.as_ref().filter(|_| has_room)?.as_fd()))
        })
    }

    /// Reads one pipe once, into the transcript.
    pub(super) fn read_pipe(&mut self, kind: ChildPipe, wall_ms: u64, now: BootTime) {
        let pipe = match kind {
            ChildPipe::Stdout => &mut self.stdout,
            ChildPipe::Stderr => &mut self.stderr,
        };
        // The buffer may contain a chunk that the disk has not stored.
        let Some(fd) = pipe.as_ref().filter(|_| self.unwritten.is_none()) else {
            return;
        };
        match rustix::io::read(fd, &mut self.buffer[..]) {
            // A pipe that cannot be read counts as closed.
            Ok(0) => *pipe = None,
            Ok(length) => {
                self.unwritten = Some(UnwrittenChunk {
                    kind,
                    wall_ms,
                    length,
                    retry_at: now,
                });
                self.write_chunk(now);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => *pipe = None,
        }
    }

    /// Retries to write a chunk that the disk refused, when it is time.
    pub(super) fn retry_write(&mut self, now: BootTime) {
        if self.retry_at().is_some_and(|at| at <= now) {
            self.write_chunk(now);
        }
    }

    pub(super) fn retry_at(&self) -> Option<BootTime> {
        self.unwritten.as_ref().map(|chunk| chunk.retry_at)
    }

    /// The transcript up to here is no longer needed.
    pub(super) fn consume(&mut self, position: u64) {
        self.consumed = self.consumed.max(position.min(self.end()));
        self.writer.discard(self.consumed);
    }

    /// The last try. Returns what is lost: what the disk refused, and what is left in the
    /// pipes.
    pub(super) fn finish(&mut self, now: BootTime) -> LostOutput {
        self.write_chunk(now);
        let chunk = self.unwritten.map_or(0, |chunk| chunk.length as u64);
        let left = [&self.stdout, &self.stderr].into_iter().flatten();
        let in_pipes: u64 = left.map(|pipe| ioctl_fionread(pipe).unwrap_or(0)).sum();
        LostOutput {
            bytes: chunk + in_pipes,
            disk_refused: self.unwritten.is_some(),
        }
    }

    /// Syncs the transcript if possible.
    pub(super) fn sync(&self) {
        let _ = self.writer.sync();
    }

    fn write_chunk(&mut self, now: BootTime) {
        let Some(chunk) = &mut self.unwritten else {
            return;
        };
        let bytes = &self.buffer[..chunk.length];
        match self.writer.append(chunk.kind, chunk.wall_ms, bytes) {
            Ok(_) => {
                self.unwritten = None;
                self.failure = None;
            }
            Err(error) => {
                chunk.retry_at = now.after(RETRY_INTERVAL);
                self.failure = Some(SpoolFailed {
                    errno: error.raw_os_error().unwrap_or(0),
                    message: error.to_string(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn unread_output_is_counted_as_lost() {
        let dir = tempfile::tempdir().unwrap();
        let writer = SpoolWriter::create(dir.path().join("spool")).unwrap();
        let ((stdout, out), (stderr, err)) = (pipe().unwrap(), pipe().unwrap());
        let mut recorder = OutputRecorder::new(writer, stdout, stderr);
        rustix::io::write(&out, b"12345").unwrap();
        rustix::io::write(&err, b"67").unwrap();
        let now = BootTime::from_millis(1);
        recorder.read_pipe(ChildPipe::Stderr, 0, now);
        let lost = LostOutput {
            bytes: 5,
            disk_refused: false,
        };
        assert_eq!((recorder.finish(now), recorder.end()), (lost, 2));
    }

    #[test]
    fn refused_output_is_lost_with_all_after_it_and_reported() {
        let (stdout, out) = pipe().unwrap();
        let (stderr, _err) = pipe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let spool = dir.path().join("spool");
        let writer = SpoolWriter::create(&spool).unwrap();
        std::fs::rename(&spool, dir.path().join("away")).unwrap();
        let mut recorder = OutputRecorder::new(writer, stdout, stderr);
        rustix::io::write(&out, b"12345").unwrap();
        let now = BootTime::from_millis(1);
        recorder.read_pipe(ChildPipe::Stdout, 0, now);
        rustix::io::write(&out, b"67").unwrap();
        let lost = LostOutput {
            bytes: 7,
            disk_refused: true,
        };
        assert_eq!(recorder.finish(now), lost);
    }
}
