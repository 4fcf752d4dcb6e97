//! How serving ends: peers get until the deadline to leave, and those that are owed nothing get a moment.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

/// For peers that are owed no answer: GOAWAY needs one round trip.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// After connections are cut, this is left for their tasks to notice.
const AFTER_CUT_TIME: Duration = Duration::from_millis(500);

/// Serves; once stopping, waits for peers until the deadline, then cuts them off. When all calls are `answered`, they get
/// a moment to leave: one client that hangs must not keep a restart, and everybody's leases, waiting.
pub(super) async fn serve_until_drained<E>(
    serve: impl Future<Output = Result<(), E>>,
    stop: &CancellationToken,
    drain: Duration,
    cut: &CancellationToken,
    answered: impl Future<Output = ()>,
) -> Result<(), E> {
    tokio::pin!(serve);
    let owed = async {
        wait_after_stop(stop.clone(), LEAVE_TIME.min(drain)).await;
        answered.await;
    };
    tokio::select! {
        served = &mut serve => return served,
        () = owed => {}
        () = wait_after_stop(stop.clone(), drain) => {}
    }
    warn!("peers did not leave in time; cutting their connections");
    cut.cancel();
    let ended = tokio::time::timeout(AFTER_CUT_TIME, &mut serve).await;
    ended.unwrap_or(Ok(()))
}

/// Completes so long after the order to stop.
pub(super) async fn wait_after_stop(stop: CancellationToken, wait: Duration) {
    stop.cancelled().await;
    tokio::time::sleep(wait).await;
}
