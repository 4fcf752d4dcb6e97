//! How tests wait: for an event, under one deadline that only a hang reaches; and how often they try.

use std::task::Poll;
use std::time::Duration;

/// Long enough for a busy machine of two cores; a test that works never waits this long.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks at what sends no event: files and the process table.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The future's output; a panic that says `what` was waited for when it does not come.
pub async fn wait_within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TEST_TIMEOUT, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {} s in vain: {what}", TEST_TIMEOUT.as_secs()),
    }
}

/// Looks again and again until there is something to see.
pub async fn poll_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within(what, async {
        loop {
            ticks.tick().await;
            if let Some(seen) = look() {
                return seen;
            }
        }
    })
    .await
}

/// How often a test tries what must never fail: a few times, or as often as `BATON_ROUNDS` says.
pub fn test_rounds(few: usize) -> usize {
    std::env::var("BATON_ROUNDS").map_or(few, |rounds| {
        rounds.parse().expect("BATON_ROUNDS is a number")
    })
}

/// Runs all futures at once and returns what they gave, in their order.
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
