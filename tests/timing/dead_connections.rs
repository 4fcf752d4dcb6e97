//! A connection that drops everything without an error: both sides notice within two heartbeats
//! and a second, for any heartbeat interval.

use std::time::Duration;

use baton_daemon::{Clock, RelayContact};
use baton_proto::v1::{TaskSpec, TaskState};
use baton_tests::{
    EmbeddedDaemon, EmbeddedRelay, PassedTraffic, TcpProxy, command_task, wait_until_marked_gone,
};

use crate::{STANDIN, assert_not_after};

/// The default interval, and the one that a lease of six seconds causes.
const HEARTBEAT_MS: u64 = 5_000;
const SHORT_LEASE_MS: u64 = 6_000;
const SHORT_HEARTBEAT_MS: u64 = 2_000;
const EXTRA_MS: u64 = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_notice_a_dead_connection_in_two_heartbeats() {
    let idle = DeadConnectionCase::start("idle", HEARTBEAT_MS).await;
    let busy = DeadConnectionCase::start("short-lease", SHORT_HEARTBEAT_MS).await;
    tokio::join!(idle.run(None), busy.run(Some(SHORT_LEASE_MS)));
}

/// A relay, and one daemon behind the proxy.
struct DeadConnectionCase {
    name: &'static str,
    heartbeat_ms: u64,
    relay: EmbeddedRelay,
    daemon: EmbeddedDaemon,
    proxy: TcpProxy,
}

impl DeadConnectionCase {
    async fn start(name: &'static str, heartbeat_ms: u64) -> Self {
        let relay = EmbeddedRelay::start().await;
        let proxy = TcpProxy::start_to(relay.url()).await;
        let daemon = EmbeddedDaemon::start(&proxy.url(), &relay.daemon_token().await).await;
        Self {
            name,
            heartbeat_ms,
            relay,
            daemon,
            proxy,
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
        let daemon_ms = async {
            let is_disconnected = |status: &baton_daemon::DaemonStatus| !status.connected;
            self.daemon
                .wait_for_status("the daemon to notice", is_disconnected)
                .await;
            took()
        };
        let relay_ms = async {
            self.relay.wait_until_offline(&daemon_id).await;
            took()
        };
        let (daemon_ms, relay_ms) = tokio::join!(daemon_ms, relay_ms);
        for (end, took) in [("daemon", daemon_ms), ("relay", relay_ms)] {
            let what = format!("a dead connection ({}), noticed by the {end}", self.name);
            assert_not_after(&what, took, 2 * self.heartbeat_ms, EXTRA_MS);
        }
        self.proxy.set_passed_traffic(PassedTraffic::Both);
        self.daemon
            .wait_for_status("the daemon to reconnect", |status| status.connected)
            .await;
        self.daemon.stop().await;
        wait_until_marked_gone(&mark).await;
    }

    /// The worst point in time: the next heartbeat is a whole interval away.
    async fn wait_for_heartbeat_answer(&mut self) {
        let every = Duration::from_millis(self.heartbeat_ms);
        let has_interval = |contact: &Option<RelayContact>| {
            contact.is_some_and(|contact| contact.interval == every)
        };
        self.daemon
            .wait_for_status("the heartbeat interval to be announced", |status| {
                has_interval(&status.relay_contact)
            })
            .await;
        let mut last = None;
        self.daemon
            .wait_for_status("one more answer", |status| {
                let at = status.relay_contact.map(|contact| contact.at);
                at > *last.get_or_insert(at)
            })
            .await;
    }
}
