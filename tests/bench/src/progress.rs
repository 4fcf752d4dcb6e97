//! Progress of a running bench, shown by the caller.

use std::time::Duration;

/// Time between two updates of the status line.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);

/// Where a bench shows how far it is.
pub trait BenchProgress {
    /// Whether a status line is seen at all: without a terminal no bench formats one.
    fn is_terminal(&self) -> bool;
    /// Replaces the status line; an empty text clears it.
    fn status(&self, line: &str);
    /// Adds a line that stays.
    fn note(&self, text: &str);
}

/// Runs `work` to its end and updates the status line meanwhile.
pub(crate) async fn with_progress<T>(
    progress: &dyn BenchProgress,
    work: impl Future<Output = T>,
    line: impl Fn() -> String,
) -> T {
    if !progress.is_terminal() {
        return work.await;
    }
    let mut work = std::pin::pin!(work);
    let mut ticks = tokio::time::interval(REFRESH_INTERVAL);
    loop {
        tokio::select! {
            done = &mut work => {
                progress.status("");
                return done;
            }
            _ = ticks.tick() => progress.status(&line()),
        }
    }
}
