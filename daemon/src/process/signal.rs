//! Signals to verified processes only, so that a reused pid is never hit.

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::{ProcessId, process_stat};

/// A pidfd pins the process before its identity is compared, so the pid cannot be reused in
/// between.
pub(crate) fn signal_one(id: ProcessId, signal: Signal) {
    let Some(pid) = Pid::from_raw(id.pid) else {
        return;
    };
    let same = || process_stat::identity_of(id.pid) == Some(id);
    // Errors mean that the process is gone, or that the system is out of resources; the next
    // scan decides.
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) if same() => drop(pidfd_send_signal(pidfd, signal)),
        Err(Errno::NOSYS) if same() => drop(kill_process(pid, signal)),
        Ok(_) | Err(_) => {}
    }
}
