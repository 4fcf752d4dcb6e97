//! Time limits, measured from the relay's own record of events with real gRPC and real
//! processes.
//!
//! All cases run at once and spend their time waiting. The tolerance is 250 ms;
//! `BATON_TIMING_SLACK_MS` increases it for busy machines.

#![expect(clippy::print_stdout, reason = "the measured times are the result")]

mod dead_connections;
mod latency_limits;
mod memory_footprint;
mod output_flood;
mod shutdown;
mod stopped_relay;
mod timers;

use baton_tests::{BatonExecutable, EmbeddedRelay};
use tokio::task::JoinSet;

const BATON: BatonExecutable = BatonExecutable::new(env!("CARGO_BIN_EXE_baton-under-test"));
const STANDIN: &str = env!("CARGO_BIN_EXE_standin");

/// The tolerance of an upper limit.
fn allowance_ms() -> u64 {
    let widened = std::env::var("BATON_TIMING_SLACK_MS").ok();
    widened.map_or(250, |ms| {
        ms.parse().expect("BATON_TIMING_SLACK_MS is a number")
    })
}

/// A limit that is stated without the 250 ms.
fn widened_limit_ms(ms: u64) -> u64 {
    ms + allowance_ms() - 250.min(allowance_ms())
}

/// Clocks are read one after the other and truncated to milliseconds, and a busy machine may
/// pause a process in between.
fn early_tolerance_ms() -> u64 {
    if allowance_ms() > 250 { 50 } else { 2 }
}

fn assert_not_before(what: &str, took: u64, limit: u64) {
    assert!(
        took + early_tolerance_ms() >= limit,
        "{what} ended after {took} ms, before its limit of {limit} ms"
    );
}

fn assert_not_after(what: &str, took: u64, limit: u64, added: u64) {
    println!("{what}: {took} ms, limit {limit} ms + {added} ms");
    let most = limit + added + allowance_ms();
    assert!(took <= most, "{what} took {took} ms, more than {most} ms");
}

/// `took` is between the limit and the limit plus `added`.
fn assert_within(what: &str, took: u64, limit: u64, added: u64) {
    assert_not_before(what, took, limit);
    assert_not_after(what, took, limit, added);
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_cancels_and_rejections_meet_their_limits() {
    let relay = EmbeddedRelay::start().await;
    let daemon = relay.start_daemon().await;
    let mut cases = JoinSet::new();
    timers::spawn_cases(&relay, &mut cases).await;
    latency_limits::spawn_cases(&relay, &mut cases);
    let mut failures = 0;
    while let Some(ended) = cases.join_next().await {
        // The panic itself has been printed already.
        failures += usize::from(ended.is_err());
    }
    assert_eq!(failures, 0, "failed cases; see their panics above");
    daemon.stop().await;
}
