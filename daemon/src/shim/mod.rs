//! The shim: one small process per attempt that owns the child, its pipes, its process group
//! and the lease clock. It outlives the daemon that started it, so that a daemon can be killed
//! or replaced while the attempt goes on. It ends everything when the lease ends, with or
//! without a daemon.
//!
//! It is the same executable, called with [`SHIM_ARGUMENT`], in the attempt's directory, with
//! one end of a socket pair as stdin. proto/baton/worker/v1/shim.proto is its protocol. It has
//! one thread and one loop over `poll` (`server`). Decisions are made by `child_lifecycle` and
//! `termination_sequence` of `baton_daemon_core`, which take the time as an argument. It uses
//! no part of the daemon but the transcript, the clock and the process functions: it needs
//! neither an async runtime nor the relay.

mod boottime_timer;
mod child_process;
pub(crate) mod client;
mod daemon_connection;
mod descendants;
pub mod framing;
mod inherited_state;
pub(crate) mod lease_message;
mod notices;
mod output_recorder;
mod peer_check;
mod report;
mod server;
mod stdin_queue;

use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use baton_proto::worker::{EndedBy, FromShim, from_shim};

use crate::clock::Clock;
pub(crate) use child_process::disk_failure;
use child_process::not_started_report;
use daemon_connection::DaemonConnection;
use server::ShimServer;

pub use report::read_report;

/// The first argument of a call as a shim. Internal; further arguments are only shown by `ps`.
pub const SHIM_ARGUMENT: &str = "__shim";

/// Additional environment of a shim: settings of the executable's allocator, whose defaults are
/// for a busy server. It would begin with two pages of 2 MiB, and keep the memory of a large
/// prompt.
pub const SHIM_ENVIRONMENT: [(&str, &str); 3] = [
    ("MIMALLOC_ALLOW_THP", "0"),
    ("MIMALLOC_ARENA_RESERVE", "8MiB"),
    ("MIMALLOC_PURGE_DELAY", "0"),
];

/// The name of its socket, in the attempt's directory.
pub const SOCKET_FILE: &str = "shim.sock";
/// The directory of the transcript.
pub const SPOOL_DIR: &str = "spool";
/// The file with its report.
pub const REPORT_FILE: &str = "report";

/// Bytes that may wait for the child to read. A daemon that sends more without waiting for
/// StdinDone violates the protocol.
pub(crate) const STDIN_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Versions of the protocol between daemon and shim that this code supports.
pub const LOWEST_VERSION: u32 = 1;
pub const HIGHEST_VERSION: u32 = 1;

/// Runs as a shim if this process was called as one. Must be called before anything opens a
/// file descriptor or starts a thread.
pub fn run_if_requested(clock: &Clock) -> Option<ExitCode> {
    let is_shim = std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == SHIM_ARGUMENT);
    is_shim.then(|| run_shim(clock.clone()))
}

/// Whatever fails here, no process is left and no false report is written.
fn run_shim(clock: Clock) -> ExitCode {
    let Ok(first) = inherited_state::detach_from_daemon() else {
        return ExitCode::FAILURE;
    };
    let served = catch_unwind(AssertUnwindSafe(|| serve_connection(first.into(), clock)));
    match served {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => {
            descendants::kill_all_descendants();
            ExitCode::FAILURE
        }
    }
}

/// False when it had to stop before its work was done.
fn serve_connection(first: UnixStream, clock: Clock) -> bool {
    let spare = first.try_clone();
    match ShimServer::open(first, clock.clone()) {
        Ok(shim) => {
            drop(spare);
            shim.run().is_ok()
        }
        Err(error) => {
            if let Ok(peer) = spare.and_then(|stream| DaemonConnection::new(stream, clock.now())) {
                report_setup_failure(peer, &error, &clock);
            }
            false
        }
    }
}

/// The attempt's directory cannot be used: reports that to the daemon.
fn report_setup_failure(mut peer: DaemonConnection, error: &std::io::Error, clock: &Clock) {
    let why = disk_failure("set up the attempt's directory", error);
    let report = not_started_report("", EndedBy::Child, why, clock.now());
    peer.push_message(&FromShim {
        message: Some(from_shim::Message::Report(report)),
    });
    peer.flush();
}
