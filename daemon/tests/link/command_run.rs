//! From the dispatch to the end of a command: phases, output, failures, refusals.

use std::time::Duration;

use baton_daemon::{BootTime, Clock, DaemonError, LinkError};
use baton_proto::MAX_WIRE_BYTES;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    AttemptFrame, DeadlineProfile, LeaseConfirmed, LifecyclePhase, OutputKind, RejectCode,
    TimerKind, attempt_command,
};

use crate::fake_relay::{FakeRelay, attempt, shell};
use crate::test_daemon::LinkTestDaemon;

#[tokio::test]
async fn a_command_runs_after_its_lease_is_confirmed() {
    let mut relay = FakeRelay::start().await;
    let mut daemon = LinkTestDaemon::start(&relay.url);
    let (mut session, hello) = relay.accept().await;
    assert!(hello.daemon_id.is_empty() && hello.active.is_empty());
    assert!(!hello.instance_id.is_empty() && !hello.boot_id.is_empty());
    assert_eq!((hello.slots, hello.name.as_str()), (2, "worker"));
    assert_eq!(hello.agents[0].name, "command");
    session.welcome(Vec::new()).await;

    let attempt = attempt();
    session.run(&attempt, shell("echo out; echo err >&2")).await;
    let last = session.until_terminal().await;
    let Some(Body::Complete(complete)) = &last.body else {
        panic!("{last:?}")
    };
    let receipt = complete.receipt.as_ref().unwrap();
    assert_eq!(receipt.exit_code, Some(0));
    assert!(receipt.group_empty && receipt.process_started && last.within_lease);
    assert_eq!((complete.final_offset, session.output().len()), (8, 8));
    let kinds = session.kinds();
    assert!(kinds.contains(&OutputKind::Stderr) && kinds.contains(&OutputKind::Stdout));

    let names_it = |frame: &AttemptFrame| frame.r#ref.as_ref() == Some(&attempt);
    assert!(session.attempt_frames.iter().all(names_it));
    let numbers: Vec<u64> = session
        .control_after(0)
        .iter()
        .map(|(seq, _)| *seq)
        .collect();
    assert_eq!(numbers, (1..=last.control_seq).collect::<Vec<_>>());
    assert!(matches!(
        session.attempt_frames[1].body,
        Some(Body::Started(_))
    ));
    let mut phases = session.phases();
    phases.retain(|phase| *phase != LifecyclePhase::Streaming);
    let wanted = [
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstEventSeen,
        LifecyclePhase::FirstVisibleEventSeen,
        LifecyclePhase::CleanupStarted,
        LifecyclePhase::CleanupFinished,
    ];
    assert_eq!(phases, wanted);

    session
        .ack(&attempt, last.control_seq, complete.final_offset)
        .await;
    daemon
        .wait_for_status(|status| status.running == 0 && status.daemon_id == relay.daemon_id)
        .await;
    daemon.stop.cancel();
    session.until_closed().await;
    daemon.wait_for_end().await.unwrap();
}

#[tokio::test]
async fn a_command_sees_its_prompt_and_an_environment_of_allowed_names() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let mut dispatch = shell("cat; env");
    dispatch.prompt = "hello\n".into();
    dispatch.env.insert("GREETING".into(), "world".into());
    session.run(&attempt, dispatch).await;
    session.until_terminal().await;
    let text = String::from_utf8(session.output()).unwrap();
    assert!(text.starts_with("hello\n"), "{text}");
    let traceparent = format!("TRACEPARENT={}\n", attempt.traceparent);
    let marker = format!("BATON_ATTEMPT_ID={}\n", attempt.attempt_id);
    for wanted in ["GREETING=world\n", "PATH=", &traceparent, &marker] {
        assert!(text.contains(wanted), "{wanted} is missing in {text}");
    }
    // cargo sets many variables for the test; the child must get none of them.
    assert!(!text.contains("CARGO"), "{text}");
}

#[tokio::test]
async fn a_failure_has_its_code_its_exit_and_the_tail_of_stderr() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let failing = attempt();
    session
        .run(
            &failing,
            shell("echo bad btn_0123456789abcdef0123 >&2; exit 7"),
        )
        .await;
    let Some(Body::Error(error)) = session.until_terminal().await.body else {
        panic!()
    };
    assert_eq!(error.failure_code, "agent_exit");
    assert_eq!(error.receipt.unwrap().exit_code, Some(7));
    assert_eq!(error.stderr_tail, "bad btn_[redacted]\n");
    let missing = attempt();
    let mut dispatch = shell("");
    dispatch.command.as_mut().unwrap().argv = vec!["/no/such/program".into()];
    session.run(&missing, dispatch).await;
    let Some(Body::Error(error)) = session.until_terminal().await.body else {
        panic!()
    };
    assert_eq!(error.failure_code, "provider_missing");
    assert_eq!(error.receipt.unwrap().prompt_written, Some(false));
    let lost = attempt();
    let mut dispatch = shell("true");
    dispatch.cwd = "no/such/place".into();
    session.run(&lost, dispatch).await;
    let Some(Body::Error(error)) = session.until_terminal().await.body else {
        panic!()
    };
    assert_eq!(error.failure_code, "bad_cwd");
    let silent = attempt();
    let mut dispatch = shell("echo once; sleep 600");
    dispatch.profile = Some(DeadlineProfile {
        stream_idle_ms: Some(200),
        ..Default::default()
    });
    session.run(&silent, dispatch).await;
    let Some(Body::Error(error)) = session.until_terminal().await.body else {
        panic!()
    };
    assert_eq!(
        (error.failure_code.as_str(), error.timer()),
        ("stream_idle_timeout", TimerKind::StreamIdle)
    );
    // The relay knows the deadline from when the attempt is being ended, even if no terminal
    // frame follows.
    let reported = session.control_after(0);
    let passed = reported.iter().filter_map(|(_, body)| match body {
        Some(Body::Lifecycle(reported)) if reported.phase() == LifecyclePhase::CleanupStarted => {
            Some(reported.deadline())
        }
        _ => None,
    });
    assert_eq!(passed.last(), Some(TimerKind::StreamIdle));
}

