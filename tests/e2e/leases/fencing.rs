//! Two attempts of one task never run at the same time, and late frames of the first one have no
//! effect. The tests compare the times at which processes start and end. `BATON_CUT=50` cuts off
//! that many attempts at once.

use std::time::Duration;

use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    AttemptState, DaemonFrame, FenceCode, Role, Settlement, Task, TaskEvent, TaskEventKind,
    TaskState, daemon_frame, relay_frame,
};
use baton_tests::{
    DaemonProcess, FrameTap, PassedTraffic, RelayProcess, TappedFrame, TcpProxy, TestClient,
    WatchedProcesses, boottime, command_task, earliest_start_time, is_stopped, join_all,
    poll_until, processes_by_attempt, send_signal, with_retry_on_loss,
};
use rustix::process::Signal;

use crate::{BATON, STANDIN};

/// The shortest lease that the relay grants.
const LEASE: Duration = Duration::from_secs(5);
/// Time from a process's death until a poll notices it on a busy machine.
const DETECTION_DELAY: Duration = Duration::from_secs(1);
const SHORT_RUN_ATTEMPTS: usize = 10;

fn configured_attempts() -> usize {
    std::env::var("BATON_CUT").map_or(SHORT_RUN_ATTEMPTS, |count| {
        count.parse().expect("BATON_CUT is a number")
    })
}

/// A relay with the directory and the credential of its daemons.
struct FencingFixture {
    relay: RelayProcess,
    dir: tempfile::TempDir,
    secret: String,
}

impl FencingFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().expect("a directory");
        Self { relay, dir, secret }
    }

    fn client(&self) -> &TestClient {
        self.relay.admin()
    }

    async fn start_daemon(&self, name: &str, url: &str, slots: usize) -> DaemonProcess {
        let slots = slots.to_string();
        let more = ["--slots", slots.as_str()];
        DaemonProcess::start_with(BATON, self.dir.path(), name, (url, &self.secret), &more).await
    }

    /// A shell script that runs `first` in the first attempt. In the second it waits for the
    /// file `end`.
    fn task_run_twice(&self, mark: &str, first: &str) -> Vec<String> {
        let dir = self.dir.path().display();
        let script = format!(
            "if mkdir {dir}/{mark} 2>/dev/null; then {first}; \
             else echo second; until [ -e {dir}/end ]; do sleep 0.05; done; fi"
        );
        vec!["-c".to_owned(), script]
    }
}

/// Waits until each task has this many processes, including its shim, and watches them from then
/// on.
async fn watch_attempts(
    client: &TestClient,
    tasks: &[String],
    processes: usize,
) -> Vec<WatchedProcesses> {
    let mut attempts = Vec::new();
    for task_id in tasks {
        client.wait_for_state(task_id, TaskState::Running).await;
        let task = client.get(task_id).await;
        attempts.push((task_id, task.attempts[0].attempt_id.clone()));
    }
    let living = poll_until("all processes to run", || {
        let living = processes_by_attempt();
        let count = |id: &String| living.get(id).map_or(0, Vec::len);
        let all = attempts.iter().all(|(_, id)| count(id) >= processes);
        all.then_some(living)
    })
    .await;
    let watch =
        |(task_id, id): (&String, String)| WatchedProcesses::new(task_id, &id, &living[&id]);
    attempts.into_iter().map(watch).collect()
}

/// Waits until the relay sees output of a second attempt and returns its id.
async fn wait_for_successor(client: &TestClient, task_id: &str) -> String {
    let mut watch = client.watch(task_id).await;
    let second =
        |event: &TaskEvent| event.attempt_number == 2 && event.state() == AttemptState::Streaming;
    let ended = watch.wait_for_kind(TaskEventKind::Ended).await;
    assert_eq!(ended.failure_code, "lease_expired", "{ended:?}");
    watch
        .wait_for_event("the successor to run", second)
        .await
        .attempt_id
}

/// Returns the shortest time from the end of a first attempt to the first process of its
/// successor, and the longest time from `since` to the end of a first attempt.
async fn measure_margins(
    client: &TestClient,
    firsts: Vec<WatchedProcesses>,
    since: Duration,
) -> (Duration, Duration) {
    let successors = firsts
        .iter()
        .map(|first| wait_for_successor(client, &first.task_id));
    let successors = join_all(successors).await;
    let living = processes_by_attempt();
    let (mut least, mut longest) = (Duration::MAX, Duration::ZERO);
    for (first, second) in firsts.into_iter().zip(successors) {
        let task = first.task_id.clone();
        assert!(!living.contains_key(&first.attempt_id), "{task} runs twice");
        let began = earliest_start_time(&living[&second]);
        let end = first.wait_for_end().await;
        assert!(
            end < began,
            "{task}: the last process of one attempt ended at {end:?}, the next attempt started at {began:?}"
        );
        least = least.min(began - end);
        longest = longest.max(end.saturating_sub(since));
    }
    (least, longest)
}

