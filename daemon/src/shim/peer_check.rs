//! Who may speak to a shim: a process of the same user, but nothing that the attempt itself started. An agent that could
//! renew its own lease would have none.

use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::process::{ATTEMPT_MARKER, environment_variable, read_stat};

/// Longest line of parents that is followed.
const PARENT_CHAIN_MAX: usize = 4096;
/// How often it is followed anew when somebody in it has died meanwhile.
const PARENT_WALKS_MAX: usize = 16;

/// Whether the process at the other end may. One that cannot be told may not.
pub(super) fn may_connect(stream: &UnixStream, attempt_id: &str) -> bool {
    let Ok(visitor) = socket_peercred(stream) else {
        return false;
    };
    let pid = visitor.pid.as_raw_nonzero().get();
    visitor.uid == geteuid() && !has_attempt_marker(pid, attempt_id) && !is_descendant(pid)
}

fn has_attempt_marker(pid: i32, attempt_id: &str) -> bool {
    let marker = environment_variable(pid, ATTEMPT_MARKER);
    marker.map_or(true, |marker| marker.as_deref() == Some(attempt_id))
}

/// Orphans of the attempt are children of the shim, so whatever it started has a line of parents to here.
fn is_descendant(pid: i32) -> bool {
    let walks = (0..PARENT_WALKS_MAX).find_map(|_| descends_from_shim(pid));
    walks.unwrap_or(true)
}

/// `None` when the line broke while it was followed.
fn descends_from_shim(pid: i32) -> Option<bool> {
    let own = std::process::id().cast_signed();
    let mut at = pid;
    for _ in 0..PARENT_CHAIN_MAX {
        // The first process, or a parent in another namespace: the line ends.
        if at == own || at <= 1 {
            return Some(at == own);
        }
        at = read_stat(at).ok().flatten()?.parent;
    }
    None
}
