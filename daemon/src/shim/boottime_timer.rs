//! The kernel timer that wakes the shim. It counts CLOCK_BOOTTIME like the leases do, so a machine that was asleep
//! past the moment wakes the shim at once; a poll's own timeout would stand still meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::clock::BootTime;

#[derive(Debug)]
pub(super) struct BoottimeTimer {
    fd: OwnedFd,
    armed: Option<BootTime>,
}

impl BoottimeTimer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self { fd, armed: None })
    }

    /// Wakes at `at`, or not at all.
    pub(super) fn arm(&mut self, at: Option<BootTime>) -> io::Result<()> {
        if self.armed == at {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: at.map_or_else(Timespec::default, to_timespec),
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &once)?;
        self.armed = at;
        Ok(())
    }

    /// Takes note that it has fired.
    pub(super) fn clear(&mut self) {
        // Nothing to read means that it was armed anew meanwhile.
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        self.armed = None;
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Zero would switch the timer off, so the beginning of time is a nanosecond late.
fn to_timespec(at: BootTime) -> Timespec {
    let millis = at.as_millis();
    let seconds = i64::try_from(millis / 1_000).unwrap_or(i64::MAX);
    let nanos = i64::try_from(millis % 1_000).unwrap_or(0) * 1_000_000;
    Timespec {
        tv_sec: seconds,
        tv_nsec: if millis == 0 { 1 } else { nanos },
    }
}
