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
    Client, DaemonProcess, Room, SmallRelay, code_of, command, for_agent, marked_gone, within,
};
use tempfile::TempDir;
use tokio::time::Interval;
use tonic::{Code, Status};

use crate::BATON;

const MIB: u64 = 1 << 20;
/// Its mark is 64 MiB, its ballast 32.
const DISK: u32 = 256;
/// Nobody's lease ends in these tests: what is shown does not hang on a busy machine's time.
const TTL_MS: u64 = 10 * 60 * 1_000;
const LOOK: Duration = Duration::from_millis(20);

/// A relay on a small disk, with a daemon whose disk is large enough.
struct Scene {
    relay: SmallRelay,
    _daemon: DaemonProcess,
    dir: TempDir,
    mark: &'static str,
}

impl Scene {
    async fn start(mark: &'static str) -> Option<Self> {
        let relay = SmallRelay::start(BATON, DISK).await?;
        let (_, secret) = relay.admin().make_token("", Role::Daemon).await;
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
            .submit(waiting(&self.dir.path().join(name), self.mark))
            .await;
        client.until_state(&task.task_id, TaskState::Running).await;
        client.get(&task.task_id).await
    }

    fn let_end(&self, name: &str) {
        fs::write(self.dir.path().join(name), "").expect("a file can be written");
    }
}

fn waiting(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; echo ended",
        file.display()
    );
    TaskSpec {
        lease_ttl_ms: Some(TTL_MS),
        ..command("sh", &["-c", &script], mark)
    }
}

fn request(spec: TaskSpec) -> SubmitRequest {
    SubmitRequest {
        spec: Some(spec),
        ..SubmitRequest::default()
    }
}

async fn until_admitting(client: &Client, wanted: bool) {
    let mut ticks = tokio::time::interval(LOOK);
    within("admission to change", async {
        while client.info().await.admitting != wanted {
            ticks.tick().await;
        }
    })
    .await;
}

async fn until_ballast(client: &Client, mebibytes: u64) {
    let mut ticks = tokio::time::interval(LOOK);
    within("the ballast to change", async {
        while client.info().await.disk.map(|disk| disk.ballast_bytes) != Some(mebibytes * MIB) {
            ticks.tick().await;
        }
    })
    .await;
}

fn assert_refused(refused: &Status) {
    assert_eq!(
        (refused.code(), code_of(refused).as_str()),
        (Code::ResourceExhausted, "relay_disk_full"),
        "{refused:?}"
    );
}

async fn waits_for(client: &Client, task: &Task) -> WaitsFor {
    let request = InspectRequest {
        task_id: task.task_id.clone(),
    };
    let shown = client.operator().inspect(request).await;
    let shown = shown.expect("an operator may look").into_inner();
    shown.task.expect("the task is shown").waits_for()
}

