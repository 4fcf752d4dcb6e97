//! Child processes of attempts: starting them, their pipes, finding every descendant, ending all of
//! them. Knows nothing of frames, leases or the relay. The shim process of a later version takes over
//! what is in here and runs it outside the daemon.

mod before_exec;
mod child;
mod coalesce;
mod descendants;
mod environment;
mod ladder;
mod reaper;
mod signal;
mod spawn;
mod stat;
mod stdio;

use std::fmt;

pub(crate) use child::{ChildSpec, SpawnError, command, identify_child};
pub(crate) use coalesce::{Chunk, Coalescer};
pub(crate) use descendants::Family;
pub(crate) use environment::{Owner, child_environment};
pub(crate) use ladder::{Cleared, clear, kill_marked};
pub(crate) use reaper::{adopt_orphans, reap_orphans};
pub(crate) use signal::signal_one;
pub(crate) use spawn::{Spawned, Spawner};
pub(crate) use stat::{ProcessStat, process_table, read as read_stat};
pub(crate) use stdio::{PipeEvent, Pipes};

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

impl From<std::process::ExitStatus> for Exit {
    fn from(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match status.code() {
            Some(code) => Self::Code(code),
            None => status.signal().map_or(Self::Unseen, Self::Signal),
        }
    }
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

#[cfg(test)]
mod tests;
