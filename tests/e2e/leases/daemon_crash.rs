//! Agents outlive the daemon that started them. A killed daemon comes back and finds its attempts where it left them;
//! without one their shims end them when their leases end. `BATON_ROUNDS=50` makes the full run of the first two.

use std::path::Path;
use std::time::Duration;

use baton_proto::v1::read_output_response::Item;
use baton_proto::v1::{
    AttemptState, ReadOutputRequest, Role, TaskEventKind, TaskSpec, TaskState, Termination,
};
use baton_tests::{
    DaemonProcess, RelayProcess, TestBootId, TestClient, attempt_processes, attempt_shim, boottime,
    command_task, join_all, marked_processes, poll_until, send_signal, test_rounds,
    wait_until_marked_gone, wait_within, with_retry_on_loss,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

const SHORT_RUN: usize = 3;
/// The shortest that the relay grants.
const SHORT_LEASE: Duration = Duration::from_secs(5);
/// From a death to the look that sees it, on a machine that is busy.
const DETECTION_DELAY: Duration = Duration::from_secs(1);
/// Machines that lose their daemon at the same time: more would wait for this machine and not for a lease.
const MACHINES_AT_ONCE: usize = 5;
/// A new daemon gives all shims of the old one two seconds together; the rest is for a machine that is busy.
const ADOPTION_LIMIT: Duration = Duration::from_secs(5);
const LINE_COUNT: usize = 80;
const TICK_MS: &str = "15";

/// A relay and a daemon on one machine, both as processes.
struct DaemonCrashFixture {
    _relay: RelayProcess,
    client: TestClient,
    dir: TempDir,
    secret: String,
    boot: TestBootId,
    daemon: DaemonProcess,
}

impl DaemonCrashFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let client = relay.admin().clone();
        let (_, secret) = client.create_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().expect("a directory");
        let boot = TestBootId::new();
        let daemon = start_daemon(&boot, dir.path(), &client, &secret).await;
        Self {
            _relay: relay,
            client,
            dir,
            secret,
            boot,
            daemon,
        }
    }

    /// A daemon starts where the last one was killed.
    async fn restart_daemon(&mut self) {
        self.daemon = start_daemon(&self.boot, self.dir.path(), &self.client, &self.secret).await;
    }

    async fn kill_and_restart_daemon(&mut self) {
        self.daemon.kill().await;
        self.restart_daemon().await;
    }

    /// A task whose child runs; the attempt's id with it.
    async fn submit_until_running(&self, spec: TaskSpec, mark: &str) -> (String, String) {
        let task = self.client.submit(spec).await;
        poll_until(&format!("{mark} to run"), || {
            (!marked_processes(mark).is_empty()).then_some(())
        })
        .await;
        let attempt = self.client.get(&task.task_id).await.attempts[0].clone();
        (task.task_id, attempt.attempt_id)
    }
}

async fn start_daemon(
    boot: &TestBootId,
    dir: &Path,
    client: &TestClient,
    secret: &str,
) -> DaemonProcess {
    DaemonProcess::start(boot.apply_to(BATON), dir, "holder", client.url(), secret).await
}

fn expected_lines(count: usize) -> Vec<u8> {
    let lines: String = (1..=count).map(|line| format!("line {line}\n")).collect();
    lines.into_bytes()
}

