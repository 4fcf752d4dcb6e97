//! What a process inherits from the one that started it, and a shim must not keep: open file
//! descriptors, signal dispositions, the session. The unsafe part of the shim: neither std nor
//! rustix offers these calls safely.

use std::fs::read_dir;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{getpid, set_child_subreaper, setsid};
use rustix::stdio::{dup2_stdin, stdin};

/// Faults keep their default action: a shim that fails must end. SIGKILL and SIGSTOP cannot be
/// caught.
const UNCAUGHT_SIGNALS: [libc::c_int; 9] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGKILL,
    libc::SIGSTOP,
];
/// The highest signal; 32 and 33 are reserved by the C library.
const LAST_SIGNAL: libc::c_int = 64;

/// Closes everything inherited from the daemon except for one socket, which was passed as
/// stdin, and returns that. Must be called before this process opens anything.
pub(super) fn detach_from_daemon() -> io::Result<OwnedFd> {
    close_descriptors();
    catch_signals();
    // Fails for the leader of a group, which has left the terminal's group anyway.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let first = fcntl_dupfd_cloexec(stdin(), 3)?;
    let null = open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    dup2_stdin(&null)?;
    Ok(first)
}

/// Closes inherited file descriptors: a shim may outlive their owners by hours.
fn close_descriptors() {
    let numbers =
        |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let Ok(entries) = read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = entries.filter_map(numbers).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        close(descriptor);
    }
}

#[expect(unsafe_code, reason = "an inherited descriptor has no owner to drop")]
fn close(descriptor: RawFd) {
    // SAFETY: nothing in this process has opened a descriptor yet, so this one has no owner.
    // Closing the directory that was just read once more is an error without effect.
    unsafe { libc::close(descriptor) };
}

/// Signals only wake the shim. They are caught and not ignored: exec resets caught signals to
/// their default, so that the child starts with none ignored, even if the daemon was started
/// with some.
#[expect(unsafe_code, reason = "std and rustix install no handlers")]
fn catch_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in (1..=LAST_SIGNAL).filter(|signal| !UNCAUGHT_SIGNALS.contains(signal)) {
        // SAFETY: a handler that does nothing is safe at any time.
        unsafe { libc::signal(signal, handler) };
    }
}