#[tokio::test]
async fn without_a_confirmation_there_is_no_process() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let dir = tempfile::tempdir().unwrap();
    let proof = dir.path().join("ran");
    let mut dispatch = shell(&format!("touch {}", proof.display()));
    dispatch.accept_ms = 200;
    session.dispatch(&attempt, dispatch.clone()).await;
    let frame = session.next_attempt_frame().await;
    assert!(matches!(frame.body, Some(Body::Accepted(_))));
    // The same dispatch again gets the same answer.
    session.dispatch(&attempt, dispatch).await;
    assert!(matches!(
        session.next_attempt_frame().await.body,
        Some(Body::Accepted(_))
    ));
    let frame = session.next_attempt_frame().await;
    let Some(Body::Rejected(rejected)) = &frame.body else {
        panic!("{frame:?}")
    };
    assert_eq!(rejected.code(), RejectCode::NotConfirmed);
    session.ack(&attempt, frame.control_seq, 0).await;
    // A confirmation that comes too late starts nothing, and an old attempt is not accepted
    // again.
    session
        .command(
            &attempt,
            attempt_command::Body::LeaseConfirmed(Default::default()),
        )
        .await;
    session.dispatch(&attempt, shell("true")).await;
    let Some(Body::Rejected(rejected)) = session.next_attempt_frame().await.body else {
        panic!()
    };
    assert_eq!(rejected.code(), RejectCode::Duplicate);
    assert!(!proof.exists());
}

#[tokio::test]
async fn a_confirmation_that_comes_after_its_lease_has_ended_starts_nothing() {
    let mut relay = FakeRelay::start().await;
    let clock = Clock::manual(BootTime::from_millis(1_000));
    let _daemon = LinkTestDaemon::start_with(&relay.url, |config| config.clock = clock.clone());
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.dispatch(&attempt, shell("true")).await;
    let accepted = session.next_attempt_frame().await;
    assert!(matches!(accepted.body, Some(Body::Accepted(_))));
    // Within accept_ms, but longer than the lease.
    clock.advance(Duration::from_secs(5));
    let confirmed = LeaseConfirmed {
        granted_ms: 5_000,
        expires_at: None,
    };
    session
        .command(&attempt, attempt_command::Body::LeaseConfirmed(confirmed))
        .await;
    let frame = session.next_attempt_frame().await;
    let Some(Body::Rejected(rejected)) = &frame.body else {
        panic!("{frame:?}")
    };
    assert_eq!(rejected.code(), RejectCode::NotConfirmed);
}

#[tokio::test]
async fn the_largest_possible_dispatch_is_accepted() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let mut dispatch = shell("true");
    dispatch.prompt = "x".repeat(MAX_WIRE_BYTES - 1024);
    session.dispatch(&attempt(), dispatch).await;
    let frame = session.next_attempt_frame().await;
    assert!(matches!(frame.body, Some(Body::Accepted(_))), "{frame:?}");
}

#[tokio::test]
async fn unsuitable_dispatches_are_refused_with_a_reason() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let mut codes = Vec::new();
    let mut strange = shell("true");
    strange.agent = "oracle".into();
    let mut picky = shell("true");
    picky.options = Some(baton_proto::v1::AgentOptions {
        model: "big".into(),
        ..Default::default()
    });
    let mut empty = shell("true");
    empty.command = None;
    let mut tokenless = shell("true");
    tokenless.token = None;
    for dispatch in [strange, picky, empty, tokenless] {
        session.dispatch(&attempt(), dispatch).await;
        let Some(Body::Rejected(rejected)) = session.next_attempt_frame().await.body else {
            panic!()
        };
        codes.push(rejected.code());
    }
    for _ in 0..2 {
        session.run(&attempt(), shell("sleep 600")).await;
    }
    session.dispatch(&attempt(), shell("true")).await;
    let frame = session
        .until_frame(|body| matches!(body, Body::Rejected(_)))
        .await;
    let Some(Body::Rejected(rejected)) = frame.body else {
        panic!()
    };
    codes.push(rejected.code());
    assert_eq!(
        codes,
        [
            RejectCode::UnsupportedAgent,
            RejectCode::UnsupportedOption,
            RejectCode::Invalid,
            RejectCode::Invalid,
            RejectCode::AtCapacity,
        ]
    );
}

#[tokio::test]
async fn a_token_refused_at_the_start_ends_the_daemon() {
    let relay = FakeRelay::start().await;
    let daemon = LinkTestDaemon::start_with(&relay.url, |config| {
        std::fs::write(&config.token_file, "btn_other\n").unwrap();
    });
    let error = daemon.wait_for_end().await.unwrap_err();
    assert!(
        matches!(error, DaemonError::Link(LinkError::Refused { .. })),
        "{error}"
    );
}
