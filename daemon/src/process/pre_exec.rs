//! What a child does between fork and exec: it asks the kernel to be killed when the thread
//! that started it ends, and to be chosen before its parent when memory runs out. The first is
//! only a fallback: it reaches the direct child, not its descendants.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::disable_transparent_huge_pages;

use crate::machine::control_groups::PROCS_FILE;

/// Added to the parent's score, out of 1000 for all memory.
const OOM_STEP: i32 = 100;
const OOM_HIGHEST: i32 = 1000;

/// The calling thread must outlive the child.
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

/// The kernel kills the child and its descendants before the calling process when memory runs
/// out. Transparent huge pages are enabled again: they are disabled for the shim, and that
/// would be inherited.
#[expect(
    unsafe_code,
    reason = "set from outside, it would miss what the child has forked by then"
)]
pub(super) fn restore_memory_defaults(command: &mut Command) {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj");
    let own: i32 = own
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    let score = (own + OOM_STEP).min(OOM_HIGHEST).to_string();
    // SAFETY: the hook makes four system calls with what was prepared before the fork.
    unsafe {
        command.pre_exec(move || {
            let file = open(
                c"/proc/self/oom_score_adj",
                OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::empty(),
            );
            // These are precautions: without them the child runs all the same.
            if let Ok(file) = file {
                let _ = rustix::io::write(file, score.as_bytes());
            }
            let _ = disable_transparent_huge_pages(false);
            Ok(())
        });
    }
}

/// The child is in the group before exec, so that all its descendants are too. Where that is
/// not permitted it runs outside.
#[expect(
    unsafe_code,
    reason = "set from outside, it would miss what the child has forked by then"
)]
pub(super) fn join_control_group(command: &mut Command, group: &Path) {
    let Ok(members) = OpenOptions::new().write(true).open(group.join(PROCS_FILE)) else {
        return;
    };
    // SAFETY: the hook makes one system call on a descriptor that was opened before the fork.
    unsafe {
        command.pre_exec(move || {
            // "0" stands for the writing process.
            let _ = rustix::io::write(&members, b"0");
            Ok(())
        });
    }
}
