//! The end of serving: peers have until the deadline to disconnect. Once all calls are
//! answered, the wait is short.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Time for peers to disconnect when no answer is outstanding: GOAWAY needs one round trip.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// Time for the connection tasks to end after their connections are cut.
const AFTER_CUT_TIME: Duration = Duration::from_millis(500);

/// Serves until `stop`, then waits for peers until the deadline and cuts the remaining
/// connections. When all calls are `answered`, peers have only `LEAVE_TIME` to disconnect: one
/// client that hangs must not delay a restart, because all leases run on meanwhile.
pub(super) async fn serve_until_drained<E>(
    serve: impl Future<Output = Result<(), E>>,
    stop: &CancellationToken,
    drain: Duration,
    cut: &CancellationToken,
    answered: impl Future<Output = ()>,
) -> Result<(), E> {
    tokio::pin!(serve);
    let all_answered = async {
        wait_after_stop(stop.clone(), LEAVE_TIME.min(drain)).await;
        answered.await;
    };
    tokio::select! {
        served = &mut serve => return served,
        () = all_answered => {}
        () = wait_after_stop(stop.clone(), drain) => {}
    }
    warn!("peers did not disconnect in time; cutting their connections");
    cut.cancel();
    let ended = tokio::time::timeout(AFTER_CUT_TIME, &mut serve).await;
    ended.unwrap_or(Ok(()))
}

/// Completes `wait` after `stop` was requested.
pub(super) async fn wait_after_stop(stop: CancellationToken, wait: Duration) {
    stop.cancelled().await;
    tokio::time::sleep(wait).await;
}
