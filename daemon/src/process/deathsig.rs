//! The one unsafe line of the daemon: a hook between fork and exec that asks the kernel to kill the
//! child when the thread that started it ends. A second line only: it reaches the direct child, not its
//! descendants.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::process::Command;

/// The calling thread must outlive the child; see [`super::Spawner`].
#[expect(
    unsafe_code,
    reason = "std offers no safe way to run code between fork and exec"
)]
pub(super) fn die_with_parent_thread(command: &mut Command, parent: Pid) {
    // SAFETY: the hook makes two system calls without allocating, locking or touching memory of
    // another thread, which is what is allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the request was made.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(io::ErrorKind::NotConnected.into())
            }
        });
    }
}
