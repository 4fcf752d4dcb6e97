//! Attempts with children that do not behave: whatever a child does, the attempt ends in time,
//! with all of its output and with no process left.

use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    AttemptRef, Cancel, CancelReason, DeadlineProfile, Dispatch, LifecyclePhase,
    TerminationReceipt, TimerKind, attempt_command,
};

use crate::fake_relay::{FakeRelay, FakeRelaySession, attempt, shell};
use crate::test_daemon::{LinkTestDaemon, pids_of_attempt, wait_until_gone};

/// What a stop may take beyond the grace on a busy machine; the timing tests are stricter.
const MARGIN: Duration = Duration::from_secs(5);
const TERM: Duration = Duration::from_millis(300);

fn patient(script: &str) -> Dispatch {
    Dispatch {
        default_cleanup_term_ms: 300,
        ..shell(script)
    }
}

/// Cancels, and returns the time until the terminal frame and the receipt in it.
async fn cancel(
    session: &mut FakeRelaySession,
    attempt: &AttemptRef,
) -> (Duration, TerminationReceipt) {
    let clock = Clock::boot();
    let from = clock.now();
    let cancel = Cancel {
        reason: CancelReason::User.into(),
        grace_ms: 300,
        ..Cancel::default()
    };
    session
        .command(attempt, attempt_command::Body::Cancel(cancel))
        .await;
    let last = session.until_terminal().await;
    let took = from.until(clock.now());
    let Some(Body::Canceled(canceled)) = last.body else {
        panic!("{last:?}")
    };
    (
        took,
        canceled.receipt.expect("a terminal frame has a receipt"),
    )
}

#[tokio::test]
async fn a_child_that_ignores_term_is_killed_after_the_grace() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
    session.run(&attempt, patient(script)).await;
    session.until_output().await;
    let (took, receipt) = cancel(&mut session, &attempt).await;
    assert!(took >= TERM && took < TERM + MARGIN, "{took:?}");
    assert_eq!(receipt.signal, Some(9));
    assert!(receipt.group_empty && receipt.killed);
    wait_until_gone(&attempt).await;
}

#[tokio::test]
async fn a_child_that_obeys_term_ends_at_once() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session
        .run(&attempt, patient("echo ready; exec sleep 600"))
        .await;
    session.until_output().await;
    let (_, receipt) = cancel(&mut session, &attempt).await;
    assert_eq!(receipt.signal, Some(15));
    assert!(receipt.group_empty && !receipt.killed);
}

#[tokio::test]
async fn grandchildren_that_left_the_group_are_swept_too() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    // One leaves by setsid and a double fork, and ignores TERM; one keeps stdout open.
    let script = "(setsid sh -c \"trap '' TERM; echo hidden; while :; do sleep 1; done\" &) ; \
                  sleep 600 & wait";
    session.run(&attempt, patient(script)).await;
    session.until_output().await;
    assert!(
        pids_of_attempt(&attempt).len() >= 4,
        "shim, child, sleeper, escapee"
    );
    let (took, receipt) = cancel(&mut session, &attempt).await;
    assert!(took < TERM + MARGIN, "{took:?}");
    assert!(receipt.group_empty && receipt.swept_processes >= 1);
    wait_until_gone(&attempt).await;
}

#[tokio::test]
async fn leftovers_of_a_finished_child_do_not_outlive_it() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session
        .run(
            &attempt,
            patient("(setsid sleep 600 &); sleep 600 & echo hi"),
        )
        .await;
    let last = session.until_terminal().await;
    let Some(Body::Complete(complete)) = last.body else {
        panic!("{last:?}")
    };
    assert_eq!(session.output(), b"hi\n");
    assert!(
        complete
            .receipt
            .expect("a terminal frame has a receipt")
            .group_empty
    );
    wait_until_gone(&attempt).await;
}

#[tokio::test]
async fn a_prompt_of_a_mebibyte_that_is_not_read_does_no_harm() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let with_prompt = |script: &str| Dispatch {
        prompt: "p".repeat(1 << 20),
        ..patient(script)
    };
    let idle = attempt();
    session
        .run(&idle, with_prompt("echo ready; sleep 600"))
        .await;
    session.until_output().await;
    assert!(!session.phases().contains(&LifecyclePhase::PromptWritten));
    let (took, _) = cancel(&mut session, &idle).await;
    assert!(took < TERM + MARGIN, "{took:?}");
    let quick = attempt();
    session.run(&quick, with_prompt("exit 0")).await;
    let last = session.until_terminal().await;
    assert!(matches!(last.body, Some(Body::Complete(_))), "{last:?}");
    let late = attempt();
    let mut dispatch = with_prompt("sleep 600");
    dispatch.profile = Some(DeadlineProfile {
        prompt_write_ms: Some(300),
        ..DeadlineProfile::default()
    });
    session.run(&late, dispatch).await;
    let Some(Body::Error(error)) = session.until_terminal().await.body else {
        panic!("not an error")
    };
    assert_eq!(error.timer(), TimerKind::PromptWrite);
    for attempt in [&idle, &quick, &late] {
        wait_until_gone(attempt).await;
    }
}

#[tokio::test]
async fn ten_megabytes_in_one_line_arrive_in_chunks_of_64_kib() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let script = "head -c 10000000 /dev/zero | tr '\\0' x; printf '\\377\\000'";
    session.run(&attempt, patient(script)).await;
    let last = session.until_terminal_acking(&attempt).await;
    assert!(matches!(last.body, Some(Body::Complete(_))), "{last:?}");
    let output = session.output();
    assert_eq!(output.len(), 10_000_002);
    assert!(output[..10_000_000].iter().all(|byte| *byte == b'x'));
    assert_eq!(output[10_000_000..], [0xff, 0]);
    assert!(session.largest_chunk() <= 64 * 1024);
}

#[tokio::test]
async fn a_child_paused_for_a_slow_relay_misses_no_deadline() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let mut dispatch = patient("head -c 40000000 /dev/zero");
    dispatch.profile = Some(DeadlineProfile {
        stream_idle_ms: Some(300),
        ..DeadlineProfile::default()
    });
    session.run(&attempt, dispatch).await;
    // Nothing is acknowledged: after about half of the outbox's limit the child is paused.
    while session.output_bytes() < 7 * 1024 * 1024 {
        session.next_attempt_frame().await;
    }
    session.heartbeats.clear();
    while session.heartbeats.len() < 3 {
        session.next_frame().await.expect("the stream is open");
    }
    assert_eq!(
        session.terminal_count(),
        0,
        "a paused child must not miss a deadline"
    );
    let last = session.until_terminal_acking(&attempt).await;
    let Some(Body::Complete(complete)) = &last.body else {
        panic!("{last:?}")
    };
    assert_eq!(complete.final_offset, 40_000_000);
    assert_eq!(session.output_bytes(), 40_000_000);
}

#[tokio::test]
async fn many_short_attempts_leave_neither_process_nor_shim() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start_with(&relay.url, |config| config.slots = 8);
    let mut session = relay.welcome().await;
    let mut all = Vec::new();
    for _ in 0..20 {
        let attempt = attempt();
        session
            .run(&attempt, patient("(setsid true &); true & echo x"))
            .await;
        let last = session.until_terminal().await;
        let Some(Body::Complete(complete)) = last.body else {
            panic!("{last:?}")
        };
        session
            .ack(&attempt, last.control_seq, complete.final_offset)
            .await;
        all.push(attempt);
    }
    for attempt in &all {
        wait_until_gone(attempt).await;
    }
}
