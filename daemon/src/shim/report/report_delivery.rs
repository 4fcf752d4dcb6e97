//! The last steps of a shim. The report is readable before anything waits for the disk, so that
//! a daemon that gives up on a slow disk still finds it.

use std::io;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use baton_proto::worker::{FromShim, Report, from_shim};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ReportFile;
use crate::clock::Clock;
use crate::shim::SOCKET_FILE;
use crate::shim::daemon_connection::DaemonConnection;

/// The time limit for sending the last message. The same report is on the disk.
const REPORT_SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two tries to send to a connection that is full.
const POLL_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Writes the report, calls `between`, and returns when the report is synced. What `between`
/// syncs is on the disk by then, so that no result survives a power failure without its output.
pub(in crate::shim) fn store_report(
    report_file: &ReportFile,
    report: &Report,
    between: impl FnOnce(),
) -> io::Result<()> {
    let written = report_file.write(report);
    between();
    written.and_then(|()| report_file.sync())
}

/// From now on a connection is refused, and the report is there instead of the shim.
pub(in crate::shim) fn close_listener(listener: UnixListener) {
    // A socket file that cannot be removed refuses connections all the same.
    let _ = std::fs::remove_file(SOCKET_FILE);
    drop(listener);
}

/// Sends the report to the daemon, within a time limit.
pub(in crate::shim) fn send_report(mut peer: DaemonConnection, report: Report, clock: &Clock) {
    let until = clock.now().after(REPORT_SEND_TIMEOUT);
    peer.push_message(&FromShim {
        message: Some(from_shim::Message::Report(report)),
    });
    peer.flush();
    while peer.has_unsent() && clock.now() < until {
        let mut fds = [PollFd::from_borrowed_fd(peer.fd(), PollFlags::OUT)];
        let _ = poll(&mut fds, Some(&POLL_PAUSE));
        peer.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::read_report;
    use super::*;

    #[test]
    fn the_report_is_readable_before_it_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        let report_file = ReportFile::reserve(&path).unwrap();
        let report = Report {
            transcript_end: 7,
            ..Report::default()
        };
        let found = Cell::new(None);
        store_report(&report_file, &report, || {
            found.set(read_report(&path).unwrap())
        })
        .unwrap();
        assert_eq!(found.into_inner(), Some(report));
    }
}
