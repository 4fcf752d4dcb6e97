//! Twenty daemons, each behind a frame tap, and the faults injected into them: kills, stops,
//! cut streams, and forged frames.

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

/// One daemon and its tap.
pub(crate) struct DaemonUnderFault {
    name: String,
    token: String,
    dir: PathBuf,
    tap: FrameTap,
    process: DaemonProcess,
    remembered_frames: RememberedFrames,
    isolated_network: Option<Arc<IsolatedNetwork>>,
}

/// Faults of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedDaemonFault {
    Kill,
    Stop,
    /// Its stream breaks, and no new one is accepted for a while.
    CutStream,
    /// Packets are lost for a while, without an error.
    DropPackets,
    /// An old frame of the daemon arrives again.
    RepeatOldFrame,
    /// It reports the end of another daemon's attempt.
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
        network: Option<Arc<IsolatedNetwork>>,
    ) -> Self {
        let (_, token) = admin.create_token(tenant, Role::Daemon).await;
        let memory = RememberedFrames::default();
        let view = recorder
            .participant_log(&name)
            .expect("a file can be created");
        let host = network
            .as_ref()
            .map_or("127.0.0.1", |network| network.host_address());
        let tap = FrameTap::start_with_listener(
            admin.url(),
            host,
            recording_listener(view, tenant, &memory),
        )
        .await;
        let process = spawn_daemon(dir, &name, &tap, &token, network.as_deref()).await;
        Self {
            name,
            token,
            dir: dir.to_owned(),
            tap,
            process,
            remembered_frames: memory,
            isolated_network: network,
        }
    }

    /// Injects one fault and ends it again. False if it was not possible.
    async fn inject_fault(
        &mut self,
        fault: InjectedDaemonFault,
        others: &[RememberedFrames],
        stop: &CancellationToken,
    ) -> bool {
        match fault {
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
                let Some(network) = &self.isolated_network else {
                    return false;
                };
                network.set_link_down().expect("the link can be set down");
                sleep_unless_stopped(random_millis(1_000, 16_000), stop).await;
                network.set_link_up().expect("the link can be set up");
            }
            InjectedDaemonFault::RepeatOldFrame => {
                let old = self.remembered_frames.random_old_frame();
                return old.is_some_and(|frame| self.tap.inject_frame(frame));
            }
            InjectedDaemonFault::SendForgedFrame => {
                let other = &others[rand::random_range(0..others.len())];
                // For the daemon's own attempt the frame would not be forged, only too early.
                let forged = other
                    .forged_completion()
                    .filter(|_| !other.is_same_daemon(&self.remembered_frames));
                return forged.is_some_and(|frame| self.tap.inject_frame(frame));
            }
        }
        true
    }

    async fn start_again(&mut self) {
        let network = self.isolated_network.as_deref();
        self.process = spawn_daemon(&self.dir, &self.name, &self.tap, &self.token, network).await;
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
    network: Option<&IsolatedNetwork>,
) -> DaemonProcess {
    let wrapper = network
        .map(IsolatedNetwork::command_prefix)
        .unwrap_or_default();
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let url = tap.url();
    DaemonProcess::start_with_prefix(BATON, dir, name, (&url, token), &wrapper, &[]).await
}

/// Injects faults into the members of a group until it is stopped.
pub(crate) async fn inject_daemon_faults(
    group: &mut [DaemonUnderFault],
    mix: &[InjectedDaemonFault],
    (gap_ms, others): (u64, &[RememberedFrames]),
    view: &ParticipantLog,
    stop: &CancellationToken,
) {
    let mut turns = cycle_from_random(mix);
    while sleep_unless_stopped(random_millis(gap_ms / 2, gap_ms * 2), stop).await
        && let Some(fault) = turns.next()
    {
        let member = rand::random_range(0..group.len());
        let member = &mut group[member];
        if member.inject_fault(fault, others, stop).await {
            let fault = fault.fault_name().to_owned();
            let target = member.name.clone();
            let observation = Observation::Fault { fault, target };
            view.record(now_ms(), observation)
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
