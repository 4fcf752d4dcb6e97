//! gRPC health that means something: serving while the store commits and the relay does not drain.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::space::SpaceStatus;
use crate::store::{CommitSeq, Store};

/// How often the store is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A commit that takes longer than this many looks means that the disk hangs.
const STUCK_CHECKS: u32 = 5;

/// "" stands for the whole server, as load balancers ask it.
const SERVICES: [&str; 6] = [
    "",
    "baton.v1.Tasks",
    "baton.v1.Inputs",
    "baton.v1.Fleet",
    "baton.v1.Operator",
    "baton.v1.DaemonLink",
];

/// Not a service: serving while new tasks are accepted. A relay without room still serves daemons and readers, which a load
/// balancer must not take away from them.
const ADMISSION: &str = "baton.admission";

/// Reports until `stop`, and then that it serves no more.
pub(super) async fn report_health(
    reporter: HealthReporter,
    store: Store,
    space: SpaceStatus,
    stop: CancellationToken,
) {
    let mut stuck = StuckCommit::default();
    let mut told = None;
    while !stop.is_cancelled() {
        let serving = stuck.observe(store.durable(), store.appended()) < STUCK_CHECKS;
        let now = (serving, serving && space.accepts_work());
        if told != Some(now) {
            told = Some(now);
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

/// For how many looks the same commit has been on its way to the disk.
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
