//! The relay's disk fills up. The relay refuses submissions early, frees its ballast for running
//! work, restarts itself if a write still fails, and accepts submissions again when there is
//! space. No acknowledged change is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_proto::v1::{
    InspectRequest, Role, SubmitManyRequest, SubmitRequest, Task, TaskSpec, TaskState, WaitsFor,
};
use baton_tests::{
    DaemonProcess, SmallDiskRelay, SmallDiskSpace, TestClient, agent_task, command_task,
    error_code, task_until_file, wait_until_marked_gone, wait_within,
};
use tempfile::TempDir;
use tokio::time::Interval;
use tonic::{Code, Status};

use crate::BATON;

const MIB: u64 = 1 << 20;
/// With this disk the relay needs 64 MiB free to admit work and reserves 32 MiB of ballast.
const DISK_MEBIBYTES: u32 = 256;
/// Longer than the tests, so that no lease expires on a busy machine.
const LEASE_MS: u64 = 10 * 60 * 1_000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A relay on a small disk, and a daemon on the normal disk.
struct RelayDiskFixture {
    relay: SmallDiskRelay,
    _daemon: DaemonProcess,
    dir: TempDir,
    mark: &'static str,
}

impl RelayDiskFixture {
    async fn start(mark: &'static str) -> Option<Self> {
        let relay = SmallDiskRelay::start(BATON, DISK_MEBIBYTES).await?;
        let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let url = relay.admin().url().to_owned();
        let daemon = DaemonProcess::start(BATON, dir.path(), "worker", &url, &secret).await;
        Some(Self {
            relay,
            _daemon: daemon,
            dir,
            mark,
        })
    }

    /// Submits a task that runs until its file exists.
    async fn submit_waiting(&self, name: &str) -> Task {
        let client = self.relay.admin();
        let task = client
            .submit(with_long_lease(task_until_file(
                &self.dir.path().join(name),
                self.mark,
            )))
            .await;
        client
            .wait_for_state(&task.task_id, TaskState::Running)
            .await;
        client.get(&task.task_id).await
    }

    fn create_file(&self, name: &str) {
        fs::write(self.dir.path().join(name), "").expect("a file can be written");
    }
}

fn with_long_lease(spec: TaskSpec) -> TaskSpec {
    TaskSpec {
        lease_ttl_ms: Some(LEASE_MS),
        ..spec
    }
}

fn submit_request(spec: TaskSpec) -> SubmitRequest {
    SubmitRequest {
        spec: Some(spec),
        ..SubmitRequest::default()
    }
}

async fn wait_for_admission(client: &TestClient, wanted: bool) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within("admission to change", async {
        while client.relay_info().await.admitting != wanted {
            ticks.tick().await;
        }
    })
    .await;
}

async fn wait_for_ballast(client: &TestClient, mebibytes: u64) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within("the ballast to change", async {
        while client
            .relay_info()
            .await
            .disk
            .map(|disk| disk.ballast_bytes)
            != Some(mebibytes * MIB)
        {
            ticks.tick().await;
        }
    })
    .await;
}

async fn wait_for_free_below(client: &TestClient, bytes: u64) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within("the relay to notice how little space is left", async {
        while client
            .relay_info()
            .await
            .disk
            .is_none_or(|disk| disk.free_bytes > bytes)
        {
            ticks.tick().await;
        }
    })
    .await;
}

fn assert_disk_full(refused: &Status) {
    assert_eq!(
        (refused.code(), error_code(refused).as_str()),
        (Code::ResourceExhausted, "relay_disk_full"),
        "{refused:?}"
    );
}

async fn wait_reason(client: &TestClient, task: &Task) -> WaitsFor {
    let request = InspectRequest {
        task_id: task.task_id.clone(),
    };
    let shown = client.operator().inspect(request).await;
    let shown = shown.expect("an operator may inspect").into_inner();
    shown.task.expect("the task is shown").waits_for()
}

