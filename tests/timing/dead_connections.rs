//! A wire that drops everything without a word: both ends know within two heartbeats and a second, whatever a heartbeat is.

use std::time::Duration;

use baton_daemon::{Clock, RelayContact};
use baton_proto::v1::{TaskSpec, TaskState};
use baton_tests::{
    EmbeddedDaemon, EmbeddedRelay, PassedTraffic, TcpProxy, command_task, wait_until_marked_gone,
};

use crate::{STANDIN, assert_not_after};

/// The default, and what a lease of six seconds makes of it.
const HEARTBEAT_MS: u64 = 5_000;
const SHORT_LEASE_MS: u64 = 6_000;
const SHORT_HEARTBEAT_MS: u64 = 2_000;
const EXTRA_MS: u64 = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_wire_is_noticed_by_both_ends_in_two_heartbeats_and_a_second() {
    let idle = DeadConnectionCase::start("idle", HEARTBEAT_MS).await;
    let busy = DeadConnectionCase::start("short-lease", SHORT_HEARTBEAT_MS).await;
    tokio::join!(idle.run(None), busy.run(Some(SHORT_LEASE_MS)));
}

/// A relay of its own, and one daemon behind the wire.
struct DeadConnectionCase {
    name: &'static str,
    heartbeat_ms: u64,
    relay: EmbeddedRelay,
    daemon: EmbeddedDaemon,
    proxy: TcpProxy,
}

impl DeadConnectionCase {
    async fn start(name: &'static str, beat: u64) -> Self {
        let relay = EmbeddedRelay::start().await;
        let wire = TcpProxy::start_to(relay.url()).await;
        let daemon = EmbeddedDaemon::start(&wire.url(), &relay.daemon_token().await).await;
        Self {
            name,
            heartbeat_ms: beat,
            relay,
            daemon,
            proxy: wire,
        }
    }

    async fn run(mut self, lease_ms: Option<u64>) {
        let mark = format!("dead-wire-{}", self.name);
        if let Some(ms) = lease_ms {
            let spec = TaskSpec {
                lease_ttl_ms: Some(ms),
                ..command_task(STANDIN, &["pause"], &mark)
            };
            let task = self.relay.admin().submit(spec).await;
            let running = TaskState::Running;
            self.relay
                .admin()
                .wait_for_state(&task.task_id, running)
                .await;
        }
        self.wait_for_heartbeat_answer().await;
        self.proxy.set_passed_traffic(PassedTraffic::Nothing);
        let clock = Clock::boot();
        let from = clock.now();
        let daemon_id = self.daemon.id();
        let took = || {
            let took = from.until(clock.now());
            u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
        };
        let daemons = async {
            let gone = |status: &baton_daemon::DaemonStatus| !status.connected;
            self.daemon
                .wait_for_status("the daemon to notice", gone)
                .await;
            took()
        };
        let relays = async {
            self.relay.wait_until_offline(&daemon_id).await;
            took()
        };
        let (daemons, relays) = tokio::join!(daemons, relays);
        for (end, took) in [("daemon", daemons), ("relay", relays)] {
            let what = format!("a dead wire ({}), noticed by its {end}", self.name);
            assert_not_after(&what, took, 2 * self.heartbeat_ms, EXTRA_MS);
        }
        self.proxy.set_passed_traffic(PassedTraffic::Both);
        self.daemon
            .wait_for_status("the daemon to be back", |status| status.connected)
            .await;
        self.daemon.stop().await;
        wait_until_marked_gone(&mark).await;
    }

    /// The worst moment: the next heartbeat is a whole interval away.
    async fn wait_for_heartbeat_answer(&mut self) {
        let every = Duration::from_millis(self.heartbeat_ms);
        let paced =
            |heard: &Option<RelayContact>| heard.is_some_and(|heard| heard.interval == every);
        self.daemon
            .wait_for_status("the pace to be told", |status| paced(&status.relay_contact))
            .await;
        let mut last = None;
        self.daemon
            .wait_for_status("one more answer", |status| {
                let at = status.relay_contact.map(|heard| heard.at);
                at > *last.get_or_insert(at)
            })
            .await;
    }
}
