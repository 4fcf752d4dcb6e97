//! Real relays, daemons and children, broken in every way that this machine allows, while clients work; afterwards `baton-history` judges what
//! everybody saw. docs/chaos.md says what is done and how to do more of it.
//!
//! `cargo test` runs a short version. The long ones:
//! `BATON_CHAOS_SECONDS=600 cargo test -p baton-tests --test chaos everything -- --nocapture`, and the like.

#![expect(
    clippy::print_stdout,
    reason = "what was done and seen is what people run this for"
)]

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

/// How much to do: a little, or what the environment says.
fn configured_amount(variable: &str, short: u64) -> u64 {
    std::env::var(variable).map_or(short, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number"))
    })
}

/// Between two numbers of milliseconds.
fn random_millis(from: u64, to: u64) -> Duration {
    Duration::from_millis(rand::random_range(from..to))
}

/// One after the other without end, from anywhere: chance must not leave a kind out of a run that has to see it.
fn cycle_from_random<T: Copy>(mix: &[T]) -> impl Iterator<Item = T> {
    let first = rand::random_range(0..mix.len());
    mix.iter().copied().cycle().skip(first)
}

/// Lets time pass, which is all that a fault does while it lasts. False when it was stopped before.
async fn sleep_unless_stopped(time: Duration, stop: &CancellationToken) -> bool {
    tokio::time::timeout(time, stop.cancelled()).await.is_err()
}