/// State, result and attempt states of a task, which late frames of first attempts must not
/// change.
type TaskSummary = (i32, Vec<u8>, Vec<(String, i32)>);

async fn summarize_tasks(client: &TestClient, tasks: &[String]) -> Vec<TaskSummary> {
    let mut found = Vec::new();
    // One after the other: fifty concurrent requests exceed the limit of one token.
    for task in tasks {
        found.push(client.get(task).await);
    }
    let summary = |task: Task| {
        let attempts = task.attempts.into_iter();
        let attempts = attempts.map(|one| (one.attempt_id, one.state)).collect();
        (task.state, task.result.to_vec(), attempts)
    };
    found.into_iter().map(summary).collect()
}

/// Events of the first attempt after its end are only evidence, never a change of state.
fn assert_fenced(events: &[TaskEvent]) {
    let first = |event: &&TaskEvent| event.attempt_number == 1;
    let late = events
        .iter()
        .filter(first)
        .skip_while(|event| event.kind() != TaskEventKind::Ended)
        .skip(1);
    for event in late {
        let harmless = [
            TaskEventKind::RetryScheduled,
            TaskEventKind::ReceiptArrived,
            TaskEventKind::LateTerminal,
        ];
        assert!(harmless.contains(&event.kind()), "{event:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_of_a_cut_off_daemon_is_dead_before_its_successor_starts() {
    let fixture = FencingFixture::start().await;
    let (client, count) = (fixture.client(), configured_attempts());
    let wire = TcpProxy::start_to(client.url()).await;
    let cut_off = fixture.start_daemon("cut-off", &wire.url(), count).await;
    let mut tasks = Vec::new();
    for number in 0..count {
        // Each child has a grandchild in its own process session; every other child ignores
        // TERM.
        let stubborn: &[&str] = if number % 2 == 0 {
            &[]
        } else {
            &["ignore-term"]
        };
        let arguments = [&["print", "1", "grandchild"], stubborn, &["pause"]].concat();
        let spec = command_task(STANDIN, &arguments, &format!("cut-{number}"));
        tasks.push(client.submit(with_retry_on_loss(spec, LEASE)).await.task_id);
    }
    let firsts = watch_attempts(client, &tasks, 3).await;
    let _other = fixture.start_daemon("other", client.url(), count).await;
    for task in &tasks {
        assert_eq!(
            client.get(task).await.attempts.len(),
            1,
            "no attempt was lost before the cut"
        );
    }
    wire.set_passed_traffic(PassedTraffic::Nothing);
    let (least, longest) = measure_margins(client, firsts, boottime()).await;
    println!(
        "{count} attempts cut off at once: all dead at most {longest:?} after the cut, with leases of {LEASE:?}; \
         the first process of a successor started at least {least:?} after the last one of its predecessor ended"
    );
    assert!(
        longest < LEASE + DETECTION_DELAY,
        "processes lived {longest:?} after the cut"
    );

    let before = summarize_tasks(client, &tasks).await;
    wire.set_passed_traffic(PassedTraffic::Both);
    poll_until("the daemon's outbox to be empty", || {
        cut_off.has_empty_outbox().then_some(())
    })
    .await;
    assert_eq!(summarize_tasks(client, &tasks).await, before);
    join_all(tasks.iter().map(|task| client.cancel(task))).await;
    for task in &tasks {
        client.wait_for_state(task, TaskState::Canceled).await;
        assert_fenced(&client.watch(task).await.collect_to_end().await);
    }
}

/// The settlements in the relay's answer to the only Hello among these frames.
fn settlements_in(frames: &[TappedFrame]) -> Vec<Settlement> {
    let is_hello = |frame: &&TappedFrame| match frame {
        TappedFrame::FromDaemon(up) => {
            let DaemonFrame { frame } = up.as_ref();
            matches!(frame, Some(daemon_frame::Frame::Hello(_)))
        }
        TappedFrame::FromRelay(_) => false,
    };
    assert_eq!(frames.iter().filter(is_hello).count(), 1);
    let mut answers = frames
        .iter()
        .skip_while(|frame| !is_hello(frame))
        .filter_map(|frame| match frame {
            TappedFrame::FromDaemon(_) => None,
            TappedFrame::FromRelay(down) => Some(down.frame.clone()),
        });
    match answers.next() {
        Some(Some(relay_frame::Frame::Welcome(welcome))) => welcome.settlements,
        other => panic!("Hello was answered with {other:?}"),
    }
}

fn is_attempt_frame(frame: &TappedFrame) -> bool {
    match frame {
        TappedFrame::FromDaemon(up) => matches!(up.frame, Some(daemon_frame::Frame::Attempt(_))),
        TappedFrame::FromRelay(_) => false,
    }
}

/// Whether the settlement is Kill. Adopt means that the daemon had listed the attempt as ended.
fn is_settled_by_kill(settlements: &[Settlement], attempt_id: &str) -> bool {
    let settled = settlements.iter().find(|one| one.attempt_id == attempt_id);
    match settled.and_then(|one| one.decision) {
        Some(Decision::Kill(kill)) => {
            assert_eq!(kill.code(), FenceCode::StaleAttempt);
            true
        }
        Some(Decision::Adopt(_)) => false,
        other => panic!("{attempt_id}: {other:?}"),
    }
}

/// Submits tasks whose first attempts print without end, complete, and fail. The last two end once
/// the file `in_time` exists.
async fn submit_tasks_run_twice(fixture: &FencingFixture, in_time: &str) -> Vec<String> {
    let until_released = format!("until [ -e {in_time} ]; do sleep 0.02; done; echo first");
    let mut tasks = Vec::new();
    for (mark, first) in [
        // Prints without end and ignores TERM.
        (
            "talks",
            r#"trap "" TERM; while :; do echo first; sleep 0.05; done"#,
        ),
        // The next two end within their lease, but the relay learns their results only
        // afterwards.
        ("completes", until_released.as_str()),
        ("fails", &format!("{until_released}; exit 3")),
    ] {
        let arguments = fixture.task_run_twice(mark, first);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let spec = with_retry_on_loss(command_task("sh", &arguments, mark), LEASE);
        tasks.push(fixture.client().submit(spec).await.task_id);
        let at_work = fixture.dir.path().join(mark);
        poll_until("the child to start its work", || {
            at_work.exists().then_some(())
        })
        .await;
    }
    tasks
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_stopped_past_its_lease_is_settled_in_one_round_trip() {
    let fixture = FencingFixture::start().await;
    let client = fixture.client();
    let tap = FrameTap::start(client.url()).await;
    let stopped = fixture.start_daemon("stopped", &tap.url(), 4).await;
    let in_time = fixture.dir.path().join("in-time").display().to_string();
    let tasks = submit_tasks_run_twice(&fixture, &in_time).await;
    let firsts = watch_attempts(client, &tasks, 2).await;
    let ids = firsts.iter().map(|first| first.attempt_id.clone());
    let ids: Vec<String> = ids.collect();

    send_signal(stopped.pid(), Signal::STOP);
    poll_until("the daemon to stop", || {
        is_stopped(stopped.pid()).then_some(())
    })
    .await;
    let since = boottime();
    std::fs::write(&in_time, "").unwrap();
    let _other = fixture.start_daemon("other", client.url(), 4).await;
    let (least, longest) = measure_margins(client, firsts, since).await;
    assert!(
        is_stopped(stopped.pid()),
        "the daemon was still stopped, so the shims killed the processes"
    );
    assert!(
        longest < LEASE + DETECTION_DELAY,
        "processes lived {longest:?} after the stop"
    );

    let before = summarize_tasks(client, &tasks).await;
    let frames_before = tap.frames().len();
    send_signal(stopped.pid(), Signal::CONT);
    let woken = boottime();
    poll_until("the daemon's outbox to be empty", || {
        stopped.has_empty_outbox().then_some(())
    })
    .await;
    let took = boottime() - woken;
    assert_eq!(summarize_tasks(client, &tasks).await, before);
    let frames = &tap.frames()[frames_before..];
    let settlements = settlements_in(frames);
    let killed = ids
        .iter()
        .filter(|id| is_settled_by_kill(&settlements, id))
        .count();
    let frame_count = frames
        .iter()
        .filter(|frame| is_attempt_frame(frame))
        .count();
    assert!(
        frame_count >= ids.len(),
        "the daemon sent frames about each attempt"
    );
    println!(
        "a daemon stopped past its lease: {} attempts killed by their shims at most {longest:?} after the stop, \
         at least {least:?} before their successors; after CONT one Welcome settled them all \
         ({killed} to kill, {} ended); its {frame_count} frames were acknowledged after {took:?} and changed nothing",
        ids.len(),
        ids.len() - killed
    );
    std::fs::write(fixture.dir.path().join("end"), "").unwrap();
    for task in &tasks {
        client.wait_for_state(task, TaskState::Completed).await;
        assert_eq!(client.get(task).await.attempts.len(), 2);
        assert_eq!(client.read_output_to_end(task).await, b"second\n");
        assert_fenced(&client.watch(task).await.collect_to_end().await);
    }
}
