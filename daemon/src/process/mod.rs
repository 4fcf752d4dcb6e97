//! What daemon and shim share about processes: how a child is started, reading /proc, signals
//! to verified processes, orphans, and killing what a lost shim left. It has no frames, leases
//! or relay. The shim controls a child between its start and its end.

mod child_spec;
mod environment;
mod marker_sweep;
mod orphan_reaper;
mod pre_exec;
mod process_stat;
mod process_tree;
mod signal;
mod tree_kill;

use std::fmt;

pub(crate) use baton_daemon_core::termination_sequence::{
    KILL_RETRY_LIMIT, SCAN_INTERVAL, TerminationOutcome,
};
pub(crate) use child_spec::{ChildSpec, SpawnError, build_command, identify_child};
pub(crate) use environment::{ProcessOwner, child_environment};
pub use environment::{VariableNameError, check_variable_name};
pub(crate) use marker_sweep::{kill_by_marker, kill_unknown_attempts};
pub(crate) use orphan_reaper::{adopt_orphans, reap_orphans, start_registered};
pub(crate) use process_stat::{ProcessStat, environment_variable, identity_of, read as read_stat};
pub(crate) use process_tree::{descendants, descendants_of, surviving_tree};
pub(crate) use signal::signal_one;
pub(crate) use tree_kill::{kill_descendants, kill_shim_tree};

/// The environment variable that every process of an attempt inherits; its value is the
/// attempt's id.
pub(crate) const ATTEMPT_MARKER: &str = "BATON_ATTEMPT_ID";

/// The same for all attempts of a daemon, to find what a killed daemon left.
pub(crate) const DAEMON_MARKER: &str = "BATON_DAEMON_ID";

/// The identity of a process: a bare pid may be reused, a pid with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    /// In clock ticks after boot, as the kernel counts them.
    pub(crate) start_time: u64,
}

/// How a child ended, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildExit {
    Code(i32),
    Signal(i32),
    /// Another process reaped it first, so its exit is unknown.
    Unknown,
}

impl fmt::Display for ChildExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => write!(f, "an unknown exit"),
        }
    }
}
