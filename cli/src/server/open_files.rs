//! The limit on open files: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a process needs besides its connections: the store, output segments, sockets of its own.
const RESERVED_FILES: u64 = 512;

/// The system does not let this process have that many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{connections} connections need {wanted} open files, and the system allows {allowed}")]
pub(crate) struct OpenFileLimitError {
    connections: u64,
    wanted: u64,
    allowed: u64,
}

/// Raises the limit of this process, and of what it starts, so that it can have that many connections. The hard limit too,
/// where we may; where not, the soft one goes as far as it can.
pub(crate) fn raise_limit_for(connections: u64) -> Result<(), OpenFileLimitError> {
    let wanted = connections.saturating_add(RESERVED_FILES);
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|files| files >= wanted) {
        return Ok(());
    }
    let limits = |current, maximum| Rlimit {
        current: Some(current),
        maximum,
    };
    let higher = now.maximum.map(|hard| hard.max(wanted));
    if setrlimit(Resource::Nofile, limits(wanted, higher)).is_ok() {
        return Ok(());
    }
    let allowed = now.maximum.unwrap_or(wanted);
    // It is no worse off if even that is refused.
    let _ = setrlimit(Resource::Nofile, limits(allowed, now.maximum));
    Err(OpenFileLimitError {
        connections,
        wanted,
        allowed,
    })
}