fn only_attempt(task: &Task) -> &str {
    let [attempt] = task.attempts.as_slice() else {
        panic!("one attempt, not {}", task.attempts.len());
    };
    &attempt.attempt_id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_little_room_takes_nothing_new_and_ends_what_runs() {
    let Some(scene) = Scene::start("little-room").await else {
        return;
    };
    let client = scene.relay.admin().clone();
    until_admitting(&client, true).await;
    until_ballast(&client, 32).await;
    let first = scene.submit_waiting("first").await;
    let second = scene.submit_waiting("second").await;
    let known = SubmitRequest {
        idempotency_key: "known".into(),
        ..request(for_agent("nobody"))
    };
    let taken = client.try_submit(known.clone()).await.unwrap();

    scene.relay.room.leave(40 * MIB);
    until_admitting(&client, false).await;
    // Nothing is stored for what was taken before.
    let again = client.try_submit(known).await.unwrap();
    assert_eq!(again.task, taken.task);
    let refused = client.try_submit(request(for_agent("nobody"))).await;
    assert_refused(&refused.unwrap_err());
    let many = SubmitManyRequest {
        tasks: vec![request(for_agent("nobody"))],
    };
    let refused = client.tasks().submit_many(many).await;
    assert_refused(&refused.unwrap_err());
    let info = client.info().await;
    assert!(info.admission_problem.contains("disk"), "{info:?}");
    let disk = info.disk.unwrap();
    assert!(disk.free_bytes < disk.needed_bytes && disk.ballast_bytes == 32 * MIB);
    let mut ticks = tokio::time::interval(LOOK);
    within("health to say that nothing is admitted", async {
        while client.is_serving("baton.admission").await {
            ticks.tick().await;
        }
    })
    .await;
    assert!(client.is_serving("").await, "what runs needs the relay");
    scene.let_end("first");
    client
        .until_state(&first.task_id, TaskState::Completed)
        .await;

    scene.relay.room.leave(10 * MIB);
    until_ballast(&client, 16).await;
    scene.let_end("second");
    client
        .until_state(&second.task_id, TaskState::Completed)
        .await;
    assert_eq!(client.output(&second.task_id).await, b"begun\nended\n");

    scene.relay.room.free();
    until_admitting(&client, true).await;
    until_ballast(&client, 32).await;
    let third = scene.submit_waiting("third").await;
    scene.let_end("third");
    client
        .until_state(&third.task_id, TaskState::Completed)
        .await;
    assert!(!scene.relay.has_started_again(), "it was never met");
    marked_gone(scene.mark).await;
}

/// Is there when the talkative one has said everything.
fn said(file: &Path) -> PathBuf {
    file.with_extension("said")
}

/// Waits for its file, then says more than a disk without room takes.
fn talkative(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; yes line | head -c 2000000; echo ended; touch {}",
        file.display(),
        said(file).display()
    );
    TaskSpec {
        lease_ttl_ms: Some(TTL_MS),
        ..command("sh", &["-c", &script], mark)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_does_not_fit_waits_on_its_worker_and_holds_nobody_else_back() {
    let Some(scene) = Scene::start("no-room-for-output").await else {
        return;
    };
    let client = scene.relay.admin().clone();
    until_admitting(&client, true).await;
    until_ballast(&client, 32).await;
    let quiet = scene.submit_waiting("quiet").await;
    let stopped = scene.submit_waiting("stopped").await;
    let loud = talkative(&scene.dir.path().join("loud"), scene.mark);
    let loud = client.submit(loud).await;
    client.until_state(&loud.task_id, TaskState::Running).await;

    // The first half of the ballast goes, and what that gave is used up, too: records still fit.
    scene.relay.room.leave(10 * MIB);
    until_ballast(&client, 16).await;
    scene.relay.room.leave(6 * MIB);
    let mut ticks = tokio::time::interval(LOOK);
    within("the relay to see that hardly anything is left", async {
        while client
            .info()
            .await
            .disk
            .is_none_or(|disk| disk.free_bytes > 8 * MIB)
        {
            ticks.tick().await;
        }
    })
    .await;
    let file = scene.dir.path().join("loud");
    scene.let_end("loud");
    within("everything to be said", async {
        while !said(&file).exists() {
            ticks.tick().await;
        }
    })
    .await;
    client
        .try_cancel(&stopped.task_id)
        .await
        .expect("a cancel is taken");
    client
        .until_state(&stopped.task_id, TaskState::Canceled)
        .await;
    let canceled = client.get(&stopped.task_id).await;
    assert!(
        canceled
            .cancel
            .is_some_and(|cancel| cancel.confirmed_at.is_some())
    );
    scene.let_end("quiet");
    client
        .until_state(&quiet.task_id, TaskState::Completed)
        .await;
    assert_eq!(client.output(&quiet.task_id).await, b"begun\nended\n");
    assert_eq!(client.get(&loud.task_id).await.state(), TaskState::Running);

    scene.relay.room.free();
    client
        .until_state(&loud.task_id, TaskState::Completed)
        .await;
    let said = client.output(&loud.task_id).await;
    assert_eq!(
        said.len(),
        "begun\nended\n".len() + 2_000_000,
        "nothing was cut"
    );
    assert!(!scene.relay.has_started_again(), "the end was never met");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_queued_is_not_dispatched_until_there_is_room() {
    let Some(scene) = Scene::start("queued-without-room").await else {
        return;
    };
    let client = scene.relay.admin().clone();
    until_admitting(&client, true).await;
    // As many as the daemon has slots, and one more.
    let mut running = Vec::new();
    for name in ["a", "b", "c", "d"] {
        running.push(scene.submit_waiting(name).await);
    }
    let queued = client.submit(command("echo", &["done"], scene.mark)).await;
    scene.relay.room.leave(40 * MIB);
    until_admitting(&client, false).await;
    scene.let_end("a");
    client
        .until_state(&running[0].task_id, TaskState::Completed)
        .await;
    assert_eq!(waits_for(&client, &queued).await, WaitsFor::Space);
    scene.relay.room.free();
    client
        .until_state(&queued.task_id, TaskState::Completed)
        .await;
    for name in ["b", "c", "d"] {
        scene.let_end(name);
    }
    for task in &running {
        client
            .until_state(&task.task_id, TaskState::Completed)
            .await;
    }
}

/// Somebody who takes all space as soon as there is any.
struct Eater {
    full: Arc<AtomicBool>,
    eating: tokio::task::JoinHandle<()>,
}

impl Eater {
    fn start(room: Room) -> Self {
        let full = Arc::new(AtomicBool::new(true));
        let hungry = Arc::clone(&full);
        let mut ticks = tokio::time::interval(Duration::from_millis(2));
        let eating = tokio::spawn(async move {
            while hungry.load(Ordering::Acquire) {
                ticks.tick().await;
                room.fill();
            }
        });
        Self { full, eating }
    }

    async fn stop(self) {
        self.full.store(false, Ordering::Release);
        self.eating.await.expect("it eats without complaint");
    }
}

/// Changes what is stored until the relay has met the end of its disk. Returns whose cancel was acknowledged.
async fn write_until_met(relay: &SmallRelay, queued: &[Task], ticks: &mut Interval) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for task in queued {
        ticks.tick().await;
        if relay.has_started_again() {
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
    let Some(mut scene) = Scene::start("met-a-full-disk").await else {
        return;
    };
    let client = scene.relay.admin().clone();
    until_admitting(&client, true).await;
    let (first, second) = (
        scene.submit_waiting("first").await,
        scene.submit_waiting("second").await,
    );
    let mut queued = Vec::new();
    for _ in 0..300 {
        queued.push(client.submit(for_agent("nobody")).await);
    }

    let eater = Eater::start(scene.relay.room.clone());
    let mut ticks = tokio::time::interval(Duration::from_millis(2));
    let canceled = write_until_met(&scene.relay, &queued, &mut ticks).await;
    within("the relay to start again", async {
        while !scene.relay.has_started_again() {
            ticks.tick().await;
        }
    })
    .await;
    // There is no room to start, and it says so.
    within("a submission to be refused for want of room", async {
        loop {
            ticks.tick().await;
            let refused = client.try_submit(request(for_agent("nobody"))).await;
            let refused = refused.expect_err("nothing can be stored");
            if code_of(&refused) == "relay_disk_full" {
                return assert_refused(&refused);
            }
        }
    })
    .await;

    eater.stop().await;
    scene.relay.room.free();
    within("submissions to be taken again", async {
        while client
            .try_submit(request(for_agent("nobody")))
            .await
            .is_err()
        {
            ticks.tick().await;
        }
    })
    .await;
    assert!(scene.relay.runs(), "it is the same process");
    until_ballast(&client, 32).await;
    for task in &queued {
        let state = client.get(&task.task_id).await.state();
        let acknowledged = canceled.contains(&task.task_id);
        assert!(
            state == TaskState::Canceled || (state == TaskState::Queued && !acknowledged),
            "{state:?}, acknowledged: {acknowledged}"
        );
    }
    for (task, name) in [(&first, "first"), (&second, "second")] {
        scene.let_end(name);
        client
            .until_state(&task.task_id, TaskState::Completed)
            .await;
        let now = client.get(&task.task_id).await;
        assert_eq!(only_attempt(&now), only_attempt(task));
        assert_eq!(client.output(&task.task_id).await, b"begun\nended\n");
    }
    let restarts = client.info().await.counters;
    let restarts = restarts
        .iter()
        .find(|counter| counter.name == "disk_full_restarts");
    assert!(restarts.is_some_and(|counter| counter.value >= 1));
    marked_gone(scene.mark).await;
}
