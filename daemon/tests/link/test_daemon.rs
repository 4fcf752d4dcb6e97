//! The daemon under test, in this process, with shims as separate processes; and helpers to
//! find an attempt's processes.

use std::path::Path;
use std::time::Duration;

use baton_daemon::{
    AgentConfig, Clock, Daemon, DaemonConfig, DaemonError, DaemonStatus, ShimProgram,
};
use baton_proto::v1::AttemptRef;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fake_relay::TEST_TIMEOUT;

/// What outlives a killed daemon.
pub(crate) struct DaemonHome {
    dir: TempDir,
}

impl DaemonHome {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("the test can set itself up");
        std::fs::write(dir.path().join("token"), "btn_test\n").expect("the test can set itself up");
        let home = Self { dir };
        home.set_boot_id("the first boot");
        home
    }

    /// Simulates a boot of the machine with this id.
    pub(crate) fn set_boot_id(&self, id: &str) {
        std::fs::write(self.path().join("boot_id"), id).expect("the test can set itself up");
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    fn config(&self, url: &str) -> DaemonConfig {
        DaemonConfig {
            relay: url.to_owned(),
            token_file: self.path().join("token"),
            ca_file: None,
            data_dir: self.path().join("data"),
            name: "worker".into(),
            slots: 2,
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            capabilities: vec!["fast".into()],
            agents: [(
                baton_daemon::ANY_COMMAND_AGENT.to_owned(),
                AgentConfig::AnyCommand,
            )]
            .into(),
            roots: std::collections::BTreeMap::new(),
            work_dir: self.path().to_owned(),
            limits: baton_daemon::ResourceLimits::default(),
            drain: Duration::from_secs(15),
            lease_extension: Duration::ZERO,
            health: None,
            shim: ShimProgram {
                program: env!("CARGO_BIN_EXE_shim-under-test").into(),
                args: vec![baton_daemon::shim::SHIM_ARGUMENT.into()],
                environment: Vec::new(),
            },
            tools_program: "/bin/false".into(),
            boot_id_file: self.path().join("boot_id"),
            adopt_orphans: true,
            clock: Clock::boot(),
        }
    }
}

pub(crate) struct LinkTestDaemon {
    pub(crate) stop: CancellationToken,
    pub(crate) status: watch::Receiver<DaemonStatus>,
    pub(crate) ended: JoinHandle<Result<(), DaemonError>>,
    _home: Option<DaemonHome>,
}

impl LinkTestDaemon {
    pub(crate) fn start(url: &str) -> Self {
        Self::start_with(url, |_| {})
    }

    pub(crate) fn start_with(url: &str, change: impl FnOnce(&mut DaemonConfig)) -> Self {
        let home = DaemonHome::new();
        let mut running = Self::start_at(&home, url, change);
        running._home = Some(home);
        running
    }

    pub(crate) fn start_at(
        home: &DaemonHome,
        url: &str,
        change: impl FnOnce(&mut DaemonConfig),
    ) -> Self {
        let mut config = home.config(url);
        change(&mut config);
        let daemon = Daemon::open(config).expect("the test can set itself up");
        let stop = CancellationToken::new();
        let status = daemon.status();
        let ended = tokio::spawn(daemon.run(stop.clone()));
        Self {
            stop,
            status,
            ended,
            _home: None,
        }
    }

    pub(crate) async fn wait_for_status(&mut self, wanted: impl FnMut(&DaemonStatus) -> bool) {
        let reached = tokio::time::timeout(TEST_TIMEOUT, self.status.wait_for(wanted)).await;
        drop(
            reached
                .expect("the daemon does not reach this status")
                .expect("the test can set itself up"),
        );
    }

    pub(crate) async fn wait_for_end(self) -> Result<(), DaemonError> {
        tokio::time::timeout(TEST_TIMEOUT, self.ended)
            .await
            .expect("the daemon does not end")
            .expect("the test can set itself up")
    }

    /// Ends the daemon at any point. Its connections close; nothing else is done.
    pub(crate) async fn kill(self) {
        self.ended.abort();
        let ended = tokio::time::timeout(TEST_TIMEOUT, self.ended).await;
        let killed = ended.expect("the daemon does not end").is_err();
        assert!(killed, "the daemon had ended before");
    }
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.trim().starts_with('Z'))
}

/// Living processes of an attempt, including its shim. Dead ones have no environment.
pub(crate) fn pids_of_attempt(attempt: &AttemptRef) -> Vec<u32> {
    let wanted = format!("BATON_ATTEMPT_ID={}", attempt.attempt_id);
    let entries = std::fs::read_dir("/proc").expect("this machine has /proc");
    let pids = entries.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        variables
            .any(|variable| variable == wanted.as_bytes())
            .then_some(pid)
    });
    pids.collect()
}

/// The shim of an attempt, which is the parent of `child`.
pub(crate) fn shim_of(child: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).expect("the child runs");
    let fields = stat.rsplit(')').next().expect("a stat line");
    let parent = fields.split_whitespace().nth(1).expect("a parent");
    parent.parse().expect("a number")
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process has a number");
    kill_process(pid, signal).expect("the process is there");
}

/// Returns when no process of the attempt is alive.
pub(crate) async fn wait_until_gone(attempt: &AttemptRef) {
    let gone = async {
        while !pids_of_attempt(attempt).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, gone)
        .await
        .expect("processes of the attempt are still alive");
}
