//! Children that resist termination. After a cancel or after their end no process of them is
//! left.

use std::time::Duration;

use baton_proto::v1::{DeadlineProfile, TaskSpec, TaskState, Termination};
use baton_tests::{
    EmbeddedRelay, MARKER_VARIABLE, TestClient, command_task, join_all, marked_processes,
    poll_until, wait_until_marked_gone,
};
use rustix::time::{ClockId, clock_gettime};

use crate::STANDIN;

const CLEANUP_TERM_MS: u64 = 400;

fn stubborn_task(arguments: &[&str], mark: &str, prompt: &str) -> TaskSpec {
    TaskSpec {
        prompt: prompt.to_owned(),
        profile: Some(DeadlineProfile {
            cleanup_term_ms: Some(CLEANUP_TERM_MS),
            ..DeadlineProfile::default()
        }),
        ..command_task(STANDIN, arguments, mark)
    }
}

fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Cancels the task once `processes` are alive and returns the time until all were gone.
async fn measure_cancel(
    client: &TestClient,
    spec: TaskSpec,
    mark: &str,
    processes: usize,
) -> Duration {
    let task = client.submit(spec).await;
    poll_until(&format!("{mark} to have {processes} processes"), || {
        (marked_processes(mark).len() >= processes).then_some(())
    })
    .await;
    let canceled_at = boottime();
    client.cancel(&task.task_id).await;
    wait_until_marked_gone(mark).await;
    let took = boottime().saturating_sub(canceled_at);
    client
        .wait_for_state(&task.task_id, TaskState::Canceled)
        .await;
    let canceled = client.get(&task.task_id).await;
    assert_eq!(
        canceled.attempts[0].termination(),
        Termination::Confirmed,
        "{mark}"
    );
    assert!(
        marked_processes(mark).is_empty(),
        "{mark} has processes again"
    );
    took
}

/// Allowance for a loaded machine. The timing tests check the promised time itself.
const LOADED_MACHINE_ALLOWANCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn no_resisting_process_survives_its_attempt() {
    let relay = EmbeddedRelay::start().await;
    let _daemon = relay.start_daemon().await;
    let client = relay.admin();
    let prompt = "x".repeat(512 * 1024);
    let cases = [
        ("ignores-term", vec!["ignore-term", "pause"], "", 1),
        ("setsid-grandchild", vec!["grandchild", "pause"], "", 2),
        (
            "orphan-ignores-term",
            vec!["orphan", "print", "1", "pause"],
            "",
            2,
        ),
        (
            "holds-stdout",
            vec!["print", "1", "grandchild", "ignore-term", "pause"],
            "",
            2,
        ),
        ("never-reads-stdin", vec!["pause"], prompt.as_str(), 1),
    ];
    let running = cases.iter().map(|(mark, arguments, prompt, processes)| {
        measure_cancel(
            client,
            stubborn_task(arguments, mark, prompt),
            mark,
            *processes,
        )
    });
    let promised = Duration::from_millis(CLEANUP_TERM_MS) + Duration::from_secs(1);
    for (took, (mark, ..)) in join_all(running).await.into_iter().zip(&cases) {
        println!("{mark}: gone {} ms after the cancel", took.as_millis());
        assert!(
            took < promised + LOADED_MACHINE_ALLOWANCE,
            "{mark} took {took:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grandchild_holding_stdout_is_killed_when_its_parent_completes() {
    let relay = EmbeddedRelay::start().await;
    let _daemon = relay.start_daemon().await;
    let client = relay.admin();
    let task = client
        .submit(command_task(STANDIN, &["print", "2", "grandchild"], "left"))
        .await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    wait_until_marked_gone("left").await;
    assert_eq!(
        client.read_output_to_end(&task.task_id).await,
        b"line 1\nline 2\n"
    );
    let done = client.get(&task.task_id).await;
    let receipt = done.attempts[0]
        .receipt
        .clone()
        .expect("the end is confirmed by a receipt");
    let swept = "swept 1 beyond the group";
    assert!(receipt.cleanup.contains(swept), "{receipt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_child_sees_an_allow_listed_environment_and_no_credential() {
    let relay = EmbeddedRelay::start().await;
    let _daemon = relay.start_daemon().await;
    let client = relay.admin();
    let mut spec = command_task(STANDIN, &["env"], "env");
    spec.env
        .insert("BATON_ATTEMPT_ID".to_owned(), "forged".to_owned());
    let task = client.submit(spec).await;
    let output = String::from_utf8(client.read_output_to_end(&task.task_id).await).unwrap();
    let done = client.get(&task.task_id).await;
    let attempt = &done.attempts[0];
    let has_line = |line: &str| output.lines().any(|seen| seen == line);
    assert!(
        has_line(&format!("{MARKER_VARIABLE}=env-{}", std::process::id())),
        "{output}"
    );
    assert!(
        has_line(&format!("BATON_ATTEMPT_ID={}", attempt.attempt_id)),
        "{output}"
    );
    let parent = output
        .lines()
        .find_map(|line| line.strip_prefix("TRACEPARENT="))
        .unwrap_or("");
    assert_eq!(
        parent, attempt.traceparent,
        "the child continues the attempt's trace"
    );
    assert!(!output.contains("btn_"), "{output}");
    assert!(
        !output.contains("CARGO"),
        "a variable of the daemon's environment leaked: {output}"
    );
}
