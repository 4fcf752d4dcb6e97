//! The kernel timer that wakes the shim. It counts CLOCK_BOOTTIME like the leases do, so after
//! a suspend past the deadline it fires at once; the timeout of `poll` stops during a suspend.

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

    /// Fires at `at`, or never for `None`.
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

    /// Resets the timer after it has fired.
    pub(super) fn clear(&mut self) {
        // Nothing to read means that it was armed again meanwhile.
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        self.armed = None;
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Zero would disarm the timer, so time 0 becomes one nanosecond.
fn to_timespec(at: BootTime) -> Timespec {
    let millis = at.as_millis();
    let seconds = i64::try_from(millis / 1_000).unwrap_or(i64::MAX);
    let nanos = i64::try_from(millis % 1_000).unwrap_or(0) * 1_000_000;
    Timespec {
        tv_sec: seconds,
        tv_nsec: if millis == 0 { 1 } else { nanos },
    }
}
