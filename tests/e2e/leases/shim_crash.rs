//! Shims that are killed or stopped: their processes are dead before a successor runs, their
//! output is never reported as complete, and a stuck shim delays only its own attempt.

use std::time::Duration;

use baton_proto::v1::{AttemptState, TaskEventKind, TaskSpec, TaskState, Termination};
use baton_tests::{
    attempt_processes, attempt_shim, boottime, command_task, marked_processes, poll_until,
    send_signal, task_until_file, wait_within,
};
use rustix::process::Signal;

use super::daemon_crash::{DETECTION_DELAY, DaemonCrashFixture, SHORT_LEASE, wait_for_lines};
use crate::STANDIN;

/// A new daemon waits two seconds for all shims of the old one together. The rest of this limit
/// allows for a busy machine.
const ADOPTION_LIMIT: Duration = Duration::from_secs(5);

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
        attempt_shim(&attempt).expect("the shim runs").pid,
        Signal::KILL,
    );
    let mut watch = machine.client.watch(&task).await;
    let end = watch.wait_for_kind(TaskEventKind::Ended).await;
    assert!(
        attempt_processes(&attempt).is_empty(),
        "no process is left when the attempt ends"
    );
    assert_eq!(end.state(), AttemptState::Lost);
    let lost = machine.client.get(&task).await;
    assert_eq!(lost.attempts[0].termination(), Termination::Confirmed);
    // The relay cannot know how the attempt ended, so the task is parked. The daemon keeps
    // working.
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
async fn the_output_of_a_killed_shim_is_not_reported_complete() {
    let machine = DaemonCrashFixture::start().await;
    let script = "while :; do echo line; sleep 0.02; done";
    let (task, attempt) = machine
        .submit_until_running(
            command_task("sh", &["-c", script], "cut-short"),
            "cut-short",
        )
        .await;
    wait_for_lines(&machine.client, &task, 1).await;
    let shim = attempt_shim(&attempt).expect("the shim runs").pid;
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
    // A read that starts behind the cut is not complete either.
    let (_, again) = machine
        .client
        .read_last_cut_and_end(&task, end.offset)
        .await;
    assert!(!again.complete, "{again:?}");
    let shown = machine.client.get(&task).await.attempts[0].output;
    let shown = shown.expect("a view of the output");
    assert!(shown.ends_open && shown.cut_bytes == 0, "{shown:?}");
    assert_eq!(
        shown.bytes + 1,
        end.offset,
        "the cut's placeholder byte is not counted as output"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_shim_is_killed_in_time_by_its_daemon() {
    let machine = DaemonCrashFixture::start().await;
    let arguments = ["print", "1", "grandchild", "ignore-term", "pause"];
    let spec = TaskSpec {
        lease_ttl_ms: Some(5_000),
        ..command_task(STANDIN, &arguments, "stopped-shim")
    };
    let (task, attempt) = machine.submit_until_running(spec, "stopped-shim").await;
    let mut watch = machine.client.watch(&task).await;
    send_signal(
        attempt_shim(&attempt).expect("the shim runs").pid,
        Signal::STOP,
    );
    let stopped = boottime();
    let gone = poll_until("all processes to be dead", || {
        attempt_processes(&attempt).is_empty().then(boottime)
    });
    let (gone, end) = tokio::join!(gone, watch.wait_for_kind(TaskEventKind::Ended));
    let took = gone - stopped;
    // The last renewal was granted with half of the shim's lease left, and the daemon waits two
    // more seconds for the shim itself.
    let limit = SHORT_LEASE + SHORT_LEASE / 2 + Duration::from_secs(2) + DETECTION_DELAY * 2;
    assert!(took < limit, "processes lived for {took:?}");
    assert_eq!(end.state(), AttemptState::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn stuck_shims_delay_no_other_attempt_and_continue_when_they_respond() {
    let mut machine = DaemonCrashFixture::start().await;
    let go_on = machine.dir.path().join("go-on");
    let shell = |mark: &str| task_until_file(&go_on, mark);
    let (mut stuck_tasks, mut shims) = (Vec::new(), Vec::new());
    for mark in ["stuck-0", "stuck-1", "stuck-2"] {
        let (task, attempt) = machine.submit_until_running(shell(mark), mark).await;
        stuck_tasks.push(task);
        shims.push(attempt_shim(&attempt).expect("the shim runs").pid);
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
        "{} stuck shims; the other attempt ended after {took:?}",
        shims.len()
    );
    assert!(
        took < ADOPTION_LIMIT,
        "the daemon waited for the stuck shims one by one: {took:?}"
    );
    for task in &stuck_tasks {
        let waiting = machine.client.get(task).await;
        assert_eq!(
            waiting.state(),
            TaskState::Running,
            "a stuck attempt ended before its shim continued"
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
