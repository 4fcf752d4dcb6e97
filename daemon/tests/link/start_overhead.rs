//! What Baton adds between the start order and an agent's first output, compared with starting
//! the same program directly.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use baton_proto::v1::LifecyclePhase;
use baton_proto::v1::attempt_frame::Body;

use crate::fake_relay::{FakeRelay, attempt, shell};
use crate::test_daemon::LinkTestDaemon;

/// The number of measured starts; `BATON_ROUNDS` overrides it.
const STARTS: usize = 50;
/// The limit of the added time at the 99th percentile.
const ADDED_MAX: Duration = Duration::from_millis(10);

/// Additional time for busy machines, and for programs that were built without optimizations.
fn slack() -> Duration {
    let widened = std::env::var("BATON_TIMING_SLACK_MS").ok();
    let ms = widened.map_or(0, |ms| {
        ms.parse().expect("BATON_TIMING_SLACK_MS is a number")
    });
    let debug = if cfg!(debug_assertions) { 30 } else { 0 };
    Duration::from_millis(ms + debug)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a measurement from outside the program"
)]
fn now() -> Instant {
    Instant::now()
}

/// The time from the start of the program to its first byte.
fn time_direct_start() -> Duration {
    let start = now();
    let mut child = Command::new("sh")
        .args(["-c", "echo first; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell is on this machine");
    let mut byte = [0];
    let stdout = child.stdout.as_mut().expect("it is piped");
    stdout.read_exact(&mut byte).expect("it prints something");
    let took = start.elapsed();
    drop(child.stdin.take());
    child.wait().expect("it ends");
    took
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_output_is_delayed_by_at_most_ten_milliseconds() {
    let rounds = std::env::var("BATON_ROUNDS").ok();
    let rounds = rounds.map_or(STARTS, |rounds| rounds.parse().expect("a number"));
    let mut relay = FakeRelay::start().await;
    let daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let (mut through, mut direct) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        direct.push(tokio::task::block_in_place(time_direct_start));
        let attempt = attempt();
        let dispatch = shell("echo first; exec cat");
        let granted_ms = dispatch.granted_ms;
        session.dispatch(&attempt, dispatch).await;
        session
            .until_frame(|body| matches!(body, Body::Accepted(_)))
            .await;
        let start = now();
        session.confirm(&attempt, granted_ms).await;
        session
            .until_frame(|body| {
                matches!(body, Body::Lifecycle(now) if now.phase() == LifecyclePhase::FirstEventSeen)
            })
            .await;
        through.push(start.elapsed());
        session.until_terminal_acking(&attempt).await;
        let last = session
            .attempt_frames
            .iter()
            .map(|frame| frame.control_seq)
            .max();
        session.ack(&attempt, last.unwrap_or(0), 6).await;
        session.attempt_frames.clear();
    }
    through.sort_unstable();
    direct.sort_unstable();
    let added = |percent| percentile(&through, percent).saturating_sub(percentile(&direct, 50));
    println!(
        "{rounds} starts to first output: directly p50 {:?}; through the daemon p50 {:?}, p99 {:?}; added p50 {:?}, p99 {:?}",
        percentile(&direct, 50),
        percentile(&through, 50),
        percentile(&through, 99),
        added(50),
        added(99),
    );
    assert!(added(99) < ADDED_MAX + slack(), "{:?}", added(99));
    daemon.stop.cancel();
    session.until_closed().await;
    daemon.wait_for_end().await.unwrap();
}
