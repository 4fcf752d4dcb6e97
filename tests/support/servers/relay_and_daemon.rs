//! One relay and one daemon as processes, the fixture of most tests with real agents.

use std::path::Path;

use baton_proto::v1::Role;
use tempfile::TempDir;

use crate::client::test_client::TestClient;
use crate::servers::server_processes::{
    BatonExecutable, CommandOutput, DaemonProcess, RelayProcess,
};

/// The daemon is named `one`. Its files and those of the test are in `dir`.
#[derive(Debug)]
pub struct RelayAndDaemon {
    pub relay: RelayProcess,
    pub daemon: DaemonProcess,
    pub dir: TempDir,
    baton: BatonExecutable,
    daemon_url: String,
    secret: String,
}

impl RelayAndDaemon {
    /// The daemon has no configuration file, so it runs only commands.
    pub async fn start(baton: BatonExecutable) -> Self {
        Self::start_with_config(baton, |_| String::new()).await
    }

    /// The configuration file of the daemon may name files in the given directory.
    pub async fn start_with_config(
        baton: BatonExecutable,
        config: impl FnOnce(&Path) -> String,
    ) -> Self {
        let relay = RelayProcess::start(baton).await;
        let url = relay.admin().url().to_owned();
        Self::start_at(baton, relay, url, config).await
    }

    /// With a relay of the test, which the daemon reaches at this address.
    pub async fn start_at(
        baton: BatonExecutable,
        relay: RelayProcess,
        daemon_url: String,
        config: impl FnOnce(&Path) -> String,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
        let config = config(dir.path());
        if !config.is_empty() {
            std::fs::write(dir.path().join("daemon.toml"), config).expect("a file can be written");
        }
        let daemon = start_daemon(baton, dir.path(), &daemon_url, &secret).await;
        Self {
            relay,
            daemon,
            dir,
            baton,
            daemon_url,
            secret,
        }
    }

    pub fn client(&self) -> &TestClient {
        self.relay.admin()
    }

    /// Runs one command beside the relay.
    pub async fn run_command(&self, arguments: &[&str]) -> CommandOutput {
        self.baton.run(self.relay.data(), arguments).await
    }

    /// Kills the daemon and starts another one on its directory.
    pub async fn kill_and_restart_daemon(&mut self) {
        self.daemon.kill().await;
        self.restart_daemon().await;
    }

    pub async fn restart_daemon(&mut self) {
        let dir = self.dir.path();
        self.daemon = start_daemon(self.baton, dir, &self.daemon_url, &self.secret).await;
    }

    pub async fn kill_and_restart_relay(&mut self) {
        self.relay.kill().await;
        self.relay.start_again().await;
    }

    /// Creates an empty file that a task of the test waits for.
    pub fn create_file(&self, name: &str) {
        std::fs::write(self.dir.path().join(name), "").expect("a file can be written");
    }
}

async fn start_daemon(
    baton: BatonExecutable,
    dir: &Path,
    url: &str,
    secret: &str,
) -> DaemonProcess {
    let file = dir.join("daemon.toml");
    let with_file = ["--config", file.to_str().expect("a UTF-8 path")];
    let more = if file.exists() { &with_file[..] } else { &[] };
    DaemonProcess::start_with(baton, dir, "one", (url, secret), more).await
}