/// Returns when the relay has so many lines of the newest attempt, or all there are.
async fn wait_for_lines(client: &TestClient, task_id: &str, wanted: usize) {
    let request = ReadOutputRequest {
        task_id: task_id.to_owned(),
        follow: true,
        ..ReadOutputRequest::default()
    };
    let opened = client.tasks().read_output(request).await;
    let mut pieces = opened.expect("output can be read").into_inner();
    let mut seen = 0;
    while seen < wanted {
        let piece = wait_within("the next piece of output", pieces.message()).await;
        match piece.expect("output goes on").and_then(|piece| piece.item) {
            Some(Item::Chunk(chunk)) => {
                seen += chunk.data.iter().filter(|byte| **byte == b'\n').count();
            }
            _ => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_comes_back_and_the_same_attempt_goes_on_without_gap_or_duplicate() {
    let mut machine = DaemonCrashFixture::start().await;
    let runs = machine.dir.path().join("runs");
    let runs_text = runs.display().to_string();
    let rounds = test_rounds(SHORT_RUN);
    let mut alive_at_kills = 0;
    for round in 0..rounds {
        let mark = format!("adopted-{round}");
        let arguments = [
            "count",
            &runs_text,
            "tick",
            &LINE_COUNT.to_string(),
            TICK_MS,
        ];
        let spec = command_task(STANDIN, &arguments, &mark);
        let (task, attempt) = machine.submit_until_running(spec, &mark).await;
        let child = marked_processes(&mark);
        let mut moments = [0; 2].map(|_| rand::random_range(0..LINE_COUNT));
        moments.sort_unstable();
        for moment in moments {
            wait_for_lines(&machine.client, &task, moment).await;
            machine.daemon.kill().await;
            let still = marked_processes(&mark);
            assert!(still.iter().all(|process| child.contains(process)));
            alive_at_kills += still.len();
            machine.restart_daemon().await;
        }
        machine
            .client
            .wait_for_state(&task, TaskState::Completed)
            .await;
        let done = machine.client.get(&task).await;
        let ids: Vec<&str> = done
            .attempts
            .iter()
            .map(|one| one.attempt_id.as_str())
            .collect();
        assert_eq!(ids, [attempt.as_str()], "the same attempt: {done:#?}");
        let output = machine.client.read_output_to_end(&task).await;
        let text = String::from_utf8_lossy(&output);
        assert!(
            output == expected_lines(LINE_COUNT),
            "round {round}, killed at {moments:?}: {text}"
        );
        let ran = std::fs::read_to_string(&runs).unwrap();
        assert_eq!(ran.lines().count(), round + 1, "each child ran once");
        assert_eq!(ran.lines().last(), Some(attempt.as_str()));
        wait_until_marked_gone(&mark).await;
    }
    println!(
        "{rounds} rounds, {} kills of the daemon ({alive_at_kills} with the child alive): every attempt went on, \
         its output whole and once",
        rounds * 2
    );
    assert!(alive_at_kills >= rounds, "too few children lived at a kill");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon_every_process_is_dead_when_its_lease_ends() {
    let rounds: Vec<usize> = (0..test_rounds(SHORT_RUN)).collect();
    let mut longest = Duration::ZERO;
    for some in rounds.chunks(MACHINES_AT_ONCE) {
        let took = join_all(some.iter().map(|round| measure_orphan_lifetime(*round))).await;
        longest = took.into_iter().fold(longest, Duration::max);
    }
    println!(
        "{} rounds: all dead at most {longest:?} after the daemon, under a lease of 5 s",
        rounds.len()
    );
}

/// How long a stubborn family lives without its daemon.
async fn measure_orphan_lifetime(round: usize) -> Duration {
    let mut machine = DaemonCrashFixture::start().await;
    let mark = format!("orphaned-{round}");
    // The child ignores TERM; its grandchild has a session of its own.
    let arguments = ["print", "1", "grandchild", "ignore-term", "pause"];
    let spec = TaskSpec {
        lease_ttl_ms: Some(5_000),
        ..command_task(STANDIN, &arguments, &mark)
    };
    let (task, attempt) = machine.submit_until_running(spec, &mark).await;
    poll_until("the grandchild to run", || {
        (marked_processes(&mark).len() == 2).then_some(())
    })
    .await;
    let mut watch = machine.client.watch(&task).await;
    // Before the relay knows that the prompt is written, that deadline would be over first.
    watch
        .wait_for_event("its first line to be known", |event| {
            event.state() == AttemptState::Streaming
        })
        .await;
    machine.daemon.kill().await;
    let killed = boottime();
    assert_eq!(
        marked_processes(&mark).len(),
        2,
        "they go on without their daemon"
    );
    let dead = poll_until("all to be dead", || {
        attempt_processes(&attempt).is_empty().then(boottime)
    });
    let lost = watch.wait_for_kind(TaskEventKind::Ended);
    let (dead, left) = tokio::join!(dead, async {
        let lost = lost.await;
        assert_eq!(lost.failure_code, "lease_expired");
        attempt_processes(&attempt)
    });
    assert!(
        left.is_empty(),
        "alive when the relay gave them up: {left:?}"
    );
    // Every renewal was sent before the daemon died.
    let took = dead - killed;
    assert!(
        took < SHORT_LEASE + DETECTION_DELAY,
        "dead only {took:?} after the daemon"
    );
    machine.restart_daemon().await;
    machine
        .client
        .wait_for_state(&task, TaskState::NeedsAttention)
        .await;
    let told = wait_for_termination(&machine.client, &task).await;
    assert_eq!(
        told,
        Termination::Confirmed,
        "the next daemon brings the receipt"
    );
    took
}

/// What the relay knows of the first attempt's end, once a receipt has come.
async fn wait_for_termination(client: &TestClient, task_id: &str) -> Termination {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    wait_within("a receipt", async {
        loop {
            ticks.tick().await;
            let termination = client.get(task_id).await.attempts[0].termination();
            if termination == Termination::Confirmed {
                return termination;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_without_a_daemon_is_told_by_the_next_one() {
    let mut machine = DaemonCrashFixture::start().await;
    let go_on = machine.dir.path().join("go-on");
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.02; done; echo finished; echo oops >&2",
        go_on.display()
    );
    let (task, attempt) = machine
        .submit_until_running(command_task("sh", &["-c", &script], "finished"), "finished")
        .await;
    machine.daemon.kill().await;
    std::fs::write(&go_on, "").unwrap();
    poll_until("child and shim to be gone", || {
        attempt_processes(&attempt).is_empty().then_some(())
    })
    .await;
    machine.restart_daemon().await;
    machine
        .client
        .wait_for_state(&task, TaskState::Completed)
        .await;
    let done = machine.client.get(&task).await;
    assert_eq!(done.attempts.len(), 1);
    let output = machine.client.read_output_to_end(&task).await;
    assert_eq!(String::from_utf8_lossy(&output), "begun\nfinished\noops\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_shim_leaves_no_process_behind() {
    let machine = DaemonCrashFixture::start().await;
    let arguments = ["print", "1", "grandchild", "ignore-term", "pause"];
    let spec = command_task(STANDIN, &arguments, "shimless");
    let (task, attempt) = machine.submit_until_running(spec, "shimless").await;
    poll_until("the grandchild to run", || {
        (marked_processes("shimless").len() == 2).then_some(())
    })
    .await;
    send_signal(
        attempt_shim(&attempt).expect("a shim runs").pid,
        Signal::KILL,
    );
    let mut watch = machine.client.watch(&task).await;
    let end = watch.wait_for_kind(TaskEventKind::Ended).await;
    assert!(
        attempt_processes(&attempt).is_empty(),
        "nothing is left at its end"
    );
    assert_eq!(end.state(), AttemptState::Lost);
    let lost = machine.client.get(&task).await;
    assert_eq!(lost.attempts[0].termination(), Termination::Confirmed);
    // How it ended is not known, so a person decides; the daemon goes on.
    watch.wait_for_state(TaskState::NeedsAttention).await;
    let next = machine
        .client
        .submit(command_task(STANDIN, &["print", "2"], "next"))
        .await;
    machine
        .client
        .wait_for_state(&next.task_id, TaskState::Completed)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_killed_shim_is_not_called_complete() {
    let machine = DaemonCrashFixture::start().await;
    let script = "while :; do echo line; sleep 0.02; done";
    let (task, attempt) = machine
        .submit_until_running(
            command_task("sh", &["-c", script], "cut-short"),
            "cut-short",
        )
        .await;
    wait_for_lines(&machine.client, &task, 1).await;
    let shim = attempt_shim(&attempt).expect("a shim runs").pid;
    send_signal(shim, Signal::STOP);
    send_signal(shim, Signal::KILL);
    machine
        .client
        .wait_for_state(&task, TaskState::NeedsAttention)
        .await;
    let lost = machine.client.get(&task).await;
    assert_eq!(
        lost.attempts[0].message,
        "the process that supervised it died without a report, or was stuck and was killed; what it had started was ended"
    );
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let end = wait_within("the cut to be stored", async {
        loop {
            ticks.tick().await;
            let (cut, end) = machine.client.read_last_cut_and_end(&task, 0).await;
            assert!(!end.complete, "{end:?}");
            if cut.is_some_and(|cut| cut.length_unknown) {
                return end;
            }
        }
    })
    .await;
    // Also for who begins behind the cut.
    let (_, again) = machine
        .client
        .read_last_cut_and_end(&task, end.offset)
        .await;
    assert!(!again.complete, "{again:?}");
    let shown = machine.client.get(&task).await.attempts[0].output;
    let shown = shown.expect("a view of the output");
    assert!(shown.ends_open && shown.cut_bytes == 0, "{shown:?}");
    assert_eq!(shown.bytes + 1, end.offset, "the cut's own byte is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_shim_under_a_living_daemon_is_ended_in_time() {
    let machine = DaemonCrashFixture::start().await;
    let arguments = ["print", "1", "grandchild", "ignore-term", "pause"];
    let spec = TaskSpec {
        lease_ttl_ms: Some(5_000),
        ..command_task(STANDIN, &arguments, "stopped-shim")
    };
    let (task, attempt) = machine.submit_until_running(spec, "stopped-shim").await;
    let mut watch = machine.client.watch(&task).await;
    send_signal(
        attempt_shim(&attempt).expect("a shim runs").pid,
        Signal::STOP,
    );
    let stopped = boottime();
    let gone = poll_until("all to be dead", || {
        attempt_processes(&attempt).is_empty().then(boottime)
    });
    let (gone, end) = tokio::join!(gone, watch.wait_for_kind(TaskEventKind::Ended));
    let took = gone - stopped;
    // The last renewal was granted with half of the shim's lease left, and the shim itself has two seconds more.
    let most = SHORT_LEASE + SHORT_LEASE / 2 + Duration::from_secs(2) + DETECTION_DELAY * 2;
    assert!(took < most, "dead only after {took:?}");
    assert_eq!(end.state(), AttemptState::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn stuck_shims_delay_nobody_else_and_go_on_when_they_answer_again() {
    let mut machine = DaemonCrashFixture::start().await;
    let go_on = machine.dir.path().join("go-on");
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.02; done; echo finished",
        go_on.display()
    );
    let shell = |mark: &str| command_task("sh", &["-c", &script], mark);
    let (mut stuck_tasks, mut shims) = (Vec::new(), Vec::new());
    for mark in ["stuck-0", "stuck-1", "stuck-2"] {
        let (task, attempt) = machine.submit_until_running(shell(mark), mark).await;
        stuck_tasks.push(task);
        shims.push(attempt_shim(&attempt).expect("a shim runs").pid);
    }
    let (other_task, _) = machine.submit_until_running(shell("other"), "other").await;
    shims
        .iter()
        .for_each(|shim| send_signal(*shim, Signal::STOP));
    machine.daemon.kill().await;
    std::fs::write(&go_on, "").unwrap();
    let killed = boottime();
    machine.restart_daemon().await;
    machine
        .client
        .wait_for_state(&other_task, TaskState::Completed)
        .await;
    let took = boottime() - killed;
    println!(
        "{} stuck shims; the other attempt was over after {took:?}",
        shims.len()
    );
    assert!(
        took < ADOPTION_LIMIT,
        "each of them was waited for: {took:?}"
    );
    for task in &stuck_tasks {
        let waiting = machine.client.get(task).await;
        assert_eq!(
            waiting.state(),
            TaskState::Running,
            "the other one ended first"
        );
    }
    shims
        .iter()
        .for_each(|shim| send_signal(*shim, Signal::CONT));
    for task in stuck_tasks.iter().chain([&other_task]) {
        machine
            .client
            .wait_for_state(task, TaskState::Completed)
            .await;
        assert_eq!(machine.client.get(task).await.attempts.len(), 1);
        assert_eq!(
            machine.client.read_output_to_end(task).await,
            b"begun\nfinished\n"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_stays_stuck_is_ended_with_all_it_started_before_a_successor_runs() {
    let mut machine = DaemonCrashFixture::start().await;
    let runs = machine.dir.path().join("runs");
    let runs_text = runs.display().to_string();
    let arguments = ["count", &runs_text, "grandchild", "ignore-term", "pause"];
    let spec = with_retry_on_loss(command_task(STANDIN, &arguments, "frozen"), SHORT_LEASE);
    let (task, first) = machine.submit_until_running(spec, "frozen").await;
    poll_until("the grandchild to run", || {
        (marked_processes("frozen").len() == 2).then_some(())
    })
    .await;
    send_signal(attempt_shim(&first).expect("a shim runs").pid, Signal::STOP);
    machine.kill_and_restart_daemon().await;
    assert_eq!(attempt_processes(&first).len(), 3, "its lease is not over");
    poll_until("the successor to run", || {
        let ran = std::fs::read_to_string(&runs).unwrap_or_default();
        (ran.lines().count() == 2).then_some(())
    })
    .await;
    assert!(
        attempt_processes(&first).is_empty(),
        "the successor began too early"
    );
    machine.client.cancel(&task).await;
    wait_until_marked_gone("frozen").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_boot_id_frees_the_machines_tasks_at_once() {
    let mut machine = DaemonCrashFixture::start().await;
    let dir = machine.dir.path().display().to_string();
    let (mut tasks, mut firsts) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let mark = format!("booted-{number}");
        let script =
            format!("echo x >> {dir}/runs; mkdir {dir}/{mark} 2>/dev/null || exit 0; sleep 600");
        // Far longer than anybody waits here.
        let lease = Duration::from_secs(3_600);
        let spec = with_retry_on_loss(command_task("sh", &["-c", &script], &mark), lease);
        let (task, attempt) = machine.submit_until_running(spec, &mark).await;
        let at_work = machine.dir.path().join(&mark);
        poll_until("the child to be at work", || at_work.exists().then_some(())).await;
        tasks.push(task);
        firsts.push(attempt);
    }
    // The machine goes down: daemon, shims and children at one stroke.
    machine.daemon.kill().await;
    for process in firsts.iter().flat_map(|first| attempt_processes(first)) {
        let pid = Pid::from_raw(process.pid.cast_signed()).expect("a process has a number");
        // The child dies with its shim and may be gone by now.
        let _ = kill_process(pid, Signal::KILL);
    }
    poll_until("all to be gone", || {
        let left = firsts.iter().map(|first| attempt_processes(first).len());
        (left.sum::<usize>() == 0).then_some(())
    })
    .await;
    machine.boot.change_boot_id();
    let booted = boottime();
    machine.restart_daemon().await;
    for task in &tasks {
        machine
            .client
            .wait_for_state(task, TaskState::Completed)
            .await;
        let done = machine.client.get(task).await;
        assert_eq!(done.attempts.len(), 2, "{done:#?}");
        assert_eq!(done.attempts[0].state(), AttemptState::Lost);
    }
    let took = boottime() - booted;
    println!(
        "{} tasks had run again {took:?} after the boot, under leases of an hour",
        tasks.len()
    );
    let runs = std::fs::read_to_string(machine.dir.path().join("runs")).unwrap();
    assert_eq!(runs.lines().count(), 2 * tasks.len());
}
