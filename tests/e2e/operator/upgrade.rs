//! An upgrade of a running installation: new executables on disk, then the relay is replaced,
//! then one daemon after the other. Running attempts continue and lose or repeat no output.

use std::path::Path;
use std::time::Duration;

use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{Placement, ReadOutputRequest, Role, TaskSpec, TaskState};
use baton_tests::{
    BatonExecutable, DaemonProcess, RelayProcess, TestClient, assert_counted_lines, counting_task,
    poll_until, wait_until_marked_gone, wait_within,
};
use tempfile::TempDir;

use crate::BATON;

/// New lines that must arrive before an attempt counts as running again.
const MORE_LINES: usize = 10;

/// How a daemon is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DaemonStop {
    /// With TERM, like `systemctl restart`: the next daemon takes the attempts over.
    Stopped,
    Killed,
}

/// The installed executable. An upgrade replaces its file while processes run it.
struct InstalledExecutables {
    dir: TempDir,
    baton: BatonExecutable,
}

impl InstalledExecutables {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("baton").display().to_string();
        let installed = Self {
            dir,
            baton: BatonExecutable::new(Box::leak(program.into_boxed_str())),
        };
        installed.install_new_version();
        installed
    }

    /// Replaces the file like a package manager: running processes keep the old, now unlinked,
    /// file.
    fn install_new_version(&self) {
        let new = self.dir.path().join("baton.new");
        std::fs::copy(BATON.program(), &new).expect("the executable can be copied");
        std::fs::rename(&new, self.dir.path().join("baton")).expect("a file can be replaced");
    }
}

/// A daemon process with its name and credential.
struct UpgradedDaemon {
    name: &'static str,
    secret: String,
    process: DaemonProcess,
}

/// A running attempt and its task.
struct RunningAttempt {
    task_id: String,
    attempt_id: String,
    mark: String,
}

struct UpgradeFixture {
    installed: InstalledExecutables,
    relay: RelayProcess,
    client: TestClient,
    dir: TempDir,
    workers: Vec<UpgradedDaemon>,
    running_attempts: Vec<RunningAttempt>,
}

