//! A real daemon inside the test's process: the same library call as `baton daemon`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use baton_daemon::{
    ANY_COMMAND_AGENT, AgentConfig, Clock, Daemon, DaemonConfig, DaemonStatus, KERNEL_BOOT_ID_FILE,
    ResourceLimits, ShimProgram,
};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::wait::wait_within;

#[derive(Debug)]
pub struct EmbeddedDaemon {
    stop: CancellationToken,
    status: watch::Receiver<DaemonStatus>,
    running: JoinHandle<()>,
    /// Removed last.
    _dir: TempDir,
}

/// The executable under test, which cargo builds beside the tests. The test process cannot be
/// started as a shim.
fn shim_program() -> ShimProgram {
    let tests = std::env::current_exe().expect("the path of the executable is known");
    let built = tests.parent().and_then(std::path::Path::parent);
    ShimProgram {
        program: built
            .expect("tests are built in a directory")
            .join("baton-under-test"),
        args: vec![baton_daemon::shim::SHIM_ARGUMENT.into()],
        environment: Vec::new(),
    }
}

impl EmbeddedDaemon {
    /// Accepts any command. Returns when the relay has sent Welcome.
    pub async fn start(url: &str, token: &str) -> Self {
        Self::start_with(url, token, |_| {}).await
    }

    pub async fn start_with(
        url: &str,
        token: &str,
        change: impl FnOnce(&mut DaemonConfig),
    ) -> Self {
        let mut daemon = Self::start_dialing(url, token, change);
        daemon
            .wait_for_status("the daemon to get Welcome", |status| status.connected)
            .await;
        daemon
    }

    /// Starts and connects, without waiting for Welcome.
    pub fn start_dialing(url: &str, token: &str, change: impl FnOnce(&mut DaemonConfig)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let token_file = dir.path().join("token");
        fs::write(&token_file, token).expect("a file can be written");
        let mut config = DaemonConfig {
            relay: url.to_owned(),
            token_file,
            ca_file: None,
            data_dir: dir.path().join("data"),
            name: "real".to_owned(),
            slots: 8,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            agents: [(ANY_COMMAND_AGENT.to_owned(), AgentConfig::AnyCommand)].into(),
            roots: BTreeMap::new(),
            work_dir: dir.path().to_owned(),
            limits: ResourceLimits::default(),
            drain: Duration::from_secs(5),
            lease_extension: Duration::ZERO,
            health: None,
            shim: shim_program(),
            tools_program: shim_program().program,
            boot_id_file: KERNEL_BOOT_ID_FILE.into(),
            // This process has other children.
            adopt_orphans: false,
            clock: Clock::boot(),
        };
        change(&mut config);
        let daemon = Daemon::open(config).expect("the configuration is valid");
        let status = daemon.status();
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { daemon.run(stop).await.expect("the daemon stops cleanly") }
        });
        Self {
            stop,
            status,
            running,
            _dir: dir,
        }
    }

    pub fn id(&self) -> String {
        self.status.borrow().daemon_id.clone()
    }

    /// Number of messages of a newer relay that this daemon could not interpret.
    pub fn unknown_count(&self) -> u64 {
        self.status.borrow().unknown_messages
    }

    pub async fn wait_for_status(
        &mut self,
        what: &str,
        matches: impl FnMut(&DaemonStatus) -> bool,
    ) {
        let status = wait_within(what, self.status.wait_for(matches)).await;
        drop(status.expect("the daemon runs"));
    }

    /// Drains and stops.
    pub async fn stop(self) {
        self.stop.cancel();
        wait_within("the daemon to stop", self.running)
            .await
            .expect("the daemon does not panic");
    }
}
