//! Twenty daemons, each with a tap on its wire, and what happens to them: killed, stopped, cut off, and slandered.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_history::{HistoryRecorder, Observation, ParticipantLog};
use baton_proto::v1::Role;
use baton_tests::{DaemonProcess, FrameTap, IsolatedNetwork, TestClient, send_signal};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::chaos_run::now_ms;
use crate::frame_recorder::{RememberedFrames, recording_listener};
use crate::{BATON, cycle_from_random, random_millis, sleep_unless_stopped};

/// One daemon and its wire.
pub(crate) struct DaemonUnderFault {
    name: String,
    token: String,
    dir: PathBuf,
    tap: FrameTap,
    process: DaemonProcess,
    remembered_frames: RememberedFrames,
    isolated_network: Option<Arc<IsolatedNetwork>>,
}

/// What may happen to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedDaemonFault {
    Kill,
    Stop,
    /// Its stream breaks, and no new one is made for a while.
    CutStream,
    /// Packets are lost for a while, without a word to anybody.
    DropPackets,
    /// Something that it said long ago arrives again.
    RepeatOldFrame,
    /// It claims the end of somebody else's attempt.
    SendForgedFrame,
}

impl InjectedDaemonFault {
    fn fault_name(self) -> &'static str {
        match self {
            Self::Kill => "daemon killed",
            Self::Stop => "daemon stopped",
            Self::CutStream => "stream cut",
            Self::DropPackets => "network cut",
            Self::RepeatOldFrame => "old frame repeated",
            Self::SendForgedFrame => "foreign frame",
        }
    }
}

impl DaemonUnderFault {
    pub(crate) async fn start(
        admin: &TestClient,
        recorder: &HistoryRecorder,
        dir: &Path,
        (name, tenant): (String, &str),
        island: Option<Arc<IsolatedNetwork>>,
    ) -> Self {
        let (_, token) = admin.create_token(tenant, Role::Daemon).await;
        let memory = RememberedFrames::default();
        let view = recorder.participant_log(&name).expect("a file can be made");
        let host = island
            .as_ref()
            .map_or("127.0.0.1", |island| island.host_address());
        let tap = FrameTap::start_with_listener(
            admin.url(),
            host,
            recording_listener(view, tenant, &memory),
        )
        .await;
        let process = spawn_daemon(dir, &name, &tap, &token, island.as_deref()).await;
        Self {
            name,
            token,
            dir: dir.to_owned(),
            tap,
            process,
            remembered_frames: memory,
            isolated_network: island,
        }
    }

    /// Lets one thing happen and pass.
    async fn inject_fault(
        &mut self,
        trouble: InjectedDaemonFault,
        others: &[RememberedFrames],
        stop: &CancellationToken,
    ) -> bool {
        match trouble {
            InjectedDaemonFault::Kill => {
                self.process.kill().await;
                sleep_unless_stopped(random_millis(0, 2_000), stop).await;
                self.start_again().await;
            }
            InjectedDaemonFault::Stop => {
                send_signal(self.process.pid(), Signal::STOP);
                sleep_unless_stopped(random_millis(500, 15_000), stop).await;
                send_signal(self.process.pid(), Signal::CONT);
            }
            InjectedDaemonFault::CutStream => {
                self.tap.cut();
                sleep_unless_stopped(random_millis(200, 16_000), stop).await;
                self.tap.restore();
            }
            InjectedDaemonFault::DropPackets => {
                let Some(island) = &self.isolated_network else {
                    return false;
                };
                island.set_link_down().expect("a cable can be pulled");
                sleep_unless_stopped(random_millis(1_000, 16_000), stop).await;
                island.set_link_up().expect("a cable can be plugged in");
            }
            InjectedDaemonFault::RepeatOldFrame => {
                let old = self.remembered_frames.random_old_frame();
                return old.is_some_and(|frame| self.tap.inject_frame(frame));
            }
            InjectedDaemonFault::SendForgedFrame => {
                let other = &others[rand::random_range(0..others.len())];
                // About its own attempt it would be the truth, told too early.
                let lie = other
                    .forged_completion()
                    .filter(|_| !other.is_same_daemon(&self.remembered_frames));
                return lie.is_some_and(|frame| self.tap.inject_frame(frame));
            }
        }
        true
    }

    async fn start_again(&mut self) {
        let island = self.isolated_network.as_deref();
        self.process = spawn_daemon(&self.dir, &self.name, &self.tap, &self.token, island).await;
    }

    pub(crate) async fn stop(&mut self) {
        self.process.terminate().await;
    }
}

async fn spawn_daemon(
    dir: &Path,
    name: &str,
    tap: &FrameTap,
    token: &str,
    island: Option<&IsolatedNetwork>,
) -> DaemonProcess {
    let wrapper = island
        .map(IsolatedNetwork::command_prefix)
        .unwrap_or_default();
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let url = tap.url();
    DaemonProcess::start_with_prefix(BATON, dir, name, (&url, token), &wrapper, &[]).await
}

/// Goes on until it is told to stop; each member of a group gets its share.
pub(crate) async fn inject_daemon_faults(
    group: &mut [DaemonUnderFault],
    mix: &[InjectedDaemonFault],
    (gap_ms, others): (u64, &[RememberedFrames]),
    view: &ParticipantLog,
    stop: &CancellationToken,
) {
    let mut turns = cycle_from_random(mix);
    while sleep_unless_stopped(random_millis(gap_ms / 2, gap_ms * 2), stop).await
        && let Some(trouble) = turns.next()
    {
        let member = rand::random_range(0..group.len());
        let member = &mut group[member];
        if member.inject_fault(trouble, others, stop).await {
            let fault = trouble.fault_name().to_owned();
            let target = member.name.clone();
            let saw = Observation::Fault { fault, target };
            view.record(now_ms(), saw)
                .expect("the history can be written");
        }
    }
}

pub(crate) fn collect_remembered_frames(fleet: &[DaemonUnderFault]) -> Vec<RememberedFrames> {
    fleet
        .iter()
        .map(|member| member.remembered_frames.clone())
        .collect()
}
