//! Faults of the relay: kills, stops, and a full disk.

use std::path::Path;
use std::time::Duration;

use baton_history::{HistoryRecorder, Observation, ParticipantLog};
use baton_tests::{MountedDisk, RelayProcess, TestClient, send_signal};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::chaos_run::now_ms;
use crate::client_load::ClientLoad;
use crate::{BATON, cycle_from_random, host_support, random_millis, sleep_unless_stopped};

/// Space for the data of a long run above the low-space threshold.
const DISK_MIB: u32 = 768;
/// Calls that must have been acknowledged between two kills, unless a timeout passes.
const ACKS_BETWEEN_KILLS: u64 = 6;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedRelayFault {
    Kill,
    Stop,
    FullDisk,
}

pub(crate) struct RelayUnderFault {
    relay: RelayProcess,
    disk: Option<MountedDisk>,
    view: ParticipantLog,
}

impl RelayUnderFault {
    /// On a small disk if this machine supports it.
    pub(crate) async fn start(dir: &Path, recorder: &HistoryRecorder) -> Self {
        let view = recorder
            .participant_log("faults")
            .expect("a file can be created");
        let data = dir.join("relay");
        let disk = if host_support::can_mount() {
            let disk = MountedDisk::mount_tmpfs(&data, DISK_MIB).await;
            Some(disk.expect("the host support check succeeded"))
        } else {
            std::fs::create_dir_all(&data).expect("a directory can be created");
            None
        };
        let wrapper = disk
            .as_ref()
            .map(MountedDisk::command_prefix)
            .unwrap_or_default();
        let seen = disk
            .as_ref()
            .map_or_else(|| data.clone(), MountedDisk::path_from_host);
        let relay = RelayProcess::start_with_prefix(BATON, &wrapper, (&data, &seen), &[]).await;
        Self { relay, disk, view }
    }

    pub(crate) fn admin(&self) -> &TestClient {
        self.relay.admin()
    }

    pub(crate) fn has_small_disk(&self) -> bool {
        self.disk.is_some()
    }

    pub(crate) fn view(&self) -> &ParticipantLog {
        &self.view
    }

    pub(crate) async fn inject_fault(
        &mut self,
        fault: InjectedRelayFault,
        stop: &CancellationToken,
    ) {
        let name = match fault {
            InjectedRelayFault::Kill => {
                self.relay.kill().await;
                if rand::random_range(0..4) == 0 {
                    sleep_unless_stopped(random_millis(0, 3_000), stop).await;
                }
                self.relay.start_again().await;
                "relay killed"
            }
            InjectedRelayFault::Stop => {
                send_signal(self.relay.pid(), Signal::STOP);
                sleep_unless_stopped(random_millis(500, 7_000), stop).await;
                send_signal(self.relay.pid(), Signal::CONT);
                "relay stopped"
            }
            InjectedRelayFault::FullDisk => {
                let Some(disk) = &self.disk else { return };
                let room = disk.disk_space();
                room.fill_disk();
                sleep_unless_stopped(random_millis(500, 5_000), stop).await;
                room.remove_filler();
                "disk full"
            }
        };
        let fault = name.to_owned();
        let target = "relay".to_owned();
        let observation = Observation::Fault { fault, target };
        self.view
            .record(now_ms(), observation)
            .expect("the history can be written");
    }

    /// Kills under load, each after some work since the previous one.
    pub(crate) async fn kill_under_load(
        &mut self,
        kills: u64,
        load: &ClientLoad,
        stop: &CancellationToken,
    ) {
        for _ in 0..kills {
            let required = load.acknowledged() + ACKS_BETWEEN_KILLS;
            let mut ticks = tokio::time::interval(POLL_INTERVAL);
            let enough = async {
                while load.acknowledged() < required {
                    ticks.tick().await;
                }
            };
            // If no call is acknowledged, the checker reports too few acknowledgements.
            let _ = tokio::time::timeout(Duration::from_secs(10), enough).await;
            self.inject_fault(InjectedRelayFault::Kill, stop).await;
        }
    }

    /// Injects one fault after the other until it is stopped.
    pub(crate) async fn inject_faults(
        &mut self,
        mix: &[InjectedRelayFault],
        gap_ms: u64,
        stop: &CancellationToken,
    ) {
        let mut turns = cycle_from_random(mix);
        while sleep_unless_stopped(random_millis(gap_ms / 2, gap_ms * 2), stop).await
            && let Some(fault) = turns.next()
        {
            self.inject_fault(fault, stop).await;
        }
    }

    pub(crate) async fn stop(&mut self) {
        self.relay.terminate().await;
    }
}
