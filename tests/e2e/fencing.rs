//! Two attempts of one task never run at the same time.

use baton_proto::v1::{AttemptState, RetryPolicy, TaskEventKind, TaskSpec, WhenUnsafe};
use baton_tests::{RealDaemon, Relay, Tap, command, marked, marked_gone, poll_until, recorded_ms};

use crate::STANDIN;

const MARK: &str = "fenced";

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_off_worker_has_stopped_its_child_before_a_successor_starts() {
    let relay = Relay::start().await;
    let client = relay.admin();
    let tap = Tap::start(relay.url()).await;
    let mut cut_off = RealDaemon::start(&tap.url(), &relay.daemon_token().await).await;
    let dir = tempfile::tempdir().unwrap();
    let (runs, stopped) = (dir.path().join("runs"), dir.path().join("stopped"));
    let [runs_text, stopped_text] = [&runs, &stopped].map(|path| path.display().to_string());
    let arguments = ["count", &runs_text, "note-term", &stopped_text, "pause"];
    let task = client
        .submit(TaskSpec {
            lease_ttl_ms: Some(5_000),
            retry: Some(RetryPolicy {
                when_unsafe: WhenUnsafe::Retry.into(),
                backoff_initial_ms: Some(10),
                ..RetryPolicy::default()
            }),
            ..command(STANDIN, &arguments, MARK)
        })
        .await;
    let mut watch = client.watch(&task.task_id).await;
    watch
        .until("the child to run", |event| {
            event.state() == AttemptState::Streaming
        })
        .await;
    let first = marked(MARK);
    tap.cut();
    cut_off
        .until("the daemon to notice", |status| !status.connected)
        .await;
    let _other = relay.real_daemon().await;

    let lost = watch.until_kind(TaskEventKind::Ended).await;
    assert_eq!(
        (lost.state(), lost.failure_code.as_str()),
        (AttemptState::Lost, "lease_expired")
    );
    let stopped =
        std::fs::read_to_string(&stopped).expect("the worker stopped its child by itself");
    let stopped: u64 = stopped.trim().parse().unwrap();
    assert!(
        stopped < recorded_ms(&lost),
        "and did so before the relay gave the attempt up"
    );
    let ran = poll_until("the successor to run", || {
        let lines = std::fs::read_to_string(&runs).unwrap_or_default();
        (lines.lines().count() == 2).then_some(lines)
    })
    .await;
    let left = marked(MARK)
        .into_iter()
        .filter(|process| first.contains(process))
        .count();
    assert_eq!(
        left, 0,
        "nothing of the first attempt is left when the second one runs"
    );
    let attempts = client.get(&task.task_id).await.attempts;
    let ids: Vec<&str> = attempts
        .iter()
        .map(|attempt| attempt.attempt_id.as_str())
        .collect();
    assert_eq!(ran.lines().collect::<Vec<_>>(), ids);
    client.cancel(&task.task_id).await;
    marked_gone(MARK).await;
}
