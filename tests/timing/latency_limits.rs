//! Time limits without a timer: how fast a cancel reaches its child, how long a process that
//! ignores TERM runs on, how fast a rejection is sent.

use std::path::Path;

use baton_proto::v1::{
    AttemptState, DeadlineProfile, DispatchPolicy, SubmitRequest, TaskEventKind, TaskSpec,
    TaskState,
};
use baton_tests::{
    EmbeddedRelay, TestClient, agent_task, command_task, marked_processes, poll_until, recorded_ms,
    wait_until_marked_gone,
};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crate::{STANDIN, widened_limit_ms};

const CANCEL_REACHES_CHILD_MS: u64 = 200;
const FAIL_FAST_MS: u64 = 100;
const CLEANUP_TERM_MS: u64 = 500;
const AFTER_CLEANUP_MS: u64 = 1_000;

pub(crate) fn spawn_cases(relay: &EmbeddedRelay, cases: &mut JoinSet<()>) {
    let client = relay.admin().clone();
    cases.spawn(cancel_reaches_a_running_child(client.clone()));
    cases.spawn(processes_ignoring_term_are_killed(client.clone()));
    cases.spawn(fail_fast_is_fast(client));
}

fn boottime_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// From the relay's record of the request to the child's record of the signal, both by this
/// machine's wall clock.
async fn cancel_reaches_a_running_child(client: TestClient) {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let signal_file = dir.path().join("term");
    let spec = command_task(
        STANDIN,
        &["note-term", &signal_file.display().to_string(), "pause"],
        "reached",
    );
    let task = client.submit(spec).await;
    let mut watch = client.watch(&task.task_id).await;
    watch
        .wait_for_event("output", |event| event.state() == AttemptState::Streaming)
        .await;
    client.cancel(&task.task_id).await;
    let requested = watch.wait_for_kind(TaskEventKind::CancelRequested).await;
    watch.wait_for_state(TaskState::Canceled).await;
    let took = read_ms(&signal_file).saturating_sub(recorded_ms(&requested));
    println!("cancel reached its child after {took} ms");
    assert!(
        took < widened_limit_ms(CANCEL_REACHES_CHILD_MS),
        "cancel took {took} ms to reach its child"
    );
}

fn read_ms(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).expect("the child recorded the signal");
    text.trim().parse().expect("the child recorded a time")
}

async fn processes_ignoring_term_are_killed(client: TestClient) {
    let spec = TaskSpec {
        profile: Some(DeadlineProfile {
            cleanup_term_ms: Some(CLEANUP_TERM_MS),
            ..DeadlineProfile::default()
        }),
        ..command_task(
            STANDIN,
            &["orphan", "grandchild", "ignore-term", "pause"],
            "stubborn",
        )
    };
    let task = client.submit(spec).await;
    poll_until("three processes that ignore TERM", || {
        (marked_processes("stubborn").len() >= 3).then_some(())
    })
    .await;
    let requested_at = boottime_ms();
    client.cancel(&task.task_id).await;
    wait_until_marked_gone("stubborn").await;
    let took = boottime_ms() - requested_at;
    println!("processes that ignore TERM had ended after {took} ms");
    assert!(
        took < widened_limit_ms(CLEANUP_TERM_MS + AFTER_CLEANUP_MS),
        "they ran for {took} ms"
    );
}

async fn fail_fast_is_fast(client: TestClient) {
    // The connection is made first; the limit is for the answer only.
    client.relay_info().await;
    let requested_at = boottime_ms();
    let refused = client
        .try_submit(SubmitRequest {
            spec: Some(TaskSpec {
                dispatch_policy: DispatchPolicy::FailFast.into(),
                ..agent_task("no-such-agent")
            }),
            ..SubmitRequest::default()
        })
        .await;
    let took = boottime_ms() - requested_at;
    let code = refused
        .map(|_| ())
        .expect_err("no daemon can take it")
        .code();
    assert_eq!(code, tonic::Code::Unavailable);
    println!("fail_fast was rejected after {took} ms");
    assert!(
        took < widened_limit_ms(FAIL_FAST_MS),
        "fail_fast took {took} ms"
    );
}
