//! Two attempts of one task never run at the same time, and nobody hears the first one any more: by the times at
//! which processes begin and end. `BATON_CUT=50` cuts off as many attempts at once.

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

/// The shortest that the relay grants.
const LEASE: Duration = Duration::from_secs(5);
/// From a death to the look that sees it, on a machine that is busy.
const DETECTION_DELAY: Duration = Duration::from_secs(1);
const SHORT_RUN_ATTEMPTS: usize = 10;

fn configured_attempts() -> usize {
    std::env::var("BATON_CUT").map_or(SHORT_RUN_ATTEMPTS, |count| {
        count.parse().expect("BATON_CUT is a number")
    })
}

/// A relay and its administrator, the directory and the credential of its daemons.
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

    /// Runs `first` when the task runs for the first time, and then waits for a word from the test.
    fn task_run_twice(&self, mark: &str, first: &str) -> Vec<String> {
        let dir = self.dir.path().display();
        let script = format!(
            "if mkdir {dir}/{mark} 2>/dev/null; then {first}; \
             else echo second; until [ -e {dir}/end ]; do sleep 0.05; done; fi"
        );
        vec!["-c".to_owned(), script]
    }
}

/// Waits until each of these tasks has so many processes, its shim among them, and watches them from then on.
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

/// A second attempt that runs, seen by the relay; its id.
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

/// The least time from the end of a first attempt to the first process of its successor, and the longest from `since`
/// to such an end.
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
            "{task}: the last process of one attempt ended at {end:?}, the next attempt began at {began:?}"
        );
        least = least.min(began - end);
        longest = longest.max(end.saturating_sub(since));
    }
    (least, longest)
}

/// What nothing may change that comes from the first attempts: state and result, and the state of each attempt.
type TaskSummary = (i32, Vec<u8>, Vec<(String, i32)>);

async fn summarize_tasks(client: &TestClient, tasks: &[String]) -> Vec<TaskSummary> {
    let mut found = Vec::new();
    // One after the other: fifty at once are more than one token may ask for.
    for task in tasks {
        found.push(client.get(task).await);
    }
    let standing = |task: Task| {
        let attempts = task.attempts.into_iter();
        let attempts = attempts.map(|one| (one.attempt_id, one.state)).collect();
        (task.state, task.result.to_vec(), attempts)
    };
    found.into_iter().map(standing).collect()
}

