//! A relay inside the test's process: the same library call as `baton relay`, on a free port
//! and its own runtime.
//!
//! Dropping it stops it and waits, so that its files are removed only after the last write.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_proto::v1::Role;
use baton_relay::auth::bootstrap::ADMIN_TOKEN_FILE;
use baton_relay::config::RelayConfig;
use baton_relay::server;
use baton_relay::telemetry::Telemetry;
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::client::test_client::TestClient;
use crate::scripted::scripted_daemon::{ScriptedDaemon, hello};
use crate::servers::embedded_daemon::EmbeddedDaemon;
use crate::wait::wait_within;

/// The only peers are the test's own, which need no time to disconnect.
const DRAIN_TIME: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct EmbeddedRelay {
    admin: TestClient,
    telemetry: Telemetry,
    relay_thread: RelayThread,
    /// Removed after the relay has stopped, because fields are dropped in order.
    dir: TempDir,
}

/// The relay's thread.
#[derive(Debug)]
struct RelayThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl EmbeddedRelay {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut RelayConfig)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        Self::start_in(dir, change).await
    }

    async fn start_in(dir: TempDir, change: impl FnOnce(&mut RelayConfig)) -> Self {
        let listen = "127.0.0.1:0".parse().expect("a constant address");
        let mut config = RelayConfig::new(dir.path().join("data"), listen);
        config.drain_timeout = DRAIN_TIME;
        change(&mut config);
        let data = config.data_dir.clone();
        let (running, address) = RelayThread::start(config);
        let (address, telemetry) = wait_within("the relay to start", address)
            .await
            .expect("the relay starts");
        Self {
            telemetry,
            admin: TestClient::new(&format!("http://{address}"), &read_admin_token(&data)),
            relay_thread: running,
            dir,
        }
    }

    /// Stops cleanly and starts again with the same data, on another port.
    pub async fn restart(self) -> Self {
        let Self {
            relay_thread: running,
            dir,
            ..
        } = self;
        let stopped = tokio::task::spawn_blocking(move || drop(running));
        wait_within("the relay to stop", stopped)
            .await
            .expect("the relay stops cleanly");
        Self::start_in(dir, |_| {}).await
    }

    /// The sum of this counter since the start, over all reasons.
    pub fn counter_value(&self, name: &str) -> u64 {
        let counts = self.telemetry.snapshot();
        let same = counts.iter().filter(|(counter, _)| counter.name == name);
        same.map(|(_, count)| count).sum()
    }

    /// Its data directory.
    pub fn data_directory(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn url(&self) -> &str {
        self.admin.url()
    }

    /// The local administrator, of tenant `default`.
    pub fn admin(&self) -> &TestClient {
        &self.admin
    }

    pub async fn daemon_token(&self) -> String {
        self.admin.create_token("", Role::Daemon).await.1
    }

    /// A scripted daemon of the administrator's tenant with its own credential.
    pub async fn start_scripted_daemon(&self, agents: &[&str]) -> ScriptedDaemon {
        let client = self.admin.with_token(&self.daemon_token().await);
        ScriptedDaemon::connect(&client, hello(agents)).await
    }

    /// Waits until the relay has noticed the end of a daemon's stream.
    pub async fn wait_until_offline(&self, daemon_id: &str) {
        self.admin.wait_until_offline(daemon_id).await;
    }

    pub async fn start_daemon(&self) -> EmbeddedDaemon {
        EmbeddedDaemon::start(self.url(), &self.daemon_token().await).await
    }
}

impl RelayThread {
    fn start(config: RelayConfig) -> (Self, oneshot::Receiver<(SocketAddr, Telemetry)>) {
        let (stop, stopping) = oneshot::channel();
        let (start_sender, address) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build();
            runtime.expect("a runtime can be started").block_on(async {
                let relay = server::start(config).await.expect("the relay starts");
                // If the test has ended, no stop is sent either.
                let _ = start_sender.send((relay.address(), relay.telemetry().clone()));
                let _ = stopping.await;
                relay.stop().await.expect("the relay stops cleanly");
            });
        });
        let running = Self {
            stop: Some(stop),
            thread: Some(thread),
        };
        (running, address)
    }
}

impl Drop for RelayThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended
            && !std::thread::panicking()
        {
            panic!("the relay panicked");
        }
    }
}

pub(crate) fn read_admin_token(data: &Path) -> String {
    let token = fs::read_to_string(data.join(ADMIN_TOKEN_FILE));
    token
        .expect("the first start creates a token")
        .trim()
        .to_owned()
}