impl UpgradeFixture {
    async fn start(names: [&'static str; 2]) -> Self {
        let installed = InstalledExecutables::new();
        let relay = RelayProcess::start(installed.baton).await;
        let client = relay.admin().clone();
        let dir = tempfile::tempdir().expect("a directory");
        let mut workers = Vec::new();
        for name in names {
            let (_, secret) = client.create_token("", Role::Daemon).await;
            let link = (client.url(), secret.as_str());
            let process = start_daemon(installed.baton, dir.path(), name, link).await;
            let identity = process.data.join("daemon-id");
            poll_until("the daemon to be registered", || {
                identity.exists().then_some(())
            })
            .await;
            workers.push(UpgradedDaemon {
                name,
                secret,
                process,
            });
        }
        Self {
            installed,
            relay,
            client,
            dir,
            workers,
            running_attempts: Vec::new(),
        }
    }

    /// Starts another attempt on this daemon. It runs until `finish_all`.
    async fn start_attempt(&mut self, daemon: &str, mark: &str) {
        let placement = Placement {
            daemon: daemon.to_owned(),
            ..Placement::default()
        };
        let spec = TaskSpec {
            placement: Some(placement),
            ..counting_task(&self.dir.path().join("go-on"), mark)
        };
        let task_id = self.client.submit(spec).await.task_id;
        wait_for_more_output(&self.client, &task_id).await;
        let attempt_id = self.client.get(&task_id).await.attempts[0]
            .attempt_id
            .clone();
        self.running_attempts.push(RunningAttempt {
            task_id,
            attempt_id,
            mark: mark.to_owned(),
        });
    }

    async fn replace_relay(&mut self) {
        assert_eq!(self.relay.terminate().await.code(), Some(0));
        self.relay.start_again().await;
        self.assert_all_running().await;
    }

    async fn replace_worker(&mut self, number: usize, stop: DaemonStop) {
        let worker = &mut self.workers[number];
        match stop {
            DaemonStop::Stopped => assert_eq!(worker.process.terminate().await.code(), Some(0)),
            DaemonStop::Killed => worker.process.kill().await,
        }
        let link = (self.client.url(), worker.secret.as_str());
        worker.process =
            start_daemon(self.installed.baton, self.dir.path(), worker.name, link).await;
        self.assert_all_running().await;
    }

    /// Checks that new output of every attempt reaches the relay.
    async fn assert_all_running(&self) {
        for attempt in &self.running_attempts {
            wait_for_more_output(&self.client, &attempt.task_id).await;
        }
    }

    /// Lets all attempts end and checks that each task has only its first attempt.
    async fn finish_all(mut self) {
        std::fs::write(self.dir.path().join("go-on"), "").expect("a file can be written");
        for attempt in &self.running_attempts {
            let client = &self.client;
            client
                .wait_for_state(&attempt.task_id, TaskState::Completed)
                .await;
            let attempts = client.get(&attempt.task_id).await.attempts;
            let ids: Vec<&str> = attempts.iter().map(|one| one.attempt_id.as_str()).collect();
            assert_eq!(ids, [attempt.attempt_id.as_str()]);
            assert_counted_lines(&client.read_output_to_end(&attempt.task_id).await);
            wait_until_marked_gone(&attempt.mark).await;
        }
        for worker in &mut self.workers {
            poll_until("the outbox to be empty", || {
                worker.process.has_empty_outbox().then_some(())
            })
            .await;
            assert_eq!(worker.process.terminate().await.code(), Some(0));
        }
        assert_eq!(self.relay.terminate().await.code(), Some(0));
    }
}

async fn start_daemon(
    baton: BatonExecutable,
    dir: &Path,
    name: &str,
    link: (&str, &str),
) -> DaemonProcess {
    DaemonProcess::start_with(baton, dir, name, link, &["--drain", "1s", "--hold", "2m"]).await
}

/// Waits until the relay has more output of the newest attempt than at the call.
async fn wait_for_more_output(client: &TestClient, task_id: &str) {
    let before = output_line_count(client, task_id).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    wait_within("more output", async {
        while output_line_count(client, task_id).await < before + MORE_LINES {
            ticks.tick().await;
        }
    })
    .await;
}

async fn output_line_count(client: &TestClient, task_id: &str) -> usize {
    let request = ReadOutputRequest {
        task_id: task_id.to_owned(),
        ..ReadOutputRequest::default()
    };
    let Ok(opened) = client.tasks().read_output(request).await else {
        // The task has no attempt yet.
        return 0;
    };
    let mut pieces = opened.into_inner();
    let mut lines = 0;
    while let Some(piece) = pieces.message().await.expect("stored output can be read") {
        if let Some(Item::Chunk(chunk)) = piece.item {
            lines += chunk.data.iter().filter(|byte| **byte == b'\n').count();
        }
    }
    lines
}

async fn check_upgrade(names: [&'static str; 2], stop: DaemonStop) {
    let mut fixture = UpgradeFixture::start(names).await;
    for name in names {
        for number in 0..2 {
            fixture
                .start_attempt(name, &format!("{name}-{number}"))
                .await;
        }
    }
    fixture.installed.install_new_version();
    // A daemon whose executable was unlinked still starts attempts.
    fixture
        .start_attempt(names[0], &format!("{}-late", names[0]))
        .await;
    fixture.replace_relay().await;
    for (number, name) in names.into_iter().enumerate() {
        fixture.replace_worker(number, stop).await;
        fixture.start_attempt(name, &format!("{name}-new")).await;
    }
    fixture.finish_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_continue_when_an_upgrade_kills_the_daemons() {
    check_upgrade(["north", "south"], DaemonStop::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_continue_when_an_upgrade_stops_the_daemons() {
    check_upgrade(["east", "west"], DaemonStop::Stopped).await;
}
