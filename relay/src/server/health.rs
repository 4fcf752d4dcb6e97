//! gRPC health service: reports serving while the store commits and the relay is not draining.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::space::SpaceStatus;
use crate::store::{CommitSeq, Store};

/// How often the store is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A commit that is not durable after this many checks means that the disk hangs.
const STUCK_CHECKS: u32 = 5;

/// Reported services. The empty name is the whole server, which load balancers ask for.
const SERVICES: [&str; 6] = [
    "",
    "baton.v1.Tasks",
    "baton.v1.Inputs",
    "baton.v1.Fleet",
    "baton.v1.Operator",
    "baton.v1.DaemonLink",
];

/// Health name for admission, not a gRPC service: serving while new tasks are accepted. A relay
/// with a full disk still serves daemons and readers, so a load balancer must not remove it.
const ADMISSION: &str = "baton.admission";

/// Reports the health until `stop`, then reports that the relay no longer serves.
pub(super) async fn report_health(
    reporter: HealthReporter,
    store: Store,
    space: SpaceStatus,
    stop: CancellationToken,
) {
    let mut stuck = StuckCommit::default();
    let mut reported = None;
    while !stop.is_cancelled() {
        let serving = stuck.observe(store.durable(), store.appended()) < STUCK_CHECKS;
        let now = (serving, serving && space.accepts_work());
        if reported != Some(now) {
            reported = Some(now);
            set_serving(&reporter, now.0, now.1).await;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
    }
    set_serving(&reporter, false, false).await;
}

pub(super) async fn set_serving(reporter: &HealthReporter, serving: bool, admitting: bool) {
    let status = |yes| {
        if yes {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        }
    };
    for service in SERVICES {
        reporter.set_service_status(service, status(serving)).await;
    }
    reporter
        .set_service_status(ADMISSION, status(admitting))
        .await;
}

/// Counts for how many checks the same commit has been waiting for the disk.
#[derive(Debug, Default)]
struct StuckCommit {
    durable: CommitSeq,
    checks: u32,
}

impl StuckCommit {
    fn observe(&mut self, durable: CommitSeq, appended: CommitSeq) -> u32 {
        let moving = durable != self.durable || appended == durable;
        self.checks = if moving { 0 } else { self.checks + 1 };
        self.durable = durable;
        self.checks
    }
}