fn only_attempt_id(task: &Task) -> &str {
    let [attempt] = task.attempts.as_slice() else {
        panic!("expected one attempt, found {}", task.attempts.len());
    };
    &attempt.attempt_id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_low_on_disk_refuses_submissions_and_finishes_running_work() {
    let Some(fixture) = RelayDiskFixture::start("little-room").await else {
        return;
    };
    let client = fixture.relay.admin().clone();
    wait_for_admission(&client, true).await;
    wait_for_ballast(&client, 32).await;
    let first = fixture.submit_waiting("first").await;
    let second = fixture.submit_waiting("second").await;
    let known = SubmitRequest {
        idempotency_key: "known".into(),
        ..submit_request(agent_task("nobody"))
    };
    let taken = client.try_submit(known.clone()).await.unwrap();

    fixture.relay.disk_space.fill_until_free(40 * MIB);
    wait_for_admission(&client, false).await;
    // A repeated submission stores nothing, so it is still answered.
    let again = client.try_submit(known).await.unwrap();
    assert_eq!(again.task, taken.task);
    let refused = client
        .try_submit(submit_request(agent_task("nobody")))
        .await;
    assert_disk_full(&refused.unwrap_err());
    let many = SubmitManyRequest {
        tasks: vec![submit_request(agent_task("nobody"))],
    };
    let refused = client.tasks().submit_many(many).await;
    assert_disk_full(&refused.unwrap_err());
    let info = client.relay_info().await;
    assert!(info.admission_problem.contains("disk"), "{info:?}");
    let disk = info.disk.unwrap();
    assert!(disk.free_bytes < disk.needed_bytes && disk.ballast_bytes == 32 * MIB);
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within("health to report that nothing is admitted", async {
        while client.is_serving("baton.admission").await {
            ticks.tick().await;
        }
    })
    .await;
    assert!(
        client.is_serving("").await,
        "the relay itself must stay healthy for running work"
    );
    fixture.create_file("first");
    client
        .wait_for_state(&first.task_id, TaskState::Completed)
        .await;

    fixture.relay.disk_space.fill_until_free(10 * MIB);
    wait_for_ballast(&client, 16).await;
    fixture.create_file("second");
    client
        .wait_for_state(&second.task_id, TaskState::Completed)
        .await;
    assert_eq!(
        client.read_output_to_end(&second.task_id).await,
        b"begun\nfinished\n"
    );

    fixture.relay.disk_space.remove_filler();
    wait_for_admission(&client, true).await;
    wait_for_ballast(&client, 32).await;
    let third = fixture.submit_waiting("third").await;
    fixture.create_file("third");
    client
        .wait_for_state(&third.task_id, TaskState::Completed)
        .await;
    assert!(
        !fixture.relay.has_restarted_itself(),
        "the relay never met a full disk"
    );
    wait_until_marked_gone(fixture.mark).await;
}

/// This file exists once the talkative task has written all its output.
fn output_done_file(file: &Path) -> PathBuf {
    file.with_extension("written")
}

/// Waits for its file, then prints more than fits on the full disk.
fn talkative_task(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; yes line | head -c 2000000; echo ended; touch {}",
        file.display(),
        output_done_file(file).display()
    );
    with_long_lease(command_task("sh", &["-c", &script], mark))
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_does_not_fit_waits_at_its_daemon_and_delays_no_other_task() {
    let Some(fixture) = RelayDiskFixture::start("no-room-for-output").await else {
        return;
    };
    let client = fixture.relay.admin().clone();
    wait_for_admission(&client, true).await;
    wait_for_ballast(&client, 32).await;
    let quiet = fixture.submit_waiting("quiet").await;
    let stopped = fixture.submit_waiting("stopped").await;
    let loud = talkative_task(&fixture.dir.path().join("loud"), fixture.mark);
    let loud = client.submit(loud).await;
    client
        .wait_for_state(&loud.task_id, TaskState::Running)
        .await;

    // Use up the first half of the ballast as well. Records still fit, output does not.
    fixture.relay.disk_space.fill_until_free(10 * MIB);
    wait_for_ballast(&client, 16).await;
    fixture.relay.disk_space.fill_until_free(6 * MIB);
    wait_for_free_below(&client, 8 * MIB).await;
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    let file = fixture.dir.path().join("loud");
    fixture.create_file("loud");
    wait_within("all output to be written", async {
        while !output_done_file(&file).exists() {
            ticks.tick().await;
        }
    })
    .await;
    client
        .try_cancel(&stopped.task_id)
        .await
        .expect("the cancel is accepted");
    client
        .wait_for_state(&stopped.task_id, TaskState::Canceled)
        .await;
    let canceled = client.get(&stopped.task_id).await;
    assert!(
        canceled
            .cancel
            .is_some_and(|cancel| cancel.confirmed_at.is_some())
    );
    fixture.create_file("quiet");
    client
        .wait_for_state(&quiet.task_id, TaskState::Completed)
        .await;
    assert_eq!(
        client.read_output_to_end(&quiet.task_id).await,
        b"begun\nfinished\n"
    );
    assert_eq!(client.get(&loud.task_id).await.state(), TaskState::Running);

    fixture.relay.disk_space.remove_filler();
    client
        .wait_for_state(&loud.task_id, TaskState::Completed)
        .await;
    let output = client.read_output_to_end(&loud.task_id).await;
    assert_eq!(
        output.len(),
        "begun\nended\n".len() + 2_000_000,
        "no output was cut"
    );
    assert!(
        !fixture.relay.has_restarted_itself(),
        "the relay never met a full disk"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_tasks_are_not_dispatched_while_the_disk_is_full() {
    let Some(fixture) = RelayDiskFixture::start("queued-without-room").await else {
        return;
    };
    let client = fixture.relay.admin().clone();
    wait_for_admission(&client, true).await;
    // One task more than the daemon has slots.
    let mut running = Vec::new();
    for name in ["a", "b", "c", "d"] {
        running.push(fixture.submit_waiting(name).await);
    }
    let queued = client
        .submit(command_task("echo", &["done"], fixture.mark))
        .await;
    fixture.relay.disk_space.fill_until_free(40 * MIB);
    wait_for_admission(&client, false).await;
    fixture.create_file("a");
    client
        .wait_for_state(&running[0].task_id, TaskState::Completed)
        .await;
    assert_eq!(wait_reason(&client, &queued).await, WaitsFor::Space);
    fixture.relay.disk_space.remove_filler();
    client
        .wait_for_state(&queued.task_id, TaskState::Completed)
        .await;
    for name in ["b", "c", "d"] {
        fixture.create_file(name);
    }
    for task in &running {
        client
            .wait_for_state(&task.task_id, TaskState::Completed)
            .await;
    }
}

/// A task that fills the disk again as soon as space is freed.
struct DiskFiller {
    is_filling: Arc<AtomicBool>,
    fill_task: tokio::task::JoinHandle<()>,
}

impl DiskFiller {
    fn start(disk_space: SmallDiskSpace) -> Self {
        let is_filling = Arc::new(AtomicBool::new(true));
        let filling = Arc::clone(&is_filling);
        let mut ticks = tokio::time::interval(Duration::from_millis(2));
        let fill_task = tokio::spawn(async move {
            while filling.load(Ordering::Acquire) {
                ticks.tick().await;
                disk_space.fill_disk();
            }
        });
        Self {
            is_filling,
            fill_task,
        }
    }

    async fn stop(self) {
        self.is_filling.store(false, Ordering::Release);
        self.fill_task
            .await
            .expect("the filler ends without a panic");
    }
}

/// Cancels tasks until the relay has met the full disk. Returns the tasks whose cancel was
/// acknowledged.
async fn write_until_disk_full(
    relay: &SmallDiskRelay,
    queued: &[Task],
    ticks: &mut Interval,
) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for task in queued {
        ticks.tick().await;
        if relay.has_restarted_itself() {
            break;
        }
        if relay.admin().try_cancel(&task.task_id).await.is_ok() {
            acknowledged.push(task.task_id.clone());
        }
    }
    acknowledged
}

async fn wait_for_disk_full_refusal(client: &TestClient, ticks: &mut Interval) {
    wait_within("a submission to be refused with relay_disk_full", async {
        loop {
            ticks.tick().await;
            let refused = client
                .try_submit(submit_request(agent_task("nobody")))
                .await;
            let refused = refused.expect_err("nothing can be stored");
            if error_code(&refused) == "relay_disk_full" {
                return assert_disk_full(&refused);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_a_full_disk_restarts_itself_and_loses_nothing() {
    let Some(mut fixture) = RelayDiskFixture::start("met-a-full-disk").await else {
        return;
    };
    let client = fixture.relay.admin().clone();
    wait_for_admission(&client, true).await;
    let (first, second) = (
        fixture.submit_waiting("first").await,
        fixture.submit_waiting("second").await,
    );
    let mut queued = Vec::new();
    for _ in 0..300 {
        queued.push(client.submit(agent_task("nobody")).await);
    }

    let filler = DiskFiller::start(fixture.relay.disk_space.clone());
    let mut ticks = tokio::time::interval(Duration::from_millis(2));
    let canceled = write_until_disk_full(&fixture.relay, &queued, &mut ticks).await;
    wait_within("the relay to start again", async {
        while !fixture.relay.has_restarted_itself() {
            ticks.tick().await;
        }
    })
    .await;
    // The relay has no space to start and answers with that code.
    wait_for_disk_full_refusal(&client, &mut ticks).await;

    filler.stop().await;
    fixture.relay.disk_space.remove_filler();
    wait_within("submissions to be accepted again", async {
        while client
            .try_submit(submit_request(agent_task("nobody")))
            .await
            .is_err()
        {
            ticks.tick().await;
        }
    })
    .await;
    assert!(fixture.relay.is_running(), "the relay process never exited");
    wait_for_ballast(&client, 32).await;
    for task in &queued {
        let state = client.get(&task.task_id).await.state();
        let acknowledged = canceled.contains(&task.task_id);
        assert!(
            state == TaskState::Canceled || (state == TaskState::Queued && !acknowledged),
            "{state:?}, acknowledged: {acknowledged}"
        );
    }
    for (task, name) in [(&first, "first"), (&second, "second")] {
        fixture.create_file(name);
        client
            .wait_for_state(&task.task_id, TaskState::Completed)
            .await;
        let now = client.get(&task.task_id).await;
        assert_eq!(only_attempt_id(&now), only_attempt_id(task));
        assert_eq!(
            client.read_output_to_end(&task.task_id).await,
            b"begun\nfinished\n"
        );
    }
    let restarts = client.relay_info().await.counters;
    let restarts = restarts
        .iter()
        .find(|counter| counter.name == "disk_full_restarts");
    assert!(restarts.is_some_and(|counter| counter.value >= 1));
    wait_until_marked_gone(fixture.mark).await;
}
