//! Which processes may connect to a shim: those of the same user, but none that the attempt
//! itself started. Otherwise an agent could renew its own lease.

use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::process::{ATTEMPT_MARKER, environment_variable, read_stat};

/// The longest chain of parents that is followed.
const PARENT_CHAIN_MAX: usize = 4096;
/// How often the chain is followed again when a process in it has died meanwhile.
const PARENT_WALKS_MAX: usize = 16;

/// Whether the process at the other end may connect. Refused when that cannot be determined.
pub(super) fn may_connect(stream: &UnixStream, attempt_id: &str) -> bool {
    let Ok(peer) = socket_peercred(stream) else {
        return false;
    };
    let pid = peer.pid.as_raw_nonzero().get();
    peer.uid == geteuid() && !has_attempt_marker(pid, attempt_id) && !is_descendant(pid)
}

fn has_attempt_marker(pid: i32, attempt_id: &str) -> bool {
    let marker = environment_variable(pid, ATTEMPT_MARKER);
    marker.map_or(true, |marker| marker.as_deref() == Some(attempt_id))
}

/// Orphans of the attempt are children of the shim, so the parents of everything that it
/// started lead here.
fn is_descendant(pid: i32) -> bool {
    let walks = (0..PARENT_WALKS_MAX).find_map(|_| descends_from_shim(pid));
    walks.unwrap_or(true)
}

/// `None` when a process of the chain died meanwhile.
fn descends_from_shim(pid: i32) -> Option<bool> {
    let own = std::process::id().cast_signed();
    let mut at = pid;
    for _ in 0..PARENT_CHAIN_MAX {
        // The first process, or a parent in another namespace: the chain ends.
        if at == own || at <= 1 {
            return Some(at == own);
        }
        at = read_stat(at).ok().flatten()?.parent;
    }
    None
}
