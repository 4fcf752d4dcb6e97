//! What happens to the relay: killed by force, stopped, and left without a byte of disk.

use std::path::Path;
use std::time::Duration;

use baton_history::{Recorder, Saw, Viewpoint};
use baton_tests::{Client, Mounted, RelayProcess, signal};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::clients::Load;
use crate::run::now;
use crate::{BATON, in_turn, pass, skips, some_ms};

/// Room for the data of a long run above the mark.
const DISK_MIB: u32 = 768;
/// Work that must have been acknowledged between two kills, if there is any within a while.
const ACKS: u64 = 6;
const LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    Stop,
    FullDisk,
}

pub(crate) struct Victim {
    relay: RelayProcess,
    disk: Option<Mounted>,
    view: Viewpoint,
}

impl Victim {
    /// On a small disk where this machine gives one.
    pub(crate) async fn start(dir: &Path, recorder: &Recorder) -> Self {
        let view = recorder.viewpoint("faults").expect("a file can be made");
        let data = dir.join("relay");
        let disk = if skips::can_mount() {
            let disk = Mounted::small(&data, DISK_MIB).await;
            Some(disk.expect("it was tried out"))
        } else {
            std::fs::create_dir_all(&data).expect("a directory can be made");
            None
        };
        let wrapper = disk.as_ref().map(Mounted::wrapper).unwrap_or_default();
        let seen = disk.as_ref().map_or_else(|| data.clone(), Mounted::seen);
        let relay = RelayProcess::start_by(BATON, &wrapper, (&data, &seen), &[]).await;
        Self { relay, disk, view }
    }

    pub(crate) fn admin(&self) -> &Client {
        self.relay.admin()
    }

    pub(crate) fn has_small_disk(&self) -> bool {
        self.disk.is_some()
    }

    pub(crate) fn view(&self) -> &Viewpoint {
        &self.view
    }

    pub(crate) async fn suffer(&mut self, fault: Fault, stop: &CancellationToken) {
        let name = match fault {
            Fault::Kill => {
                self.relay.kill().await;
                if rand::random_range(0..4) == 0 {
                    pass(some_ms(0, 3_000), stop).await;
                }
                self.relay.revive().await;
                "relay killed"
            }
            Fault::Stop => {
                signal(self.relay.pid(), Signal::STOP);
                pass(some_ms(500, 7_000), stop).await;
                signal(self.relay.pid(), Signal::CONT);
                "relay stopped"
            }
            Fault::FullDisk => {
                let Some(disk) = &self.disk else { return };
                let room = disk.room();
                room.fill();
                pass(some_ms(500, 5_000), stop).await;
                room.free();
                "disk full"
            }
        };
        let fault = name.to_owned();
        let target = "relay".to_owned();
        let saw = Saw::Fault { fault, target };
        self.view
            .saw(now(), saw)
            .expect("the history can be written");
    }

    /// Kills under load: each after some work since the one before.
    pub(crate) async fn kills(&mut self, kills: u64, load: &Load, stop: &CancellationToken) {
        for _ in 0..kills {
            let wanted = load.acknowledged() + ACKS;
            let mut ticks = tokio::time::interval(LOOK);
            let enough = async {
                while load.acknowledged() < wanted {
                    ticks.tick().await;
                }
            };
            // A relay that lets nobody work is found by the judge: too few acknowledgements.
            let _ = tokio::time::timeout(Duration::from_secs(10), enough).await;
            self.suffer(Fault::Kill, stop).await;
        }
    }

    /// One thing after the other, until it is told to stop.
    pub(crate) async fn faults(&mut self, mix: &[Fault], gap_ms: u64, stop: &CancellationToken) {
        let mut turns = in_turn(mix);
        while pass(some_ms(gap_ms / 2, gap_ms * 2), stop).await
            && let Some(fault) = turns.next()
        {
            self.suffer(fault, stop).await;
        }
    }

    pub(crate) async fn stop(&mut self) {
        self.relay.terminate().await;
    }
}
