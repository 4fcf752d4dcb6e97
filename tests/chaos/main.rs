//! Real relays, daemons and children under all faults that this machine supports, while clients
//! work. Afterwards `baton-history` checks the recorded observations. docs/chaos.md describes
//! the faults and the longer runs.
//!
//! `cargo test` runs a short version. An example of a long one: `BATON_CHAOS_SECONDS=600 cargo
//! test -p baton-tests --test chaos everything -- --nocapture`.

#![expect(clippy::print_stdout, reason = "the counts of a run are its result")]

mod chaos_run;
mod child_watcher;
mod client_load;
mod crash_points;
mod daemon_faults;
mod fault_storms;
mod final_state;
mod frame_recorder;
mod host_support;
mod lease_holders;
mod power_loss;
mod relay_faults;
mod sync_errors;
mod traced_relay;

use std::time::Duration;

use baton_tests::BatonExecutable;
use tokio_util::sync::CancellationToken;

const BATON: BatonExecutable = BatonExecutable::new(env!("CARGO_BIN_EXE_baton-under-test"));
const STANDIN: &str = env!("CARGO_BIN_EXE_standin");
const TRACER: &str = env!("CARGO_BIN_EXE_tracer");
/// Outlives the tests: histories of failed runs are kept here.
const HISTORY_DIRECTORY: &str = env!("CARGO_TARGET_TMPDIR");

/// The amount of work: `short`, or the value of the environment variable.
fn configured_amount(variable: &str, short: u64) -> u64 {
    std::env::var(variable).map_or(short, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number"))
    })
}

/// A random duration between two numbers of milliseconds.
fn random_millis(from: u64, to: u64) -> Duration {
    Duration::from_millis(rand::random_range(from..to))
}

/// Cycles from a random position, so that a run that must see every kind sees each of them.
fn cycle_from_random<T: Copy>(mix: &[T]) -> impl Iterator<Item = T> {
    let first = rand::random_range(0..mix.len());
    mix.iter().copied().cycle().skip(first)
}

/// Waits for the duration of a fault. False if it was stopped before.
async fn sleep_unless_stopped(time: Duration, stop: &CancellationToken) -> bool {
    tokio::time::timeout(time, stop.cancelled()).await.is_err()
}
