//! The upgrade of a whole installation while it works: new executables on the disk, the relay replaced, then one daemon after
//! the other. What runs goes on as the attempt that it was, and says everything once.

use std::path::Path;
use std::time::Duration;

use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{Placement, ReadOutputRequest, Role, TaskSpec, TaskState};
use baton_tests::{
    Baton, Client, DaemonProcess, RelayProcess, command, marked_gone, poll_until, within,
};
use tempfile::TempDir;

use crate::BATON;

/// Lines that must come anew before somebody counts as heard again.
const MORE: usize = 10;

/// How a daemon is made to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    /// As `systemctl restart` does it: it hands over to the next one.
    Stopped,
    Killed,
}

/// Where the executables are. An upgrade puts new files in the place of those that run.
struct Installation {
    dir: TempDir,
    baton: Baton,
}

impl Installation {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("baton").display().to_string();
        let installed = Self {
            dir,
            baton: Baton::new(Box::leak(program.into_boxed_str())),
        };
        installed.upgrade();
        installed
    }

    /// As package managers do it: the old file lives on, without a name, in the processes that run it.
    fn upgrade(&self) {
        let new = self.dir.path().join("baton.new");
        std::fs::copy(BATON.program(), &new).expect("the executable can be copied");
        std::fs::rename(&new, self.dir.path().join("baton")).expect("a file can be replaced");
    }
}

/// A daemon and what it was started with.
struct Worker {
    name: &'static str,
    secret: String,
    process: DaemonProcess,
}

/// A task whose attempt runs.
struct Work {
    task_id: String,
    attempt_id: String,
    mark: String,
}

struct Site {
    installed: Installation,
    relay: RelayProcess,
    client: Client,
    dir: TempDir,
    workers: Vec<Worker>,
    work: Vec<Work>,
}

impl Site {
    async fn start(names: [&'static str; 2]) -> Self {
        let installed = Installation::new();
        let relay = RelayProcess::start(installed.baton).await;
        let client = relay.admin().clone();
        let dir = tempfile::tempdir().expect("a directory");
        let mut workers = Vec::new();
        for name in names {
            let (_, secret) = client.make_token("", Role::Daemon).await;
            let link = (client.url(), secret.as_str());
            let process = start_daemon(installed.baton, dir.path(), name, link).await;
            let identity = process.data.join("daemon-id");
            poll_until("the daemon to be known", || identity.exists().then_some(())).await;
            workers.push(Worker {
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
            work: Vec::new(),
        }
    }

    /// One attempt more on this daemon, which runs until all may end.
    async fn begin(&mut self, daemon: &str, mark: &str) {
        let spec = counts_until(&self.dir.path().join("go-on"), daemon, mark);
        let task_id = self.client.submit(spec).await.task_id;
        heard_more(&self.client, &task_id).await;
        let attempt_id = self.client.get(&task_id).await.attempts[0]
            .attempt_id
            .clone();
        self.work.push(Work {
            task_id,
            attempt_id,
            mark: mark.to_owned(),
        });
    }

    async fn replace_relay(&mut self) {
        assert_eq!(self.relay.terminate().await.code(), Some(0));
        self.relay.revive().await;
        self.assert_all_goes_on().await;
    }

    async fn replace_worker(&mut self, number: usize, going: Going) {
        let worker = &mut self.workers[number];
        match going {
            Going::Stopped => assert_eq!(worker.process.terminate().await.code(), Some(0)),
            Going::Killed => worker.process.kill().await,
        }
        let link = (self.client.url(), worker.secret.as_str());
        worker.process =
            start_daemon(self.installed.baton, self.dir.path(), worker.name, link).await;
        self.assert_all_goes_on().await;
    }

    /// The relay hears every child.
    async fn assert_all_goes_on(&self) {
        for work in &self.work {
            heard_more(&self.client, &work.task_id).await;
        }
    }

    /// Everything may end, and ends as the attempt that it began as.
    async fn finish(mut self) {
        std::fs::write(self.dir.path().join("go-on"), "").expect("a file can be written");
        for work in &self.work {
            let client = &self.client;
            client
                .until_state(&work.task_id, TaskState::Completed)
                .await;
            let attempts = client.get(&work.task_id).await.attempts;
            let ids: Vec<&str> = attempts.iter().map(|one| one.attempt_id.as_str()).collect();
            assert_eq!(ids, [work.attempt_id.as_str()]);
            assert_counted(&client.output(&work.task_id).await);
            marked_gone(&work.mark).await;
        }
        for worker in &mut self.workers {
            poll_until("everything to be told", || {
                worker.process.is_settled().then_some(())
            })
            .await;
            assert_eq!(worker.process.terminate().await.code(), Some(0));
        }
        assert_eq!(self.relay.terminate().await.code(), Some(0));
    }
}

async fn start_daemon(baton: Baton, dir: &Path, name: &str, link: (&str, &str)) -> DaemonProcess {
    DaemonProcess::start_with(baton, dir, name, link, &["--drain", "1s", "--hold", "2m"]).await
}

/// Says numbers until `file` is there, and then the last of them once more.
fn counts_until(file: &Path, daemon: &str, mark: &str) -> TaskSpec {
    let script = format!(
        "i=0; until [ -e {} ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo last $i",
        file.display()
    );
    TaskSpec {
        placement: Some(Placement {
            daemon: daemon.to_owned(),
            ..Placement::default()
        }),
        ..command("sh", &["-c", &script], mark)
    }
}

/// One child has counted from its first line to its last, and each line was heard once.
fn assert_counted(output: &[u8]) {
    let text = String::from_utf8_lossy(output);
    let count = text.lines().count() - 1;
    let lines: String = (1..=count).map(|line| format!("line {line}\n")).collect();
    assert!(text == format!("{lines}last {count}\n"), "{text}");
}

/// Returns when the relay has more of the newest attempt's output than it had at the call.
async fn heard_more(client: &Client, task_id: &str) {
    let before = lines_so_far(client, task_id).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    within("more output", async {
        while lines_so_far(client, task_id).await < before + MORE {
            ticks.tick().await;
        }
    })
    .await;
}

async fn lines_so_far(client: &Client, task_id: &str) -> usize {
    let request = ReadOutputRequest {
        task_id: task_id.to_owned(),
        ..ReadOutputRequest::default()
    };
    let Ok(opened) = client.tasks().read_output(request).await else {
        // It has no attempt yet.
        return 0;
    };
    let mut pieces = opened.into_inner();
    let mut lines = 0;
    while let Some(piece) = pieces.message().await.expect("what is there can be read") {
        if let Some(Item::Chunk(chunk)) = piece.item {
            lines += chunk.data.iter().filter(|byte| **byte == b'\n').count();
        }
    }
    lines
}

async fn upgrade(names: [&'static str; 2], going: Going) {
    let mut site = Site::start(names).await;
    for name in names {
        for number in 0..2 {
            site.begin(name, &format!("{name}-{number}")).await;
        }
    }
    site.installed.upgrade();
    // A daemon whose executable is gone from the disk still starts attempts.
    site.begin(names[0], &format!("{}-late", names[0])).await;
    site.replace_relay().await;
    for (number, name) in names.into_iter().enumerate() {
        site.replace_worker(number, going).await;
        site.begin(name, &format!("{name}-new")).await;
    }
    site.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_and_daemons_that_are_killed_for_an_upgrade_cost_running_attempts_nothing() {
    upgrade(["north", "south"], Going::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_and_daemons_that_are_stopped_for_an_upgrade_cost_running_attempts_nothing() {
    upgrade(["east", "west"], Going::Stopped).await;
}
