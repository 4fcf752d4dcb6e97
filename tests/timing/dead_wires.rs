//! A wire that drops everything without a word: both ends know within two heartbeats and a second, whatever a heartbeat is.

use std::time::Duration;

use baton_daemon::{Clock, Heard};
use baton_proto::v1::{TaskSpec, TaskState};
use baton_tests::{Passing, RealDaemon, Relay, Wire, command, marked_gone};

use crate::{STANDIN, assert_not_after};

/// The default, and what a lease of six seconds makes of it.
const BEAT: u64 = 5_000;
const SHORT_LEASE: u64 = 6_000;
const SHORT_BEAT: u64 = 2_000;
const MORE: u64 = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_wire_is_noticed_by_both_ends_in_two_heartbeats_and_a_second() {
    let idle = Case::start("idle", BEAT).await;
    let busy = Case::start("short-lease", SHORT_BEAT).await;
    tokio::join!(idle.run(None), busy.run(Some(SHORT_LEASE)));
}

/// A relay of its own, and one daemon behind the wire.
struct Case {
    name: &'static str,
    beat: u64,
    relay: Relay,
    daemon: RealDaemon,
    wire: Wire,
}

impl Case {
    async fn start(name: &'static str, beat: u64) -> Self {
        let relay = Relay::start().await;
        let wire = Wire::to(relay.url()).await;
        let daemon = RealDaemon::start(&wire.url(), &relay.daemon_token().await).await;
        Self {
            name,
            beat,
            relay,
            daemon,
            wire,
        }
    }

    async fn run(mut self, lease_ms: Option<u64>) {
        let mark = format!("dead-wire-{}", self.name);
        if let Some(ms) = lease_ms {
            let spec = TaskSpec {
                lease_ttl_ms: Some(ms),
                ..command(STANDIN, &["pause"], &mark)
            };
            let task = self.relay.admin().submit(spec).await;
            let running = TaskState::Running;
            self.relay.admin().until_state(&task.task_id, running).await;
        }
        self.just_heard().await;
        self.wire.let_pass(Passing::Nothing);
        let clock = Clock::boot();
        let from = clock.now();
        let daemon_id = self.daemon.id();
        let took = || {
            let took = from.until(clock.now());
            u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
        };
        let daemons = async {
            let gone = |status: &baton_daemon::DaemonStatus| !status.connected;
            self.daemon.until("the daemon to notice", gone).await;
            took()
        };
        let relays = async {
            self.relay.until_offline(&daemon_id).await;
            took()
        };
        let (daemons, relays) = tokio::join!(daemons, relays);
        for (end, took) in [("daemon", daemons), ("relay", relays)] {
            let what = format!("a dead wire ({}), noticed by its {end}", self.name);
            assert_not_after(&what, took, 2 * self.beat, MORE);
        }
        self.wire.let_pass(Passing::Both);
        self.daemon
            .until("the daemon to be back", |status| status.connected)
            .await;
        self.daemon.stop().await;
        marked_gone(&mark).await;
    }

    /// The worst moment: the next heartbeat is a whole interval away.
    async fn just_heard(&mut self) {
        let every = Duration::from_millis(self.beat);
        let paced = |heard: &Option<Heard>| heard.is_some_and(|heard| heard.every == every);
        self.daemon
            .until("the pace to be told", |status| paced(&status.heard))
            .await;
        let mut last = None;
        self.daemon
            .until("one more answer", |status| {
                let at = status.heard.map(|heard| heard.at);
                at > *last.get_or_insert(at)
            })
            .await;
    }
}
