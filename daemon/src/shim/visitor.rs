//! Who may speak to a shim: a process of the same user, but nothing that an attempt started, this one or another. An
//! agent that could renew its own lease would have none, and one that could ask a sibling's shim would have its token.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{geteuid, getppid};

use crate::process::{ATTEMPT_MARKER, read_stat, variable};

/// Longest line of parents that is followed.
const DEEPEST: usize = 4096;
/// How often it is followed anew when somebody in it has died meanwhile.
const WALKS: usize = 16;

/// What is known of a process by its line of parents.
#[derive(Debug, Default)]
struct Origin {
    /// The line leads to this shim.
    from_here: bool,
    /// Every attempt whose marker somebody in the line carries.
    attempts: BTreeSet<String>,
}

/// The attempts that this shim's own daemon is part of: a daemon that an agent started is heard by its shims all the
/// same. To be asked while that daemon is the parent.
pub(super) fn outer_attempts() -> BTreeSet<String> {
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    parent
        .and_then(origin)
        .map_or_else(BTreeSet::new, |origin| origin.attempts)
}

/// Whether the process at the other end may. One that cannot be told may not.
pub(super) fn is_welcome(stream: &UnixStream, outer: &BTreeSet<String>) -> bool {
    let Ok(visitor) = socket_peercred(stream) else {
        return false;
    };
    if visitor.uid != geteuid() {
        return false;
    }
    let origin = origin(visitor.pid.as_raw_nonzero().get());
    origin.is_some_and(|origin| !origin.from_here && origin.attempts.is_subset(outer))
}

/// Orphans of an attempt are children of its shim, which carries the attempt's marker: so whatever any shim started is
/// known by its line of parents, with an empty environment too.
fn origin(pid: i32) -> Option<Origin> {
    (0..WALKS).find_map(|_| follow(pid))
}

/// `None` when the line broke while it was followed, or cannot be seen.
fn follow(pid: i32) -> Option<Origin> {
    let own = std::process::id().cast_signed();
    let mut origin = Origin::default();
    let mut at = pid;
    for _ in 0..DEEPEST {
        // The first process, or a parent in another namespace: the line ends.
        if at == own || at <= 1 {
            origin.from_here = at == own;
            return Some(origin);
        }
        origin.attempts.extend(variable(at, ATTEMPT_MARKER).ok()?);
        at = read_stat(at).ok().flatten()?.parent;
    }
    None
}
