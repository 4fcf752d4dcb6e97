//! Waiting for events under one deadline that only a hang reaches, and the number of test
//! rounds.

use std::task::Poll;
use std::time::Duration;

/// Long enough for a busy machine with two cores. A passing test never waits this long.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval for checks of files and the process table, which send no events.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The future's output. Panics with the description `what` after the deadline.
pub async fn wait_within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TEST_TIMEOUT, future).await {
        Ok(value) => value,
        Err(_) => panic!(
            "timed out after {} s waiting for {what}",
            TEST_TIMEOUT.as_secs()
        ),
    }
}

/// Calls `check` repeatedly until it returns a value.
pub async fn poll_until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within(what, async {
        loop {
            ticks.tick().await;
            if let Some(value) = check() {
                return value;
            }
        }
    })
    .await
}

/// How often a test repeats a race: `few` times, or the number in `BATON_ROUNDS`.
pub fn test_rounds(few: usize) -> usize {
    std::env::var("BATON_ROUNDS").map_or(few, |rounds| {
        rounds.parse().expect("BATON_ROUNDS is a number")
    })
}

/// Runs all futures concurrently and returns their outputs in order.
pub async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut open: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, value) in open.iter_mut().filter(|(_, value)| value.is_none()) {
            if let Poll::Ready(done) = future.as_mut().poll(context) {
                *value = Some(done);
            }
        }
        if open.iter().all(|(_, value)| value.is_some()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    open.into_iter().filter_map(|(_, value)| value).collect()
}
