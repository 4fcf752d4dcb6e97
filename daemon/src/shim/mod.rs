//! The shim: one small process per attempt that owns the child, its pipes, its process group and the lease clock. It
//! outlives the daemon that started it, so that a daemon can be killed or replaced while the attempt goes on, and it
//! ends everything when the lease does, whether or not a daemon is there to say so.
//!
//! It is the same executable, called with [`ARGUMENT`], in the attempt's directory, with one end of a socket pair as
//! standard input. proto/baton/worker/v1/shim.proto is what it speaks. One thread, one loop over `poll` (`serve`);
//! what is to be decided is decided by `baton_daemon_core`'s `course` and `ladder`, which take the moment as an argument. It links no
//! part of the daemon but the transcript, the clock and what knows about processes: it needs neither runtime nor relay.

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

/// First argument of a call that is meant for the shim. Not for people; further arguments are there for `ps`.
pub const SHIM_ARGUMENT: &str = "__shim";

/// What a shim is started with in addition: words to the executable's allocator, which expects a busy server. It would
/// begin with two pages of 2 MiB, and keep what a large prompt took.
pub const SHIM_ENVIRONMENT: [(&str, &str); 3] = [
    ("MIMALLOC_ALLOW_THP", "0"),
    ("MIMALLOC_ARENA_RESERVE", "8MiB"),
    ("MIMALLOC_PURGE_DELAY", "0"),
];

/// Where it listens, in the attempt's directory.
pub const SOCKET_FILE: &str = "shim.sock";
/// The directory of the transcript.
pub const SPOOL_DIR: &str = "spool";
/// How it ended.
pub const REPORT_FILE: &str = "report";

/// Bytes that may wait for the child to read. A daemon that sends more without waiting for StdinDone has lost count.
pub(crate) const STDIN_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Versions of the protocol between daemon and shim that this code speaks.
pub const LOWEST_VERSION: u32 = 1;
pub const HIGHEST_VERSION: u32 = 1;

/// Runs as a shim if this process was called as one. Must come before anything that opens a descriptor or starts a
/// thread.
pub fn run_if_requested(clock: &Clock) -> Option<ExitCode> {
    let asked = std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == SHIM_ARGUMENT);
    asked.then(|| run_shim(clock.clone()))
}

/// Whatever goes wrong in here, no process is left and no report says what did not happen.
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

/// There is no place to work in: all that is left is to say so.
fn report_setup_failure(mut peer: DaemonConnection, error: &std::io::Error, clock: &Clock) {
    let why = disk_failure("set up the attempt's directory", error);
    let report = not_started_report("", EndedBy::Child, why, clock.now());
    peer.push_message(&FromShim {
        message: Some(from_shim::Message::Report(report)),
    });
    peer.flush();
}
