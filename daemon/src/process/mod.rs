//! What daemon and shim know about processes: how a child is started, who is who in /proc, signals that hit nobody
//! else, orphans, and the daemon's last line: the end of what a lost shim left. Knows nothing of frames, leases or the relay. What happens to
//! a child between its start and its end is the shim's.

mod before_exec;
mod child;
mod environment;
mod family;
mod orphans;
mod reaper;
mod signal;
mod stat;
mod sweep;

use std::fmt;

pub(crate) use baton_daemon_core::ladder::{Cleared, POLL, SWEEP_LIMIT};
pub(crate) use child::{ChildSpec, SpawnError, command, identify_child};
pub use environment::{NameFault, check_variable};
pub(crate) use environment::{Owner, child_environment};
pub(crate) use family::{descendants, descendants_of, still_below};
pub(crate) use orphans::{kill_below, kill_family};
pub(crate) use reaper::{adopt_orphans, reap_orphans, register};
pub(crate) use signal::signal_one;
pub(crate) use stat::{ProcessStat, identity_of, read as read_stat, variable};
pub(crate) use sweep::{kill_marked, kill_strangers};

/// Environment variable that every process of an attempt inherits; its value is the attempt's id.
pub(crate) const ATTEMPT_MARKER: &str = "BATON_ATTEMPT_ID";

/// The same for all attempts of a daemon: what a killed daemon left is found by it.
pub(crate) const DAEMON_MARKER: &str = "BATON_DAEMON_ID";

/// Identity of a process: a bare pid may be reused, a pid with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    /// Clock ticks after boot, as the kernel counts them.
    pub(crate) start_time: u64,
}

/// How a child ended, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    /// Somebody else waited for it first; how it ended is not known.
    Unseen,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unseen => write!(f, "an unknown exit"),
        }
    }
}
