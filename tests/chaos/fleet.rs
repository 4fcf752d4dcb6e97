//! Twenty daemons, each with a tap on its wire, and what happens to them: killed, stopped, cut off, and slandered.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_history::{Recorder, Saw, Viewpoint};
use baton_proto::v1::Role;
use baton_tests::{Client, DaemonProcess, Island, Tap, signal};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::overheard::{Memory, listener};
use crate::run::now;
use crate::{BATON, in_turn, pass, some_ms};

/// One daemon and its wire.
pub(crate) struct Member {
    name: String,
    token: String,
    dir: PathBuf,
    tap: Tap,
    process: DaemonProcess,
    memory: Memory,
    island: Option<Arc<Island>>,
}

/// What may happen to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Kill,
    Stop,
    /// Its stream breaks, and no new one is made for a while.
    Cut,
    /// Packets are lost for a while, without a word to anybody.
    Unplug,
    /// Something that it said long ago arrives again.
    Echo,
    /// It claims the end of somebody else's attempt.
    Lie,
}

impl Trouble {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "daemon killed",
            Self::Stop => "daemon stopped",
            Self::Cut => "stream cut",
            Self::Unplug => "network cut",
            Self::Echo => "old frame repeated",
            Self::Lie => "foreign frame",
        }
    }
}

impl Member {
    pub(crate) async fn start(
        admin: &Client,
        recorder: &Recorder,
        dir: &Path,
        (name, tenant): (String, &str),
        island: Option<Arc<Island>>,
    ) -> Self {
        let (_, token) = admin.make_token(tenant, Role::Daemon).await;
        let memory = Memory::default();
        let view = recorder.viewpoint(&name).expect("a file can be made");
        let host = island.as_ref().map_or("127.0.0.1", |island| island.host());
        let tap = Tap::telling(admin.url(), host, listener(view, tenant, &memory)).await;
        let process = spawn(dir, &name, &tap, &token, island.as_deref()).await;
        Self {
            name,
            token,
            dir: dir.to_owned(),
            tap,
            process,
            memory,
            island,
        }
    }

    /// Lets one thing happen and pass.
    async fn suffer(
        &mut self,
        trouble: Trouble,
        others: &[Memory],
        stop: &CancellationToken,
    ) -> bool {
        match trouble {
            Trouble::Kill => {
                self.process.kill().await;
                pass(some_ms(0, 2_000), stop).await;
                self.revive().await;
            }
            Trouble::Stop => {
                signal(self.process.pid(), Signal::STOP);
                pass(some_ms(500, 15_000), stop).await;
                signal(self.process.pid(), Signal::CONT);
            }
            Trouble::Cut => {
                self.tap.cut();
                pass(some_ms(200, 16_000), stop).await;
                self.tap.mend();
            }
            Trouble::Unplug => {
                let Some(island) = &self.island else {
                    return false;
                };
                island.unplug().expect("a cable can be pulled");
                pass(some_ms(1_000, 16_000), stop).await;
                island.plug().expect("a cable can be plugged in");
            }
            Trouble::Echo => {
                let old = self.memory.old_word();
                return old.is_some_and(|frame| self.tap.say_again(frame));
            }
            Trouble::Lie => {
                let other = &others[rand::random_range(0..others.len())];
                // About its own attempt it would be the truth, told too early.
                let lie = other.lie().filter(|_| !other.is(&self.memory));
                return lie.is_some_and(|frame| self.tap.say_again(frame));
            }
        }
        true
    }

    async fn revive(&mut self) {
        let island = self.island.as_deref();
        self.process = spawn(&self.dir, &self.name, &self.tap, &self.token, island).await;
    }

    pub(crate) async fn stop(&mut self) {
        self.process.terminate().await;
    }
}

async fn spawn(
    dir: &Path,
    name: &str,
    tap: &Tap,
    token: &str,
    island: Option<&Island>,
) -> DaemonProcess {
    let wrapper = island.map(Island::wrapper).unwrap_or_default();
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let url = tap.url();
    DaemonProcess::start_under(BATON, dir, name, (&url, token), &wrapper, &[]).await
}

/// Goes on until it is told to stop; each member of a group gets its share.
pub(crate) async fn troubles(
    group: &mut [Member],
    mix: &[Trouble],
    (gap_ms, others): (u64, &[Memory]),
    view: &Viewpoint,
    stop: &CancellationToken,
) {
    let mut turns = in_turn(mix);
    while pass(some_ms(gap_ms / 2, gap_ms * 2), stop).await
        && let Some(trouble) = turns.next()
    {
        let member = rand::random_range(0..group.len());
        let member = &mut group[member];
        if member.suffer(trouble, others, stop).await {
            let fault = trouble.name().to_owned();
            let target = member.name.clone();
            let saw = Saw::Fault { fault, target };
            view.saw(now(), saw).expect("the history can be written");
        }
    }
}

pub(crate) fn memories(fleet: &[Member]) -> Vec<Memory> {
    fleet.iter().map(|member| member.memory.clone()).collect()
}