/// Whatever the first attempt's daemon said after its end is at most evidence.
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
    let scene = FencingFixture::start().await;
    let (client, count) = (scene.client(), configured_attempts());
    let wire = TcpProxy::start_to(client.url()).await;
    let cut_off = scene.start_daemon("cut-off", &wire.url(), count).await;
    let mut tasks = Vec::new();
    for number in 0..count {
        // Each with a grandchild in a session of its own; every other one ignores TERM.
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
    let _other = scene.start_daemon("other", client.url(), count).await;
    for task in &tasks {
        assert_eq!(
            client.get(task).await.attempts.len(),
            1,
            "the cut is to come"
        );
    }
    wire.set_passed_traffic(PassedTraffic::Nothing);
    let (least, longest) = measure_margins(client, firsts, boottime()).await;
    println!(
        "{count} attempts cut off at once: all dead at most {longest:?} after the cut, under a lease of {LEASE:?}; \
         the first process of a successor began at least {least:?} after the last one of its predecessor had ended"
    );
    assert!(
        longest < LEASE + DETECTION_DELAY,
        "dead only {longest:?} after the cut"
    );

    let before = summarize_tasks(client, &tasks).await;
    wire.set_passed_traffic(PassedTraffic::Both);
    poll_until("the daemon to tell all it has to tell", || {
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

/// What the relay answered to the one Hello on this piece of tape.
fn settlements_in(tape: &[TappedFrame]) -> Vec<Settlement> {
    let said_hello = |frame: &&TappedFrame| match frame {
        TappedFrame::FromDaemon(up) => {
            let DaemonFrame { frame } = up.as_ref();
            matches!(frame, Some(daemon_frame::Frame::Hello(_)))
        }
        TappedFrame::FromRelay(_) => false,
    };
    assert_eq!(tape.iter().filter(said_hello).count(), 1);
    let mut answers = tape
        .iter()
        .skip_while(|frame| !said_hello(frame))
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

/// Whether the daemon was told to kill it. Otherwise it knew that the attempt was over, and may tell what it knows.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_stopped_past_its_lease_changes_nothing_and_is_settled_in_one_round_trip()
{
    let scene = FencingFixture::start().await;
    let client = scene.client();
    let tap = FrameTap::start(client.url()).await;
    let stopped = scene.start_daemon("stopped", &tap.url(), 4).await;
    let in_time = scene.dir.path().join("in-time").display().to_string();
    let until_told = format!("until [ -e {in_time} ]; do sleep 0.02; done; echo first");
    let mut tasks = Vec::new();
    for (mark, first) in [
        // Talks without end and does not obey.
        (
            "talks",
            r#"trap "" TERM; while :; do echo first; sleep 0.05; done"#,
        ),
        // Have a result, in time, that nobody hears in time.
        ("completes", until_told.as_str()),
        ("fails", &format!("{until_told}; exit 3")),
    ] {
        let arguments = scene.task_run_twice(mark, first);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let spec = command_task("sh", &arguments, mark);
        tasks.push(client.submit(with_retry_on_loss(spec, LEASE)).await.task_id);
        let at_work = scene.dir.path().join(mark);
        poll_until("it to be at work", || at_work.exists().then_some(())).await;
    }
    let firsts = watch_attempts(client, &tasks, 2).await;
    let ids: Vec<String> = firsts
        .iter()
        .map(|first| first.attempt_id.clone())
        .collect();

    send_signal(stopped.pid(), Signal::STOP);
    poll_until("it to stop", || is_stopped(stopped.pid()).then_some(())).await;
    let since = boottime();
    std::fs::write(&in_time, "").unwrap();
    let _other = scene.start_daemon("other", client.url(), 4).await;
    let (least, longest) = measure_margins(client, firsts, since).await;
    assert!(is_stopped(stopped.pid()), "their shims did it alone");
    assert!(
        longest < LEASE + DETECTION_DELAY,
        "dead only {longest:?} after the stop"
    );

    let before = summarize_tasks(client, &tasks).await;
    let taped = tap.frames().len();
    send_signal(stopped.pid(), Signal::CONT);
    let woken = boottime();
    poll_until("the daemon to tell all it has to tell", || {
        stopped.has_empty_outbox().then_some(())
    })
    .await;
    let took = boottime() - woken;
    assert_eq!(summarize_tasks(client, &tasks).await, before);
    let tape = &tap.frames()[taped..];
    let settlements = settlements_in(tape);
    let killed = ids
        .iter()
        .filter(|id| is_settled_by_kill(&settlements, id))
        .count();
    let said = tape.iter().filter(|frame| is_attempt_frame(frame)).count();
    assert!(said >= ids.len(), "it had something to say of each");
    println!(
        "a daemon stopped past its lease: {} attempts dead at most {longest:?} after the stop by their shims alone, \
         at least {least:?} before their successors; awake again it was told of all in one Welcome \
         ({killed} to be killed, {} over); its {said} frames were done with after {took:?} and changed nothing",
        ids.len(),
        ids.len() - killed
    );
    std::fs::write(scene.dir.path().join("end"), "").unwrap();
    for task in &tasks {
        client.wait_for_state(task, TaskState::Completed).await;
        assert_eq!(client.get(task).await.attempts.len(), 2);
        assert_eq!(client.read_output_to_end(task).await, b"second\n");
        assert_fenced(&client.watch(task).await.collect_to_end().await);
    }
}
