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
use std::time::Duration;

pub(crate) use child::{ChildSpec, SpawnError, command, identify_child};
pub(crate) use environment::{Owner, child_environment};
pub(crate) use family::descendants;
pub(crate) use orphans::kill_family;
pub(crate) use reaper::{adopt_orphans, reap_orphans, register};
pub(crate) use signal::signal_one;
pub(crate) use stat::{ProcessStat, identity_of, read as read_stat, variable};
pub(crate) use sweep::{kill_marked, kill_strangers};

/// Environment variable that every process of an attempt inherits; its value is the attempt's id.
pub(crate) const ATTEMPT_MARKER: &str = "BATON_ATTEMPT_ID";

/// The same for all attempts of a daemon: what a killed daemon left is found by it.
pub(crate) const DAEMON_MARKER: &str = "BATON_DAEMON_ID";

/// Between two looks for processes that are to end.
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// How long KILL is repeated. What is left then cannot be killed, and the receipt says so.
pub(crate) const SWEEP_LIMIT: Duration = Duration::from_secs(5);

/// Identity of a process: a bare pid may be reused, a pid with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    /// Clock ticks after boot, as the kernel counts them.
    pub(crate) start_time: u64,
}

/// What was found of an attempt's processes at its end, and done to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleared {
    /// It is proved that no living process is left.
    pub(crate) empty: bool,
    /// TERM was sent to a living process.
    pub(crate) terminated: bool,
    /// KILL was needed.
    pub(crate) killed: bool,
    /// Processes that had to be signalled one by one.
    pub(crate) swept: u32,
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
