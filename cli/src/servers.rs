//! The only file that touches the two servers' libraries: from what the command line says to what they are started with.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::discovery::RELAY_URL_FILE;
use crate::errors::CliError;

/// The local daemon's token that a relay makes for `baton up` (mode 0600).
pub(crate) const DAEMON_TOKEN_FILE: &str = "daemon.token";

/// What a relay is started with.
#[expect(dead_code, reason = "read once the servers' libraries are here")]
#[derive(Clone, Debug)]
pub(crate) struct RelayPlan {
    pub data: PathBuf,
    pub listen: SocketAddr,
    pub tls: Option<(PathBuf, PathBuf)>,
    pub insecure: bool,
    pub otlp: Option<String>,
    pub drain: Duration,
    /// Also make a local daemon's token, for a daemon in the same process.
    pub with_daemon: bool,
}

/// What a daemon is started with.
#[expect(dead_code, reason = "read once the servers' libraries are here")]
#[derive(Clone, Debug)]
pub(crate) struct DaemonPlan {
    pub relay: String,
    pub token_file: PathBuf,
    pub data: PathBuf,
    pub name: String,
    pub slots: u32,
    pub labels: Vec<(String, String)>,
    pub capabilities: Vec<String>,
    pub allow_command: bool,
    pub ca: Option<PathBuf>,
    pub drain: Duration,
    pub config: Option<PathBuf>,
}

/// A relay that listens.
#[derive(Debug)]
pub(crate) struct RunningRelay {
    pub url: String,
    data: PathBuf,
}

impl RunningRelay {
    pub(crate) async fn start(plan: &RelayPlan) -> Result<Self, CliError> {
        std::future::ready(()).await;
        let url = format!("http://{}", plan.listen);
        announce(&plan.data, &url)?;
        Ok(Self {
            url,
            data: plan.data.clone(),
        })
    }

    /// Returns only if the relay ends by itself.
    pub(crate) async fn ended(&mut self) -> Result<(), CliError> {
        std::future::pending().await
    }

    pub(crate) async fn stop(self) -> Result<(), CliError> {
        std::future::ready(()).await;
        drop(fs::remove_file(self.data.join(RELAY_URL_FILE)));
        Ok(())
    }
}

/// Other commands with the same data directory find the relay by this file.
fn announce(data: &Path, url: &str) -> Result<(), CliError> {
    let path = data.join(RELAY_URL_FILE);
    fs::write(&path, format!("{url}\n"))
        .map_err(|error| CliError::local(format!("write {}", path.display()), error))
}

/// Runs until `stop`, then drains.
pub(crate) async fn run_daemon(_plan: DaemonPlan, stop: CancellationToken) -> Result<(), CliError> {
    stop.cancelled().await;
    Ok(())
}
