//! The relay's disk fills up: it takes nothing new in time, gives up its ballast for what runs, starts again by itself if it met
//! the end all the same, and goes on when there is room. Nobody dies of it and nothing is lost.

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
    error_code, wait_until_marked_gone, wait_within,
};
use tempfile::TempDir;
use tokio::time::Interval;
use tonic::{Code, Status};

use crate::BATON;

const MIB: u64 = 1 << 20;
/// Its mark is 64 MiB, its ballast 32.
const DISK_MEBIBYTES: u32 = 256;
/// Nobody's lease ends in these tests: what is shown does not hang on a busy machine's time.
const LEASE_MS: u64 = 10 * 60 * 1_000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A relay on a small disk, with a daemon whose disk is large enough.
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

    /// Runs until its file is there.
    async fn submit_waiting(&self, name: &str) -> Task {
        let client = self.relay.admin();
        let task = client
            .submit(task_until_file(&self.dir.path().join(name), self.mark))
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

fn task_until_file(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; echo ended",
        file.display()
    );
    TaskSpec {
        lease_ttl_ms: Some(LEASE_MS),
        ..command_task("sh", &["-c", &script], mark)
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
    let shown = shown.expect("an operator may look").into_inner();
    shown.task.expect("the task is shown").waits_for()
}

fn only_attempt_id(task: &Task) -> &str {
    let [attempt] = task.attempts.as_slice() else {
        panic!("one attempt, not {}", task.attempts.len());
    };
    &attempt.attempt_id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_little_room_takes_nothing_new_and_ends_what_runs() {
    let Some(scene) = RelayDiskFixture::start("little-room").await else {
        return;
    };
    let client = scene.relay.admin().clone();
    wait_for_admission(&client, true).await;
    wait_for_ballast(&client, 32).await;
    let first = scene.submit_waiting("first").await;
    let second = scene.submit_waiting("second").await;
    let known = SubmitRequest {
        idempotency_key: "known".into(),
        ..submit_request(agent_task("nobody"))
    };
    let taken = client.try_submit(known.clone()).await.unwrap();

    scene.relay.disk_space.fill_until_free(40 * MIB);
    wait_for_admission(&client, false).await;
    // Nothing is stored for what was taken before.
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
    wait_within("health to say that nothing is admitted", async {
        while client.is_serving("baton.admission").await {
            ticks.tick().await;
        }
    })
    .await;
    assert!(client.is_serving("").await, "what runs needs the relay");
    scene.create_file("first");
    client
        .wait_for_state(&first.task_id, TaskState::Completed)
        .await;

    scene.relay.disk_space.fill_until_free(10 * MIB);
    wait_for_ballast(&client, 16).await;
    scene.create_file("second");
    client
        .wait_for_state(&second.task_id, TaskState::Completed)
        .await;
    assert_eq!(
        client.read_output_to_end(&second.task_id).await,
        b"begun\nended\n"
    );

    scene.relay.disk_space.remove_filler();
    wait_for_admission(&client, true).await;
    wait_for_ballast(&client, 32).await;
    let third = scene.submit_waiting("third").await;
    scene.create_file("third");
    client
        .wait_for_state(&third.task_id, TaskState::Completed)
        .await;
    assert!(!scene.relay.has_restarted_itself(), "it was never met");
    wait_until_marked_gone(scene.mark).await;
}

/// Is there when the talkative one has said everything.
fn output_done_file(file: &Path) -> PathBuf {
    file.with_extension("said")
}

/// Waits for its file, then says more than a disk without room takes.
fn talkative_task(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; yes line | head -c 2000000; echo ended; touch {}",
        file.display(),
        output_done_file(file).display()
    );
    TaskSpec {
        lease_ttl_ms: Some(LEASE_MS),
        ..command_task("sh", &["-c", &script], mark)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_does_not_fit_waits_on_its_worker_and_holds_nobody_else_back() {
    let Some(scene) = RelayDiskFixture::start("no-room-for-output").await else {
        return;
    };
    let client = scene.relay.admin().clone();
    wait_for_admission(&client, true).await;
    wait_for_ballast(&client, 32).await;
    let quiet = scene.submit_waiting("quiet").await;
    let stopped = scene.submit_waiting("stopped").await;
    let loud = talkative_task(&scene.dir.path().join("loud"), scene.mark);
    let loud = client.submit(loud).await;
    client
        .wait_for_state(&loud.task_id, TaskState::Running)
        .await;

    // The first half of the ballast goes, and what that gave is used up, too: records still fit.
    scene.relay.disk_space.fill_until_free(10 * MIB);
    wait_for_ballast(&client, 16).await;
    scene.relay.disk_space.fill_until_free(6 * MIB);
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    wait_within("the relay to see that hardly anything is left", async {
        while client
            .relay_info()
            .await
            .disk
            .is_none_or(|disk| disk.free_bytes > 8 * MIB)
        {
            ticks.tick().await;
        }
    })
    .await;
    let file = scene.dir.path().join("loud");
    scene.create_file("loud");
    wait_within("everything to be said", async {
        while !output_done_file(&file).exists() {
            ticks.tick().await;
        }
    })
    .await;
    client
        .try_cancel(&stopped.task_id)
        .await
        .expect("a cancel is taken");
    client
        .wait_for_state(&stopped.task_id, TaskState::Canceled)
        .await;
    let canceled = client.get(&stopped.task_id).await;
    assert!(
        canceled
            .cancel
            .is_some_and(|cancel| cancel.confirmed_at.is_some())
    );
    scene.create_file("quiet");
    client
        .wait_for_state(&quiet.task_id, TaskState::Completed)
        .await;
    assert_eq!(
        client.read_output_to_end(&quiet.task_id).await,
        b"begun\nended\n"
    );
    assert_eq!(client.get(&loud.task_id).await.state(), TaskState::Running);

    scene.relay.disk_space.remove_filler();
    client
        .wait_for_state(&loud.task_id, TaskState::Completed)
        .await;
    let said = client.read_output_to_end(&loud.task_id).await;
    assert_eq!(
        said.len(),
        "begun\nended\n".len() + 2_000_000,
        "nothing was cut"
    );
    assert!(!scene.relay.has_restarted_itself(), "the end was never met");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_queued_is_not_dispatched_until_there_is_room() {
    let Some(scene) = RelayDiskFixture::start("queued-without-room").await else {
        return;
    };
    let client = scene.relay.admin().clone();
    wait_for_admission(&client, true).await;
    // As many as the daemon has slots, and one more.
    let mut running = Vec::new();
    for name in ["a", "b", "c", "d"] {
        running.push(scene.submit_waiting(name).await);
    }
    let queued = client
        .submit(command_task("echo", &["done"], scene.mark))
        .await;
    scene.relay.disk_space.fill_until_free(40 * MIB);
    wait_for_admission(&client, false).await;
    scene.create_file("a");
    client
        .wait_for_state(&running[0].task_id, TaskState::Completed)
        .await;
    assert_eq!(wait_reason(&client, &queued).await, WaitsFor::Space);
    scene.relay.disk_space.remove_filler();
    client
        .wait_for_state(&queued.task_id, TaskState::Completed)
        .await;
    for name in ["b", "c", "d"] {
        scene.create_file(name);
    }
    for task in &running {
        client
            .wait_for_state(&task.task_id, TaskState::Completed)
            .await;
    }
}

/// Somebody who takes all space as soon as there is any.
struct DiskFiller {
    is_filling: Arc<AtomicBool>,
    fill_task: tokio::task::JoinHandle<()>,
}

impl DiskFiller {
    fn start(room: SmallDiskSpace) -> Self {
        let is_filling = Arc::new(AtomicBool::new(true));
        let hungry = Arc::clone(&is_filling);
        let mut ticks = tokio::time::interval(Duration::from_millis(2));
        let fill_task = tokio::spawn(async move {
            while hungry.load(Ordering::Acquire) {
                ticks.tick().await;
                room.fill_disk();
            }
        });
        Self {
            is_filling,
            fill_task,
        }
    }

    async fn stop(self) {
        self.is_filling.store(false, Ordering::Release);
        self.fill_task.await.expect("it eats without complaint");
    }
}

/// Changes what is stored until the relay has met the end of its disk. Returns whose cancel was acknowledged.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_met_a_full_disk_starts_again_and_loses_nothing() {
    let Some(mut scene) = RelayDiskFixture::start("met-a-full-disk").await else {
        return;
    };
    let client = scene.relay.admin().clone();
    wait_for_admission(&client, true).await;
    let (first, second) = (
        scene.submit_waiting("first").await,
        scene.submit_waiting("second").await,
    );
    let mut queued = Vec::new();
    for _ in 0..300 {
        queued.push(client.submit(agent_task("nobody")).await);
    }

    let eater = DiskFiller::start(scene.relay.disk_space.clone());
    let mut ticks = tokio::time::interval(Duration::from_millis(2));
    let canceled = write_until_disk_full(&scene.relay, &queued, &mut ticks).await;
    wait_within("the relay to start again", async {
        while !scene.relay.has_restarted_itself() {
            ticks.tick().await;
        }
    })
    .await;
    // There is no room to start, and it says so.
    wait_within("a submission to be refused for want of room", async {
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

    eater.stop().await;
    scene.relay.disk_space.remove_filler();
    wait_within("submissions to be taken again", async {
        while client
            .try_submit(submit_request(agent_task("nobody")))
            .await
            .is_err()
        {
            ticks.tick().await;
        }
    })
    .await;
    assert!(scene.relay.is_running(), "it is the same process");
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
        scene.create_file(name);
        client
            .wait_for_state(&task.task_id, TaskState::Completed)
            .await;
        let now = client.get(&task.task_id).await;
        assert_eq!(only_attempt_id(&now), only_attempt_id(task));
        assert_eq!(
            client.read_output_to_end(&task.task_id).await,
            b"begun\nended\n"
        );
    }
    let restarts = client.relay_info().await.counters;
    let restarts = restarts
        .iter()
        .find(|counter| counter.name == "disk_full_restarts");
    assert!(restarts.is_some_and(|counter| counter.value >= 1));
    wait_until_marked_gone(scene.mark).await;
}
