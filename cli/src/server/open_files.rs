//! The limit on open files, which also limits the number of connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that a process needs besides its connections: the store, output segments, listening sockets.
const RESERVED_FILES: u64 = 512;

/// The system's limit is too low.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{connections} connections need {wanted} open files, but the system allows only {allowed}")]
pub(crate) struct OpenFileLimitError {
    connections: u64,
    wanted: u64,
    allowed: u64,
}

/// Raises the limit of this process and its children for that many connections: the hard limit too if
/// permitted, else the soft limit as far as possible.
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
    // If this fails too, the limit stays as it was.
    let _ = setrlimit(Resource::Nofile, limits(allowed, now.maximum));
    Err(OpenFileLimitError {
        connections,
        wanted,
        allowed,
    })
}
